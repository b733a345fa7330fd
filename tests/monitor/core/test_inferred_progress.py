"""Ranks of other emitters: limits are learned from heartbeats, iterations and open sections alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from rankwatch.contract.enums import VerdictKind
from rankwatch.contract.messages import read
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.hang.observed_durations import ObservedDurations
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Job

BEGIN = 1_000_000.0
RANKS = 4

Report = Callable[[int, float], RankReport]


def identity(rank: int) -> RankIdentity:
    return RankIdentity("foreign", rank, world_size=RANKS, host="node-a", instance=f"foreign/{rank}")


def report(rank: int, **fields: object) -> RankReport:
    return RankReport(identity(rank), foreign=True, **fields)  # type: ignore[arg-type]


def in_steps(pace: float, stuck: dict[int, float], *, named: str = "step", counts: bool = True) -> Report:
    """Steps of ``pace`` seconds, one after the other; a rank in ``stuck`` never ends the one that it is in then."""

    def make_report(rank: int, at: float) -> RankReport:
        step = int(min(at, stuck.get(rank, at)) / pace)
        return report(rank, iteration=step - 1 if counts and step else None, open_sections={named: at - step * pace})

    return make_report


def in_beats(pace: float, stuck: dict[int, float], field: str) -> Report:
    def make_report(rank: int, at: float) -> RankReport:
        return report(rank, **{field: int(min(at, stuck.get(rank, at)) / pace)})

    return make_report


def times(period: float, until: float, jitter: float = 0.0) -> Iterator[tuple[float, int]]:
    """When each rank reports: every ``period`` seconds, at a phase of its own, with delays up to ``jitter``."""
    random = Random(1)
    sent = [
        (n * period + rank * period / RANKS + random.random() * jitter, rank)
        for rank in range(RANKS)
        for n in range(int(until / period))
    ]
    yield from sorted(sent)


def played(make_report: Report, *, period: float, until: float, jitter: float = 0.0) -> Job:
    """The job until an incident is open, or until the end."""
    job = Job("foreign", BEGIN)
    for at, rank in times(period, until, jitter):
        apply(job, make_report(rank, at), BEGIN + at)
        advance(job, BEGIN + at)
        if job.incidents:
            break
    return job


@pytest.mark.parametrize(
    "make_report",
    [
        in_steps(0.3, {2: 100.2}),
        in_steps(0.3, {2: 100.2}, named="train_step"),
        in_steps(0.3, {2: 100.2}, named="train_step", counts=False),
        in_steps(2.5, {2: 100.2}),
    ],
    ids=["step", "another name", "no iteration", "steps longer than the period"],
)
def test_a_rank_that_stays_in_its_section_is_found(make_report: Report) -> None:
    job = played(make_report, period=1.0, until=400.0, jitter=0.2)
    (incident,) = job.incidents
    assert [c.rank for c in incident.culprits] == [2]
    assert "over its learned limit" in incident.reason
    assert "in section '" in incident.reason
    assert incident.opened_at - BEGIN < 130


@pytest.mark.parametrize("field", ["beats", "iteration"])
def test_a_rank_whose_signs_stop_is_found_without_any_section(field: str) -> None:
    job = played(in_beats(0.3, {2: 100.2}, field), period=1.0, until=400.0)
    (incident,) = job.incidents
    assert [c.rank for c in incident.culprits] == [2]
    assert "has sent no heartbeat and completed no step for" in incident.reason
    assert incident.opened_at - BEGIN < 130


@pytest.mark.parametrize(
    "make_report",
    [
        in_steps(0.3, {}),
        in_steps(7.3, {}),
        in_steps(53.0, {}),
        in_steps(7.3, {}, counts=False),
        in_beats(0.3, {}, "beats"),
        in_beats(70.0, {}, "iteration"),
    ],
)
@pytest.mark.parametrize("period", [1.0, 60.0])
def test_a_healthy_job_raises_nothing(make_report: Report, period: float) -> None:
    assert played(make_report, period=period, until=4 * 3600 if period > 1 else 900, jitter=period / 5).incidents == []


def test_a_hang_of_an_emitter_that_exports_once_a_minute_is_found() -> None:
    job = played(in_steps(0.3, {2: 7200.1}), period=60.0, until=4 * 3600)
    (incident,) = job.incidents
    assert [c.rank for c in incident.culprits] == [2]


def silent_after_one_report(period: float, until: float) -> Job:
    """All ranks report once a ``period``, but rank 2 only once; nothing but silence is judged."""
    job = Job("foreign", BEGIN, policy=Policy().changed({"section_timeouts": {"step": None}, "silence_timeout": 30.0}))
    for at, rank in times(period, until):
        if rank != 2 or at < period:
            apply(job, in_steps(0.3, {})(rank, at), BEGIN + at)
        advance(job, BEGIN + at)
        if job.incidents:
            break
    return job


@pytest.mark.parametrize(("period", "within"), [(1.0, 33.0), (60.0, 250.0)])
def test_a_rank_that_reports_once_is_missed_as_soon_as_the_others_would_be(period: float, within: float) -> None:
    (incident,) = silent_after_one_report(period, 600.0).incidents
    assert (incident.kind, [c.rank for c in incident.culprits]) == (VerdictKind.SILENT, [2])
    assert incident.opened_at - BEGIN < within


def test_signs_survive_the_store() -> None:
    durations = ObservedDurations()
    durations.add_sign(2.5)
    kept = read(ObservedDurations, durations.to_json(), own=True)
    assert kept.signs == durations.signs
    before = durations.to_json()
    del before["signs"]
    assert read(ObservedDurations, before, own=True).signs.count == 0
