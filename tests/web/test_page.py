"""The page in a real Chromium, against a scripted monitor: what a person sees, hears and can reach by keyboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Error, Page, Route, expect, sync_playwright

from rankwatch_monitor.web import static_folder
from web.scripted_monitor import Script, serving

REASON = "Rank 2 on node-0 has been in section step for 14.2 s (limit 10 s); 3 ranks wait for it."

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    installed = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        except Error as error:
            pytest.skip(f"no Chromium here: {error.message.splitlines()[0]}")
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    yield page
    context.close()
    assert broken == []


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def monitor_url(script: Script) -> Iterator[str]:
    with serving(script) as url:
        yield url


def test_no_job_yet_shows_how_to_get_one(page: Page, monitor_url: str) -> None:
    page.goto(monitor_url)
    expect(page.get_by_role("heading", name="No job yet.")).to_be_visible()
    expect(page.get_by_text(f"rankwatch run --monitor {monitor_url}")).to_be_visible()


def test_jobs_in_trouble_stand_first_with_their_reason(page: Page, monitor_url: str, script: Script) -> None:
    script.add("healthy", ["running"] * 4)
    script.add("ill", ["running"] * 4)
    script.hang("ill", 2, REASON)
    page.goto(monitor_url)
    first = page.get_by_role("listitem").first
    expect(first).to_contain_text("hung")
    expect(first).to_contain_text(REASON)
    expect(page).to_have_title("hung: ill-name · Rankwatch")
    first.get_by_role("link").click()
    expect(page.get_by_role("heading", name=REASON)).to_be_visible()


def test_a_job_appears_without_a_reload(page: Page, monitor_url: str, script: Script) -> None:
    page.goto(monitor_url)
    expect(page.get_by_role("heading", name="No job yet.")).to_be_visible()
    script.add("new", ["running"])
    expect(page.get_by_text("new-name")).to_be_visible()


def test_healthy_job_says_so(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 8)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.get_by_text("All 8 ranks are making progress.")).to_be_visible()
    expect(page.get_by_text("None in this job so far.")).to_be_visible()
    expect(page.locator(".verdict")).to_have_count(0)


def test_hang_and_recovery_are_told_as_they_happen(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.get_by_text("All 4 ranks are making progress.")).to_be_visible()

    script.hang("j", 2, REASON)
    expect(page.get_by_role("heading", name=REASON)).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("Job j-name is hung.")
    answers = page.locator(".answers")
    for words in (
        "rank 2",
        "node-0, behind",
        "step",
        "14.2 s, limit 10.0 s".replace(" s", "\u2009s"),
        "restart",
        "so far",
    ):
        expect(answers).to_contain_text(words)
    groups = page.locator(".stacks .group")
    expect(groups).to_have_count(2)
    expect(groups.first).to_contain_text("culprit")
    expect(groups.first.locator("li.own").first).to_contain_text("read_shard")
    expect(page.locator(".ranks tbody tr").first).to_contain_text("culprit")

    script.heal("j")
    expect(page.get_by_text("Restarted as attempt 2.")).to_be_visible()
    expect(page.locator(".answers")).to_contain_text("3 steps lost")
    expect(page.locator(".phases li")).to_have_count(5)
    expect(page.locator(".verdict.open")).to_have_count(0)


def test_a_failed_job_says_why_before_it_tells_of_its_last_incident(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running"] * 4)
    script.hang("j", 2, REASON)
    script.heal("j")
    script.jobs["j"] |= {"state": "failed", "reason": "The restart budget of 3 is used up.", "ended_at": 1.0}
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".now")).to_have_text("The restart budget of 3 is used up.")
    expect(page.get_by_role("heading", name=REASON)).to_be_visible()


def test_an_incident_has_an_address_of_its_own(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    script.hang("j", 1, REASON)
    script.heal("j")
    page.goto(f"{monitor_url}/#/jobs/j/incidents/i1")
    expect(page.get_by_text("Past incident")).to_be_visible()
    page.get_by_role("link", name="Show the job as it is now").click()
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
    expect(page.locator(".readout")).to_contain_text("arrow keys")


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
    expect(page.locator(".chart canvas")).to_be_visible(timeout=20_000)
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
    expect(page.locator(".ring em")).to_have_text("rank 9208", timeout=20_000)
    expect(page.get_by_text("16,384 on 2,048 nodes")).to_be_visible(timeout=20_000)
    expect(page.locator(".ranks tbody tr").first).to_contain_text("9208")
    assert page.locator(".ranks tbody tr").count() < 50
    assert page.locator("canvas").first.is_visible()


def test_the_token_leaves_the_address_bar_and_goes_with_every_request(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.token = "sesame"
    script.add("j", ["running"])
    page.goto(f"{monitor_url}/?token=sesame#/jobs/j")
    expect(page.get_by_text("The rank is making progress.")).to_be_visible()
    expect(page).to_have_url(f"{monitor_url}/#/jobs/j")
    page.reload()
    expect(page.get_by_text("The rank is making progress.")).to_be_visible()
    assert script.seen_tokens <= {"sesame", None}  # None: event streams cannot carry a header
    assert "sesame" in script.seen_tokens


def test_without_the_token_the_page_asks_for_it(page: Page, monitor_url: str, script: Script) -> None:
    script.token = "sesame"
    script.add("j", ["running"])
    page.goto(f"{monitor_url}/#/jobs/j")
    page.get_by_label("Token").fill("sesame")
    page.get_by_role("button", name="Open the page").click()
    expect(page.get_by_text("The rank is making progress.")).to_be_visible()


def test_a_lost_monitor_is_told_and_comes_back_by_itself(page: Page, script: Script) -> None:
    script.add("j", ["running"] * 4)
    with serving(script) as url:
        page.goto(f"{url}/#/jobs/j")
        expect(page.get_by_text("All 4 ranks are making progress.")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("No connection to the monitor for", timeout=15_000)
    expect(page.get_by_role("alert")).to_contain_text("Training does not depend on the monitor.")
    script.jobs["j"]["iteration"] = 2000
    with serving(script, port=int(url.rsplit(":", 1)[1])):
        expect(page.get_by_text("2,000")).to_be_visible(timeout=15_000)
        expect(page.get_by_role("alert")).to_have_count(0)


def test_an_unknown_job_gets_the_words_of_the_monitor(page: Page, monitor_url: str) -> None:
    page.goto(f"{monitor_url}/#/jobs/nope")
    expect(page.get_by_role("heading", name="The monitor does not know job nope.")).to_be_visible()


@pytest.mark.parametrize("width", [380, 768, 1440])
def test_nothing_is_wider_than_the_screen(page: Page, monitor_url: str, script: Script, width: int) -> None:
    script.add("j", ["running"] * 512)
    script.hang("j", 77, REASON)
    page.set_viewport_size({"width": width, "height": 800})
    for address in ("/", "/#/jobs/j"):
        page.goto(f"{monitor_url}{address}")
        expect(page.get_by_text(REASON).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_theme_is_the_system_s_until_one_is_chosen(page: Page, monitor_url: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(monitor_url)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Theme: auto").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_everything_works_under_the_content_security_policy(page: Page, monitor_url: str, script: Script) -> None:
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    script.add("j", ["running"] * 4)
    page.goto(f"{monitor_url}/#/jobs/j")
    expect(page.locator(".u-wrap")).to_be_visible()
    assert refused == []
