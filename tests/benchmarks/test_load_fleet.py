"""Requests that were copied and written over hold of each rank what was meant, and only of that rank."""

from __future__ import annotations

import time

import pytest
from _load_fleet import Due, Fleet, Shape
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.metrics_decoder import MetricsDecoder


class Reading:
    """Decodes requests as one monitor would, one after the other."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._decoder = MetricsDecoder(Limits(), self.counters)

    def of(self, due: Due) -> list[RankReport]:
        reported = self._decoder.decode(ExportMetricsServiceRequest.FromString(due.body))
        assert reported.rejections.message() == ""
        assert len(reported.reports) == due.ranks
        return reported.reports


def begun(**shape: object) -> tuple[Fleet, float]:
    fleet = Fleet(Shape(**shape))  # type: ignore[arg-type]
    fleet.begin()
    return fleet, fleet.jobs[0].began


@pytest.mark.parametrize(("ranks", "a_request"), [(20, 8), (5, 1), (300, 7)])
def test_every_rank_reports_once_under_its_own_name(ranks: int, a_request: int) -> None:
    fleet, began = begun(ranks=ranks, ranks_a_request=a_request)
    reading = Reading()
    now = began + 30.0
    reports = [r for due in fleet.requests(range(len(fleet.members)), now) for r in reading.of(due)]
    assert sorted(r.identity.rank for r in reports) == list(range(ranks))
    assert len({(r.identity.instance, r.identity.device) for r in reports}) == ranks
    assert {(r.identity.world_size, r.identity.job_id) for r in reports} == {(ranks, "emulated-00000")}
    assert {r.identity.local_rank for r in reports} == set(range(min(8, ranks)))


def test_jobs_are_distinguished() -> None:
    fleet, began = begun(ranks=16, jobs=4)
    reports = [r for due in fleet.requests(range(4), began) for r in Reading().of(due)]
    assert {r.identity.job_id for r in reports} == {f"emulated-{i:05d}" for i in range(4)}


def test_training_goes_on_between_reports_and_windows_close_together() -> None:
    fleet, began = begun(ranks=16, step_seconds=2.5, interval=5.0)
    reading, windows, iterations = Reading(), [], []
    for turn in range(1, 7):
        for due in fleet.requests(range(2), began + 5.0 * turn + 0.5):
            for report in reading.of(due):
                iterations.append(report.iteration)
                assert (report.open_sections or {})["step"] == pytest.approx(0.5)
                if report.window is not None:
                    windows.append(report.window.iteration)
    assert sorted(set(iterations)) == [2, 4, 6, 8, 10, 12]
    assert {iteration: windows.count(iteration) for iteration in windows} == {4: 16, 8: 16, 12: 16}
    assert reading.counters.repeats == 0, "delta points begin where the last report ended"


def test_a_hung_rank_stands_behind_the_others_that_wait_for_it() -> None:
    fleet, began = begun(ranks=8, step_seconds=2.0)
    fleet.jobs[0].hung_at, fleet.jobs[0].hung_ranks = began + 11.0, {3}
    (due,) = fleet.requests([0], began + 40.0)
    reports = {r.identity.rank: r for r in Reading().of(due)}
    assert {r.iteration for r in reports.values()} == {5}
    assert [rank for rank, r in reports.items() if r.progress == 1] == [3]
    assert (reports[0].open_sections or {})["step"] == pytest.approx(30.0)
    assert reports[0].quiet == pytest.approx(29.5)


def test_a_restart_is_another_process_of_the_same_rank() -> None:
    fleet, began = begun(ranks=16)
    before = {r.identity.rank: r.identity for due in fleet.requests([0, 1], began) for r in Reading().of(due)}
    fleet.restart(0, 4)
    after = {r.identity.rank: r.identity for due in fleet.requests([0, 1], began + 5) for r in Reading().of(due)}
    assert [rank for rank in range(16) if before[rank] != after[rank]] == [4]
    assert (after[4].attempt, after[4].instance != before[4].instance) == (1, True)
    fleet.restart(0)
    again = {r.identity.rank: r.identity for due in fleet.requests([0, 1], time.monotonic()) for r in Reading().of(due)}
    assert {identity.attempt for identity in again.values()} == {2}


def test_a_hurried_fleet_keeps_the_content_of_its_interval() -> None:
    fleet, began = begun(ranks=8, hurried=True, step_seconds=2.5, interval=5.0)
    kinds = [due.kind for _ in range(20) for due in fleet.requests([0], began)]
    assert sum(kind.window for kind in kinds) == pytest.approx(10, abs=1)
    assert sum(kind.news for kind in kinds) == 2, "at first and after a minute"


def test_more_jobs_than_ranks_make_no_sense() -> None:
    with pytest.raises(ValueError, match="each job has one rank at least"):
        Shape(2, jobs=3)
