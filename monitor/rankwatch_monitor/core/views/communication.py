"""Bandwidths of a job's process groups, as ``GET /jobs/{id}/communication`` shows them. Derived when they are read."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.bandwidth import Bandwidth
from rankwatch_monitor.core.straggler.links import kind_of

SHOWN: Final = 256
"""Operations of groups that are listed, those that take longest."""
SHOWN_HOSTS: Final = 64
KINDS: Final = 16
"""Kinds of groups, with an operation each, that are summed up: those that take longest."""


@dataclass(frozen=True, slots=True)
class OperationView:
    """The collectives of one operation in one process group, in the last profiled step; bandwidths in bytes/s."""

    group: str
    operation: str
    ranks: int
    """Members that report it."""
    hosts: list[str]
    """Of its members, at most 64; empty: unknown."""
    calls: int
    seconds: float
    """In them, of the member that waits least."""
    bytes: int
    """As NCCL's tests count sizes; 0: unknown."""
    largest: int
    """The largest call, of which the bandwidths are."""
    algorithm: float | None
    """Its size over its least time on any member, the median of three windows; null: unknown."""
    bus: float | None
    """Times the factor of NCCL's tests."""
    peers: float | None
    """Median bus bandwidth of the other groups of the same kind and size; null: there is none."""
    best: float | None
    """The best of its own; null: too few windows."""
    slow: bool
    """It moves clearly less than its peers, or than it did."""


@dataclass(frozen=True, slots=True)
class CommunicationView:
    """What the process groups of a job move."""

    at: float | None
    """Unix seconds of the last profiled step with collectives; null: there was none."""
    step: float | None
    """Seconds of that step, median over the ranks."""
    operations: list[OperationView]
    """The one that takes longest first."""
    omitted: int
    """Further ones."""


@dataclass(frozen=True, slots=True)
class KindView:
    """Bus bandwidths of the groups of one kind by one operation; bytes a second."""

    kind: str
    """The groups' name without numbers."""
    operation: str
    min: float
    median: float
    max: float


def communication(job: Job) -> CommunicationView:
    """The bandwidths of a job."""
    kept, scores = job.performance.bandwidths, job.performance.scores
    rows = kept.rows()
    known = [] if scores is None else [float(each) for each in scores.step_R if each == each]  # not NaN
    return CommunicationView(
        at=kept.at,
        step=median(known) if known and rows else None,
        operations=[_shown(row) for row in rows[:SHOWN]],
        omitted=max(0, len(rows) - SHOWN),
    )


def kinds(job: Job) -> list[KindView]:
    """The bandwidths by kind of group: as many however many groups there are."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in job.performance.bandwidths.rows():
        key = (kind_of(row.group), row.operation)
        if row.bus and (key in found or len(found) < KINDS):
            found.setdefault(key, []).append(row.bus)
    return [KindView(*key, min(bus), median(bus), max(bus)) for key, bus in found.items()]


def slowest(job: Job, number: int) -> list[Bandwidth]:
    """The groups that move least of what is usual for them, by the operation that takes longest."""
    rows = [row for row in job.performance.bandwidths.of_groups().values() if row.usual]
    return sorted(rows, key=lambda row: row.bus / (row.usual or 1.0))[:number]


def _shown(row: Bandwidth) -> OperationView:
    figures = (row.algorithm, row.bus, row.peers, row.best)
    algorithm, bus, peers, best = (float(f"{each:.4g}") if each else None for each in figures)
    seconds = float(f"{row.seconds:.4g}")
    return OperationView(
        group=row.group,
        operation=row.operation,
        ranks=row.members,
        hosts=list(row.hosts[:SHOWN_HOSTS]),
        calls=row.calls,
        seconds=seconds,
        bytes=row.bytes,
        largest=row.largest,
        algorithm=algorithm,
        bus=bus,
        peers=peers,
        best=best,
        slow=row.slow,
    )
