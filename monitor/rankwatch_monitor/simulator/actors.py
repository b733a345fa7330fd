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
    Frame,
    NodeObservation,
    NodeRegistration,
    ProcessEvent,
    RankObservation,
    RankStack,
)
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.simulator.plan import FaultKind
from rankwatch_monitor.simulator.workload import TRAIN, JobProgress, LongestDuration, Position

JOB_ID: Final = "scene"
RESEND_INTERVAL: Final = 60.0
"""Seconds after which a rank reports all its longest durations again."""
LATE_INTERVALS: Final = 2
LATE_SECONDS: Final = 1.0
"""Export intervals, and seconds on top, after which a missing report is noticed, as in the SDK's exporter."""
LIVENESS_LIMIT: Final = 2.0
"""Seconds without a liveness tick after which the launcher reports for the rank."""
_SILENT: Final = (FaultKind.STOP, FaultKind.GIL, FaultKind.KILL, FaultKind.EXIT, FaultKind.NEVER_STARTED)
_STATES: Final = {
    FaultKind.STOP: ProcessState.STOPPED,
    FaultKind.UNINTERRUPTIBLE: ProcessState.UNINTERRUPTIBLE,
    FaultKind.KILL: ProcessState.EXITED,
    FaultKind.EXIT: ProcessState.EXITED,
}


@dataclass(slots=True)
class Rank:
    """One process of one attempt."""

    number: int
    node: int
    identity: RankIdentity
    fault: FaultKind | None = None
    fault_at: float = 0.0
    frozen: Position | None = None
    """Its position if it does not advance with the others."""
    disconnected: bool = False
    """Its exports do not arrive."""
    missed_at: float = math.inf
    """When its launcher detects, from the shared slots, that its reports do not arrive."""
    over: bool = False
    """Its attempt has ended."""
    reported_runs: int = 0
    runs_until: int = -1
    """Section runs that it took part in; -1: all."""
    reported_durations: int = 0
    all_reported_at: float = 0.0
    passed: frozenset[str] = frozenset()
    """Limits exceeded at its last check."""
    passed_in: int = -1
    """Number of the activity during its last check."""
    armed: int = 0
    """Incremented when its next limit check is rescheduled, which cancels the earlier one."""
    arrives_at: float = 0.0

    @property
    def dead(self) -> bool:
        """Its process has ended."""
        return self.fault in (FaultKind.KILL, FaultKind.EXIT)

    @property
    def exports_arrive(self) -> bool:
        """Whether its exports reach the monitor."""
        return not self.disconnected and self.fault not in _SILENT

    @property
    def state(self) -> ProcessState:
        """Its process state in /proc."""
        return ProcessState.ALIVE if self.fault is None else _STATES.get(self.fault, ProcessState.ALIVE)

    def report(self, progress: JobProgress, now: float, *, ended: bool = False) -> RankReport:
        """The report of one export."""
        here = self.frozen or progress.position()
        until = progress.runs if self.runs_until < 0 else self.runs_until
        finished = progress.finished(self.reported_runs, until) if until > self.reported_runs else {}
        self.reported_runs = max(until, self.reported_runs)
        durations = self._unreported_durations(progress, now)
        return RankReport(
            self.identity,
            **here.report_fields(now),
            finished=finished,
            longest={each.name: each.seconds for each in durations if not each.first and each.name},
            first_durations={each.name: each.seconds for each in durations if each.first},
            idle_longest=next((each.seconds for each in reversed(durations) if not each.name), None),
            ended=ended,
        )

    def _unreported_durations(self, progress: JobProgress, now: float) -> list[LongestDuration]:
        if self.frozen is not None:
            return []
        if now - self.all_reported_at >= RESEND_INTERVAL:
            self.all_reported_at, self.reported_durations = now, len(progress.durations)
            return progress.all_durations()
        new = progress.durations[self.reported_durations :]
        self.reported_durations = len(progress.durations)
        return new

    def observation(self, progress: JobProgress, now: float) -> RankObservation:
        """What its launcher observes from outside the process."""
        if self.fault is FaultKind.NEVER_STARTED:
            return RankObservation(self.number, self.identity.pid, ProcessState.ALIVE)
        here = self.frozen or progress.position()
        return RankObservation(
            self.number,
            self.identity.pid,
            self.state,
            pulse_age=self._liveness_age(now),
            uses_sections=bool(here.entered) or progress.runs > 0,
            **here.report_fields(now),
        )

    def needs_proxy_report(self, progress: JobProgress, limits: RankLimits, now: float) -> bool:
        """Whether its launcher must report for it."""
        if self.dead or self.fault is FaultKind.NEVER_STARTED:
            return False
        if self.state is not ProcessState.ALIVE or self._liveness_age(now) > LIVENESS_LIMIT or now > self.missed_at:
            return True
        here = self.frozen or progress.position()
        return bool(limits.passed(here.activity(now))[0])

    def stack(self, progress: JobProgress) -> RankStack:
        """Its stack, as captured."""
        if self.fault is FaultKind.NEVER_STARTED:
            frames: tuple[Frame, ...] = (Frame("<module>", TRAIN, 3),)
        elif self.frozen is None:
            frames = progress.position().frames(waits=progress.blocked and progress.activity.collective)
        else:
            frames = self.frozen.frames(waits=False)
        return RankStack(self.number, self.identity.pid, "py-spy", frames, process_state=self.state)

    def _liveness_age(self, now: float) -> float:
        return now - self.fault_at if self.fault in (FaultKind.STOP, FaultKind.GIL) else 0.1


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

    def evidence(self, ranks: Iterable[Rank], progress: JobProgress, attempt: int, **details: Any) -> Evidence:
        """The stacks of its ranks."""
        stacks = tuple(rank.stack(progress) for rank in ranks if rank.node == self.number and not rank.dead)
        return Evidence(self.name, attempt, details.pop("incident_id"), stacks, **details)

    def observe_proxied(
        self, ranks: Iterable[Rank], progress: JobProgress, limits: RankLimits, attempt: int, now: float
    ) -> NodeObservation:
        """Observe its ranks that cannot report or exceed a limit, now or at the last observation."""
        mine = [rank for rank in ranks if rank.node == self.number]
        silent = {rank.number for rank in mine if rank.needs_proxy_report(progress, limits, now)}
        named = silent | self.proxied
        self.proxied = silent
        return self.observe([rank for rank in mine if rank.number in named], progress, attempt, now)

    def observe(self, ranks: Iterable[Rank], progress: JobProgress, attempt: int, now: float) -> NodeObservation:
        """Observe some of its ranks."""
        seen = tuple(rank.observation(progress, now) for rank in ranks if not rank.dead)
        return NodeObservation(self.name, attempt, seen)
