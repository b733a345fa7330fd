"""Every part of the page by the rules of axe-core (WCAG 2.2 AA), in both themes, on a wide and a narrow screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import rankwatch_monitor.web
from rankwatch_monitor.web import static_folder
from web.scripted_monitor import Script
from web.scripted_rows import RESTART, advised
from web.staged import scripted_places
from web.test_page_sizes import scene

AXE = Path(rankwatch_monitor.web.__file__).parent / "source" / "node_modules" / "axe-core" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]

pytestmark = [
    pytest.mark.skipif(not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"),
    pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm ci in the page's source"),
]


def broken_rules(page: Page) -> list[str]:
    """Each rule that is broken, with what breaks it first."""
    found = page.evaluate("tags => axe.run({ runOnly: tags })", TAGS)
    return [
        f"{each['id']} ({len(each['nodes'])}): {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found["violations"]
    ]


@pytest.mark.parametrize(
    ("address", "ready"),
    [
        ("#/", ".jobs > li"),
        ("#/nodes/node-0", ".place table"),
        ("#/jobs/j", ".u-wrap"),
        ("#/jobs/j?tab=timeline", ".lanes .step"),
        ("#/jobs/j?tab=kernels", ".spark"),
        ("#/jobs/j?tab=charts", ".u-wrap"),
        ("#/jobs/j?tab=control", ".policy summary"),
    ],
)
def test_no_rule_is_broken(page: Page, monitor_url: str, script: Script, address: str, ready: str) -> None:
    scene(script, 64, "slow")
    incident = script.hang("j", 5, "Rank 5 on node-0 has been in section step for 14.2 s (limit 10 s).")
    incident |= {"headline": "Rank 5 has not entered all_reduce #7"}
    script.jobs["j"]["advice"] = advised("Restart the ranks", RESTART)
    scripted_places(script)
    for number in range(4):
        script.add(f"other-{number}", ["running"])
    page.goto(f"{monitor_url}/{address}")
    page.evaluate(AXE.read_text())
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("dark", "light"):
            page.emulate_media(color_scheme=theme)
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
            expect(page.locator(ready).first).to_be_visible()
            assert broken_rules(page) == [], (width, theme)
