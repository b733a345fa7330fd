"""A rank that ends: the launcher restarts at once and by itself, the monitor names the rank and keeps the story."""

from __future__ import annotations

import re
from collections.abc import Iterator
from socket import socket

import pytest

from e2e.story import assert_blamed, assert_in_order, functions, stack_of
from e2e.training import FAULT, HOST, RESUMED, STEPS, Training
from support.console import events, said

pytestmark = pytest.mark.timeout(240)

TO_THE_END = ("--steps", str(STEPS))


def test_a_crash_is_named_and_restarted(watched: Training) -> None:
    words = "was killed by SIGKILL"
    launcher = watched.run(script=(*TO_THE_END, "--patient"), inject=f"rank=1,step={FAULT},kind=kill")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert_blamed(incident, 1, "dead")
    assert (incident["kind"], incident["section"], incident["limit"]) == ("process_exited", None, None)
    assert incident["reason"] == f"Rank 1 on {HOST} {words}."
    assert incident["action"] == "restart"
    assert "launchers restart crashed ranks at once" in incident["action_reason"]
    assert "train" in functions(stack_of(incident, 0)), "the peer that lived on was looked at"
    assert_in_order(incident, "since", "detected", "decided", "captured", "restarted", "first_step")
    assert incident["timeline"]["restarted"] - incident["timeline"]["since"] < 20
    assert incident["outcome"].startswith(f"attempt 2 resumed at step {RESUMED}")
    assert watched.steps("start") == {0: [(1, 0), (2, RESUMED)], 1: [(1, 0), (2, RESUMED)]}
    assert watched.steps("end") == {0: [(2, STEPS)], 1: [(2, STEPS)]}
    job = watched.summary()
    assert (job["state"], job["attempt"], job["restarts"], job["iteration"]) == ("finished", 2, 1, STEPS - 1)
    assert re.match(rf"rank 1 on {re.escape(HOST)} {words}", events(launcher.printed(), "CRASH")[0])
    assert len(events(launcher.printed(), "BACK")) == 1


def test_the_exception_that_ended_a_rank_is_its_reason_and_its_traceback_is_evidence(watched: Training) -> None:
    kept = watched.folder / "rank-logs"
    flags = ("--log-dir", str(kept), "--redirects", "2")
    launcher = watched.run(*flags, script=TO_THE_END, inject=f"rank=1,step={FAULT},kind=exception")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert_blamed(incident, 1, "dead")
    exception = f"exited with code 1: InjectedFaultError: injected on rank 1 in step {FAULT}"
    assert incident["reason"] == f"Rank 1 on {HOST} {exception}."
    assert f"rank 1 on {HOST} {exception}" in said(launcher.printed())
    (traceback,) = [group for group in incident["stack_groups"] if group["ranks"] == [1]]
    assert (traceback["method"], traceback["is_culprit"]) == ("traceback", True)
    assert "train" in functions(traceback)
    (log,) = [log for log in incident["logs"] if log["stream"] == "stderr"]
    (file,) = kept.glob("*/attempt_0/1/stderr.log")
    assert (log["rank"], log["host"], log["path"]) == (1, HOST, str(file))
    assert any(line.endswith(f"InjectedFaultError: injected on rank 1 in step {FAULT}") for line in log["lines"])
    assert log["lines"] == [line for line in file.read_text().splitlines() if line.strip()][-len(log["lines"]) :]


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address where nothing listens, and where nothing can begin to."""
    with socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def test_training_does_not_need_the_monitor(training: Training, closed_port: str) -> None:
    launcher = training.run(monitor=closed_port, script=TO_THE_END, inject=f"rank=1,step={FAULT},kind=exit,code=7")
    assert launcher.wait() == 0, launcher.printed()
    assert training.steps("start") == {0: [(1, 0), (2, RESUMED)], 1: [(1, 0), (2, RESUMED)]}
    assert training.steps("end") == {0: [(2, STEPS)], 1: [(2, STEPS)]}
    assert launcher.printed().count("does not answer") == 1, "it reports it once"
    # On a busy machine the other rank may have lost its connection, and ended, by the time the launcher looks.
    named = r"rank 1 on \S+ exited with code 7( \(1 more at the same moment\))?"
    assert re.match(named, events(launcher.printed(), "CRASH")[0]), launcher.printed()
