"""Stragglers on the page, in a real Chromium against a scripted monitor."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from rankwatch.contract.enums import Action
from rankwatch_monitor.core.views.responses import Order
from rankwatch_monitor.web import static_folder
from support.browser import fits
from support.waiting import wait_for
from web.scripted_monitor import Script
from web.scripted_rows import advised

REASON = "Rank 5 on node-0 makes 7 ranks wait for 40 % of each step: its input comes late."
RATE = "3.20 GPU-hours each hour: 40 % of each step of 8 ranks"

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)


def thin(text: str) -> str:
    """The same text as the page writes it: a thin space between a figure and its unit."""
    return re.sub(r"(?<=\d) (?=[a-zG%])", "\u202f", text)


def test_a_straggler_is_reported_with_cause_cost_and_reason_and_folded_once_it_is_over(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running"] * 8)
    script.score("j", slow=(5, 3), verdict="worker", reason=REASON)
    page.goto(f"{monitor_url}/#/jobs/j")
    section = page.get_by_role("region", name="Stragglers 2 now, costliest first")
    rows = section.get_by_role("region", name="Stragglers now, costliest first").locator("tbody tr")
    expect(rows.locator("th")).to_have_text(["5", "3"])
    figures = ["node-0", "input", "400 ms", "40 %", "0.60", "4.00 GPU-hours"]
    expect(rows.first.locator("td")).to_contain_text(
        [*(thin(each) for each in figures), re.compile(r"\d\d:\d\d"), "5 of 5"]
    )

    script.speed_up("j")
    calm = page.get_by_role("region", name="Stragglers none now")
    ended = calm.get_by_role("region", name="Stragglers that have ended")
    expect(ended).to_be_hidden()
    calm.get_by_text("Recently ended (2)").click()
    expect(ended.locator("tbody tr")).to_have_count(2)


def test_a_slow_job_has_a_next_action_with_a_command_an_order_and_the_runbook(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running"] * 8)
    script.score("j", slow=(5,), verdict="worker", reason=f"{REASON} Its input takes 62 ms.")
    script.jobs["j"]["reason"] = script.jobs["j"]["headline"] = REASON.rstrip(".")
    performance = script.performance["j"]
    leave = Order(Action.RESTART_EXCLUDING_NODE, "Restart without node-0", (5,), ("node-0",))
    look = {"command": "py-spy dump", "host": "node-0", "runbook": "straggler"}
    script.jobs["j"]["advice"] = advised("Look at what feeds rank 5", leave, **look)
    performance["stragglers"][0] |= {"section": "data", "own": 0.062, "peers": 0.002}
    performance["cost_rate"] = RATE
    page.goto(f"{monitor_url}/#/jobs/j")
    banner = page.locator(".verdict")
    expect(banner.locator("h2").first).to_contain_text(REASON.rstrip("."))
    facts = banner.locator(".answers > div")
    expect(facts.locator("dt")).to_have_text(["Its input", "Others wait", "Action", "Cost"])
    expect(facts.nth(0)).to_contain_text(thin("62 ms2.0 ms on its peers, section data"))
    expect(facts.nth(1)).to_contain_text(re.compile(r"%\)of each step$"))
    expect(facts.nth(2)).to_contain_text("noneon_straggler = log")
    expect(facts.nth(3)).to_contain_text(thin(RATE))
    assert page.evaluate(
        "document.querySelector('.verdict.warns').compareDocumentPosition(document.querySelector('.tabs')) & 4"
    )
    todo = banner
    expect(todo).to_contain_text("Look at what feeds rank 5.")
    expect(todo.locator("code")).to_have_text("py-spy dump")
    expect(todo.get_by_role("link", name="Runbook")).to_have_attribute("href", re.compile("#rankwatchstraggler$"))
    todo.get_by_role("button", name="Copy py-spy dump").click()
    expect(todo).to_contain_text("Copied")
    todo.get_by_role("button", name="Restart without node-0").click()
    page.wait_for_url("**tab=control")

    band = page.locator(".verdict.brief")
    expect(band.locator("h2")).to_be_visible()  # on another tab the line alone, which leads back
    expect(page.locator(".answers")).to_have_count(0)
    band.get_by_role("link").click()
    expect(page.locator(".answers")).to_be_visible()


def test_a_phone_shows_the_whole_sentence_of_the_banner(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 8)
    script.score("j", slow=(5,), verdict="worker", reason=REASON)
    script.jobs["j"]["headline"] = (
        "Rank 5 on gpu-node-0123.cluster.example is slow: GPU 5 throttled; 31 ranks wait 27 %"
    )
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{monitor_url}/#/jobs/j?tab=kernels")
    title = page.locator(".verdict.brief h2")
    expect(title).to_contain_text("31 ranks wait 27")
    fits(page, 390)
    wait_for(lambda: title.evaluate("title => title.scrollHeight <= title.clientHeight"), "the whole title is shown")


def test_a_slow_rank_is_marked_in_the_table_and_in_the_grid(page: Page, monitor_url: str, script: Script) -> None:
    """Its state is "running", as that of all others."""
    script.add("j", ["running"] * 8)
    script.score("j", slow=(5, 3), verdict="worker", reason=REASON)
    page.goto(f"{monitor_url}/#/jobs/j")
    rows = page.get_by_role("region", name="Ranks, worst first").locator("tbody tr")
    expect(rows.locator("th")).to_have_text(["5", "3", "0–2, 4, 6, 7"])
    rows.get_by_role("button", name="6 alike").click()
    expect(rows.locator("th")).to_have_text(["5", "3", "0", "1", "2", "4", "6", "7"])
    expect(rows.locator(".tag.slow")).to_have_text([re.compile("^slow 40.%$"), re.compile("^slow 20.%$")])
    basis = re.compile("40.%: the other ranks wait this share of each step for it")
    expect(rows.locator(".tag.slow").first).to_have_attribute("title", basis)
    expect(page.locator(".ranks .basis")).to_have_text(basis)
    expect(page.locator(".grid .legend button")).to_have_text(["slow 2", "running 6"])
    page.get_by_role("button", name="slow 2").click()
    expect(rows.locator("th")).to_have_text(["5", "3"])
    page.get_by_role("button", name="slow 2").click()
    rings = page.locator(".grid .ring.slow")
    expect(rings).to_have_text(["slow", "slow"])
    expect(rings.first).to_have_css("outline-style", "none")  # the cell is filled, with a mark of its own
    page.get_by_label("Coloured by").select_option("Others wait")
    expect(rings.first).to_have_css("outline-style", "dashed")  # the cell has the colour of another measure
    expect(page.locator(".grid .ringed")).to_have_text("slow 2")
    page.get_by_label("Coloured by").select_option("State")
    page.get_by_role("application", name=re.compile("^8 ranks")).focus()
    page.keyboard.press("n")
    expect(page.locator(".readout")).to_contain_text(re.compile("Rank 3.*slow 20.%"))

    script.speed_up("j")
    expect(rings).to_have_count(0)
    expect(rows.locator("th")).to_have_text([str(rank) for rank in range(8)])
    page.get_by_role("button", name="One line for ranks that are alike").click()
    expect(rows.locator(".tag.slow")).to_have_count(0)


def test_a_job_that_has_no_scores_has_no_section_and_no_choice(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 8)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator("p.now")).to_have_text("All 8 ranks make progress")
    expect(page.locator(".stragglers")).to_have_count(0)
    expect(page.get_by_label("Coloured by")).to_have_count(0)
    script.score("j")
    expect(page.get_by_label("Coloured by")).to_have_value("state")
    expect(page.locator(".stragglers")).to_have_count(0)


def test_unbalanced_stages_are_no_fault_of_a_node(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 8)
    reason = "Pipeline stage 1 has more to do than the others: the stages are unbalanced, no node is to blame."
    script.score("j", verdict="stage", reason=reason)
    script.jobs["j"]["reason"] = reason
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".verdict.warns h2").first).to_contain_text(reason)
    expect(page.locator(".stragglers")).to_have_count(0)


def test_the_grid_shows_lateness_by_keyboard_too(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 64)
    script.score("j", slow=(20, 41), verdict="worker", reason=REASON)
    page.goto(f"{monitor_url}/#/jobs/j")
    page.get_by_label("Coloured by").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("Coloured by")).to_have_value("lateness")
    legend = page.get_by_role("group", name=re.compile("^Share of a step that the other ranks wait for the rank"))
    expect(legend.get_by_role("button")).to_have_text(["20 % and more 2", "under 1 % 62"])
    field = page.get_by_role("application")
    expect(field).to_have_attribute("aria-label", "64 ranks: 2 20 % and more, 62 under 1 %")
    field.focus()
    page.keyboard.press("n")
    expect(page.locator(".readout")).to_contain_text("Rank 20")
    page.keyboard.press("n")
    expect(page.locator(".readout")).to_contain_text("Rank 41")
    legend.get_by_role("button", name="20 % and more").click()
    expect(page.locator(".ranks tbody th")).to_have_text(["20", "41"])
    expect(page.locator(".ranks tbody tr").first).to_contain_text(thin("40 %"))
    page.get_by_label("Coloured by").select_option("GPU score")
    names = page.get_by_role("group", name=re.compile("^GPU score against")).get_by_role("button")
    expect(names.first).to_have_text(re.compile(r"^under 0\.70 1$"))


def test_hundreds_of_stragglers_do_not_flood_the_page(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 512)
    script.score("j", slow=tuple(range(0, 500, 10)), verdict="worker", reason=REASON)
    script.performance["j"]["open"] = 200
    page.goto(f"{monitor_url}/#/jobs/j")
    section = page.get_by_role("region", name="Stragglers 200 now, costliest first")
    rows = section.get_by_role("region", name="Stragglers now, costliest first").locator("tbody tr")
    expect(rows).to_have_count(8)
    section.get_by_role("button", name="Show the first 50").click()
    expect(rows).to_have_count(50)


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_screen(page: Page, monitor_url: str, script: Script, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    script.add("j", ["running"] * 512)
    script.score("j", slow=(5, 77), verdict="worker", reason=REASON)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".stragglers")).to_be_visible()
    fits(page, width)
