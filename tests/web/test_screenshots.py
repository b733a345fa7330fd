"""The script that makes pictures of the page waits until it is complete."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from rankwatch_monitor.web import static_folder
from web.screenshots import settle, watch
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
