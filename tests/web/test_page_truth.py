"""What the page shows of a monitor that is frozen, stopped or behind: no figure that is not known."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from rankwatch_monitor.web import static_folder
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import rank_report
from web.scripted_monitor import CLOCK, Script, serving

pytestmark = pytest.mark.skipif(
    not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"
)

UNKNOWN = re.compile(f"Unknown since {CLOCK}")


def opened(page: Page, url: str, job: str = "j") -> None:
    page.goto(f"{url}/#/jobs/{job}")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.locator(".head h1")).to_be_visible()
    page.wait_for_timeout(1500)  # at least one clock event


def test_a_frozen_monitor_is_shown_and_no_figure_stays(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    opened(page, monitor_url)
    expect(page.locator(".tiles")).to_contain_text("3.20")
    script.frozen = True
    expect(page.locator(".pulse")).to_have_text(UNKNOWN)
    expect(page.get_by_role("alert")).to_contain_text("No connection to the monitor for")
    expect(page.locator(".details .facts")).to_contain_text(re.compile(f"Speedunknownsince {CLOCK}"))
    expect(page.locator(".details .facts")).not_to_contain_text("3.20")
    expect(page.get_by_text(re.compile(r"^Unknown since .* Before: All 4 ranks make progress"))).to_be_visible()
    expect(page).to_have_title("unknown: j-name · Rankwatch")

    script.frozen = False
    expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=15_000)
    expect(page.locator(".tiles")).to_contain_text("3.20")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_monitor_that_evaluates_no_job_is_not_live(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    opened(page, monitor_url)
    script.judged = time.time() - 60
    expect(page.get_by_role("alert")).to_contain_text("has not evaluated the jobs for 1")
    expect(page.locator(".pulse")).to_have_text(UNKNOWN)
    script.judged = None
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def test_ages_are_those_of_the_monitor_s_clock(page: Page, monitor_url: str, script: Script) -> None:
    script.ahead = 7200.0
    script.add("j", ["running"] * 4, started_at=time.time() + 7200 - 65)
    opened(page, monitor_url)
    expect(page.locator(".details .facts")).to_contain_text(re.compile(r"Up1.min"))


def test_a_monitor_that_is_frozen_from_the_start_does_not_answer(page: Page, monitor_url: str, script: Script) -> None:
    script.add("j", ["running"] * 4)
    script.frozen = True
    page.goto(monitor_url)
    expect(page.get_by_role("alert")).to_contain_text("The monitor does not answer.")
    expect(page.get_by_text("Live", exact=True)).to_have_count(0)
    script.frozen = False
    expect(page.get_by_role("heading", name="One job, no trouble")).to_be_visible(timeout=15_000)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_list_of_jobs_is_unknown_too(page: Page, script: Script) -> None:
    script.add("j", ["running"] * 4)
    with serving(script) as url:
        page.goto(url)
        expect(page.get_by_role("heading", name="One job, no trouble")).to_be_visible()
        page.wait_for_timeout(1500)
        script.frozen = True
        expect(page.get_by_role("heading", name=UNKNOWN)).to_be_visible(timeout=6000)
        expect(page.locator(".jobs > li")).to_contain_text("unknown")
        script.frozen = False


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[RunningMonitor]:
    """A real one, with one job of one rank."""
    with running_monitor(tmp_path) as monitor, Api(monitor.url) as api:
        api.report(rank_report("j", 0))
        yield monitor


def test_a_real_monitor_that_is_stopped(page: Page, monitor: RunningMonitor) -> None:
    opened(page, monitor.url)
    os.kill(monitor.pid, signal.SIGSTOP)
    try:
        expect(page.locator(".pulse")).to_have_text(UNKNOWN)
        expect(page.locator(".details .facts")).to_contain_text(re.compile(r"Speedunknownsince"))
    finally:
        os.kill(monitor.pid, signal.SIGCONT)
    expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=15_000)


def test_a_real_monitor_that_is_killed(page: Page, monitor: RunningMonitor) -> None:
    opened(page, monitor.url)
    monitor.kill()
    expect(page.locator(".pulse")).to_have_text(UNKNOWN)


def test_a_reason_of_another_evaluation_than_the_grids_is_left_out(
    page: Page, monitor_url: str, script: Script
) -> None:
    script.add("j", ["running", "hung"])
    known = {"local_rank": 0, "host": "node-0", "pid": 1, "iteration": 5, "progress": 5, "heartbeat_age": 1.0}
    known |= {"report_age": 0.3, "open_sections": {}, "state": "hung", "reason": "past its limit"}
    script.answers["/jobs/j/ranks"] = {"ranks": [{"rank": rank, **known} for rank in range(2)]}
    opened(page, monitor_url)
    expect(page.locator(".ranks tbody tr:not(.because)")).to_have_count(2)
    expect(page.locator(".ranks tr.because")).to_have_text("past its limit")
