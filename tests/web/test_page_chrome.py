"""What all views share: the top bar at every width, targets of a finger, tables that scroll."""

from __future__ import annotations

from contextlib import suppress

import pytest
from playwright.sync_api import Page, TimeoutError, expect

from rankwatch_monitor.web import static_folder
from support.browser import box_of, fits
from support.waiting import wait_for
from web.scripted_monitor import Script
from web.staged import scripted_places
from web.test_page_sizes import scene

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)

VIEWS = [
    ("#/", ".jobs > li"),
    ("#/nodes/node-0", ".place table"),
    ("#/jobs/j", ".ranks table"),
    ("#/jobs/j/incidents/i1", ".verdict"),
    ("#/jobs/j?tab=timeline", ".lanes .step"),
    ("#/jobs/j?tab=kernels", ".spark"),
    ("#/jobs/j?tab=charts", ".u-wrap"),
    ("#/jobs/j?tab=control", ".policy summary"),
]
SMALL = """
() => [...document.querySelectorAll("button, select, summary, input, label:has([type=radio], [type=checkbox]), a")]
  .filter((each) => each.checkVisibility() && !each.matches("[type=radio], [type=checkbox], .skip"))
  .filter((each) => !each.matches(":is(p:not(.links, .more), dd, small, label, summary, h1, h2, tr.more) a"))
  .map((each) => [each.outerHTML.slice(0, 120), each.getBoundingClientRect()])
  .map(([html, { width, height }]) => [html, Math.round(width), Math.round(height)])
  .filter(([, width, height]) => width < 24 || height < 40)
"""
"""What is pressed and not within a sentence or a heading, and less than 24 px wide or 40 px high."""
TINY = """
() => [...document.querySelectorAll("body *")]
  .filter((each) => each.checkVisibility())
  .filter(({ childNodes }) => [...childNodes].some((child) => child.nodeType === 3 && child.data.trim() !== ""))
  .map((each) => [each.outerHTML.slice(0, 120), parseFloat(getComputedStyle(each).fontSize)])
  .filter(([, size]) => size < 12)
"""
"""Text of less than 12 px."""


def show(page: Page, monitor_url: str, script: Script, address: str, ready: str) -> None:
    scene(script, 64, "hung")
    scripted_places(script)
    for number in range(4):
        script.add(f"other-{number}", ["running"])
    page.goto(f"{monitor_url}/{address}")
    expect(page.locator(ready).first).to_be_visible()


def settled(page: Page, script: str) -> list[object]:
    """What the script finds, once the page has had time to be drawn."""
    with suppress(TimeoutError):
        page.wait_for_function(f"() => ({script})().length === 0", timeout=5000)
    return page.evaluate(script)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("address", "ready"), VIEWS)
def test_on_a_phone_what_is_pressed_is_large_enough_for_a_finger_and_text_for_the_eye(
    page: Page, monitor_url: str, script: Script, address: str, ready: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, monitor_url, script, address, ready)
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    fits(page, 390)
    assert settled(page, SMALL) == []
    assert settled(page, TINY) == []


@pytest.mark.parametrize("width", [390, 1024, 1280])
def test_the_top_bar_is_one_line(page: Page, monitor_url: str, script: Script, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    script.add("a-job-with-a-very-long-name-" * 4, ["running"] * 4)
    name = next(iter(script.jobs))
    page.goto(f"{monitor_url}/#/jobs/{name}?tab=charts")
    bar = page.locator(".bar")
    expect(bar.get_by_text("Live")).to_be_visible()
    fits(page, width)
    assert box_of(bar)["height"] <= 60
    where = bar if width > 620 else page.locator(".foot")
    expect(where.get_by_label("Times:")).to_have_value("local")
    expect(where.get_by_label("Theme:")).to_have_value("auto")


def test_a_table_that_scrolls_has_a_shadow_at_the_edge_it_goes_on_behind(
    page: Page, monitor_url: str, script: Script
) -> None:
    page.set_viewport_size({"width": 700, "height": 844})
    show(page, monitor_url, script, "#/jobs/j?tab=kernels", ".kernels table")
    table = page.locator(".kernels .scroll").first
    wait_for(lambda: table.evaluate("each => each.scrollWidth > each.clientWidth"), "the table scrolls")
    kinds = table.evaluate("each => getComputedStyle(each).backgroundAttachment")
    assert kinds == "local, local, scroll, scroll", "covers move with the table, shadows stay at the edges"


def test_a_phone_shows_what_is_wrong_what_to_do_and_the_culprit_at_once(
    page: Page, monitor_url: str, script: Script
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, monitor_url, script, "#/jobs/j", ".row")
    for part in (".verdict > h2", ".row", ".do"):
        expect(page.locator(part).first).to_be_in_viewport(ratio=1)
