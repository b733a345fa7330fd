"""A rank that ends: the launcher restarts at once and by itself, the monitor names the rank and keeps the story."""

from __future__ import annotations

import re
from collections.abc import Iterator
from socket import socket

import pytest

from e2e.story import assert_blamed, assert_in_order, functions, stack_of
from e2e.training import FAULT, HOST, RESUMED, STEPS, Training

pytestmark = pytest.mark.timeout(240)

TO_THE_END = ("--steps", str(STEPS))


@pytest.mark.parametrize(
    ("fault", "words", "peer"),
    [
        ("kind=kill", "was killed by SIGKILL", "--patient"),
        ("kind=exception", "exited with code 1", ""),
        pytest.param("kind=exit,code=7", "exited with code 7", "", marks=pytest.mark.long),
    ],
    ids=["kill", "exception", "exit"],
)
def test_a_crash_is_named_and_restarted(watched: Training, fault: str, words: str, peer: str) -> None:
    launcher = watched.run(script=(*TO_THE_END, *filter(None, [peer])), inject=f"rank=1,step={FAULT},{fault}")
    assert launcher.wait() == 0, launcher.printed()
    incident = watched.incident()
    assert_blamed(incident, 1, "dead")
    assert (incident["kind"], incident["section"], incident["limit"]) == ("process_exited", None, None)
    assert incident["reason"] == f"Rank 1 on {HOST}: its process {words}."
    assert incident["action"] == "restart"
    assert "launchers restart crashed ranks at once" in incident["action_reason"]
    if peer:
        assert "train" in functions(stack_of(incident, 0)), "the peer that lived on was looked at"
    # One that fails by itself, as gloo's do, may be gone before it can be read.
    captured = ("captured",) if incident["stack_groups"] or incident["timeline"]["captured"] else ()
    assert_in_order(incident, "since", "detected", "decided", *captured, "restarted", "first_step")
    assert incident["timeline"]["restarted"] - incident["timeline"]["since"] < 20
    assert incident["outcome"].startswith(f"attempt 2 goes on at step {RESUMED}")
    assert watched.steps("start") == {0: [(1, 0), (2, RESUMED)], 1: [(1, 0), (2, RESUMED)]}
    assert watched.steps("end") == {0: [(2, STEPS)], 1: [(2, STEPS)]}
    job = watched.summary()
    assert (job["state"], job["attempt"], job["restarts"], job["iteration"]) == ("finished", 2, 1, STEPS - 1)
    line = rf"restarting all ranks after attempt 1: rank 1 \(local rank 1, pid \d+\) on {re.escape(HOST)} {words}"
    assert re.search(line, launcher.printed())
    if "exception" in fault:
        assert f"InjectedFaultError: injected on rank 1 in step {FAULT}" in launcher.printed()


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
    assert "exited with code 7 (restart 1 of 3)" in launcher.printed()


def test_without_the_monitor_a_job_fails_as_under_torchrun(training: Training, closed_port: str) -> None:
    launcher = training.run("--max-restarts", "0", monitor=closed_port, inject="rank=1,step=5,kind=exit,code=7")
    assert launcher.wait() == 1, launcher.printed()
    assert training.steps("start") == {0: [(1, 0)], 1: [(1, 0)]}
    assert training.steps("end") == {0: [], 1: []}
    assert "no restart is allowed (--max-restarts 0)" in launcher.printed()
    assert "exitcode  : 7" in launcher.printed(), "torchrun's own table of failures"
