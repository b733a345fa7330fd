"""Pictures of the page's views, of jobs in chosen situations: ``python tests/web/screenshots.py FOLDER [NAME …]``.

The documents show some of them (docs/screenshots). Real: the core, the monitor's application, the page and Chromium.
Emulated: the ranks and launchers, whose reports a scene makes; time, which stands still while a picture is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from monitor.core.scene import Scene
from rankwatch.contract.enums import ProcessEventKind
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.service import trend
from support.browser import installed_browser
from support.windows import DATA, EVERY, Ranks, slower
from web.scene_monitor import serving_scenes

SECONDS: Final = 900
"""That every job has lived for when the pictures are taken."""
SETTLED_MS: Final = 1500
"""Until the page has drawn what it reads after its first answer."""
TABS: Final = ("timeline", "kernels", "charts", "control")
SITUATIONS: Final = (
    *("llama-70b", "recorded", "suspected", "crashed", "failed", "lost"),
    *("silent-host", "recovered", "healthy", "finished", "slowed"),
)
DESK, PHONE = (1440, 900), (390, 844)
CRASH: Final = "RuntimeError: CUDA error: device-side assert triggered"


class View(NamedTuple):
    """One picture."""

    name: str
    address: str
    size: tuple[int, int] = DESK
    dark: bool = False
    whole: bool = False
    """The whole page instead of the first screen."""


def account(job: Job, now: float) -> None:
    """What the service does for a job every few seconds, apart from judging it."""
    goodput_accounting.account(job, now)
    trend.sample(job, job_view.job_state(job, now)[0], now)


def situation(job: str, seconds: int, fault: Callable[[Scene], object], **policy: object) -> Job:
    """A job of 16 ranks on two hosts to which something happened so many seconds ago."""
    scene = Scene(16, hosts=2, job_id=job, **policy)  # type: ignore[arg-type]
    for second in range(SECONDS):
        if second == SECONDS - seconds:
            fault(scene)
        scene.tick()
        if second % 5 == 0:
            account(scene.job, scene.now)
    return scene.job


def slowed(job: str) -> Job:
    """A job of 32 ranks of which one waits for its data since the middle of its life, and has a slower kernel."""
    ranks = Ranks(32, per_host=8, work=(0.002, 0.012, 0.13))
    ranks.job.id = ranks.job.name = job
    windows = int(SECONDS / EVERY)
    for window in range(windows):
        ranks.run(1, slower(5, DATA, 0.06) if window >= windows // 2 else None)
        if window % 6 == 5:
            ranks.kernels({5: 0.7} if window >= windows // 2 else {})
        account(ranks.job, ranks.now)
    return ranks.job


def jobs() -> Iterator[Job]:
    """One job for each situation."""

    def crash(scene: Scene) -> None:
        scene.die(5, exit_code=1, message=CRASH)

    def failed(scene: Scene) -> None:
        crash(scene)
        scene.run(3).finish(ProcessEventKind.FAILED, "the restarts are used up: rank 5 exited with code 1")

    yield situation("llama-70b", 13, lambda scene: scene.hang(13))
    yield situation("recorded", 60, lambda scene: scene.hang(13), on_hang="log")
    yield situation("suspected", 20, lambda scene: scene.hang(13), section_timeouts={}, reports_durations=True)
    yield situation("crashed", 8, crash)
    yield situation("failed", 200, failed)
    yield situation("lost", 400, lambda scene: scene.cut_host(0).cut_host(1))
    yield situation("silent-host", 25, lambda scene: scene.cut_host(1), on_hang="log")
    yield situation("recovered", 240, lambda scene: scene.hang(3))
    yield situation("healthy", 0, lambda scene: None)
    yield situation("finished", 120, lambda scene: scene.finish())
    yield slowed("slowed")


def views() -> Iterator[View]:
    """All pictures."""
    yield View("fleet", "#/")
    yield View("fleet-phone", "#/", PHONE)
    yield View("fleet-dark", "#/", dark=True)
    yield View("incident", "#/jobs/recorded")
    for job in SITUATIONS:
        yield View(job, f"#/jobs/{job}", whole=True)
    yield View("llama-70b-phone", "#/jobs/llama-70b", PHONE, whole=True)
    yield View("llama-70b-dark", "#/jobs/llama-70b", dark=True)
    for tab in TABS:
        yield View(f"slowed-{tab}", f"#/jobs/slowed?tab={tab}", whole=True)
    yield View("group", "#/jobs/slowed/groups/data/0", whole=True)
    yield View("node", "#/nodes/host-1", whole=True)
    yield View("past-incident", "#/jobs/recovered/incidents/FIRST", whole=True)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed_browser(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def take(browser: Browser, url: str, view: View, folder: Path) -> None:
    width, height = view.size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if view.dark else "light"
    )
    page = context.new_page()
    page.goto(url)
    # The jobs live in another year than this machine; the page follows from the first event of the stream.
    page.get_by_text("Live", exact=True).wait_for()
    page.wait_for_timeout(SETTLED_MS)
    page.evaluate("address => (location.hash = address)", view.address)
    page.wait_for_timeout(SETTLED_MS)
    page.screenshot(path=folder / f"{view.name}.png", full_page=view.whole)
    context.close()


def main() -> None:
    """Take the pictures."""
    folder, chosen = Path(sys.argv[1]), set(sys.argv[2:])
    folder.mkdir(parents=True, exist_ok=True)
    found = list(jobs())
    first = next(job for job in found if job.id == "recovered").incidents[0].id
    with serving_scenes(*found, now=found[0].created_at + SECONDS) as monitor, chromium() as browser:
        for view in views():
            if not chosen or view.name in chosen:
                take(browser, monitor.url, view._replace(address=view.address.replace("FIRST", first)), folder)
                sys.stdout.write(f"{view.name}\n")


if __name__ == "__main__":
    main()
