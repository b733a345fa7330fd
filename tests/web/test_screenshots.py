"""The script that makes pictures of the page waits until it is complete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from rankwatch_monitor.web import static_folder
from support.waiting import wait_for
from support.windows import COMPUTE
from web import slow_scenes
from web.scene_monitor import serving_scenes
from web.screenshots import DESK, PHONE, SECONDS, SITUATIONS, jobs, settle, watch
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


@pytest.fixture(scope="module")
def situations() -> Iterator[str]:
    """The address of a monitor with all jobs of the pictures, which no test changes."""
    found = list(jobs())
    (throttled,) = (job for job in found if job.id == "throttled")
    sampled = list(slow_scenes.spans(throttled, slow_scenes.HOT, COMPUTE))
    with serving_scenes(*found, now=found[0].created_at + SECONDS, spans=sampled) as monitor:
        yield monitor.url


def test_no_table_of_any_situation_is_cut_off_on_a_desk(page: Page, situations: str) -> None:
    watch(page)
    page.set_viewport_size({"width": DESK[0], "height": DESK[1]})
    for address in (f"#/jobs/{job}" for job in SITUATIONS):
        page.goto(f"{situations}/{address}")
        expect(page.locator(".scroll table").first).to_be_visible()
        settle(page)
        wait_for(lambda: page.evaluate(CUT_OFF) == [], f"every table of {address} has its columns")


def test_on_a_phone_the_section_timeline_begins_with_its_sentence_and_has_all_columns(
    page: Page, situations: str
) -> None:
    watch(page)
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.goto(f"{situations}/#/jobs/throttled?tab=timeline")
    expect(page.locator(".timeline > h2 + .finding")).to_contain_text("rank 21 works")
    expect(page.locator(".timeline .scroll").get_by_role("columnheader")).to_have_count(7)
    settle(page)
    wait_for(lambda: page.evaluate(CUT_OFF) == [], "the table has its columns")


def test_what_a_healthy_job_rests_on_stands_once(page: Page, situations: str) -> None:
    page.goto(f"{situations}/#/jobs/healthy")
    expect(page.locator(".account")).to_contain_text("the others wait at most")
    expect(page.get_by_text("the others wait at most")).to_have_count(1)


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
