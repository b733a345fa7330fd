"""The list of jobs in a real Chromium: what stands first, and how a job is found."""

from __future__ import annotations

import base64
import re
import time

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from rankwatch_monitor.web import static_folder
from support.browser import box_of, fits
from support.waiting import wait_for
from web.scripted_monitor import Script
from web.scripted_rows import RESTART, advised
from web.test_page_sizes import keep

REASON = "Rank 2 on node-0 has been in section step for 14.2 s (limit 10 s); 3 ranks wait for it."

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)


def test_no_job_yet_shows_how_to_get_one(page: Page, monitor_url: str) -> None:
    page.goto(monitor_url)
    expect(page.get_by_role("heading", name="No job yet.")).to_be_visible()
    expect(page.get_by_text(f"rankwatch run --monitor {monitor_url}")).to_be_visible()


def test_jobs_in_trouble_stand_first_with_their_reason(page: Page, monitor_url: str, script: Script) -> None:
    script.add("healthy", ["running"] * 4)
    script.add("ill", ["running"] * 4)
    script.hang("ill", 2, REASON)
    page.goto(monitor_url)
    first = page.locator(".jobs > li").first
    expect(first).to_contain_text("hung")
    expect(first).to_contain_text(REASON)
    expect(page).to_have_title("hung: ill-name · Rankwatch")
    first.get_by_role("link").click()
    expect(page.get_by_role("heading", name=REASON)).to_be_visible()


@pytest.mark.parametrize("width", [390, 1440])
def test_a_job_in_trouble_has_its_age_and_a_suspicion_its_name(
    page: Page, monitor_url: str, script: Script, width: int
) -> None:
    now = time.time()
    script.add("healthy", ["running"] * 4)
    script.add("slow", ["running"] * 4, verdict="worker", reason="Rank 1 is slow", since=now - 2 * 3600 - 60)
    script.add("ill", ["running"] * 4)
    script.hang("ill", 2, REASON)
    script.jobs["ill"]["since"] = now - 12 * 60 - 20
    script.add("doubtful", ["running"] * 4)
    script.suspect("doubtful", 2, REASON)
    script.jobs["doubtful"] |= {"headline": "Rank 2 on node-0 is behind", "since": now - 60}
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(monitor_url)
    rows = page.locator(".jobs li")
    expect(rows.locator(".what > b")).to_have_text(["ill-name", "slow-name", "doubtful-name", "healthy-name"])
    ages = rows.locator(".age")
    expect(ages).to_have_text(["12\u202fmin", "2\u202fh", "1\u202fmin"])
    expect(rows.locator(".state")).to_have_text(["hung", "slow", "suspected", "running"])
    expect(rows.nth(2).locator(".why")).to_have_text("Rank 2 on node-0 is behind")
    expect(rows.nth(0).locator(".figure", has_text="restarts")).to_have_count(0)
    fits(page, width)
    keep(page, f"fleet-{width}")


@pytest.mark.parametrize("width", [390, 1440])
def test_what_a_person_should_do_stands_in_its_row_and_leads_there(
    page: Page, monitor_url: str, script: Script, width: int
) -> None:
    script.add("healthy", ["running"] * 4)
    quiet = advised("Check whether node host-1 is up") | {"host": "host-1"}
    for job, advice in (("ill", advised("Restart the ranks", RESTART)), ("quiet", quiet)):
        script.add(job, ["running"] * 4)
        script.hang(job, 2, REASON)
        script.jobs[job]["advice"] = advice
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(monitor_url)
    expect(page.get_by_role("heading", level=1)).to_have_text("2 need you")
    expect(page.locator(".jobs .next")).to_have_count(2)
    fits(page, width)
    keep(page, f"fleet-next-{width}")
    page.get_by_role("link", name="Check whether node host-1 is up").click()
    expect(page).to_have_url(re.compile("#/nodes/host-1$"))
    page.go_back()
    page.get_by_role("link", name="Restart the ranks").click()
    expect(page).to_have_url(re.compile(r"#/jobs/ill\?tab=control$"))


def test_many_jobs_are_searched_filtered_and_sorted(page: Page, monitor_url: str, script: Script) -> None:
    for number in range(4):
        script.add(f"run-{number}", ["running"] * 4, goodput=0.9 - number / 10)
    script.suspect("run-1", 2, REASON)
    ended = {"state": "failed", "ended_at": time.time() - 60}
    script.jobs["run-2"] |= ended | {"advice": advised("Remove the cause")}
    page.goto(monitor_url)
    expect(page.get_by_role("heading", level=1)).to_have_text("1 needs you · 1 recovering")
    rows = page.locator(".jobs > li")
    expect(rows.locator(".what > b")).to_have_text(["run-2-name", "run-1-name", "run-3-name", "run-0-name"])
    page.get_by_label("Sort by").select_option("lowest goodput")
    expect(rows.locator(".what > b")).to_have_text(["run-3-name", "run-2-name", "run-1-name", "run-0-name"])
    page.get_by_label("State").select_option("suspected")
    page.get_by_label("Find").fill("SECTION step")
    expect(rows.locator(".what > b")).to_have_text(["run-1-name"])
    page.get_by_label("Find").fill("nothing of this")
    expect(page.get_by_text("No job matches: 4 are hidden by the search and the filter.")).to_be_visible()
    page.get_by_role("button", name="Show all jobs").click()
    expect(rows).to_have_count(4)


def test_a_job_appears_without_a_reload(page: Page, monitor_url: str, script: Script) -> None:
    page.goto(monitor_url)
    expect(page.get_by_role("heading", name="No job yet.")).to_be_visible()
    script.add("new", ["running"])
    expect(page.get_by_text("new-name")).to_be_visible()


def test_a_late_list_does_not_replace_what_an_event_brought(page: Page, monitor_url: str, script: Script) -> None:
    late: list[tuple[Route, APIResponse]] = []
    page.route(re.compile("/jobs$"), lambda route: late.append((route, route.fetch())))
    page.goto(monitor_url)
    wait_for(lambda: page.wait_for_timeout(20) or late, "the list without a job")
    script.add("new", ["running"])
    expect(page.get_by_text("new-name")).to_be_visible()
    for route, answer in late:
        with page.expect_request_finished(lambda each: each.url.endswith("/jobs")):
            route.fulfill(response=answer)
    expect(page.get_by_text("new-name")).to_be_visible()


def test_the_speed_of_the_last_hours_stands_beside_each_job(page: Page, monitor_url: str, script: Script) -> None:
    script.add("steady", ["running"] * 4)
    script.add("hung", ["running"] * 4)
    script.hang("hung", 2, REASON)
    script.add("new", ["running"] * 4)
    shares = {"steady": bytes([255] * 8 + [250] * 40), "hung": bytes([254] * 40 + [0] * 8)}
    script.answers["/sparklines"] = {
        "until": 0, "seconds": 300, "unknown": 255, "largest": 254,
        "jobs": {job: [3.2, base64.b64encode(each).decode()] for job, each in shares.items()},
    }  # fmt: skip
    page.goto(monitor_url)
    lines = page.get_by_role("img", name="Speed of the last 4\u202fh, at most 3.20 steps/s")
    expect(lines).to_have_count(2)
    hung = page.locator('.jobs li[data-state="hung"]')
    line = re.compile(r"^M0\.0 1\.0.*V23\.0H96\.0")
    expect(hung.locator(".spark path")).to_have_attribute("d", line)  # a vertical edge, and the bottom to the end
    expect(page.locator(".jobs li", has_text="new-name").locator("svg")).to_have_count(
        page.locator(".state svg").count() // 3
    )
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        fits(page, width)
        keep(page, f"fleet-sparklines-{width}")


def test_only_what_needs_a_person_is_tinted_and_has_two_lines(page: Page, monitor_url: str, script: Script) -> None:
    for state in ("hung", "lost", "restarting", "failed"):
        script.add(state, ["running"] * 4, advice=advised("Look"))
        script.jobs[state] |= {"state": state, "ended_at": time.time() - 60 if state == "failed" else None}
    script.jobs["restarting"]["advice"] = advised("", awaited="the launchers restart the ranks")
    page.goto(monitor_url)
    expect(page.locator(".jobs > li")).to_have_count(4)
    tones = "(rows) => Object.fromEntries(rows.map((row) => [row.dataset.state, row.dataset.tone]))"
    assert page.locator(".jobs > li").evaluate_all(tones) == {
        "hung": "bad", "lost": "bad", "failed": "bad", "restarting": "waits",
    }  # fmt: skip
    expect(page.locator(".jobs .next")).to_have_count(1)
    expect(page.locator("[data-state=failed] > a")).to_have_attribute("title", "Look")


def test_the_digest_is_one_line_beside_the_heading(page: Page, monitor_url: str, script: Script) -> None:
    script.add("one", ["running"] * 4)
    summary = ", ".join(f"{number} incidents of kind {number}" for number in range(1, 30))
    script.answers["/digest"] = {"since": 0.0, "until": 1.0, "lines": [], "notes": [], "summary": summary}
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(monitor_url)
    digest, heading = page.locator(".digest > summary"), page.get_by_role("heading", level=1)
    expect(digest).to_contain_text("29 incidents of kind 29")
    digest.click()  # all that folds is open in tests
    expect(page.locator(".digest[open]")).to_have_count(0)
    beside, title = box_of(digest), box_of(heading)
    assert abs(beside["y"] + beside["height"] / 2 - title["y"] - title["height"] / 2) < title["height"] / 2
    assert beside["x"] + beside["width"] <= 1440
    assert beside["height"] < 2 * title["height"]


def test_the_filters_are_folded_on_a_phone(page: Page, monitor_url: str, script: Script) -> None:
    for number in range(4):
        script.add(f"run-{number}", ["running"] * 4)
    script.jobs["run-1"]["ranks_reporting"] = 3
    script.jobs["run-3"]["state"] = "lost"
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(monitor_url)
    expect(page.locator("[data-state=lost] .figure.speed b")).to_have_text("unknown")
    expect(page.get_by_label("Find")).to_be_hidden()
    wait_for(lambda: box_of(page.locator(".jobs > li").first)["y"] < 230, "the first job stands below the headline")
    expect(page.locator(".figure small", has_text="ranks")).to_have_count(4)
    page.get_by_text("Find, filter, sort").click()
    page.get_by_label("Find").fill("run-2")
    expect(page.locator(".jobs > li")).to_have_count(1)


def test_a_young_job_has_no_speed_over_hours(page: Page, monitor_url: str, script: Script) -> None:
    script.add("young", ["running"] * 4, started_at=time.time() - 900)
    script.answers["/sparklines"] = {
        "until": 0, "seconds": 300, "unknown": 255, "largest": 254, "jobs": {"young": [3.2, "+vr6+vr6+vr6+vr6"]},
    }  # fmt: skip
    with page.expect_response("**/sparklines"):
        page.goto(monitor_url)
    expect(page.locator(".heads")).not_to_contain_text("Last 4 h")
    expect(page.locator(".spark path")).to_have_count(0)
    script.jobs["young"]["started_at"] = time.time() - 7200
    page.reload()
    expect(page.locator(".heads")).to_contain_text("Last 4 h")
    expect(page.locator(".spark path")).to_have_count(1)
