"""The actors of a scene: rank processes and node launchers, with the messages that each sends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rankwatch.contract.enums import ProcessEventKind, ProcessState
from rankwatch.contract.limits import RankLimits
from rankwatch.contract.messages import (
    Evidence,
    NodeObservation,
    NodeRegistration,
    ProcessEvent,
)
from rankwatch_monitor.core.events import RankReport
from support.simulator.plan import FaultKind
from support.simulator.process import Process
from support.simulator.workload import JobProgress, LongestDuration

JOB_ID: Final = "scene"
RESEND_INTERVAL: Final = 60.0
"""Seconds after which a rank reports all its longest durations again."""
LATE_INTERVALS: Final = 2
LATE_SECONDS: Final = 1.0
"""Export intervals, and seconds on top, after which a missing report is noticed, as in the SDK's exporter."""
LIVENESS_LIMIT: Final = 2.0
"""Seconds without a liveness tick after which the launcher reports for the rank."""


@dataclass(slots=True, kw_only=True)
class Rank(Process):
    """A process, and what its exporter and its liveness thread keep."""

    node: int
    missed_at: float = math.inf
    """When its launcher detects, from the shared slots, that its reports do not arrive."""
    reported_runs: int = 0
    runs_until: int = -1
    """Section runs that it took part in; -1: all."""
    reported_durations: int = 0
    all_reported_at: float
    passed: frozenset[str] = frozenset()
    """Limits exceeded at its last check."""
    passed_in: int = -1
    """Number of the activity during its last check."""
    armed: int = 0
    """Incremented when its next limit check is rescheduled, which cancels the earlier one."""
    arrives_at: float = 0.0

    def export(self, progress: JobProgress, now: float, *, ended: bool = False) -> RankReport:
        """The report of one export, with what was not reported before."""
        until = progress.runs if self.runs_until < 0 else self.runs_until
        finished = progress.finished(self.reported_runs, until) if until > self.reported_runs else {}
        self.reported_runs = max(until, self.reported_runs)
        durations = self._unreported_durations(progress, now)
        return self.report(
            now,
            finished=finished,
            longest={each.name: each.seconds for each in durations if not each.first and each.name},
            first_durations={each.name: each.seconds for each in durations if each.first},
            idle_longest=next((each.seconds for each in reversed(durations) if not each.name), None),
            ended=ended,
        )

    def _unreported_durations(self, progress: JobProgress, now: float) -> list[LongestDuration]:
        if self.at is not progress.at:
            return []
        if now - self.all_reported_at >= RESEND_INTERVAL:
            self.all_reported_at, self.reported_durations = now, len(progress.durations)
            return progress.all_durations()
        new = progress.durations[self.reported_durations :]
        self.reported_durations = len(progress.durations)
        return new

    def needs_proxy_report(self, limits: RankLimits, now: float) -> bool:
        """Whether its launcher must report for it."""
        if self.dead or self.fault is FaultKind.NEVER_STARTED:
            return False
        if self.state is not ProcessState.ALIVE or self.liveness_age(now) > LIVENESS_LIMIT or now > self.missed_at:
            return True
        return bool(limits.passed(self.at.activity(now))[0])


@dataclass(slots=True)
class Node:
    """One launcher."""

    number: int
    name: str
    host: str
    ranks: int
    gone: bool = False
    proxied: set[int] = field(default_factory=set)
    sent_at: float = 0.0
    generation: int = 0
    """Incremented when its next observation is rescheduled, which cancels the earlier one."""

    def registration(self, attempt: int) -> NodeRegistration:
        """Its registration."""
        return NodeRegistration(self.name, self.host, 1000 + self.number, self.ranks, JOB_ID, attempt)

    def event(self, kind: ProcessEventKind, attempt: int, **details: Any) -> ProcessEvent:
        """An event of its processes."""
        return ProcessEvent(self.name, kind, attempt, **details)

    def evidence(self, ranks: Iterable[Rank], attempt: int, **details: Any) -> Evidence:
        """The stacks of its ranks."""
        stacks = tuple(rank.stack() for rank in ranks if rank.node == self.number and not rank.dead)
        return Evidence(self.name, attempt, details.pop("incident_id"), stacks, **details)

    def observe_proxied(self, ranks: Iterable[Rank], limits: RankLimits, attempt: int, now: float) -> NodeObservation:
        """Observe its ranks that cannot report or exceed a limit, now or at the last observation."""
        mine = [rank for rank in ranks if rank.node == self.number]
        silent = {rank.number for rank in mine if rank.needs_proxy_report(limits, now)}
        named = silent | self.proxied
        self.proxied = silent
        return self.observe([rank for rank in mine if rank.number in named], attempt, now)

    def observe(self, ranks: Iterable[Rank], attempt: int, now: float) -> NodeObservation:
        """Observe some of its ranks."""
        seen = tuple(rank.observation(now) for rank in ranks if not rank.dead)
        return NodeObservation(self.name, attempt, seen)
