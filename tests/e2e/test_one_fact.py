"""Real jobs in real situations: each fact has one value on every surface, at every moment that is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from e2e.surfaces import surfaces
from e2e.training import STEPS, Training
from rankwatch_monitor.web import static_folder
from support.browser import chromium
from support.monitor_process import running_monitor

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not (static_folder() / "index.html").is_file(), reason="the page was not built: make web"),
]

TO_THE_END = ("--steps", str(STEPS))
QUICK = ("--learned-minimum", "2", "--confirmation-window", "20")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def state_is(training: Training, *states: str) -> dict[str, Any]:
    def found() -> dict[str, Any]:
        job = training.summary()
        return job if job and job["state"] in states else {}

    return training.until(f"the job is {' or '.join(states)}", found)


def test_healthy_then_suspected_then_stopped_by_an_operator(watched: Training, browser: Browser) -> None:
    watched.run(*QUICK, ranks=2)
    watched.until_running(2)
    with surfaces(watched, browser) as seen:
        seen.agree("healthy")
        watched.until("a limit is learned", lambda: any(row["learned"] for row in watched.summary()["timeouts"]))
        watched.strike("rank=1,kind=hang,seconds=9")
        state_is(watched, "suspected")
        seen.agree("suspected")
        watched.until("it ends by itself", lambda: watched.incidents()[0]["closed_at"])
        seen.agree("the suspicion ended by itself")
        (incident,) = watched.incidents()
        assert (incident["confirmed"], watched.summary()["attempt"]) == (False, 1)
        watched.order("stop", "enough")
        watched.launchers[-1].wait()
        assert watched.summary()["state"] == "stopped"
        seen.agree("stopped by an operator", ended=True)


def test_a_crash_with_victims_and_the_end(watched: Training, browser: Browser) -> None:
    watched.run("--max-restarts", "1", ranks=3, inject="rank=1,step=35,kind=exception")
    watched.until_running(3, attempt=2)
    with surfaces(watched, browser) as seen:
        seen.agree("after a crash")
        watched.strike("rank=1,kind=exit,code=7,attempt=2")
        watched.launchers[-1].wait()
        assert watched.summary()["state"] == "failed"
        seen.agree("failed", ended=True)
        assert "finished" not in (seen.api().ranks or {}), "a victim of a crash did not finish"


def test_a_hang_is_restarted_and_the_job_finishes(watched: Training, browser: Browser) -> None:
    watched.run("--section-timeout", "step=4", ranks=2)
    watched.until_running(2)
    with surfaces(watched, browser) as seen:
        watched.strike("rank=1,kind=hang")
        state_is(watched, "hung", "restarting")
        watched.until_running(2, attempt=2)
        seen.agree("restarted after a hang")
        assert watched.finish() == [0]
        seen.agree("finished", ended=True)


def test_a_hang_that_is_only_recorded(watched: Training, browser: Browser) -> None:
    watched.run("--section-timeout", "step=4", "--on-hang", "log", ranks=2)
    watched.until_running(2)
    with surfaces(watched, browser) as seen:
        watched.strike("rank=1,kind=hang")
        state_is(watched, "hung")
        watched.until("stacks are in", lambda: watched.incidents()[0]["timeline"]["captured"])
        seen.agree("hung, and nothing is done")


def test_the_monitor_is_restarted(training: Training, browser: Browser, tmp_path: Path) -> None:
    """After the job's end, and in between: the figures of its record are those that were shown live."""
    database = tmp_path / "jobs.db"
    with running_monitor(tmp_path / "one", database=database) as monitor:
        training.follow(monitor.url)
        # The second attempt goes on with step 70, and does not come as far as the first.
        faults = "rank=1,step=78,kind=exit,code=3;rank=1,step=72,kind=exit,code=3,attempt=2"
        training.run("--max-restarts", "1", script=TO_THE_END, inject=faults)
        training.launchers[-1].wait()
        with surfaces(training, browser) as seen:
            seen.agree("failed", ended=True)
            before = seen.api()
            assert before.step is not None
            assert before.step < 78
    with running_monitor(tmp_path / "two", database=database) as monitor:
        training.follow(monitor.url)
        with surfaces(training, browser) as seen:
            seen.agree("failed, of the record", ended=True)
            after = seen.api()
    assert after._replace(ranks=None) == before._replace(ranks=None)


@pytest.mark.long
def test_a_slow_rank(watched: Training, browser: Browser) -> None:
    watched.run("--profiling-interval", "16", ranks=3, script=("--slow", "data=0.06", "--slow-rank", "2"))
    watched.until_running(3)
    state_is(watched, "slow")
    with surfaces(watched, browser) as seen:
        seen.agree("slow")
        watched.until("goodput is known", lambda: watched.summary()["goodput"] is not None)
        seen.agree("slow, with goodput")
        assert watched.finish() == [0]
        seen.agree("finished", ended=True)
