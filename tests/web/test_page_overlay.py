"""A job laid over another one, and an attempt over an earlier one, in a real Chromium."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from rankwatch_monitor.web import static_folder
from support.browser import box_of, fits
from support.waiting import wait_for
from web import scripted_history as past
from web import slow_scenes
from web.scene_monitor import serving_scenes
from web.scripted_monitor import Script
from web.test_page_accessibility import AXE, broken_rules
from web.test_page_charts import keep, opened

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)
RUN = 7200.0
ALIKE = re.compile("Charts of what is alike within 2")


@pytest.fixture
def two(script: Script) -> Script:
    """Two jobs that log; ``new`` became slower half an hour ago, and is in its third attempt."""
    for job in ("new", "old"):
        script.add(job, ["running"] * 8, started_at=time.time() - RUN, attempt=3)
    script.run, script.restarts = RUN, (4800.0, 2400.0)
    script.logged, script.slow_since["new"] = ("loss", "mfu"), 1800.0
    return script


def unfold(page: Page) -> None:
    """Show the charts of what is alike too."""
    page.get_by_role("button", name=ALIKE).click()


def trends(first: int, last: int | None) -> dict[str, Any]:
    """Points that reach from one step to another; None: no step was counted."""
    found = past.of_attempt(past.trends(None, 0.0, 1e12, 600.0, (), ("loss",)), None)
    count = len(found["at"])
    steps = [None if last is None else first + (last - first) * i // (count - 1) for i in range(count)]
    return {**found, "iteration": steps}


def test_two_jobs_are_chosen_drawn_and_read_at_one_cursor(page: Page, monitor_url: str, two: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/new?tab=charts")
    form = page.get_by_role("form", name="Comparison")
    form.get_by_role("combobox", name="Compare with").select_option("another job")
    field = form.get_by_role("combobox", name="Job", exact=True)
    expect(form.locator("datalist option")).to_have_count(1)
    field.fill("old")
    field.press("Enter")
    page.wait_for_url("**/#/jobs/new?tab=charts&with=old")
    unfold(page)
    for figure in ("Step time", "Speed", "loss", "mfu", "Goodput", "GPU score, robust"):
        cut = [] if figure in {"Step time", "Speed"} else [re.compile(r"^axis begins at \d")]
        expect(page.get_by_role("region", name=f"{figure} of both").locator(".key li")).to_have_text(
            [
                re.compile(r"^step [\d,]+$"),
                re.compile(r"^new \d"),
                re.compile(r"^old \d"),
                re.compile("^new ÷ old .*×$"),
                *cut,
            ]
        )
    speed = page.get_by_role("region", name="Speed of both")
    expect(speed.locator(".key")).to_contain_text(re.compile(r"new\s*1.27.*old\s*2.38.*new ÷ old\s*0.53×"))
    expect(speed.locator(".key i.dashed")).to_have_count(1)
    speed.locator(".u-over").scroll_into_view_if_needed()
    box = box_of(speed.locator(".u-over"))
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 20)
    for figure in ("Speed", "loss"):
        expect(page.get_by_role("region", name=f"{figure} of both").locator(".key li").first).to_have_text(
            re.compile(r"^step 1,2\d\d$")
        )
    before_it_was_slow = ["^step", "2.38\u202fsteps/s$", "2.38\u202fsteps/s$", "1.00×$"]
    expect(speed.locator(".key li")).to_have_text([re.compile(each) for each in before_it_was_slow])
    keep(page, "charts-overlay")


def test_the_address_opens_the_comparison_by_time_and_nothing_ends_it(
    page: Page, monitor_url: str, two: Script
) -> None:
    opened(page, f"{monitor_url}/#/jobs/new?tab=charts&with=old&with_attempt=2&attempt=3&axis=time")
    form = page.get_by_role("form", name="Comparison")
    expect(form.get_by_role("combobox", name="its")).to_have_value("2")
    expect(form.get_by_role("combobox", name="and of this job")).to_have_value("3")
    expect(form.get_by_role("combobox", name="by", exact=True)).to_have_value("time")
    expect(page.get_by_role("region", name="Speed of both").locator(".key li")).to_contain_text(
        [re.compile(r"^\+3\d\u202fmin"), "new, attempt 3", "old, attempt 2"]
    )
    form.get_by_role("combobox", name="Compare with").select_option("nothing")
    page.wait_for_url("**/#/jobs/new?tab=charts")
    expect(page.get_by_role("toolbar", name="Time shown by all charts")).to_be_visible()


def test_an_earlier_attempt_lies_under_the_present_one(page: Page, monitor_url: str, two: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/new?tab=charts")
    page.get_by_role("combobox", name="Compare with").select_option("attempt 2 of this job")
    page.wait_for_url("**/#/jobs/new?tab=charts&with=new&with_attempt=2&attempt=3")
    expect(page.locator(".charts").get_by_role("status")).to_contain_text(
        re.compile("attempt 3: steps .*; attempt 2 \\(dashed\\): steps")
    )
    page.get_by_role("combobox", name="by", exact=True).select_option("time since the start")
    expect(page.get_by_role("region", name="Speed of both").locator(".key li").first).to_have_text(re.compile("^\\+"))
    page.reload()
    expect(page.get_by_role("combobox", name="Compare with")).to_have_value("2")
    expect(page.get_by_role("region", name="Speed of both").locator(".key li")).to_have_count(4)


def test_a_stretch_is_shown_alone_by_keys_and_back(page: Page, monitor_url: str, two: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/new?tab=charts&with=old")
    unfold(page)
    chart = page.get_by_role("region", name="Speed of both").locator(".chart")
    first = page.get_by_role("region", name="loss of both").locator(".key li").first
    expect(first).to_have_text(re.compile("^step 4,9"))
    chart.press("+")
    expect(first).to_have_text(re.compile("^step 3,7"))
    chart.press("0")
    expect(first).to_have_text(re.compile("^step 4,9"))


def test_the_current_run_is_the_strong_line_and_the_other_lies_behind_it(
    page: Page, monitor_url: str, two: Script
) -> None:
    opened(page, f"{monitor_url}/#/jobs/new?tab=charts&with=old")
    marks = page.get_by_role("region", name="Speed of both").locator(".key i")
    expect(marks).to_have_count(2)
    own, other = marks.all()
    expect(own).not_to_have_attribute("class", re.compile(""))
    expect(other).to_have_attribute("class", "dashed behind")
    contrast = """(mark) => {
        const light = (text) => {
            const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map((each) => (each / 255) ** 2.2);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ground = getComputedStyle(document.body).backgroundColor;
        const [one, two] = [light(getComputedStyle(mark).color), light(ground)];
        return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    }"""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        wait_for(lambda: own.evaluate(contrast) > 1.25 * other.evaluate(contrast), f"told apart: {theme}")


def test_the_means_of_both_over_what_is_shown_and_their_ratio(page: Page, monitor_url: str, two: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/new?tab=charts&with=old")
    tables = page.get_by_role("region", name="Means of both")

    def row(name: str) -> Locator:
        return tables.get_by_role("row", name=re.compile(f"^{name}")).get_by_role("cell")

    over = ("^Before the change: steps 0 to 3,7", r"^Since the change: steps 3,7.. to 4,9.*, 1,\d+ steps of each$")
    expect(tables.get_by_role("caption")).to_have_text([*map(re.compile, over)])
    expect(tables.get_by_role("columnheader")).to_have_text(["Mean", "new", "old", "new ÷ old"] * 2)
    speed = ["1.27\u202fsteps/s", "2.38\u202fsteps/s", re.compile(r"^0\.5[34]× \(slower\)$")]
    same = ["2.38\u202fsteps/s", "2.38\u202fsteps/s", "1.00×"]
    expect(row("Speed")).to_have_text(speed)
    folded = tables.get_by_role("button", name=re.compile(r"\d more figures alike within 2"))
    folded.first.click()
    expect(folded.first).to_have_attribute("aria-expanded", "true")
    expect(row("Speed")).to_have_text([*same, *speed])
    sentence = page.locator(".charts > .finding")
    expect(sentence).to_contain_text(re.compile(r"^A step of new takes 1\.\d\d× as long as one of old"))
    expect(page.locator(".both p")).to_have_text([re.compile(r"^new: Steps take 1\.9 times as long since 14:03:20 \(")])
    toolbar = page.get_by_role("toolbar", name="Part of both that is shown")
    for _ in range(2):
        toolbar.get_by_role("button", name="Zoom in").click()
        toolbar.get_by_role("button", name="Later").click()
    for _ in range(3):
        toolbar.get_by_role("button", name="Later").click()
    expect(row("Speed")).to_have_text(speed)
    toolbar.get_by_role("button", name="All of both").click()
    expect(tables.get_by_role("caption")).to_have_text([*map(re.compile, over)])
    chart = page.get_by_role("region", name="Speed of both").locator(".chart")
    expect(chart).to_have_attribute("aria-label", re.compile(r" New changes at step 3,7\d\d\.$"))


def test_of_two_slow_jobs_the_slowest_ranks_differ_and_both_fit_a_phone(page: Page) -> None:
    jobs = slow_scenes.slow_input("slowed", 600), slow_scenes.throttled("throttled", 600)
    page.set_viewport_size({"width": 390, "height": 844})
    with serving_scenes(*jobs, now=jobs[0].created_at + 600) as monitor:
        page.goto(f"{monitor.url}/#/jobs/slowed?tab=charts&with=throttled")
        charts = page.get_by_role("region", name=re.compile("of both$")).get_by_role("heading")
        parts = ("Step time", "Slowest rank's compute", "Slowest rank's data", "GPU score, robust")
        expect(charts).to_have_text([re.compile(f"^{each}") for each in parts])
        expect(page.get_by_role("button", name=ALIKE)).to_contain_text("Speed, Goodput")
        heading = page.locator(".charts > .finding")
        expect(heading).to_contain_text(
            re.compile(
                r"^Equal step time \(22\d.ms\), different cause: "
                r"slowed: rank 5 is slow in data \(62 against 2.ms\); "
                r"throttled: rank 21 in compute \(1[89]\d against 1[23]\d.ms\)\.$"
            )
        )
        since = page.get_by_role("region", name="Means of both").get_by_role("group").last
        expect(since).to_be_hidden()
        page.get_by_text("Causes and means of both").click()
        cells = {
            part: since.get_by_role("row", name=re.compile(f"^Slowest rank's {part}")).get_by_role("cell")
            for part in ("data", "compute")
        }
        expect(cells["data"]).to_have_text(["62\u202fms", "2\u202fms", "31× (longer)"])
        expect(cells["compute"]).to_have_text(
            [re.compile("^1[23].\u202fms$"), re.compile("^1[89].\u202fms$"), re.compile(r"× \(shorter\)$")]
        )
        expect(since.get_by_role("row", name=re.compile("^Slowest rank's host"))).to_have_count(0)
        score = since.get_by_role("row", name=re.compile("^GPU score")).get_by_role("cell").last
        expect(score).to_have_text(re.compile(r"^1\.4\d× \(better\)$"))
        changes = [
            re.compile(rf"^{job}: Steps take .* since .* is waiting for rank {rank} on ")
            for job, rank in (("slowed", 5), ("throttled", 21))
        ]
        expect(page.locator(".both p")).to_have_text(changes)
        for table in page.locator(".ratios .scroll").all():
            assert table.evaluate("(each) => each.scrollWidth <= each.clientWidth"), "no column is cut"
        fits(page, 390)


def test_only_the_part_that_is_shown_is_read_and_never_more_points_than_a_chart_has_pixels(
    page: Page, monitor_url: str, two: Script
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "since=" in request.url else None)
    opened(page, f"{monitor_url}/#/jobs/new?tab=charts&with=old&axis=time")
    figures = [url for url in asked if "attempt=9007199254740991" not in url and "with=" not in url]
    assert figures
    asked.clear()
    with page.expect_response(lambda answer: "/old/history" in answer.url):
        page.get_by_role("toolbar", name="Part of both that is shown").get_by_role("button", name="Zoom in").click()
    part = [url for url in asked if "/trends" in url]
    assert {url.split("/jobs/")[1].split("/")[0] for url in part} == {"new", "old"}
    for url in part:
        since, until = (float(re.findall(rf"{name}=(\d+)", url)[0]) for name in ("since", "until"))
        assert until - since == pytest.approx(RUN / 2, abs=60)
    assert all("points=800" in url for url in part)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "The monitor does not know job nobody."),
        (trends(0, 1) | {"at": []}, "No trends are kept of nobody."),
        (trends(9000, 9900), "They have no steps in common."),
        (trends(4000, 9900), "Both have steps 4,000 to 4,9"),
        (trends(0, None), "No steps were counted of nobody."),
    ],
    ids=["unknown", "empty", "apart", "partly", "uncounted"],
)
def test_what_cannot_be_compared_is_stated(
    page: Page, monitor_url: str, two: Script, answer: dict[str, Any] | None, words: str
) -> None:
    if answer is not None:
        two.answers |= {"/jobs/nobody/trends": answer, "/jobs/nobody/history": {"samples": []}}
    page.goto(f"{monitor_url}/#/jobs/new?tab=charts&with=nobody")
    expect(page.get_by_role("status").filter(has_text=words)).to_be_visible()
    if re.search("no steps", words, re.IGNORECASE):
        page.get_by_role("button", name="Compare by time since the start").click()
        unfold(page)
        expect(page.get_by_role("region", name="Speed of both").locator(".key li")).to_have_count(4)
        expect(page.get_by_text(words)).to_be_hidden()


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm ci in the page's source")
def test_it_is_accessible_and_fits_the_screen(page: Page, monitor_url: str, two: Script) -> None:
    opened(page, f"{monitor_url}/#/jobs/new?tab=charts&with=old")
    unfold(page)
    page.evaluate(AXE.read_text())
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("dark", "light"):
            page.emulate_media(color_scheme=theme)
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
            expect(page.locator(".charts .u-wrap canvas")).to_have_count(6)
            fits(page, width)
            assert broken_rules(page) == [], (width, theme)
            keep(page, f"charts-overlay-{width}-{theme}")
