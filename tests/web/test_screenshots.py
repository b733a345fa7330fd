"""The script that makes pictures of the page waits until it is complete."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from rankwatch_monitor.web import static_folder
from support.waiting import wait_for
from web.scene_monitor import serving_scenes
from web.screenshots import DESK, SECONDS, SITUATIONS, jobs, settle, watch
from web.scripted_monitor import Script

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)

LATE = """
(() => {
  const { fetch } = window;
  const released = new Promise((release) => setTimeout(release, 2500));
  window.fetch = async (...asked) => {
    if (String(asked[0]).includes("/sparklines")) await released;
    return fetch(...asked);
  };
})()
"""
"""The network of the page, on which one answer takes longer than any fixed time that was waited for before."""


CUT_OFF = """
() => [...document.querySelectorAll(".scroll")]
  .filter((each) => each.scrollWidth > each.clientWidth)
  .map((each) => each.getAttribute("aria-label"))
"""


def test_no_table_of_any_situation_is_cut_off_on_a_desk(page: Page) -> None:
    found = list(jobs())
    watch(page)
    page.set_viewport_size({"width": DESK[0], "height": DESK[1]})
    with serving_scenes(*found, now=found[0].created_at + SECONDS) as monitor:
        for address in (f"#/jobs/{job}" for job in SITUATIONS):
            page.goto(f"{monitor.url}/{address}")
            expect(page.locator(".scroll table").first).to_be_visible()
            settle(page)
            wait_for(lambda: page.evaluate(CUT_OFF) == [], f"every table of {address} has its columns")


def test_a_late_answer_is_waited_for(page: Page, monitor_url: str, script: Script) -> None:
    script.add("steady", ["running"] * 4)
    script.answers["/sparklines"] = {
        "until": 0, "seconds": 300, "unknown": 255, "largest": 254, "jobs": {"steady": [3.2, "+vr6+vr6+vr6+vr6"]},
    }  # fmt: skip
    page.add_init_script(LATE)
    watch(page)
    page.goto(monitor_url)
    expect(page.get_by_text("steady-name")).to_be_visible()
    settle(page)
    assert page.locator(".spark path").count() == 1
