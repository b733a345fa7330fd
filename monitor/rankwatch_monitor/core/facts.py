"""Small facts about a job that are not columns over its ranks: launchers, endings, its pace."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rankwatch.contract.enums import JobState, NodeRole, ProcessEventKind
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import NodeRegistration, ProcessEvent
from rankwatch_monitor.core.events import RankIdentity


@dataclass(frozen=True, slots=True)
class Lost:
    """A node of which the other launchers have heard nothing for too long: it is gone, and its ranks with it."""

    attempt: int
    """The one in which it ran these ranks."""
    ranks: tuple[int, ...]
    since: float
    """When the last word was heard of it."""
    reason: str


@dataclass(slots=True)
class Node:
    """A launcher that registered, and what it last said."""

    registration: NodeRegistration
    seen: float
    attempt: int
    ranks: set[int] = field(default_factory=set)
    ended: ProcessEvent | None = None
    role: NodeRole = NodeRole.ACTIVE
    role_reason: str = ""
    lost: Lost | None = None
    former: set[int] = field(default_factory=set)
    """The ranks it ran in the last attempt before this one that it took part in."""


@dataclass(slots=True)
class Stop:
    """The launchers have asked the ranks of the attempt to save and stop."""

    at: float
    reason: str
    noted: bool = False
    """It stands in an incident."""


@dataclass(slots=True)
class Ending:
    """How a job ended."""

    state: JobState
    reason: str
    at: float


def ending_of(told: Sequence[ProcessEvent], at: float) -> Ending | None:
    """How a job ended whose launchers have all said how theirs did: the worst of them counts."""
    for kind, state in (
        (ProcessEventKind.FAILED, JobState.FAILED),
        (ProcessEventKind.STOPPED, JobState.STOPPED),
        (ProcessEventKind.FINISHED, JobState.FINISHED),
    ):
        reason = next((event.reason for event in told if event.kind == kind), None)
        if reason is not None:
            return Ending(state, reason, at)
    return None


class Told(NamedTuple):
    """What the launchers and ranks of a job were last told of their limits."""

    at: float
    limits: RankLimits
    settings: Mapping[str, Any]


DROP_REASONS = 64
"""Reasons for which telemetry was dropped that are kept of one job; there are about ten."""


@dataclass(slots=True)
class Drops:
    """What the telemetry of a job's ranks lost, by reason."""

    counts: dict[str, int] = field(default_factory=dict)
    _by_rank: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """By reason and rank: the process that counts it, and how many so far."""

    def add(self, reason: str, who: RankIdentity, count: int) -> None:
        """Add what is new to the job's sum: a process that takes a rank over counts from 0 again, the job does not."""
        if reason not in self.counts and len(self.counts) >= DROP_REASONS:
            return
        process, before = self._by_rank.get((reason, who.rank), ("", 0))
        before = before if process == who.instance else 0
        self.counts[reason] = self.counts.get(reason, 0) + max(0, count - before)
        self._by_rank[reason, who.rank] = (who.instance, max(count, before))


PACE_WINDOW = 30.0
"""Seconds over which the pace of a job is taken."""


@dataclass(slots=True)
class Pace:
    """How fast a job goes: one sample a second of the furthest iteration, over :data:`PACE_WINDOW`."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)

    def due(self, now: float) -> bool:
        """Whether it is time for a sample."""
        return not self.samples or now - self.samples[-1][0] >= 1.0

    def add(self, now: float, iteration: int) -> None:
        """Take a sample and forget those that are too old."""
        self.samples.append((now, iteration))
        while now - self.samples[0][0] > PACE_WINDOW:
            self.samples.popleft()

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second over the window; None before there are two samples."""
        if len(self.samples) < 2:
            return None
        (t0, i0), (t1, i1) = self.samples[0], self.samples[-1]
        return max(0.0, (i1 - i0) / (t1 - t0))
