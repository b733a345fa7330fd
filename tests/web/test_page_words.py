"""How many words each view shows before anything is opened; ``pytest -s`` prints them."""

from __future__ import annotations

from typing import Final

import pytest
from playwright.sync_api import Browser

from monitor.core.scene import LOGS, Scene
from monitor.core.views.test_node_verdict import slow
from rankwatch.contract.enums import ProcessEventKind
from rankwatch_monitor.web import static_folder
from web.scene_monitor import serving_scenes
from web.screenshots import settle, watch

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)

MOST: Final = {
    "healthy": 60, "hung": 105, "suspected": 90, "restarting": 105, "failed": 120, "lost": 100, "stopped": 40,
    "finished": 55, "slow": 65, "all jobs": 200, "node": 195,
}  # fmt: skip
"""Words of each view; before it was made calm: 196, 522, 544, 527, 531, 316, 150, 165, 368, 514, 938."""
SEEN: Final = (
    "document.querySelectorAll('select').forEach((each) => each.remove()),"
    "document.querySelectorAll('.figure small').forEach((label) => label.remove()),"
    "document.querySelector('main').innerText"
)
"""Of the options of a choice one is seen, and nothing of the names of figures, which are there for screen readers."""
ERROR: Final = "RuntimeError: CUDA error: device-side assert triggered"


def scenes() -> dict[str, Scene]:
    """A job in each state."""
    found = {name: Scene(8, hosts=2, job_id=name, on_hang="log").run(90) for name in MOST if " " not in name}
    found["hung"].hang(5).until_found()
    found["suspected"] = Scene(8, hosts=2, job_id="suspected", section_timeouts={}, confirmation_window=60.0).run(60)
    found["suspected"].hang(5).until(lambda: found["suspected"].job.open_incident is not None, within=400)
    found["restarting"] = Scene(8, hosts=2, job_id="restarting", on_hang="restart").run(90).hang(5).until_found()
    failed = found["failed"].crash(5, ERROR).run(2)
    failed.finish(ProcessEventKind.FAILED, f"rank 5 on host-1 exited with code 1: {ERROR}; no restart is left")
    found["lost"].cut_host(0).cut_host(1).run(200)
    found["stopped"].finish(ProcessEventKind.STOPPED, "stopped by an order of alice")
    found["finished"].finish()
    slow(found["slow"], 5, "host-1", "host-1/1")
    del found["node"]
    latest = max(scene.now for scene in found.values())
    for name, scene in found.items():
        if name in ("healthy", "slow", "hung"):
            scene.run(int(latest - scene.now))
        scene.now = latest
    assert LOGS is not None
    return found


def test_every_view_is_short(browser: Browser) -> None:
    known = scenes()
    counted: dict[str, int] = {}
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    watch(page)
    with serving_scenes(*(scene.job for scene in known.values()), now=known["hung"].now) as monitor:
        for name in MOST:
            address = {"all jobs": "", "node": "nodes/host-1"}.get(name, f"jobs/{name}")
            page.goto(f"{monitor.url}/#/{address}")
            page.locator("main :is(article, .fleet)").wait_for()
            settle(page)
            counted[name] = len(page.evaluate(SEEN).split())
    page.context.close()
    print("\n" + "\n".join(f"{name:<12}{words:>5} words" for name, words in counted.items()))  # noqa: T201
    assert {name: words for name, words in counted.items() if words > MOST[name]} == {}
