"""The page in a real Chromium against a scripted monitor: content, announcements and keyboard navigation."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from rankwatch_monitor.core.goodput.intervals import Bucket
from rankwatch_monitor.web import static_folder
from support.browser import fits
from web.scripted_monitor import Script, serving
from web.scripted_rows import TIMEOUTS, advised

REASON = "Rank 2 on node-0 has been in section step for 14.2 s (limit 10 s); 3 ranks wait for it."

BUCKETS = tuple(str(bucket) for bucket in Bucket)

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)


def thin(text: str) -> str:
    """The same text as the page writes it: a thin space between a figure and its unit."""
    return re.sub(r"(?<=\d) (?=[a-z%])", "\u202f", text)


def test_healthy_job_shows_progress(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 8)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator("p.now")).to_have_text("All 8 ranks make progress")
    expect(page.locator(".tiles dt")).to_have_text(["Step time", "Speed", "Waiting", "Last checkpoint"])
    expect(page.locator(".verdict")).to_have_count(0)


def test_a_healthy_job_states_what_that_rests_on_until_it_is_in_trouble(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add(
        "j",
        ["running"] * 4,
        account=[{"text": text} for text in ("a step takes 145 ms, as usual", "no GPU is throttled")],
    )
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".account")).to_have_text("A step takes 145 ms, as usual; no GPU is throttled.")
    script.hang("j", 2, "Rank 2 hangs.")
    expect(page.locator(".verdict.bad")).to_be_visible()


def test_ranks_that_stand_are_counted_before_an_incident_is_opened(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running"] * 4 + ["stopped"])
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".grid .legend")).to_contain_text("stopped 1")
    script.ranks["j"] = ["running"] * 5
    expect(page.locator("p.now")).to_have_text("All 5 ranks make progress")


def test_job_without_a_step_shows_no_progress(page: Page, monitor_url: str, script: Script) -> None:
    reason = "No step has completed yet: its ranks report"
    script.add("j", ["running"] * 8, iteration=None, verdict="no_step", reason=reason)
    page.goto(monitor_url)
    expect(page.get_by_role("heading", name="1 slow")).to_be_visible()
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.get_by_role("heading", name=reason)).to_be_visible()
    expect(page.get_by_role("status")).to_have_text(f"Job j-name: no step. {reason}.")
    expect(page.get_by_text("make progress")).to_have_count(0)


def test_hang_and_recovery_are_shown_live(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator("p.now")).to_have_text("All 4 ranks make progress")

    script.hang("j", 2, REASON)
    expect(page.get_by_role("heading", name=REASON)).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("Job j-name: hung.")
    answers = page.locator(".answers")
    for words in (
        "rank 2",
        "node-0, behind",
        "step",
        "10.2\u202fs when detected",
        "restart",
    ):
        expect(answers).to_contain_text(words)
    groups = page.locator(".stacks .group")
    expect(groups).to_have_count(2)
    expect(groups.first).to_contain_text("culprit")
    expect(groups.first.locator("li.own").first).to_contain_text("read_shard")
    expect(page.locator(".ranks tbody tr").first).to_contain_text("culprit")

    script.heal("j")
    page.locator(".recent a").click()
    expect(page.get_by_text("Restarted as attempt 2.")).to_be_visible()
    expect(page.locator(".row")).to_contain_text("3 steps repeated")
    expect(page.locator(".phases li")).to_have_text(
        [
            re.compile(thin(r"^Detect10\.2 sof which 10 s is the limitdetected [\d:]+$")),
            re.compile(thin(r"^Capture1\.0 scaptured [\d:]+$")),
            re.compile(thin(r"^Restart3\.0 srestarted [\d:]+$")),
            re.compile(r"^Recover\d.*first new step [\d:]+$"),
            thin("Lost steps3.0 s3 steps, the first counts as Recover"),
        ]
    )
    expect(page.locator(".verdict.bad")).to_have_count(0)


def test_news_of_the_stream_outlive_an_older_answer(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/api/v1/jobs/j/incidents", lambda route: held.append((route, route.fetch())))
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator("p.now")).to_have_text("All 4 ranks make progress")
    deadline = time.monotonic() + 15
    while not held:  # the answer is to be made before the hang, and not to arrive; routes run while the page is asked
        assert time.monotonic() < deadline, "the page does not ask for the incidents"
        page.evaluate("new Promise(requestAnimationFrame)")
    script.hang("j", 2, REASON)
    expect(page.get_by_role("heading", name=REASON)).to_be_visible()
    with page.expect_response("**/api/v1/jobs/j/incidents") as arrived:
        for route, answer in held:
            route.fulfill(response=answer)
    assert arrived.value.json() == {"incidents": []}
    expect(page.get_by_text("Limits in force")).to_be_visible()  # closed until the incident is over
    expect(page.get_by_role("region", name="Limits")).to_be_hidden()
    expect(page.get_by_role("heading", name=REASON)).to_be_visible()
    expect(page).to_have_title("hung: j-name · Rankwatch")


def test_the_details_of_ranks_are_read_one_at_a_time(page: Page, monitor_url: str, script: Script) -> None:
    """However slowly the monitor answers and however fast the job steps: reads in parallel never came to an end."""
    script.add("j", ["running"] * 8)
    held: list[Route] = []
    page.route("**/jobs/j/ranks", lambda route: held.append(route))
    page.goto(f"{monitor_url}/#/jobs/j")

    def ten_steps(first: int) -> None:
        for step in range(first, first + 10):
            script.jobs["j"]["iteration"] = step
            expect(page.locator("main")).to_contain_text(f"{step:,}")

    ten_steps(2000)
    assert len(held) == 1
    with page.expect_request("**/jobs/j/ranks"):
        held[0].continue_()
    ten_steps(3000)
    assert len(held) == 2


def test_a_suspicion_shows_when_it_acts(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    incident = script.suspect("j", 2, REASON)
    script.jobs["j"]["advice"] = advised("", awaited="Rankwatch restarts the ranks", until=incident["acts_at"])
    script.jobs["j"] |= {"next": {"text": "restart in", "due": incident["acts_at"]}, "since": incident["opened_at"]}
    page.goto(f"{monitor_url}/#/jobs/j")
    suspicion = page.locator(".verdict.waits")
    expect(suspicion).to_contain_text("suspected")
    expect(suspicion.get_by_role("heading", name=REASON)).to_be_visible()
    expect(suspicion.locator(".row")).to_contain_text(re.compile(r"restart in 0:\d\d"))
    expect(suspicion.locator(".clock")).to_be_visible()
    expect(suspicion.locator(".phases li")).to_have_text(
        [
            re.compile("Detect.*of which 10.s is the limit"),
            re.compile("Confirm.*so far"),
        ]
    )
    expect(page.locator(".ranks tbody tr").first).to_contain_text("suspect")
    expect(page.locator(".ledger li")).to_contain_text("suspected")
    expect(page).to_have_title("suspected: j-name · Rankwatch")

    script.jobs["j"] |= {"advice": None, "next": None}
    script.confirm("j")
    expect(page.locator(".verdict.bad")).to_contain_text(REASON)
    expect(page.locator(".ranks tbody tr").first).to_contain_text("culprit")


def test_a_suspicion_that_resolved_stays_in_the_list_only(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    script.suspect("j", 2, REASON)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".verdict.waits")).to_be_visible()
    script.go_on("j")
    expect(page.locator(".ledger li")).to_contain_text("resumed by itself")
    expect(page.locator(".verdict")).to_have_count(0)
    page.locator(".ledger li a").click()
    expect(page.locator(".verdict")).to_contain_text("the ranks went on by themselves", ignore_case=True)
    expect(page.locator(".answers")).to_contain_text("Action not taken")


def test_limits_are_shown_with_where_they_come_from(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.get_by_role("region", name="Limits")).to_be_hidden()
    page.get_by_text("Limits in force").click()
    table = page.get_by_role("region", name="Limits").get_by_role("table")
    expect(table.get_by_role("columnheader")).to_have_text(["What", "Limit", "Source", "Learned", "Learned earlier"])
    for name, *cells in (
        ("step", "12 s", "mean of learned now and earlier", "10 s", "14 s"),
        ("forward", "30 s", "configured", "12.5 s", "–"),
        ("checkpointing", "4 min", "learned earlier", "–", "4 min"),
        ("evaluation", "30 min", "until durations are known", "–", "–"),
        ("between heartbeats", "5 min", "configured", "–", "–"),
        ("outside sections", "–", "no limit", "–", "–"),
    ):
        row = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name, exact=True))
        expect(row.get_by_role("cell")).to_have_text([thin(cell) for cell in cells])


def test_where_the_time_went_is_shown_and_read_again_when_an_incident_moves(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running"] * 4)
    script.hang("j", 2, REASON)
    script.account("j", 0.912, productive=6566.0, lost_steps=72.0, hang=43.6, startup=518.0, down=0.0)
    page.goto(f"{monitor_url}/#/jobs/j")
    section = page.locator(".goodput")
    expect(section.locator("h2")).to_contain_text(thin("last hour: 97.1 %"))
    expect(section.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("kept steps 91.2.%; start-up 7.2.%; ")
    )
    legend = section.get_by_role("list", name="Time by purpose").get_by_role("listitem")
    expect(legend).to_have_count(4)
    expect(legend.first).to_contain_text(thin("kept steps 1 h 49 min"))
    before = script.goodput_readings
    script.heal("j")
    script.account("j", 0.5, productive=50.0, restart=50.0)
    expect(legend).to_have_count(2, timeout=9000)  # sooner than its turn of 10 s
    assert script.goodput_readings - before <= 2


def test_a_monitor_that_keeps_no_accounts_costs_only_that_part(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.get_by_text("Limits in force")).to_be_visible()
    with page.expect_response("**/goodput"):
        page.reload()
    expect(page.locator("p.now")).to_have_text("All 4 ranks make progress")
    expect(page.locator(".goodput")).to_have_count(0)


def test_a_failed_job_states_why_before_it_reports_its_last_incident(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running"] * 4)
    script.hang("j", 2, REASON)
    script.heal("j")
    script.jobs["j"] |= {"state": "failed", "reason": "The restart budget of 3 is used up.", "ended_at": 1.0}
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".verdict h2").first).to_contain_text("The restart budget of 3 is used up.")
    expect(page.locator(".attempts")).to_contain_text("attempt 1")


def test_an_incident_has_an_address_of_its_own(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    script.hang("j", 1, REASON)
    script.heal("j")
    page.goto(f"{monitor_url}/#/jobs/j/incidents/i1")
    expect(page.get_by_role("region", name="Past incident")).to_be_visible()
    expect(page.locator(".head .tag")).to_have_text("as of now")
    page.get_by_role("link", name="Show the job as it is now").click()
    expect(page.locator(".head .tag")).to_have_count(0)
    expect(page).to_have_url(f"{monitor_url}/#/jobs/j")
    page.goto(f"{monitor_url}/#/jobs/j/incidents/none")
    expect(page.get_by_text("This job has no incident none.")).to_be_visible()


def test_the_grid_is_read_with_the_keyboard(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 16)
    script.hang("j", 9, REASON)
    page.goto(f"{monitor_url}/#/jobs/j")
    grid = page.get_by_role("application")
    expect(grid).to_have_attribute("aria-label", "16 ranks: 1 hung, 15 waiting")
    expect(page.locator(".field .node")).to_have_text(["node-0", "node-1"])
    grid.focus()
    page.keyboard.press("n")
    expect(page.locator(".readout")).to_contain_text("Rank 9")
    expect(page.locator(".readout")).to_contain_text("node-1")
    page.keyboard.press("ArrowUp")
    expect(page.locator(".readout")).to_contain_text("Rank 1")
    page.keyboard.press("Escape")
    expect(page.locator(".readout")).to_contain_text("Arrow keys")


def test_the_chart_comes_although_its_code_could_not_be_fetched_at_first(
    page: Page, monitor_url: str, script: Script
) -> None:
    refused: list[str] = []

    def refuse_once(route: Route) -> None:
        refused.append(route.request.url)
        if len(refused) == 1:
            route.abort()
        else:
            route.continue_()

    page.route("**/uPlot*.js", refuse_once)
    script.add("j", ["running"])
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".chart canvas").first).to_be_visible(timeout=20_000)
    assert len(refused) > 1


def test_a_state_of_the_legend_singles_out_its_ranks(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 7 + ["dead"])
    page.goto(f"{monitor_url}/#/jobs/j")
    page.get_by_role("button", name="dead 1").click()
    expect(page.locator(".ranks tbody tr")).to_have_count(1)
    expect(page.locator(".ranks tbody")).to_contain_text("dead")


def test_sixteen_thousand_ranks_are_shown_and_the_culprit_is_found(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("big", ["running"] * 16_384)
    script.hang("big", 9208, REASON)
    page.goto(f"{monitor_url}/#/jobs/big")
    expect(page.locator(".ring em")).to_have_text("rank 9208")
    expect(page.get_by_text("16,384 on 2,048 nodes")).to_be_visible(timeout=20_000)
    expect(page.locator(".ranks tbody tr").first).to_contain_text("9208")
    assert page.locator(".ranks tbody tr").count() < 50
    expect(page.locator("canvas").first).to_be_visible()


def test_a_token_in_the_address_is_exchanged_for_a_cookie_and_kept_nowhere(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.token = "sesame"
    script.add("j", ["running"])
    page.goto(f"{monitor_url}/?token=sesame#/jobs/j")
    expect(page.locator("p.now")).to_have_text("The rank makes progress")
    expect(page).to_have_url(f"{monitor_url}/#/jobs/j")
    page.reload()
    expect(page.locator("p.now")).to_have_text("The rank makes progress")
    assert script.seen_tokens == {None}
    assert not any("sesame" in query for query in script.seen_queries)
    assert "sesame" not in page.evaluate("JSON.stringify([sessionStorage, localStorage, document.cookie])")


def test_without_the_token_the_page_asks_for_it(page: Page, monitor_url: str, script: Script) -> None:
    script.token = "sesame"
    script.add("j", ["running"])
    page.goto(f"{monitor_url}/#/jobs/j")
    page.get_by_label("Token").fill("simsalabim")
    page.get_by_role("button", name="Open the page").click()
    expect(page.get_by_role("alert")).to_have_text("Rejected by the monitor: the token is wrong.")
    page.get_by_label("Token").fill("sesame")
    page.get_by_role("button", name="Open the page").click()
    expect(page.locator("p.now")).to_have_text("The rank makes progress")


def test_a_lost_monitor_is_shown_and_reconnected(page: Page, script: Script) -> None:
    script.add("j", ["running"] * 4)
    with serving(script) as url:
        page.goto(f"{url}/#/jobs/j")
        expect(page.locator("p.now")).to_have_text("All 4 ranks make progress")
    expect(page.get_by_role("alert")).to_contain_text("No connection to the monitor for")
    expect(page.get_by_role("alert")).to_contain_text("Training does not depend on the monitor.")
    script.jobs["j"]["iteration"] = 2000
    with serving(script, port=int(url.rsplit(":", 1)[1])):
        expect(page.locator(".tiles")).to_contain_text("2,000", timeout=15_000)
        expect(page.get_by_role("alert")).to_have_count(0)


def test_an_unknown_job_is_reported(page: Page, monitor_url: str, script: Script) -> None:
    page.goto(f"{monitor_url}/#/jobs/nope")
    expect(page.get_by_role("heading", name="The monitor does not know job nope.")).to_be_visible()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    script.add("nope", ["running"] * 4)
    expect(page.locator("p.now")).to_have_text("All 4 ranks make progress", timeout=15_000)


def test_a_job_of_another_monitor_stands_in_the_list_and_its_page_states_where_it_is(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("own", ["running"] * 4)
    script.elsewhere["away"] = "job 'away' is held by monitor b at http://b:9560: ask there"
    page.goto(monitor_url)
    row = page.locator(".jobs > li").filter(has_text="away")
    expect(row).to_contain_text("Owned by monitor b.")
    expect(page.get_by_role("heading", name="2 jobs, no trouble")).to_be_visible()
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", name="This monitor does not show job away now.")).to_be_visible()
    expect(page.get_by_text("held by monitor b at http://b:9560")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("width", [380, 390, 768, 1440])
def test_nothing_is_wider_than_the_screen(page: Page, monitor_url: str, script: Script, width: int) -> None:
    script.add("j", ["running"] * 512)
    script.hang("j", 77, REASON)
    script.account("j", 0.912, **dict.fromkeys(BUCKETS, 1000.0))
    page.set_viewport_size({"width": width, "height": 800})
    for address in ("/", "/#/jobs/j"):
        page.goto(f"{monitor_url}{address}")
        expect(page.get_by_text(REASON).first).to_be_visible()
        if "jobs" in address:
            expect(page.locator(".goodput .buckets li")).to_have_count(len(BUCKETS))
            expect(page.locator(".limits tbody tr")).to_have_count(len(TIMEOUTS))
        fits(page, width)


def test_the_theme_is_the_system_s_until_one_is_chosen(page: Page, monitor_url: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(monitor_url)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_label("Theme:").select_option("light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_everything_works_under_the_content_security_policy(page: Page, monitor_url: str, script: Script) -> None:
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    script.add("j", ["running"] * 4)
    script.account("j", 0.9, productive=90.0, hang=10.0)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".u-wrap").first).to_be_visible()
    expect(page.locator(".goodput .track i")).to_have_count(2)
    assert refused == []
