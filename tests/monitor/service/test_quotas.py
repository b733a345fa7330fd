"""What one sender can make the monitor hold by claiming it: ranks, measured in bytes, not in seconds."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from rankwatch.contract.enums import ProcessEventKind, ProcessState
from rankwatch.contract.messages import NodeObservation, NodeRegistration, ProcessEvent, RankObservation
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.liveness import TERMINAL_STATES
from rankwatch_monitor.errors import TooManyRanksError
from rankwatch_monitor.ingest.limits import MIB, Limits
from rankwatch_monitor.service.monitor import Clock, Monitor
from rankwatch_monitor.service.quotas import claimed_ranks


class Moved(Clock):
    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        return self.at


def claim(job: str, world: int, rank: int = 0, **more: object) -> RankReport:
    return RankReport(RankIdentity(job, rank, world_size=world, instance=f"{job}/{rank}"), **more)  # type: ignore[arg-type]


def test_claims_of_huge_worlds_take_no_more_than_the_limit_of_all_jobs_together() -> None:
    limits = Limits()
    monitor = Monitor(clock=Moved())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        refused = [each for n in range(50) for each in monitor.ingest([claim(f"j{n}", limits.ranks_per_job)])]
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 64 * MIB, "32 MB each they would take 1.6 GB"
    assert len(refused) == 50 - limits.ranks // limits.ranks_per_job
    assert {each.reason for each in refused} == {"too_many_ranks"}
    assert set(monitor.jobs) == {"j0", "j1"}, "a job that is refused is not there"
    assert not monitor.ingest([claim("j0", limits.ranks_per_job, rank=7)]), "known ranks go on"


def test_jobs_that_are_over_make_room_and_those_that_run_do_not() -> None:
    monitor = Monitor(clock=Moved(), limits=Limits(ranks=100))
    monitor.ingest([claim("over", 60), claim("runs", 30)])
    monitor.ingest([claim("over", 60, ended=True)])
    monitor.tick()
    assert monitor._states["over"] in TERMINAL_STATES
    assert not monitor.ingest([claim("new", 70)])
    assert set(monitor.jobs) == {"runs", "new"}
    (refused,) = monitor.ingest([claim("more", 1)])
    assert refused.reason == "too_many_ranks"
    assert set(monitor.jobs) == {"runs", "new"}


def test_a_job_that_is_launched_again_does_not_push_itself_out() -> None:
    monitor = Monitor(clock=Moved(), limits=Limits(ranks=100))
    monitor.ingest([claim("j", 60, ended=True)])
    monitor.tick()
    job = monitor.jobs["j"]
    assert not monitor.ingest([claim("j", 80)])
    assert monitor.jobs["j"] is job


def test_what_a_launcher_claims_counts_as_well() -> None:
    monitor = Monitor(clock=Moved(), limits=Limits(ranks=100))
    monitor.ingest([claim("other", 90)])
    monitor.register("j", "")
    monitor.submit("j", NodeRegistration("node", "host", 1, 1, "gpt"))
    with pytest.raises(TooManyRanksError, match="with 50 ranks"):
        monitor.submit("j", ProcessEvent("node", ProcessEventKind.STARTED, 1, rank=0, pid=7, world_size=50))
    assert not len(monitor.jobs["j"].columns)


def test_how_many_ranks_an_event_reports() -> None:
    assert claimed_ranks(claim("j", 8, rank=3)) == 8
    assert claimed_ranks(claim("j", 0, rank=3)) == 4
    assert claimed_ranks(ProcessEvent("n", ProcessEventKind.EXITED, 1, rank=3)) == 4
    assert claimed_ranks(ProcessEvent("n", ProcessEventKind.FINISHED, 1)) == 0
    assert claimed_ranks(NodeObservation("n", 1, ranks=(RankObservation(5, 7, ProcessState.ALIVE),))) == 6
    assert claimed_ranks(NodeRegistration("node", "host", 1, 1, "gpt")) == 0
