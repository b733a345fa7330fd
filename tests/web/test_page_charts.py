"""The time axis that all charts share: presets, zoom, keys, the address, what happened on it; in a real Chromium."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from monitor.core.scene import Scene
from rankwatch.contract.enums import ProcessEventKind
from rankwatch_monitor.web import static_folder
from support.browser import box_of, fits
from support.waiting import wait_for
from web import scripted_history as past
from web.scene_monitor import serving_scenes
from web.scripted_monitor import CLOCK, Script
from web.slow_scenes import account

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)
DAY = 86_400
ATTEMPTS = "Attempts in this time"
INCIDENTS = "Incidents in this time"


@pytest.fixture
def days(script: Script) -> Script:
    """A job that has run for five days, with three attempts and two incidents, and that logs."""
    now = time.time()
    script.add("j", ["running"] * 16, name="llama-8b pretraining", started_at=now - 5 * DAY, attempt=3)
    script.score("j", slow=(5,))
    script.run, script.slow_since["j"] = 5 * DAY, DAY
    script.restarts, script.logged = (3 * DAY, DAY), ("loss", "tokens_per_second")
    incident = script.hang("j", 5, "Rank 5 did not enter all_reduce #1204.")
    script.heal("j")
    for name, ago in (("i1", DAY), ("i2", 3 * DAY)):
        line = {"since": now - ago - 900, "detected": now - ago - 700, "decided": now - ago - 690,
                "captured": now - ago - 680, "restarted": now - ago, "first_step": now - ago + 60}  # fmt: skip
        script.incidents["j"].append(incident | {"id": name, "opened_at": now - ago - 700,
                                                 "closed_at": now - ago + 60, "timeline": line})  # fmt: skip
    del script.incidents["j"][0]
    script.ranks["j"] = ["running"] * 16
    return script


def asked_for(url: str) -> list[tuple[float, float]]:
    """First and last second that a request for a time asks for: a little more than is shown."""
    found = re.search(r"/trends\?since=(\d+)&until=(\d+)", url)
    return [(float(found[1]), float(found[2]))] if found else []


def keep(page: Page, name: str) -> None:
    if folder := os.environ.get("RANKWATCH_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def opened(page: Page, url: str) -> Page:
    page.goto(url)
    expect(page.locator(".u-wrap canvas").first).to_be_visible()
    return page


def place(page: Page, chart: Locator) -> dict[str, float]:
    """Where the mouse finds a chart, once what stands above the charts is there."""
    expect(page.get_by_role("list", name=INCIDENTS)).to_be_visible()
    return box_of(chart)


def test_presets_reach_from_minutes_to_the_whole_run_and_stand_in_the_address(
    page: Page, monitor_url: str, days: Script
) -> None:
    asked: list[tuple[float, float]] = []
    page.on("request", lambda request: asked.extend(asked_for(request.url)))
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts")
    now = time.time()
    for name, seconds in (("15 min", 900), ("24 h", DAY), ("7 d", 5 * DAY), ("Whole run", 5 * DAY)):
        page.get_by_role("button", name=name, exact=True).click()
        pressed = "Whole run" if seconds == 5 * DAY else name  # the job is younger than a week
        expect(page.get_by_role("button", name=pressed, exact=True)).to_have_attribute("aria-pressed", "true")
        shown = pytest.approx(now - seconds, abs=seconds * 0.03 + 120)
        wait_for(lambda: page.title() and asked[-1][0] == shown, f"the page asks for {name}")  # noqa: B023
        assert asked[-1][1] >= now
    page.wait_for_url("**/#/jobs/j?tab=charts&range=all")
    page.reload()
    expect(page.get_by_role("button", name="Whole run")).to_have_attribute("aria-pressed", "true")
    keep(page, "charts-run")


def test_all_charts_stand_on_one_axis_and_their_cursor_is_one(page: Page, monitor_url: str, days: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    headings = ["Step time", "Speed", "loss", "tokens_per_second", "Goodput", "GPU score"]
    for heading in headings:
        expect(page.get_by_role("heading", name=re.compile(f"^{heading}"))).to_be_visible()
    charts = page.locator(".charts section .chart .u-over")
    expect(charts).to_have_count(6)
    box = place(page, charts.nth(1))
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 20)
    moments = page.locator(".charts section .key li:first-child")
    expect(moments).to_have_count(6)

    def one_moment() -> bool:
        hours = {text.split(":")[0] for text in moments.all_inner_texts()}
        return len(hours) <= 2 and not any("now" in hour for hour in hours)

    wait_for(one_moment, "all show the same moment but for the next sample: one every 20 minutes of five days")


def test_a_stretch_that_is_dragged_is_shown_alone_and_a_double_click_goes_back(
    page: Page, monitor_url: str, days: Script
) -> None:
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    box = place(page, page.locator(".charts .u-over").first)
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"range=\d+-\d+$"))
    first, last = map(int, re.findall(r"(\d+)-(\d+)$", page.url)[0])
    assert last - first == pytest.approx(1.25 * DAY, rel=0.03)
    assert first == pytest.approx(time.time() - 2.5 * DAY, abs=0.05 * DAY)
    expect(page.locator(".ranges output")).not_to_contain_text("now")
    keep(page, "charts-zoomed")
    page.locator(".charts .u-over").first.dblclick()
    expect(page.get_by_role("button", name="1 h", exact=True)).to_have_attribute("aria-pressed", "true")
    page.wait_for_url("**/#/jobs/j?tab=charts")


def test_keys_zoom_and_pan_where_no_mouse_is(page: Page, monitor_url: str, days: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=1700000000-1700001000")

    def chosen(key: str, expected: str) -> None:
        page.locator(".charts .chart").first.press(key)
        page.wait_for_url(f"**range={expected}")

    expect(page.get_by_text("No rank has reported step times")).to_be_visible()
    page.locator(".ranges").get_by_role("button", name="24 h").click()
    page.wait_for_url("**range=24h")
    page.evaluate("location.hash = '#/jobs/j?tab=charts&range=1000-2000'")
    page.wait_for_url("**range=1000-2000")
    for button, expected in (("Zoom in", "1250-1750"), ("Later", "1500-2000"), ("Zoom out", "1250-2250")):
        page.get_by_role("button", name=button, exact=True).click()
        page.wait_for_url(f"**range={expected}")
    page.get_by_role("button", name="Reset").click()
    page.wait_for_url("**/#/jobs/j?tab=charts")
    expect(page.locator(".charts .u-wrap canvas").first).to_be_visible()
    length = 3600
    for key, factor in (("+", 0.5), ("-", 1.0), ("Shift+ArrowLeft", 1.0)):
        before = page.url
        page.locator(".charts .chart").first.press(key)
        page.wait_for_url(lambda url, before=before: url != before and "range=" in url)
        first, last = map(int, re.findall(r"(\d+)-(\d+)$", page.url)[0])
        assert last - first == pytest.approx(length * factor, abs=4)
    page.locator(".charts .chart").first.press("0")
    page.wait_for_url("**/#/jobs/j?tab=charts")


def test_a_history_that_could_not_be_read_is_read_again_soon(page: Page, monitor_url: str, days: Script) -> None:
    """Not only with the next round, which is 15 s later."""
    page.route(re.compile("/(history|trends|why)"), lambda route: route.abort(), times=3)
    page.goto(f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    expect(page.locator(".u-wrap canvas").first).to_be_visible(timeout=12_000)


def test_incidents_and_attempts_are_named_on_the_axis_and_lead_on(page: Page, monitor_url: str, days: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    incidents, attempts = (page.get_by_role("list", name=name) for name in (INCIDENTS, ATTEMPTS))
    expect(incidents.get_by_role("link", name="section over its limit")).to_have_count(2)
    expect(attempts.get_by_role("button")).to_have_text(["attempt 1", "attempt 2", "attempt 3"])
    attempts.get_by_role("button", name="attempt 2").click()
    page.wait_for_url(re.compile(r"range=\d+-\d+$"))
    first, last = map(int, re.findall(r"(\d+)-(\d+)$", page.url)[0])
    now = time.time()
    assert (now - first, now - last) == pytest.approx((3.2 * DAY, 0.8 * DAY), abs=0.1 * DAY)
    incidents.get_by_role("link", name="section over its limit").first.click()
    page.wait_for_url("**/#/jobs/j/incidents/i2**")


def test_incidents_too_close_to_be_told_apart_open_into_their_time(page: Page, monitor_url: str, days: Script) -> None:
    for number in range(5):
        earlier = days.incidents["j"][0]
        line = {name: moment - 600 * number for name, moment in earlier["timeline"].items()}
        days.incidents["j"].append(earlier | {"id": f"x{number}", "timeline": line})
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    incidents = page.get_by_role("list", name=INCIDENTS)
    incidents.get_by_role("button", name="6 incidents").click()
    expect(incidents.get_by_role("link")).not_to_have_count(0)


def test_a_live_axis_follows_the_clock(page: Page, monitor_url: str, days: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=15m")
    shown = page.locator(".ranges output")
    expect(shown).to_contain_text("to now")
    before = shown.inner_text()
    expect(shown).not_to_have_text(before, timeout=90_000)  # just after midnight with a date, and without seconds


def test_logged_values_are_read_at_the_cursor(page: Page, monitor_url: str, days: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    key = page.get_by_role("region", name="Logged value loss").locator(".key")
    expect(key).to_contain_text(re.compile(r"loss 2\.\d"))


def test_values_that_were_not_finite_are_stated_and_marked(page: Page, monitor_url: str, days: Script) -> None:
    days.run, days.broken = 3600, (600, 0)
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts")
    loss = page.get_by_role("region", name="Logged value loss")
    expect(loss).to_contain_text(
        re.compile(r"NaN or infinite since (\d+ \w+ )?\d\d:\d\d(:\d\d)?: \d+ values, and no finite one since")
    )
    crosses = """canvas => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, 30);
        return data.some((red, i) => i % 4 === 0 && data[i + 3] > 200 && red > 150 && data[i + 1] < 110);
    }"""
    wait_for(lambda: loss.locator("canvas").evaluate(crosses), "a red cross at the upper edge")
    other = page.get_by_role("region", name="Logged value tokens_per_second")
    expect(other).not_to_contain_text("NaN")
    assert not other.locator("canvas").evaluate(crosses)
    keep(page, "charts-nan")
    days.broken = (900, 600)
    page.reload()
    expect(loss).to_contain_text(re.compile(r"NaN or infinite from .* to .*: \d+ values; finite again"))


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_nothing_is_wider_than_the_screen(page: Page, monitor_url: str, days: Script, width: int, theme: str) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    expect(page.get_by_role("list", name=INCIDENTS)).to_be_visible()
    expect(page.locator(".charts .u-wrap canvas")).to_have_count(6)
    fits(page, width)
    keep(page, f"charts-{width}-{theme}")


def test_the_speed_on_the_first_screen_has_the_flag_of_a_change(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 8, started_at=time.time() - 3600)
    script.slow_since["j"] = 1200
    opened(page, f"{monitor_url}/#/jobs/j")
    speed = page.locator(".course .chart").first
    expect(speed).to_have_attribute("aria-label", re.compile(rf"^Speed: .* Change at {CLOCK}\.$"))
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts")
    expect(page.locator(".charts .chart").first).to_have_attribute("aria-label", re.compile(r"Change at [\d:]+\.$"))


def test_a_steady_job_has_no_flag(page: Page, monitor_url: str, script: Script) -> None:
    """The beginning of the steady time is not a change."""
    script.add("j", ["running"] * 8, started_at=time.time() - 3600)
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts")
    expect(page.locator(".explanation")).to_contain_text("Nothing changed")
    expect(page.get_by_role("img", name=re.compile("^Step time: "))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Change at"))).to_have_count(0)


def test_a_chart_stays_where_it_is_while_the_rest_is_read(page: Page, monitor_url: str, days: Script) -> None:
    """What stands above it comes from other routes: with one answer held, it would move from under the mouse."""
    held: list[Route] = []
    page.route(re.compile("/trends"), lambda route: held.append(route))
    with page.expect_response(re.compile("/why")):
        page.goto(f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    expect(page.get_by_text("Loading the history.")).to_be_visible()
    expect(page.locator(".u-wrap canvas")).to_have_count(0)
    for each in held:
        each.continue_()
    page.unroute(re.compile("/trends"))
    steps = page.get_by_role("region", name="Step time")
    expect(steps.locator(".u-over")).to_be_visible()
    before = box_of(steps)
    expect(page.locator(".charts .u-wrap canvas")).to_have_count(6)
    assert box_of(steps) == before


def test_a_job_younger_than_the_range_shows_all_of_it_and_the_button_says_so(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running"] * 8, started_at=time.time() - 840)
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts")
    chosen = page.get_by_role("toolbar", name="Time shown by all charts").locator("[aria-pressed=true]")
    expect(chosen).to_have_text("Whole run")
    expect(page.locator(".ranges output")).to_contain_text(re.compile(r"^all, 14.min"))
    script.jobs["j"]["started_at"] -= 3600
    page.reload()
    expect(chosen).to_have_text("1 h")


def test_without_steps_the_call_that_counts_them_is_named(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 8, started_at=time.time() - 840)
    points = past.trends(None, 0.0, 1e12)
    script.answers["/jobs/j/trends"] = points | {"speed": [None] * len(points["at"])}
    page.route(re.compile("/history"), lambda route: route.fulfill(json={"samples": []}))
    page.goto(f"{monitor_url}/#/jobs/j?tab=charts")
    steps = page.get_by_role("region", name="Step time")
    expect(steps).to_contain_text("No rank has reported step times from ")
    expect(steps).to_contain_text("rankwatch.step()")
    expect(steps.get_by_role("link", name="how to add it")).to_have_attribute("href", "/manual/adopt.html")


def test_without_windows_of_completed_steps_their_speed_gives_the_step_time(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running"] * 8, started_at=time.time() - 840)
    page.route(re.compile("/history"), lambda route: route.fulfill(json={"samples": []}))
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts")
    steps = page.get_by_role("region", name="Step time")
    expect(steps).to_contain_text("no windows of step times arrived")
    expect(steps).to_contain_text("check that a collector passes rankwatch.window.*")
    expect(steps).not_to_contain_text("rankwatch.step()")
    expect(steps.get_by_role("heading")).to_contain_text("of completed steps, without its parts")
    expect(steps.locator(".key")).to_contain_text("seconds for each completed step 313\u202fms")


def test_incidents_near_each_other_stand_singly_with_the_numbers_of_a_list(
    page: Page, monitor_url: str, days: Script
) -> None:
    for number in (1, 2):
        first = days.incidents["j"][0]
        line = {name: moment - 12_000 * number for name, moment in first["timeline"].items()}
        days.incidents["j"].append(first | {"id": f"x{number}", "timeline": line, "headline": f"Crash {number}"})
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    lane = page.get_by_role("list", name=INCIDENTS)
    expect(lane.get_by_role("link")).to_have_text(["section over its limit", "1", "2", "section over its limit"])
    expect(lane.get_by_role("button")).to_have_count(0)
    listed = page.locator(".events ol li")
    expect(listed).to_have_text([re.compile("Crash 2$"), re.compile("Crash 1$")])
    listed.first.get_by_role("link").click()
    page.wait_for_url("**/#/jobs/j/incidents/x2**")


def test_a_change_has_its_flag_in_every_chart_and_its_explanation_stands_above_the_figures_of_the_first(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running"] * 8, started_at=time.time() - 3600)
    script.slow_since["j"], script.logged = 1200, ("loss",)
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts")
    charts = page.locator(".charts section .chart")
    expect(charts).to_have_count(5)
    for chart in charts.all():
        expect(chart).to_have_attribute("aria-label", re.compile(rf" Change at {CLOCK}\.$"))
    steps = page.get_by_role("region", name="Step time")
    expect(steps.locator(".plotted + .explanation + .key")).to_be_visible()


def test_why_steps_have_no_parts_stands_below_their_chart_and_no_step_has_a_reason(page: Page) -> None:
    scene = Scene(4, max_restarts=0).run(60)
    for _ in range(60):
        account(scene.run(1).job, scene.now)
    scene.die(1, exit_code=1, message="RuntimeError").run(3)
    scene.finish(ProcessEventKind.FAILED, "rank 1 on host-0 exited with code 1: RuntimeError")
    account(scene.run(2).job, scene.now)
    with serving_scenes(scene.job, now=scene.now) as monitor:
        opened(page, f"{monitor.url}/#/jobs/job?tab=charts")
        steps = page.get_by_role("region", name="Step time")
        expect(steps.locator(".key + .note")).to_contain_text("no windows of step times arrived")
        expect(steps.locator(".key")).to_contain_text("seconds for each completed step – (no step completed)")


def test_the_number_of_an_incident_at_the_end_of_the_axis_is_whole(page: Page, monitor_url: str, days: Script) -> None:
    now = time.time()
    line = {"since": now - 30, "detected": now - 20, "decided": None, "captured": None}
    days.incidents["j"].append(days.incidents["j"][0] | {"id": "i3", "closed_at": None, "timeline": line})
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    number = page.get_by_role("list", name=INCIDENTS).get_by_role("link").last
    expect(number).to_have_text("1")
    wait_for(lambda: number.evaluate("(each) => each.scrollWidth <= each.clientWidth"), "the number is whole")
    within = """(each) => {
        const lane = each.closest("ul");
        const share = parseFloat(getComputedStyle(each).getPropertyValue("--wide"));
        const end = each.getBoundingClientRect().left + lane.clientWidth * share / 100;
        return share > 0 && end <= lane.getBoundingClientRect().right + 1;
    }"""
    wait_for(lambda: number.evaluate(within), "its band ends with the axis")


def test_incidents_that_take_little_of_the_axis_are_zoomed_to(page: Page, monitor_url: str, days: Script) -> None:
    del days.incidents["j"][1:]
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    closer = page.get_by_role("button", name="Zoom to incidents")
    closer.click()
    expect(closer).to_have_count(0)
    expect(page.get_by_role("list", name=INCIDENTS).get_by_role("link")).not_to_have_count(0)
    page.wait_for_url(re.compile(r"range=\d+-\d+"))


@pytest.mark.parametrize(
    ("found", "asked", "title", "figures"),
    [
        ({}, "section=data", "Section data", ["now", "median 2\u202fms", "slowest rank; now rank 5 62\u202fms"]),
        (
            {"circumstances": [{"kind": "clock"}]},
            "devices=true",
            "GPU clock",
            ["now", "median 1.98\u202fGHz", "lowest of all ranks; now rank 21 1.20\u202fGHz"],
        ),
    ],
)
def test_the_cause_of_a_change_is_drawn_of_the_rank_that_stands_out_and_of_the_median_one(
    page: Page, monitor_url: str, script: Script, found: dict[str, Any], asked: str, title: str, figures: list[str]
) -> None:
    script.add("j", ["running"] * 8, started_at=time.time() - 3600)
    section = {"kind": "section", "name": "data", "rank": 5, "sentence": "section 'data' on rank 5", "share": 0.0}
    script.answers["/jobs/j/why"] = past.why(1200) | {"contributors": [section]} | found
    samples = past.history(1200, 0.0, 1e12)["samples"]
    measured = {
        "section": {"median": 0.002, "max": 0.062, "worst": 5},
        "device": {
            "clock": 1.98e9,
            "clock_min": 1.2e9,
            "clock_rank": 21,
            "temperature": 88.0,
            "temperature_rank": 21,
            "temperature_median": 64.0,
        },
    }
    script.answers["/jobs/j/history"] = {"samples": [sample | measured for sample in samples]}
    with page.expect_request(re.compile(f"/history.*&{asked}$")):
        opened(page, f"{monitor_url}/#/jobs/j?tab=charts")
    expect(page.get_by_role("region", name=title).locator(".key li")).to_have_text(figures)
    heat = page.get_by_role("region", name="GPU temperature").locator(".key li")
    expect(heat).to_have_text(
        ["now", "median 64\u202f°C", "highest of all ranks; now rank 21 88\u202f°C", "axis begins at 60\u202f°C"]
        if title == "GPU clock"
        else []
    )


def test_the_worst_rank_of_a_score_is_named_and_one_reference_is_chosen(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running"] * 8, started_at=time.time() - 3600)
    points = past.trends(1200, 0.0, 1e12)
    scores = points["scores"]["gpu_robust"]
    worse = {**scores, "min": [0.41] * len(points["at"]), "rank": [7] * len(points["at"])}
    script.answers["/jobs/j/trends"] = points | {"scores": {"gpu_robust": scores, "gpu_individual": worse}}
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts")
    charts = page.locator(".charts section[aria-label^='GPU score']")
    expect(charts).to_have_count(1)
    expect(charts.locator(".key")).to_contain_text("worst rank; now rank 5 0.62")
    reference = page.get_by_role("combobox", name="Reference of the score")
    expect(reference.locator("option")).to_have_count(2)
    reference.select_option("its own best so far")
    expect(charts.locator(".key")).to_contain_text("worst rank; now rank 7 0.41")


@pytest.mark.parametrize("tab", ["", "?tab=charts&range=all"])
def test_of_a_lost_job_nothing_is_known_after_its_last_message(
    page: Page, monitor_url: str, script: Script, tab: str
) -> None:
    now = time.time()
    script.add(
        "j", ["silent"] * 8, state="lost", started_at=now - 3000, last_heard=now - 900, iterations_per_second=0.0
    )
    opened(page, f"{monitor_url}/#/jobs/j{tab}")
    charts = page.locator(".chart[aria-label^=Speed], .chart[aria-label^=Goodput]")
    expect(charts).to_have_count(2 if tab else 1)
    hatched = """chart => {
        const canvas = chart.querySelector("canvas");
        if (canvas === null) return 0;
        const [left, top] = [canvas.width * 0.8 | 0, canvas.height * 0.3 | 0];
        const [width, height] = [canvas.width * 0.12 | 0, top];
        const { data } = canvas.getContext("2d").getImageData(left, top, width, height);
        return data.filter((each, i) => i % 4 === 3 && each > 0).length / (width * height);
    }"""
    for chart in charts.all():
        expect(chart).to_have_attribute("aria-label", re.compile(rf" Nothing received since {CLOCK}\.$"))
        wait_for(lambda chart=chart: chart.evaluate(hatched) > 0.1, "more than the lines of the axis")


def test_words_that_an_incident_has_no_room_for_stand_behind_its_band(
    page: Page, monitor_url: str, days: Script
) -> None:
    moment = int(time.time() - DAY)
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range={moment - 7200}-{moment + 7200}")
    incident = page.get_by_role("list", name=INCIDENTS).locator(".incident").first
    behind = """element => {
      const range = document.createRange();
      range.selectNodeContents(element);
      const left = element.getBoundingClientRect().left;
      const share = parseFloat(getComputedStyle(element).getPropertyValue("--wide"));
      const band = left + element.closest("ul").clientWidth * share / 100;
      return band > 50 && range.getBoundingClientRect().left >= band;
    }"""
    wait_for(lambda: incident.evaluate(behind), "the words stand behind the band")


def test_the_values_stand_beside_the_mouse_and_a_line_can_be_hidden(page: Page, monitor_url: str, days: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    steps = page.get_by_role("region", name="Step time")
    box = place(page, steps.locator(".u-over"))
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 20)
    expect(steps.locator(".tip li")).to_have_count(7)
    expect(page.locator(".tip")).to_have_count(1), "the other charts have the cursor only"
    steps.locator(".key").get_by_role("button", name=re.compile("^step, slowest rank")).click()
    expect(steps.locator(".key [aria-pressed=false]")).to_have_count(1)
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 20)
    expect(steps.locator(".tip li")).to_have_count(6)
    steps.locator(".key").get_by_role("button", name=re.compile("^step, slowest rank")).press("Enter")
    expect(steps.locator(".tip li")).to_have_count(7)  # the mouse rests on the chart, which was drawn anew
    line = box_of(steps.locator(".u-cursor-x"))
    assert abs(line["x"] - box["x"] - box["width"] * 0.8) <= 2
    page.mouse.move(0, 0)
    expect(page.locator(".tip")).to_have_count(0)


def test_slow_steps_have_the_unit_in_which_they_are_read(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 8, iterations_per_second=0.05)
    script.answers["/jobs/j/trends"] = past.trends(None, 0.0, 1e12) | {"speed": [0.05] * 240, "scores": {}}
    opened(page, f"{monitor_url}/#/jobs/j?tab=charts")
    expect(page.get_by_role("region", name="Speed").locator(".key")).to_contain_text("speed 20.0\u202fs/step")


def test_a_job_that_has_ended_has_the_charts_of_its_last_hour_and_nothing_later(
    page: Page, monitor_url: str, script: Script
) -> None:
    """Its loss was NaN at the end, which stands beside the chart; no chart claims to end now."""
    script.add("j", ["finished"] * 8, state="finished", ended_at=time.time(), iterations_per_second=0.0)
    script.logged, script.broken = ("loss",), (300.0, -60.0)
    opened(page, f"{monitor_url}/#/jobs/j")
    course = page.get_by_role("region", name="The last hour of the run")
    expect(course.get_by_text("NaN or infinite since")).to_be_visible()
    speed = course.locator(".key").first
    expect(speed).to_contain_text("2.38")
    expect(speed).not_to_contain_text("now")
    page.goto(f"{monitor_url}/#/jobs/j?tab=charts&range=all")
    expect(page.locator(".charts .key").first).to_be_visible()
    expect(page.locator(".charts .key").filter(has_text="now")).to_have_count(0)
