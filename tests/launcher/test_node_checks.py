"""Nodes are checked before they take part: real launchers, one of whose nodes fails a command of the user's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.conftest import FakeMonitor
from launcher.node_set import Nodes, Start
from rankwatch_launcher.checks import gate


@pytest.fixture
def nodes(start: Start, tmp_path: Path, monitor: FakeMonitor) -> Callable[[str], Nodes]:
    return lambda nnodes: Nodes(start, tmp_path, monitor, nnodes)


def bad(job: Nodes, *names: str) -> str:
    """A command that fails on these nodes for as long as their files are there."""
    for name in names:
        (job.folder / f"bad-{name}").touch()
    return f"if [ -e {job.folder}/bad-$NAME ]; then echo looking; echo the fan of $NAME is broken; exit 7; fi"


def results(monitor: FakeMonitor, node: str) -> dict[str, tuple[str, str]]:
    """State and reason of the checks that a launcher last registered, by name."""
    last = [body for body in monitor.of("nodes") if body["node"] == node][-1]
    return {each["name"]: (each["state"], each["reason"]) for each in last["checks"]}


def test_a_node_that_fails_takes_no_part_and_a_spare_steps_in(
    nodes: Callable[[str], Nodes], monitor: FakeMonitor
) -> None:
    job = nodes("2")
    job.script()
    handed_on = job.folder / "handed-on"
    told = f'echo "$RANKWATCH_BAD_NODE $RANKWATCH_BAD_CHECK $RANKWATCH_BAD_CODE" >> {handed_on}'
    job._common += ["--check-command", bad(job, "b"), "--on-bad-node", told]
    job.start("a", "b")
    job.until("1 of at least 2 nodes are ready; waiting for 1 more; node .* takes no part", "a")
    (why,) = job.until("this node takes no part in the job", "b")
    assert "exit code 7: the fan of b is broken" in why
    job.start("c")
    job.until("trains", "a", "c", count=2)
    job.until("this node is parked", "b")
    assert job.printed("begins", "b") == []
    monitor.until(lambda: results(monitor, job.node("b")).get("command") == ("failed", "exit_code"))
    monitor.until(lambda: results(monitor, job.node("a")).get("command") == ("passed", ""))
    monitor.until(lambda: [o for o in monitor.of("observations") if o["role"] == "parked"])
    (parked,) = {o["role_reason"] for o in monitor.of("observations") if o["role"] == "parked"}
    assert parked in why
    assert handed_on.read_text().split() == [os.uname().nodename, "command", "exit_code"]
    # It passes again: now it is the spare that steps in when another node is lost.
    (job.folder / "bad-b").unlink()
    job.until("this node passes its checks now", "b")
    job.until("this node is a spare", "b")
    job.launchers["c"].process.kill()
    job.until("attempt 2: trains", "a", "b", count=2)
    job.finish()
    assert [job.launchers[name].wait() for name in "ab"] == [0, 0]


def test_a_spare_is_checked_again_before_it_steps_in(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script("if ATTEMPT == 1 and (FOLDER / 'crash').exists(): os._exit(3)")
    job._common += ["--check-command", bad(job)]
    job.start("a")
    job.until("trains", "a")
    job.start("b", "c")
    job.until("this node is a spare", "b")
    job.until("this node is a spare", "c")
    for name in "ab":
        (job.folder / f"bad-{name}").touch()
    (job.folder / "crash").touch()
    job.until("attempt 2: trains", "c")
    assert job.printed("attempt 2", "a", "b") == []
    job.until("this node is parked: it fails its check", "a")
    job.until("this node takes no part in the job: it fails its check", "b")
    job.finish()
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0, 0]


def test_a_job_starts_smaller_without_the_node_that_fails(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1:2")
    job.script()
    job._common += ["--check-command", bad(job, "b"), "--rdzv-conf", "last_call_timeout=3"]
    job.start("a", "b")
    job.until("rank 0 of 1 attempt 1: trains", "a")
    job.until("this node is parked: it fails its check", "b")
    job.finish()
    assert [job.launchers[name].wait() for name in "ab"] == [0, 0]


def test_a_single_node_waits_says_for_what_and_goes_on_when_it_passes(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script()
    job._common += ["--check-command", bad(job, "a")]
    job.start("a")
    job.until("this node takes no part in the job: it fails its check: command: .*exit code 7", "a")
    job.until("0 of at least 1 nodes are ready; waiting for 1 more; node .* the fan of a is broken", "a")
    assert job.printed("begins") == []
    (job.folder / "bad-a").unlink()
    job.until("trains", "a")
    job.finish()
    assert job.launchers["a"].wait() == 0


def test_a_node_is_not_checked_where_that_is_switched_off(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script()
    job._common += ["--check-command", bad(job, "a"), "--no-node-check"]
    job.start("a")
    job.until("trains", "a")
    job.finish()
    assert job.launchers["a"].wait() == 0


def test_who_waits_too_long_for_a_node_to_pass_is_told_what_it_fails(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1")
    job.script()
    job._common += ["--check-path", str(job.folder / "missing"), "--rdzv-conf", "join_timeout=3"]
    job.start("a")
    assert job.launchers["a"].wait() == 1
    assert f"storage: {job.folder}/missing cannot be used: No such file or directory" in str(job.outcome("a")["reason"])
    assert gate.AGAIN_SECONDS > 3, "it was checked once"


@pytest.mark.long
@pytest.mark.timeout(360)
def test_nodes_are_measured_in_twos_before_the_first_attempt(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("2")
    job.script()
    job._common += ["--node-check", "pairs"]
    job.start("a", "b")
    job.until("NODE +MATRIX PRODUCT +ALL-REDUCE")
    job.until("trains", count=2)
    job.finish()
    assert [job.launchers[name].wait() for name in "ab"] == [0, 0]
