"""What one sender can make the monitor hold by claiming it: ranks, measured in bytes, not in seconds."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from rankwatch.contract.enums import ProcessEventKind, ProcessState
from rankwatch.contract.messages import NodeObservation, NodeRegistration, ProcessEvent, RankObservation
from rankwatch.contract.statistics import KernelStatistics
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.liveness import TERMINAL_STATES
from rankwatch_monitor.errors import TooManyRanksError
from rankwatch_monitor.http.auth import BoundSender, Grant, Scope
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


# Launchers ------------------------------------------------------------------------------------------------------------


def launcher(node: str, size: int = 10_000, **more: object) -> NodeRegistration:
    return NodeRegistration(node, node, 7, 1, facts={"f": "x" * size}, **more)  # type: ignore[arg-type]


def try_to_register(
    monitor: Monitor, job: str, registration: NodeRegistration, covers: Callable[[str], bool] | None = None
) -> str:
    if not (refused := monitor.refuses_launcher(job, registration, covers)):
        monitor.register(job, "")
        monitor.submit(job, registration)
    return refused


def fill(monitor: Monitor, job: str, **more: Callable[[str], bool]) -> int:
    """Launchers that were taken before one was refused."""
    return next(n for n in range(1000) if try_to_register(monitor, job, launcher(f"{job}-{n}"), **more))


def test_registrations_are_bounded_by_job_token_and_monitor() -> None:
    sizes = {"launcher_bytes_per_job": 100_000, "launcher_bytes_per_token": 150_000, "launcher_bytes": 240_000}
    monitor = Monitor(clock=Moved(), limits=Limits(**sizes))

    def team(job: str) -> bool:
        return job.startswith("a")

    assert fill(monitor, "a1", covers=team) == 8, "the limit of a job"
    assert fill(monitor, "a2", covers=team) == 5, "the limit of the token"
    assert fill(monitor, "b") == 8, "another token's are not counted"
    assert fill(monitor, "c") == 0, "the limit of all jobs"
    assert try_to_register(monitor, "a1", launcher("a1-3"), team) == "", "a known launcher registers again"
    assert try_to_register(monitor, "a1", launcher("a1-3", 20_000), team) != "", "but not with more"


def test_ended_jobs_make_room_for_launchers() -> None:
    clock = Moved()
    monitor = Monitor(clock=clock, limits=Limits(launcher_bytes=100_000))
    assert fill(monitor, "old") == 8
    monitor.submit("old", ProcessEvent("old-0", ProcessEventKind.FINISHED, 0))
    for n in range(1, 8):
        monitor.submit("old", ProcessEvent(f"old-{n}", ProcessEventKind.FINISHED, 0))
    monitor.tick()
    assert monitor._states["old"] in TERMINAL_STATES
    assert fill(monitor, "new") == 8
    assert "old" not in monitor.jobs


def test_equal_facts_of_launchers_are_held_once() -> None:
    monitor = Monitor(clock=Moved())
    for n in range(3):
        assert try_to_register(monitor, "j", launcher(f"n{n}")) == ""
    first, *others = (node.registration.facts for node in monitor.jobs["j"].nodes.values())
    assert all(facts is first for facts in others)


def test_a_token_bound_to_jobs_cannot_take_the_room_of_all() -> None:
    monitor = Monitor(clock=Moved(), limits=Limits(jobs_per_token=3))

    def team(job: str) -> bool:
        return job.startswith("a")

    def tried(job: str, covers: Callable[[str], bool] | None) -> bool:
        refused = monitor.refuses_job(job, covers)
        if not refused:
            monitor.register(job, "")
            monitor.submit(job, launcher(job))
        return not refused

    assert [tried(f"a{n}", team) for n in range(5)] == [True, True, True, False, False]
    assert tried("a1", team), "one that it has goes on"
    assert [tried(f"b{n}", None) for n in range(5)] == [True] * 5, "others have their room"
    monitor.submit("a0", ProcessEvent("a0", ProcessEventKind.FINISHED, 0))
    monitor.tick()
    assert tried("a9", team), "an ended job counts no more"


def test_a_token_bound_to_jobs_cannot_fill_the_database_with_jobs_that_end_at_once() -> None:
    clock = Moved()
    monitor = Monitor(clock=clock, limits=Limits(new_jobs_per_token=3))

    def taken(job: str, covers: Callable[[str], bool] | None) -> bool:
        if monitor.refuses_job(job, covers):
            return False
        monitor.register(job, "")
        monitor.submit(job, launcher(job), ProcessEvent(job, ProcessEventKind.FINISHED, 0))
        monitor.tick()
        return True

    def team(job: str) -> bool:
        return job.startswith("a")

    assert [taken(f"a{n}", team) for n in range(5)] == [True, True, True, False, False]
    assert [taken(f"b{n}", None) for n in range(5)] == [True] * 5, "others have their room"
    clock.at += 3601.0
    assert taken("a9", team), "an hour later there is room again"


def test_a_token_bound_to_jobs_pushes_out_its_own_jobs_that_are_over() -> None:
    monitor = Monitor(clock=Moved(), limits=Limits(jobs=6))
    covers = Grant(frozenset({Scope.INGEST}), "team-a", ("team-a-*",)).covers

    def over(job: str) -> None:
        monitor.ingest([claim(job, 1)])
        monitor.ingest([claim(job, 1, ended=True)])
        monitor.tick()

    others = {f"other-{number}" for number in range(5)}
    for job in others:
        over(job)
    for number in range(20):
        job = f"team-a-{number}"
        assert monitor.refuses_job(job, covers) == ""
        over(job)
        assert set(monitor.jobs) == {*others, job}


def test_one_request_of_a_bound_token_brings_no_more_jobs_than_its_limit() -> None:
    monitor = Monitor(clock=Moved(), limits=Limits(jobs_per_token=3))
    sender = BoundSender(Grant(frozenset({Scope.INGEST}), "team", ("a*",)), monitor)
    assert [sender.refuses(f"a{n}") is None for n in (0, 1, 0, 2, 3, 4, 1)] == [
        True,
        True,
        True,
        True,
        False,
        False,
        True,
    ]
    assert sender.refuses("b") is not None


KERNELS = {f"k{n}": KernelStatistics(1, 0.1, 0.2, 0.1, 0.1, 0.2, 0.0) for n in range(512)}
SECTIONS = {f"s{n}": 0.1 for n in range(250)}


def test_names_that_one_rank_reports_take_little_in_the_rows_that_its_job_only_claims() -> None:
    limits = Limits()
    monitor = Monitor(clock=Moved())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in (1, 2):
            last = limits.ranks_per_job - number
            assert not monitor.ingest([claim("j", limits.ranks_per_job, last, open_sections=SECTIONS, kernels=KERNELS)])
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 128 * MIB, "1.2 GB"


def test_all_names_are_kept_of_a_job_whose_ranks_report() -> None:
    monitor, world = Monitor(clock=Moved()), 1_000
    for _ in range(2):
        reports = [claim("j", world, rank, open_sections=SECTIONS, kernels=KERNELS) for rank in range(world)]
        assert not monitor.ingest(reports)
    job = monitor.jobs["j"]
    assert (len(job.columns.sections), len(job.performance.kernels.names)) == (250, 512)
    assert not np.isnan(job.performance.kernels["median"]).any()


def test_a_small_job_has_all_names_at_once_and_claims_no_large_world_with_them() -> None:
    limits = Limits()
    monitor = Monitor(clock=Moved())
    assert not monitor.ingest([claim("j", 8, open_sections=SECTIONS, kernels=KERNELS)])
    job = monitor.jobs["j"]
    assert (len(job.columns.sections), len(job.performance.kernels.names)) == (250, 512)
    refused = monitor.ingest([claim("j", limits.ranks_per_job, 1)])
    assert [each.reason for each in refused] == ["too_many_ranks"]
    assert not monitor.ingest([claim("k", 8, kernels=KERNELS)])
    assert not monitor.ingest([claim("k", limits.ranks_per_job, 1, kernels=KERNELS)])
    assert len(monitor.jobs["k"].performance.kernels.names) < 10
