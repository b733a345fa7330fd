"""Pictures of the page's views, of jobs in chosen situations: ``python tests/web/screenshots.py FOLDER [NAME …]``.

The documents show some of them (docs/screenshots). Real: the core, the monitor's application, the page and Chromium.
Emulated: the ranks and launchers, whose reports a scene makes; time, which stands still while a picture is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).parents[1]))

from monitor.core.scene import LOGS, Scene
from rankwatch.contract.enums import ProcessEventKind
from rankwatch_monitor.core.job import Job
from support.browser import chromium
from support.windows import COMPUTE, DATA
from web import slow_scenes
from web.scene_monitor import serving_scenes
from web.slow_scenes import account

SECONDS: Final = 900
"""That every job has lived for when the pictures are taken."""
TABS: Final = ("timeline", "kernels", "charts", "control")
SITUATIONS: Final = (
    *("llama-70b", "recorded", "suspected", "crashed", "failed", "lost"),
    *("silent-host", "recovered", "healthy", "finished", "slowed", "throttled"),
)
DESK, PHONE = (1440, 900), (390, 844)
WATCHED: Final = """
(() => {
  window.pending = 0;
  window.changed = performance.now();
  const { fetch } = window;
  window.fetch = (...asked) => {
    window.pending++;
    return fetch(...asked).finally(() => (window.pending--, window.changed = performance.now()));
  };
  window.EventSource = class extends EventSource {
    constructor(...asked) {
      super(...asked);
      this.addEventListener("clock", () => (window.clocked = true));
    }
  };
  new MutationObserver(() => (window.changed = performance.now()))
    .observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
})()
"""
"""Runs before the page's own script: counts its open requests, keeps the time of the last change."""
COMPLETE: Final = """
() => window.clocked === true
  && window.pending === 0
  && performance.now() - window.changed > 400
  && document.fonts.status === "loaded"
  && document.querySelector(".loading") === null
  && [...document.querySelectorAll(".chart")].every((chart) => chart.querySelector("canvas"))
"""
"""The clock is the monitor's, nothing is read, charts are drawn, and nothing changes for longer than a debounce."""
OPENED: Final = """
address => new Promise((opened) => {
  if (location.hash === address || (address === "#/" && location.hash === "")) return opened();
  addEventListener("hashchange", () => requestAnimationFrame(opened), { once: true });
  location.hash = address;
})
"""
CRASH: Final = "RuntimeError: CUDA error: device-side assert triggered"


class View(NamedTuple):
    """One picture."""

    name: str
    address: str
    size: tuple[int, int] = DESK
    dark: bool = False
    whole: bool = False
    """The whole page instead of the first screen."""


def situation(job: str, seconds: int, fault: Callable[[Scene], object], **policy: object) -> Job:
    """A job of 16 ranks on two hosts to which something happened so many seconds ago."""
    facts = {"rank_logs": LOGS, "run_logs": f"{LOGS}/gpt_x7k2", "monitor": "http://monitor:8421"}
    facts |= {"scheduler": "slurm", "slurm_job_id": "4711", "slurm_node": "{host}"}
    scene = Scene(16, hosts=2, job_id=job, checkpoint=50, saves=True, facts=facts, **policy)  # type: ignore[arg-type]
    for node in scene.job.nodes.values():
        node.registration = replace(node.registration, min_nodes=1)  # --nnodes 1:2
    scene.job.performance._grow(16)
    scene.job.performance.layout.data_R[:16] = np.arange(16) // 8
    scene.job.performance.layout.tensor_R[:16] = np.arange(16) % 8
    for second in range(SECONDS):
        if second == SECONDS - seconds:
            fault(scene)
        scene.tick()
        account(scene.job, scene.now)
    return scene.job


def jobs() -> Iterator[Job]:
    """One job for each situation."""

    def crash(scene: Scene) -> None:
        scene.crash(5, CRASH)

    def live(scene: Scene, seconds: int) -> Scene:
        for _ in range(seconds):
            account(scene.run(1).job, scene.now)
        return scene

    def failed(scene: Scene) -> None:
        for attempt in range(2, 5):
            crash(scene)
            live(scene, 1).event(ProcessEventKind.RESTARTING, attempt=attempt)
            scene.launch(attempt=attempt)
            live(scene, 15)
        crash(scene)
        why = f"rank 5 on host-0 exited with code 1: {CRASH}; all 3 restarts are used up (--max-restarts)"
        live(scene, 3).finish(ProcessEventKind.FAILED, why)

    yield situation("llama-70b", 13, lambda scene: scene.hang(13))
    yield situation("recorded", 60, lambda scene: scene.hang(13), on_hang="log")
    yield situation("suspected", 20, lambda scene: scene.hang(13), section_timeouts={}, reports_durations=True)
    yield situation("crashed", 8, crash)
    yield situation("failed", 260, failed)
    yield situation("lost", 400, lambda scene: scene.cut_host(0).cut_host(1))
    yield situation("silent-host", 25, lambda scene: scene.cut_host(1), on_hang="log")
    yield situation("recovered", 240, lambda scene: scene.hang(3))
    yield slow_scenes.healthy("healthy", SECONDS)
    yield situation("finished", 120, lambda scene: scene.finish())
    yield slow_scenes.slow_input("slowed", SECONDS)
    yield slow_scenes.throttled("throttled", SECONDS)


def views() -> Iterator[View]:
    """All pictures."""
    yield View("fleet", "#/")
    yield View("fleet-whole", "#/", whole=True)
    yield View("fleet-phone", "#/", PHONE)
    yield View("fleet-dark", "#/", dark=True)
    yield View("incident", "#/jobs/recorded")
    for job in SITUATIONS:
        yield View(job, f"#/jobs/{job}", whole=True)
    yield View("llama-70b-phone", "#/jobs/llama-70b", PHONE, whole=True)
    yield View("llama-70b-dark", "#/jobs/llama-70b", dark=True)
    yield View("timeline", "#/jobs/slowed?tab=timeline")
    yield View("kernels", "#/jobs/throttled?tab=kernels")
    yield View("charts", "#/jobs/throttled?tab=charts")
    for tab in TABS:
        yield View(f"slowed-{tab}", f"#/jobs/slowed?tab={tab}", whole=True)
    for tab in TABS[:3]:
        yield View(f"throttled-{tab}", f"#/jobs/throttled?tab={tab}", whole=True)
        yield View(f"throttled-{tab}-phone", f"#/jobs/throttled?tab={tab}", PHONE, whole=True)
        yield View(f"throttled-{tab}-dark", f"#/jobs/throttled?tab={tab}", dark=True, whole=True)
    yield View("recovered-charts", "#/jobs/recovered?tab=charts", whole=True)
    yield View("failed-charts", "#/jobs/failed?tab=charts", whole=True)
    yield View("compared", "#/jobs/slowed?tab=charts&with=throttled", whole=True)
    yield View("compared-phone", "#/jobs/slowed?tab=charts&with=throttled", PHONE, whole=True)
    yield View("no-timeline", "#/jobs/recovered?tab=timeline", whole=True)
    yield View("control-phone", "#/jobs/slowed?tab=control", PHONE, whole=True)
    yield View("node", "#/nodes/host-1", whole=True)
    yield View("node-slow", "#/nodes/host-0", whole=True)
    yield View("node-phone", "#/nodes/host-1", PHONE, whole=True)
    yield View("past-incident", "#/jobs/recovered/incidents/FIRST", whole=True)


def watch(page: Page) -> None:
    """Let :func:`settle` see what the page reads; before it is opened."""
    page.add_init_script(WATCHED)


def settle(page: Page) -> None:
    """Wait until the page shows everything that it reads for the view."""
    page.wait_for_function(COMPLETE)


def take(browser: Browser, url: str, view: View, folder: Path) -> None:
    width, height = view.size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if view.dark else "light"
    )
    page = context.new_page()
    watch(page)
    page.goto(url)
    settle(page)
    page.evaluate(OPENED, view.address)
    settle(page)
    page.screenshot(path=folder / f"{view.name}.png", full_page=view.whole)
    context.close()


def main() -> None:
    """Take the pictures."""
    folder, chosen = Path(sys.argv[1]), set(sys.argv[2:])
    folder.mkdir(parents=True, exist_ok=True)
    found = list(jobs())
    first = next(job for job in found if job.id == "recovered").incidents[0].id
    by_id = {job.id: job for job in found}
    spans = [
        *slow_scenes.spans(by_id["slowed"], slow_scenes.LOADS, DATA),
        *slow_scenes.spans(by_id["throttled"], slow_scenes.HOT, COMPUTE),
    ]
    now = found[0].created_at + SECONDS
    with serving_scenes(*found, now=now, spans=spans) as monitor, chromium() as browser:
        for view in views():
            if not chosen or view.name in chosen:
                take(browser, monitor.url, view._replace(address=view.address.replace("FIRST", first)), folder)
                sys.stdout.write(f"{view.name}\n")


if __name__ == "__main__":
    main()
