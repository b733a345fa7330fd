"""What a rank reports to its launcher is acted on: by real launchers and ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.conftest import FakeMonitor
from launcher.node_set import Nodes, Start
from support.console import events, restarts


@pytest.fixture
def nodes(start: Start, tmp_path: Path, monitor: FakeMonitor) -> Callable[[str], Nodes]:
    return lambda nnodes: Nodes(start, tmp_path, monitor, nnodes)


def test_a_rank_has_its_own_node_left_out(nodes: Callable[[str], Nodes], monitor: FakeMonitor) -> None:
    job = nodes("1:2")
    job.script('if ATTEMPT == 1 and NODE == "b" and step == 20: rankwatch.exclude_node("row remapping failed")')
    job.start("a", "b")
    job.until("attempt 2: begins", "a")
    reason = r"rank \d on \S+ requested its node to be excluded: row remapping failed"
    job.until(f"this node is parked: {reason}", "b")
    (restarted,) = events(job.launchers["a"].output, "RESTART")
    assert re.match(reason, restarted)
    assert "(1 of 3)" in restarts(job.launchers["a"].output)[0]
    job.until("rank 0 of 1 attempt 2: trains", "a")
    assert {each["min_nodes"] for each in monitor.of("nodes")} == {1}, "the minimum of --nnodes"
    job.finish()
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0]


@pytest.mark.parametrize("crash", ["raise RuntimeError('NaN')", "os._exit(3)"])
def test_a_stop_that_a_rank_requested_before_it_crashed_takes_precedence(
    nodes: Callable[[str], Nodes], crash: str
) -> None:
    job = nodes("1")
    job.script(f'if step == 20:\n        rankwatch.stop_job("the loss is NaN"); {crash}')
    job.start("a")
    job.launchers["a"].wait()
    assert job.outcome("a")["state"] == "stopped"
    reason = str(job.outcome("a")["reason"])
    assert "requested the job to stop: the loss is NaN; " in reason
    assert "before it had saved" in reason
    assert not job.printed("attempt 2: begins", "a")


def test_an_exclusion_that_a_rank_requested_before_it_crashed_takes_precedence(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("1:2")
    job.script('if ATTEMPT == 1 and NODE == "b" and step == 20: rankwatch.exclude_node("a bad GPU"); os._exit(3)')
    job.start("a", "b")
    job.until("this node is parked: .*requested its node to be excluded: a bad GPU", "b")
    job.until("rank 0 of 1 attempt 2: trains", "a")
    job.finish()
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0]


def test_a_rank_stops_the_job(nodes: Callable[[str], Nodes]) -> None:
    job = nodes("2")
    job.script('if RANK == 1 and step == 20: rankwatch.stop_job("the loss is NaN")')
    job.start("a", "b")
    assert [launcher.wait() for launcher in job.launchers.values()] == [0, 0]
    assert len({line.split("saves after step ")[1] for line in job.until("saves after step", count=2)}) == 1
    assert job.outcome("a")["state"] == "stopped"
    assert str(job.outcome("a")["reason"]).endswith("requested the job to stop: the loss is NaN")


def test_what_a_rank_reports_reaches_the_monitor_and_is_the_reason_of_its_exit(
    nodes: Callable[[str], Nodes], monitor: FakeMonitor
) -> None:
    job = nodes("1")
    reported = "rankwatch.tell(NoticeKind.WRONG_RESULT, 'the loss of step 20 is nan', 1.5); os._exit(17)"
    job.script(f"if step == 20:\n        from rankwatch.contract.enums import NoticeKind; {reported}")
    job.start("a")
    assert job.launchers["a"].wait() == 17
    (event,) = monitor.events("notice")
    assert (event["notice"], event["reason"], event["seconds"]) == ("wrong_result", "the loss of step 20 is nan", 1.5)
    assert "exited with code 17: the loss of step 20 is nan; it rejected" in str(job.outcome("a")["reason"])


def test_the_policy_that_a_rank_asks_for_is_registered_once(
    nodes: Callable[[str], Nodes], monitor: FakeMonitor
) -> None:
    job = nodes("1")
    job.script('if step in (5, 10, 20): rankwatch.change_policy({"on_straggler": "stop", "report_interval": 9})')
    job.start("a")
    asked = {"on_straggler": "stop", "report_interval": 9.0}
    monitor.until(lambda: [b for b in monitor.of("nodes") if b["policy"] == asked])
    job.until("trains")
    job.finish()
    assert job.launchers["a"].wait() == 0
    assert [b["policy"] for b in monitor.of("nodes")] == [{}, asked]
