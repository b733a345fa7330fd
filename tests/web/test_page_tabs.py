"""Timeline, charts, policy and actions, and the addresses of all of it, in a real Chromium."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from rankwatch.contract.enums import Action
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.views.responses import Order
from rankwatch_monitor.web import static_folder
from support.browser import box_of, fits
from web.scene_monitor import serving_scenes
from web.scripted_monitor import CLOCK, Script
from web.scripted_rows import advised
from web.slow_scenes import LOADS, slow_input

REASON = "Rank 2 on node-0 has been in section step for 14.2 s (limit 10 s); 7 ranks wait for it."

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)


def thin(text: str) -> str:
    """The same text as the page writes it: a thin space between a figure and its unit."""
    return re.sub(r"(?<=\d) (?=[a-z%])", "\u202f", text)


@pytest.fixture
def slow(script: Script) -> Script:
    """A job of 16 ranks in four stages, of which rank 5 is slow in its data."""
    script.pipeline = 4
    script.add("j", ["running"] * 16)
    script.score("j", slow=(5,), verdict="worker", reason="rank 5 makes the others wait")
    script.slow_since["j"] = 1200
    return script


# Timeline -----------------------------------------------------------------------------------------------------------


def test_the_timeline_marks_ranks_that_take_longer(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j")
    page.get_by_role("link", name="Section timeline").click()
    trace = page.get_by_role("link", name="All sampled steps of these ranks for Perfetto")
    expect(trace).to_have_attribute("href", re.compile(r"^/api/v1/jobs/j/timeline/trace\?ranks=[0-9A-F%-]+$"))
    field = page.get_by_role("application", name="8 ranks, steps 1120, 1160, 1200")
    expect(field).to_be_visible()
    expect(page.get_by_role("textbox", name="Ranks")).to_have_value("0-6,8")
    row = page.get_by_role("region", name="Time per step by section").get_by_role("row").filter(has_text="node-0")
    expect(row.get_by_role("rowheader")).to_have_text(["5", "0", "1", "2", "3", "4", "6"])  # the slow one leads
    expect(row.first.locator(".longer")).to_have_text([thin("160 ms (138 ms more)")])
    expect(row.locator(".longer")).to_have_count(1)
    field.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".readout")).to_contain_text("Rank 5")
    expect(page.locator(".readout")).to_contain_text(thin("data took 160 ms"))
    expect(page.locator(".readout")).to_contain_text(re.compile(r": 7\.3 times as long"))
    page.keyboard.press("ArrowDown")
    expect(page.locator(".readout")).to_contain_text("Rank 0")
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    expect(page.locator(".readout")).to_contain_text("Rank 6")
    expect(page.locator(".readout")).not_to_contain_text("times as long")


def test_the_span_under_the_pointer_is_described(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=timeline")
    field = page.get_by_role("application")
    expect(field.locator(".step").first).to_contain_text("step 1,120")
    box = box_of(field)
    page.mouse.move(box["x"] + 60, box["y"] + 22 + 8)
    expect(page.locator(".readout")).to_contain_text("Rank 5")  # the slow one leads
    expect(page.locator(".readout")).to_contain_text(thin("data took 160 ms"))
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 22 + 8)
    expect(page.locator(".readout")).to_contain_text("Rank 5")
    expect(page.locator(".readout")).to_contain_text("step took")


def test_other_ranks_and_earlier_steps_can_be_chosen(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=timeline")
    expect(page.get_by_role("application", name="8 ranks")).to_be_visible()
    page.get_by_label("Only steps with known waiting (3)").uncheck()
    page.get_by_role("textbox", name="Ranks").fill("0, 12-13")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_role("application", name="3 ranks, steps 1180, 1190, 1200")).to_be_visible()
    page.get_by_role("button", name="Earlier").click()
    expect(page.get_by_role("application", name="3 ranks, steps 1150, 1160, 1170")).to_be_visible()
    page.get_by_role("button", name="Newest").click()
    expect(page.get_by_role("application", name="3 ranks, steps 1180, 1190, 1200")).to_be_visible()


def test_the_timeline_zooms_and_moves_by_wheel_drag_keys_and_buttons(
    page: Page, monitor_url: str, slow: Script
) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=timeline")
    field, step = page.get_by_role("application"), page.locator(".lanes .step")
    whole = page.get_by_role("button", name="Whole steps")
    expect(step).to_have_count(3)
    box = box_of(field)
    expect(whole).to_have_count(0)
    expect(page.get_by_role("button", name="Newest")).to_be_disabled()

    middle = box["x"] + box["width"] / 2
    page.mouse.move(middle - 90, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(middle + 90, box["y"] + 60, steps=4)
    expect(page.locator(".dragged")).to_be_visible()
    page.mouse.up()
    expect(step).to_have_count(1)
    expect(step).to_contain_text("step 1,160")
    expect(page.get_by_role("button", name="Newest")).to_be_enabled()
    page.get_by_role("button", name="Move right").click()
    page.get_by_role("button", name="Move right").click()
    expect(step.last).to_contain_text("step 1,200")
    whole.click()
    expect(step).to_have_count(3)

    page.mouse.move(box["x"] + 20, box["y"] + 40)
    page.keyboard.down("Control")
    for _ in range(4):
        page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    expect(step).to_have_count(1)
    expect(step).to_contain_text("step 1,120")
    page.keyboard.down("Shift")
    page.mouse.wheel(0, 20_000)
    page.keyboard.up("Shift")
    expect(step).to_contain_text("step 1,200")

    field.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    expect(step).to_have_count(3)
    for _ in range(4):
        page.keyboard.press("+")
    expect(step).to_contain_text("step 1,160")
    for _ in range(60):
        page.keyboard.press("Shift+ArrowLeft")
    expect(step).to_contain_text("step 1,120")
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".readout")).to_contain_text("step 1,160")
    expect(step.last).to_contain_text("step 1,160")
    page.get_by_role("button", name="Zoom out").click(click_count=5)
    expect(step).to_have_count(3)


def test_waiting_is_drawn_and_written_where_it_was_measured(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=timeline")
    expect(page.locator(".key")).to_contain_text("waiting for others in collectives")
    expect(page.locator(".key")).to_contain_text("transfer (what even the last rank to arrive spends in collectives)")
    field = page.get_by_role("application")
    measured = page.get_by_label("Only steps with known waiting (3)")
    expect(measured).to_be_checked()
    measured.uncheck()
    expect(page.get_by_role("application", name="8 ranks, steps 1180, 1190, 1200")).to_be_visible()
    field.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".readout")).to_contain_text("waiting not measured")
    measured.check()
    expect(page.get_by_role("application", name="8 ranks, steps 1120, 1160, 1200")).to_be_visible()
    page.keyboard.press("Escape")
    field.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    readout = page.locator(".readout")
    expect(readout).to_contain_text(re.compile(r"Rank 5.*all_reduce took.*40\u202fms of it in collectives"))
    expect(readout).not_to_contain_text("in the whole step")  # it waits least
    page.keyboard.press("ArrowDown")
    expect(readout).to_contain_text(re.compile(r"Rank 0.*all_reduce took"))
    expect(readout).to_contain_text(re.compile(r"\d+\u202fms of it in collectives, in the whole step"))
    expect(readout).to_contain_text("longer than the last rank to arrive")
    table = page.get_by_role("region", name="Time per step by section")
    expect(table.get_by_role("columnheader", name="In collectives")).to_be_visible()
    rows = table.get_by_role("row").filter(has_text="node-0")
    expect(table.get_by_role("columnheader")).to_have_text(
        [
            "Rank",
            "Node",
            "Works",
            "In collectives (waiting)",
            "data",
            "forward",
            "backward",
            "optimizer",
        ]
    )  # nothing of a step is outside of its sections, and all_reduce only waits
    expect(rows.first.get_by_role("cell").nth(2)).to_have_text(thin("40 ms"))
    expect(rows.nth(1).get_by_role("cell").nth(1)).to_have_text(re.compile(r"^3\d\d\u202fms$"))
    expect(rows.nth(1).get_by_role("cell").nth(2)).to_have_text(re.compile(r"^\d+\u202fms \(\d+\u202fms waiting\)$"))


def test_a_sentence_states_who_waits_for_whom_and_steps_without_it_are_marked(
    page: Page, monitor_url: str, slow: Script
) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=timeline")
    sentence = page.locator(".timeline .finding")
    expect(sentence).to_contain_text(
        re.compile(r"^In each of these 3 steps rank 5 works \d+.ms; the other 7 work \d+.ms")
    )
    expect(sentence).to_contain_text(re.compile(r" and wait 1\d\d.ms for it\. It takes longer in data"))
    expect(sentence.locator("small")).to_contain_text(re.compile(r"^Measured on 8 of \d+ ranks in sampled steps; "))
    steps = page.locator(".lanes .step")
    page.get_by_label("Only steps with known waiting (3)").uncheck()
    expect(steps.first).to_contain_text("waiting not measured in this step")
    expect(steps.last).to_contain_text(re.compile(rf"step 1,200 \d+.ms · .*{CLOCK}"))
    expect(steps.last).not_to_contain_text("not measured")
    expect(page.locator(".lanes .blamed")).to_have_text(re.compile(r"^\s*slow\s*5\s*node-0$"))
    page.get_by_role("button", name="Earlier").click()
    page.get_by_role("combobox", name="Steps").select_option("1")
    expect(sentence).to_contain_text(re.compile("^In this step .*how long ranks wait for others was not measured"))


def test_on_a_phone_the_columns_of_the_finding_fit_and_a_rank_has_its_node(
    page: Page, monitor_url: str, slow: Script
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{monitor_url}/#/jobs/j?tab=timeline")
    table = page.get_by_role("region", name="Time per step by section")
    waits = "In collectives (waiting)"
    expect(table.get_by_role("columnheader")).to_have_text(
        ["Rank", "Works", waits, "data", "forward", "backward", "optimizer"]
    )
    expect(table.get_by_role("rowheader").first).to_have_text("5node-0slow")
    longest = table.locator(".longer").first
    expect(longest).to_have_text(thin("160 ms +138 ms"))
    box = box_of(longest)
    assert box["x"] + box["width"] <= 390
    last = table.get_by_role("row").nth(1).get_by_role("cell").last
    last.scroll_into_view_if_needed()
    expect(last).to_be_in_viewport(ratio=1)
    expect(table.get_by_role("rowheader").first).to_be_in_viewport(ratio=1)  # the rank stays where it is
    expect(page.locator(".readout")).to_have_text("Tap a section for its time; + and − zoom.")
    expect(page.locator(".choose > small")).to_have_text("rank 5, 6 of the same node, 1 of another node")


def test_its_twin_waiting_that_was_not_measured_is_not_drawn(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=timeline")
    page.get_by_label("Only steps with known waiting (3)").uncheck()
    page.get_by_role("button", name="Earlier").click()
    expect(page.get_by_role("application", name="8 ranks, steps 1150, 1160, 1170")).to_be_visible()
    page.get_by_role("combobox", name="Steps").select_option("1")
    expect(page.get_by_role("application", name="8 ranks, steps 1170")).to_be_visible()
    expect(page.get_by_text("Waiting for others is not drawn in these steps: it is measured in")).to_be_visible()
    expect(page.locator(".key")).not_to_contain_text("transfer")
    table = page.get_by_role("region", name="Time per step by section")
    expect(table.get_by_role("columnheader", name="In collectives")).to_have_count(0)


def test_a_job_without_spans_states_how_to_get_them(page: Page, monitor_url: str, slow: Script) -> None:
    slow.spans = False
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{monitor_url}/#/jobs/j?tab=timeline")
    expect(page.locator(".absent")).to_contain_text("Ranks report steps, but the sections of none.")
    remedy = page.locator(".absent").get_by_role("listitem")
    expect(remedy).to_contain_text("Launch again after unset IT")
    expect(page.locator(".timeline").get_by_role("button")).to_have_count(1)  # there is nothing to move
    remedy.get_by_role("button", name="Copy unset IT").click()
    expect(remedy).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "unset IT"
    expect(page.get_by_role("link", name="How steps and sections get into a script")).to_be_visible()
    page.get_by_role("link", name="Step time and speed in the charts").click()
    page.wait_for_url("**/#/jobs/j?tab=charts")


# Kernels ------------------------------------------------------------------------------------------------------------


def test_a_kernel_that_became_slower_stands_first_with_its_moment(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j")
    page.get_by_role("link", name="Kernels").click()
    page.wait_for_url("**tab=kernels")
    expect(page.get_by_text("1 kernel takes longer than usual")).to_be_visible()
    sentence = page.locator(".finding.uneven")
    alike = "On rank 5 all 4 kernels take 1.12 times the median of all ranks: its device is slow, not one kernel."
    expect(sentence).to_have_text(f"{alike} On node-0.")
    key = page.get_by_role("list", name="Lines of the trends").locator("li")
    clock = r"(\w+ \d+ )?\d\d:\d\d:\d\d"
    seen, reach = re.compile(f"^slow, seen from the report of {clock}$"), re.compile(f"^{clock} to {clock}$")
    lines = ["median of all ranks", "rank 5", "while another rank was the slowest", seen, "the median became longer"]
    expect(key).to_have_text([*lines, reach])
    expect(page.locator("td.uneven")).to_have_count(4)
    rows = page.get_by_role("region", name="Costliest kernels").locator("tbody tr")
    expect(rows).to_have_count(4)
    first = rows.first
    expect(first.get_by_role("rowheader")).to_contain_text("flash_fwd_kernel")
    expect(first).to_contain_text("1.61×since")
    expect(first.locator(".spark")).to_have_accessible_name(re.compile(r"^Median: .+ to .+, 1\.61× as long since"))
    expect(first.locator(".changed:not(.of-slowest)")).to_have_count(1)
    expect(rows.nth(1).get_by_role("rowheader")).to_contain_text("ampere_bf16")
    expect(rows.nth(1).locator(".changed:not(.of-slowest)")).to_have_count(0)
    expect(rows.nth(1).locator("polyline.of-slowest")).to_have_count(1)
    expect(rows.nth(1).locator("polyline.of-others")).to_have_count(1)
    expect(rows.nth(1)).to_contain_text(re.compile(r"39\.0.%52\.0.% of kernel time"))
    expect(rows.nth(1)).to_contain_text(re.compile(r"1\.12× the median, \+11\.2.ms"))
    expect(rows.nth(1).get_by_role("cell").nth(2)).to_have_text(re.compile(r"^7\d$"))  # 94 ms of 1.24 ms
    expect(page.locator("#kernels")).to_contain_text(re.compile(r"Timed by CUPTI on 16 ranks; reported 4\d.s ago"))
    expect(rows.nth(2)).to_contain_text(re.compile(r"9\d(\.\d)?\u202fµs"))
    expect(page.get_by_text("begin anew when it restarts")).to_contain_text("28 further kernels")
    expect(rows.nth(1).locator("td.uneven")).not_to_contain_text("seen from")  # it stands above
    page.get_by_role("columnheader", name="Rank 5").get_by_role("link").click()
    page.wait_for_url("**/#/jobs/j?rank=5")


def test_the_whole_name_of_a_kernel_is_copied(page: Page, monitor_url: str, slow: Script) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{monitor_url}/#/jobs/j?tab=kernels")
    row = page.get_by_role("region", name="Costliest kernels").get_by_role("row").filter(has_text="AdamFunctor")
    expect(row.get_by_role("rowheader")).to_contain_text("multi_tensor_apply_kernel")
    expect(row.get_by_role("rowheader")).to_contain_text("grid 320, block 512")
    expect(row.get_by_role("rowheader")).not_to_contain_text("TensorListMetadata")
    copy = row.get_by_role("button", name="Copy the whole name of multi_tensor_apply_kernel")
    expect(copy).to_have_css("opacity", "1")
    copy.click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor><<<320,1,1 512,1,1>>>"


def test_its_twin_no_kernel_is_slower(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 16)
    page.goto(f"{monitor_url}/#/jobs/j?tab=kernels")
    expect(page.get_by_text("No kernel takes longer than before")).to_be_visible()
    expect(page.locator(".slower")).to_have_count(0)
    key = page.get_by_role("list", name="Lines of the trends")
    expect(key.get_by_role("listitem")).to_have_text(["median of all ranks"])  # no line that is absent or hidden


def test_the_kernels_of_a_rank_that_waits_for_its_data_are_as_fast_as_those_of_the_job(page: Page) -> None:
    """Its own medians prove that its GPU is not why it is slow."""
    job = slow_input("slowed", 600)
    with serving_scenes(job, now=job.created_at + 600) as monitor:
        page.goto(f"{monitor.url}/#/jobs/slowed?tab=kernels")
        kernels = page.get_by_role("region", name="Costliest kernels")
        expect(kernels.get_by_role("columnheader", name=re.compile(rf"^Rank {LOADS} ?its median$"))).to_be_visible()
        first = kernels.get_by_role("row").nth(1).get_by_role("cell").nth(3)
        expect(first).to_have_text(re.compile(r"^1\.2\d\sms(0\.9[89]|1\.0[012])× the median$"))
        expect(first).not_to_have_class("uneven")
        key = page.get_by_role("list", name="Lines of the trends").get_by_role("listitem")
        expect(key.first).to_have_text(
            re.compile(rf"^median of all ranks; rank {LOADS} now (0\.9\d|1\.0\d) to 1\.0\d times that$")
        )
        links = page.locator(".kernels .finding").get_by_role("link")
        expect(links).to_have_text(["Section timeline", "Charts"])
        links.last.click()
        expect(page.get_by_role("region", name="Step time")).to_be_visible()


def test_a_phone_lists_a_kernel_in_a_line_and_the_others_of_its_figures_on_demand(
    page: Page, monitor_url: str, slow: Script
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{monitor_url}/#/jobs/j?tab=kernels")
    kernels = page.get_by_role("region", name="Costliest kernels")
    expect(kernels.get_by_role("columnheader")).to_have_text(["Kernel", "Now / usual", "Rank 5 / median", "Of a step"])
    names = kernels.get_by_role("rowheader")
    expect(names).to_have_count(4)
    expect(names.first.get_by_role("button")).to_have_attribute("aria-expanded", "true")
    more = kernels.locator(".more")
    expect(more).to_contain_text(
        re.compile(r"^One call: median 1\.[34]\d*.ms, tail .+, rank 5 1\.5\d*\u202fms; .+ in a step")
    )
    second = kernels.get_by_role("row").filter(has_text="ampere")
    expect(second.get_by_role("cell")).to_have_text(["1.01×", re.compile(r"^1\.12×\+11\.2.ms$"), thin("39.0 %")])
    names.nth(1).get_by_role("button").click()
    expect(more).to_have_count(1)
    expect(more).to_contain_text("ampere_bf16")
    expect(more.locator(".spark")).to_be_visible()
    names.nth(1).get_by_role("button").click()
    expect(more).to_have_count(0)


def test_a_job_without_kernel_timings_states_how_to_get_them(page: Page, monitor_url: str, slow: Script) -> None:
    slow.kernels = False
    page.goto(f"{monitor_url}/#/jobs/j?tab=kernels")
    expect(page.get_by_text("set kernel_timings to auto in the policy")).to_be_visible()
    expect(page.get_by_role("region", name="Costliest kernels")).to_have_count(0)


# Charts -------------------------------------------------------------------------------------------------------------


def test_the_charts_state_what_changed_and_since_when(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=charts")
    expect(page.get_by_text("Steps take 1.9 times as long since 14:03:20")).to_be_visible()
    chart = page.get_by_role("img", name=re.compile("^Step time: 36[0-2] points"))
    expect(chart.locator("canvas")).to_be_visible()
    key = page.locator(".charts section").first.locator(".key")
    for part in ("communication", "data", "host", "compute", "step, slowest rank", "step, median rank"):
        expect(key).to_contain_text(part)
    expect(key).to_contain_text(re.compile(r"^newest window.*data 410.ms"))
    chart.focus()
    page.keyboard.press("Home")
    expect(key).to_contain_text(thin("data 40 ms"))
    goodput = page.get_by_role("img", name=re.compile(r"^Goodput: 241 points. Now whole run 97\.0.%"))
    expect(goodput, "it ends with the figure of the headline").to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^GPU score, robust.*worst rank; now rank 5 0.62"))).to_be_visible()


def test_its_twin_nothing_changed(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    page.goto(f"{monitor_url}/#/jobs/j?tab=charts")
    expect(page.get_by_text("Nothing changed in the last hour.")).to_be_visible()
    expect(page.locator(".explanation[data-kind=change]")).to_have_count(0)


# Policy and actions -------------------------------------------------------------------------------------------------


def test_every_setting_has_its_unit_and_meaning_and_can_be_changed(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    rows = page.locator(".policy dl > div")
    expect(rows).to_have_count(len(slow.policy.to_json()))
    field = page.get_by_label("silence_timeout")
    expect(field).to_have_value("60")
    expect(rows.filter(has=field).locator(".default")).to_have_text("default")
    expect(field).to_have_accessible_description(re.compile("limit for the time in which nothing is received"))
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    expect(page.get_by_role("button", name="Discard")).to_be_disabled()
    expect(rows.filter(has=page.get_by_label("section_timeouts")).locator("dd").first).to_have_text("default")
    expect(page.locator(".policy .differs")).to_have_count(0)
    expect(rows.filter(has=page.get_by_label("max_restarts"))).to_contain_text("restarts")
    field.fill("30")
    page.get_by_label("observe_only").select_option("on")
    page.get_by_label("section_timeouts").fill("step=12.5, evaluation=600")
    expect(page.locator(".policy .confirm li")).to_have_text(
        [
            "observe_only: off → on",
            "section_timeouts: none → step=12.5, evaluation=600",
            "silence_timeout: 60\u2009s → 30\u2009s",
        ]
    )
    assert slow.policy == Policy(), "nothing acts before it is applied"
    field.scroll_into_view_if_needed()
    expect(page.get_by_role("button", name="Apply 3 changes")).to_be_in_viewport()
    page.get_by_role("button", name="Apply 3 changes").click()
    expect(page.get_by_role("status").filter(has_text="3 values changed")).to_be_visible()
    assert (slow.policy.silence_timeout, slow.policy.observe_only) == (30.0, True)
    assert slow.policy.section_timeouts == {"step": 12.5, "evaluation": 600.0}
    expect(page.locator(".policy .differs label")).to_have_text(["observe_only", "section_timeouts", "silence_timeout"])
    page.get_by_label("Only those not at the default (3)").check()
    expect(rows).to_have_count(3)
    expect(rows.last).to_contain_text("default: 60\u202fs")
    page.get_by_label("silence_timeout").fill("")
    page.get_by_role("button", name="Apply 1 change").click()
    expect(page.get_by_text("1 value changed")).to_be_visible()
    assert slow.policy.silence_timeout is None


def test_changes_can_be_discarded_and_a_phone_folds_the_groups_of_settings(
    page: Page, monitor_url: str, slow: Script
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    folded = page.locator(".policy details.part > summary").first
    expect(folded).to_contain_text("What the monitor does")
    expect(folded).to_contain_text("observe_only off, max_restarts 3\u202frestarts")
    field = page.get_by_label("max_restarts")
    expect(field).to_be_hidden()
    page.get_by_text("What the monitor does").click()
    field.fill("7")
    page.get_by_role("button", name="Discard").click()
    expect(field).to_have_value("3")
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    assert slow.policy.max_restarts == 3


@pytest.mark.parametrize(
    ("least", "remain"),
    [
        (None, ": the job goes on if it may run on 1, else waits."),
        (1, "; the job may run on 1 or more."),
        (
            2,
            "; the job needs at least 2 (--nnodes): first start a launcher on another node, or start the job again",
        ),
    ],
)
def test_an_order_that_follows_a_look_is_marked_as_proposed_and_chosen_by_a_person_with_its_node(
    page: Page, monitor_url: str, script: Script, least: int | None, remain: str
) -> None:
    facts = {"role": "active", "role_reason": "", "lost": None, "ended": None, "last_seen_age": 1.0, "min_nodes": least}
    nodes = [{"node": f"n{n}-17", "host": f"host-{n}", "ranks": [2 * n, 2 * n + 1]} | facts for n in (0, 1)]
    script.add("j", ["running"] * 4, nodes=nodes, checkpoint=None, restart_loses="begins again at step 0")
    script.score("j", slow=(3,), verdict="worker", reason="rank 3 makes the others wait")
    leave = Order(Action.RESTART_EXCLUDING_NODE, "Restart without host-1", (3,), ("host-1",))
    script.jobs["j"]["advice"] = advised("Look", leave, condition="if it stays slow")
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    expect(page.locator(".kinds .tag")).to_have_text("proposed: without host-1 if it stays slow")
    kinds = page.get_by_role("group", name="What to do")
    restarts = kinds.locator("div").nth(1)
    expect(restarts.locator(".all-lost")).to_have_text("A restart begins again at step 0.")
    excluding = kinds.get_by_role("radio", name="Restart without some nodes", exact=True)
    expect(kinds.get_by_role("radio", name="Capture stacks")).to_be_checked()
    expect(page.locator(".kinds :checked")).to_have_count(1)
    expect(page.get_by_role("button", name="Capture stacks …")).to_be_visible()
    expect(page.get_by_role("region", name="Actions").locator("button.go")).to_have_count(0)
    excluding.check()
    expect(excluding).to_have_accessible_description(re.compile(re.escape(remain)))
    expect(kinds.get_by_role("radio", name="Stop now")).to_have_accessible_description(
        "The ranks are ended at once, without saving. Another launch begins again at step 0."
    )
    boxes = page.get_by_role("group", name="Nodes")
    expect(boxes.get_by_role("checkbox", name="n1-17 (host-1)")).to_be_checked()
    expect(boxes.locator(":checked")).to_have_count(1)
    expect(kinds.locator(".no-spare")).to_have_text(re.compile(re.escape(f"1 of 2 nodes remain, and no spare{remain}")))
    boxes.get_by_role("checkbox", name="n1-17 (host-1)").uncheck()
    expect(kinds.locator(".no-spare")).to_have_count(0)
    boxes.get_by_role("checkbox", name="n1-17 (host-1)").check()
    page.get_by_label("Reason").fill("slow input")
    page.get_by_role("button", name="Restart without host-1 …").click()
    expect(page.get_by_role("alertdialog")).to_contain_text("as attempt 2 without host-1.")
    page.get_by_role("alertdialog").get_by_role("button", name="Restart without host-1").click()
    expect(page.get_by_text("Ordered.")).to_be_visible()
    assert script.ordered == [
        {"action": "restart_excluding_node", "reason": "slow input", "ranks": [], "nodes": ["n1-17"]}
    ]


def test_what_an_action_does_is_stated_with_the_values_in_force(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    restart = page.get_by_role("radio", name="Restart", exact=True)
    expect(restart).to_have_accessible_description(
        re.compile(r"^Once the stacks are in, or after 5\ss, the ranks are killed")
    )
    page.get_by_text("2 expert settings").first.click()
    page.get_by_label("capture_deadline").fill("12")
    page.get_by_role("button", name="Apply 1 change").click()
    expect(restart).to_have_accessible_description(
        re.compile(r"^Once the stacks are in, or after 12\ss, the ranks are killed")
    )
    expect(page.get_by_label("on_straggler")).to_have_accessible_description(
        "what to do about a straggler. Log: only recorded and shown; the ranks are left as they are"
    )


def test_a_rejected_change_shows_the_message_of_the_monitor(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    page.get_by_label("max_restarts").fill("-1")
    page.get_by_role("button", name="Apply 1 change").click()
    expect(page.get_by_role("alert")).to_have_text("max_restarts must be a whole number from 0 to 10000, not -1")
    expect(page.get_by_label("max_restarts")).to_have_value("-1")
    assert slow.policy.max_restarts == 3


def test_what_ends_the_job_stands_apart(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    kinds = page.get_by_role("group", name="What to do")
    apart = kinds.locator(".ends")
    expect(apart).to_contain_text("The job ends")
    expect(apart.get_by_role("radio")).to_have_count(2)
    page.get_by_label("Reason").fill("enough")
    for name, grave in (("Capture stacks", 0), ("Restart", 0), ("Save and stop", 1), ("Stop now", 1)):
        kinds.get_by_role("radio", name=name, exact=True).check()
        expect(page.locator("button.ending")).to_have_count(grave)
        page.get_by_role("button", name=f"{name} …").click()
        dialog = page.get_by_role("alertdialog")
        expect(dialog.locator("button.grave")).to_have_count(grave)
        expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Enter")
        expect(dialog).to_have_count(0)
    assert slow.ordered == []


def test_an_order_states_what_it_will_do_and_waits_for_a_yes(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    page.get_by_role("radio", name="Restart", exact=True).check()
    page.get_by_label("Reason").fill("loss is stuck")
    page.get_by_role("button", name="Restart …").click()
    dialog = page.get_by_role("alertdialog", name="Restart: j-name")
    expect(dialog).to_contain_text("all 16 ranks are ended and restarted as attempt 2")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert slow.ordered == []
    page.get_by_role("button", name="Restart …").click()
    dialog.get_by_role("button", name="Restart").click()
    expect(page.get_by_role("link", name="Incident i9")).to_be_visible()
    assert slow.ordered == [{"action": "restart", "reason": "loss is stuck"}]


def test_nodes_to_be_left_out_have_to_be_named(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    page.get_by_role("radio", name="Restart without some nodes").check()
    page.get_by_label("Reason").fill("bad memory")
    page.get_by_role("button", name="Restart without some nodes …").click()
    expect(page.get_by_role("alert")).to_have_text("Name nodes to exclude, or ranks on them.")
    page.get_by_label("Nodes of ranks").fill("5, 8-9")
    page.get_by_role("button", name="Restart without some nodes …").click()
    expect(page.get_by_role("alertdialog")).to_contain_text("without the nodes of ranks 5, 8-9")
    page.get_by_role("alertdialog").get_by_role("button", name="Restart without some nodes").click()
    expect(page.get_by_text("Ordered.")).to_be_visible()
    assert slow.ordered == [
        {"action": "restart_excluding_node", "reason": "bad memory", "ranks": [5, 8, 9], "nodes": []}
    ]


def test_the_control_token_is_asked_for_and_exchanged_for_a_cookie(page: Page, monitor_url: str, slow: Script) -> None:
    slow.control = "s3cret"
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    page.get_by_role("radio", name="Capture stacks").check()
    page.get_by_label("Reason").fill("look")
    page.get_by_role("button", name="Capture stacks …").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Capture stacks").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was done: this token does not allow control")
    assert slow.ordered == []
    page.get_by_label("Control token").fill("s3cret")
    page.get_by_role("button", name="Use it").click()
    page.get_by_role("button", name="Capture stacks …").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Capture stacks").click()
    expect(page.get_by_text("Ordered.")).to_be_visible()
    assert "s3cret" not in page.evaluate("JSON.stringify([sessionStorage, localStorage, document.cookie])")
    assert "s3cret" not in page.url
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Control token")).to_be_visible()
    assert page.context.cookies() == []


def test_there_is_nothing_to_order_of_a_job_that_has_ended(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["finished"] * 4, state="finished", ended_at=1.7e9)
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    expect(page.get_by_text("This job has ended: no action is possible.")).to_be_visible()
    expect(page.get_by_label("Reason")).to_have_count(0)


# Grid and addresses -------------------------------------------------------------------------------------------------


def test_the_grid_is_grouped_by_stage_and_coloured_by_temperature(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j")
    page.get_by_label("Grouped by").select_option("Pipeline stage")
    expect(page.get_by_role("heading", name="Ranks 16 in 4 pipeline groups")).to_be_visible()
    page.get_by_label("Coloured by").select_option("Temperature")
    legend = page.get_by_role("group", name=re.compile("^Temperature of the device")).get_by_role("button")
    expect(legend.first).to_have_text(re.compile("87.°C and more 1"))
    legend.first.click()
    expect(page.locator(".ranks tbody th")).to_have_text(["8"])
    page.wait_for_url("**/#/jobs/j?look=temperature&group=pipeline")


def test_bytes_of_a_colouring_are_read_only_while_it_is_chosen(page: Page, monitor_url: str, slow: Script) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/grid/" in request.url else None)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.get_by_label("Coloured by").locator("option", has_text="Heartbeat age")).to_have_count(1)
    assert asked == []
    with page.expect_response("**/grid/heartbeat_age"):
        page.get_by_label("Coloured by").select_option("Heartbeat age")


def test_an_address_opens_what_a_colleague_looked_at(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?look=heartbeat_age&group=data&rank=11")
    expect(page.get_by_label("Coloured by")).to_have_value("heartbeat_age")
    expect(page.get_by_label("Grouped by")).to_have_value("data")
    expect(page.locator(".readout")).to_contain_text("Rank 11")
    page.get_by_role("link", name="Charts").click()
    page.wait_for_url("**/#/jobs/j?tab=charts&look=heartbeat_age&group=data&rank=11")
    page.go_back()
    expect(page.locator(".readout")).to_contain_text("Rank 11")


def test_another_job_is_not_looked_at_with_the_eyes_of_the_last_one(page: Page, monitor_url: str, slow: Script) -> None:
    slow.add("other", ["running"] * 4)
    page.goto(f"{monitor_url}/#/jobs/j?look=temperature&rank=11")
    expect(page.locator(".readout")).to_contain_text("Rank 11")
    page.goto(f"{monitor_url}/#/jobs/other")
    expect(page.locator("p.now")).to_have_text("All 4 ranks make progress")
    expect(page.get_by_label("Coloured by")).to_have_value("state")
    page.wait_for_url("**/#/jobs/other")


def test_an_address_that_was_just_typed_is_not_overwritten(page: Page, monitor_url: str, slow: Script) -> None:
    slow.add("other", ["running"] * 4)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.get_by_label("Coloured by").locator("option", has_text="Temperature")).to_have_count(1)
    # The page writes what one looks at a little later: here when the address has changed and was not read yet.
    page.evaluate("() => { window.setTimeout = (late, ms) => { if (ms === 300) window.write = late; }; }")
    page.get_by_label("Coloured by").select_option("Temperature")
    page.evaluate("() => { location.hash = '#/jobs/other'; window.write(); }")
    expect(page).to_have_url(f"{monitor_url}/#/jobs/other")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("tab", ["overview", "timeline", "kernels", "charts", "control"])
def test_nothing_is_wider_than_the_screen(page: Page, monitor_url: str, slow: Script, width: int, tab: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{monitor_url}/#/jobs/j?tab={tab}")
    ready = {"overview": ".ranks", "timeline": ".lanes canvas", "kernels": ".spark", "charts": ".u-wrap"}
    ready["control"] = ".policy .part"
    expect(page.locator(ready[tab]).first).to_be_visible()
    fits(page, width)


def test_a_share_is_shown_and_changed_in_percent(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    field = page.get_by_label("straggler_slowdown")
    expect(field).to_have_value("5 %")
    field.fill("7%")
    page.get_by_role("button", name="Apply 1 change").click()
    expect(field).to_have_value("7 %")
    assert slow.policy.straggler_slowdown == pytest.approx(0.07)


def test_the_meaning_of_the_chosen_action_stands_beside_it(page: Page, monitor_url: str, slow: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/j?tab=control")
    choice = page.get_by_label("on_hang")
    expect(choice).to_have_accessible_description(re.compile("Restart: once the stacks are in"))
    choice.select_option("save_and_stop")
    expect(choice).to_have_accessible_description(re.compile("Save and stop: the ranks agree on a step"))
