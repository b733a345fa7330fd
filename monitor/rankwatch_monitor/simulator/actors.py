"""Who acts in a scene: the ranks' processes and the launchers of their nodes, and what each of them says."""

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
TELL_ALL_AGAIN: Final = 60.0
"""Seconds after which a rank tells all that it has learned once more."""
LATE_INTERVALS: Final = 2
LATE_SECONDS: Final = 1.0
"""A report that did not arrive is missed so many export intervals and seconds later, as in the SDK's exporter."""
PULSE_LIMIT: Final = 2.0
"""Seconds without a pulse after which a launcher speaks for a rank."""
_MUTE: Final = (FaultKind.STOP, FaultKind.GIL, FaultKind.KILL, FaultKind.EXIT, FaultKind.NEVER_STARTED)
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
    fate: FaultKind | None = None
    struck_at: float = 0.0
    still: Position | None = None
    """Where it stands, when it does not go on with the others."""
    cut: bool = False
    """Nothing that it says arrives."""
    missed_at: float = math.inf
    """When its launcher notices, by the slots, that its reports do not arrive."""
    over: bool = False
    """Its attempt has ended."""
    told_runs: int = 0
    runs_until: int = -1
    """The last run that is its own; -1: all."""
    told_lessons: int = 0
    told_all_at: float = 0.0
    stepped: bool = False
    passed: frozenset[str] = frozenset()
    """Limits that it was past when it last looked."""
    passed_in: int = -1
    """The act in which it looked."""
    armed: int = 0
    """Grows whenever the moment of passing its next limit changes."""
    arrives_at: float = 0.0

    @property
    def dead(self) -> bool:
        """Its process has ended."""
        return self.fate in (FaultKind.KILL, FaultKind.EXIT)

    @property
    def speaks(self) -> bool:
        """Whether what it says arrives."""
        return not self.cut and self.fate not in _MUTE

    @property
    def state(self) -> ProcessState:
        """What /proc says of it."""
        return ProcessState.ALIVE if self.fate is None else _STATES.get(self.fate, ProcessState.ALIVE)

    def report(self, track: JobProgress, now: float, *, ended: bool = False) -> RankReport:
        """What it says of itself in one export."""
        here = self.still or track.still()
        until = track.runs if self.runs_until < 0 else self.runs_until
        finished = track.finished(self.told_runs, until) if until > self.told_runs else {}
        self.told_runs = max(until, self.told_runs)
        lessons = self._lessons(track, now)
        return RankReport(
            self.identity,
            **here.told(now),
            finished=finished,
            longest={each.name: each.seconds for each in lessons if not each.first and each.name},
            first_durations={each.name: each.seconds for each in lessons if each.first},
            idle_longest=next((each.seconds for each in reversed(lessons) if not each.name), None),
            ended=ended,
        )

    def _lessons(self, track: JobProgress, now: float) -> list[LongestDuration]:
        if self.still is not None:
            return []
        if now - self.told_all_at >= TELL_ALL_AGAIN:
            self.told_all_at, self.told_lessons = now, len(track.lessons)
            return track.all_lessons()
        new = track.lessons[self.told_lessons :]
        self.told_lessons = len(track.lessons)
        return new

    def observation(self, track: JobProgress, now: float) -> RankObservation:
        """What its launcher reads of it from outside."""
        if self.fate is FaultKind.NEVER_STARTED:
            return RankObservation(self.number, self.identity.pid, ProcessState.ALIVE)
        here = self.still or track.still()
        return RankObservation(
            self.number,
            self.identity.pid,
            self.state,
            pulse_age=self._pulse_age(now),
            uses_sections=bool(here.entered) or track.runs > 0,
            **here.told(now),
        )

    def needs_a_voice(self, track: JobProgress, limits: RankLimits, now: float) -> bool:
        """Whether its launcher must speak for it."""
        if self.dead or self.fate is FaultKind.NEVER_STARTED:
            return False
        if self.state is not ProcessState.ALIVE or self._pulse_age(now) > PULSE_LIMIT or now > self.missed_at:
            return True
        here = self.still or track.still()
        return bool(limits.passed(here.activity(now))[0])

    def stack(self, track: JobProgress) -> RankStack:
        """Its stack, as a capture finds it."""
        if self.fate is FaultKind.NEVER_STARTED:
            frames: tuple[Frame, ...] = (Frame("<module>", TRAIN, 3),)
        elif self.still is None:
            frames = track.still().frames(waits=track.blocked and track.act.collective)
        else:
            frames = self.still.frames(waits=False)
        return RankStack(self.number, self.identity.pid, "py-spy", frames, process_state=self.state)

    def _pulse_age(self, now: float) -> float:
        return now - self.struck_at if self.fate in (FaultKind.STOP, FaultKind.GIL) else 0.1


@dataclass(slots=True)
class Node:
    """One launcher."""

    number: int
    name: str
    host: str
    ranks: int
    gone: bool = False
    spoken_for: set[int] = field(default_factory=set)
    spoke_at: float = 0.0
    looks: int = 0
    """Grows whenever the moment of its next look changes."""

    def registration(self, attempt: int) -> NodeRegistration:
        """What it says first."""
        return NodeRegistration(self.name, self.host, 1000 + self.number, self.ranks, JOB_ID, attempt)

    def event(self, kind: ProcessEventKind, attempt: int, **details: Any) -> ProcessEvent:
        """What it says of its processes."""
        return ProcessEvent(self.name, kind, attempt, **details)

    def evidence(self, ranks: Iterable[Rank], track: JobProgress, attempt: int, **details: Any) -> Evidence:
        """The stacks of its ranks."""
        stacks = tuple(rank.stack(track) for rank in ranks if rank.node == self.number and not rank.dead)
        return Evidence(self.name, attempt, details.pop("incident_id"), stacks, **details)

    def looks_at(
        self, ranks: Iterable[Rank], track: JobProgress, limits: RankLimits, attempt: int, now: float
    ) -> NodeObservation:
        """What it tells of those of its ranks that cannot speak, are past a limit, or were so when it last looked."""
        mine = [rank for rank in ranks if rank.node == self.number]
        mute = {rank.number for rank in mine if rank.needs_a_voice(track, limits, now)}
        named = mute | self.spoken_for
        self.spoken_for = mute
        return self.tells_of([rank for rank in mine if rank.number in named], track, attempt, now)

    def tells_of(self, ranks: Iterable[Rank], track: JobProgress, attempt: int, now: float) -> NodeObservation:
        """What it sees of some of its ranks."""
        seen = tuple(rank.observation(track, now) for rank in ranks if not rank.dead)
        return NodeObservation(self.name, attempt, seen)
