"""A rank's process, as all simulated jobs have it: where it is, what is wrong with it, and what is seen of it.

The caller moves it and has it report: ``scene`` with chance and delays, the stage of the core's tests in whole seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rankwatch.contract.enums import ProcessState
from rankwatch.contract.limits import RankActivity
from rankwatch.contract.messages import Frame, RankObservation, RankStack
from rankwatch_monitor.core.events import RankIdentity, RankReport
from support.simulator.plan import FaultKind

TRAIN: Final = "/srv/training/train.py"
TORCH: Final = "/opt/python/site-packages/torch/distributed/distributed_c10d.py"
_SILENT: Final = (FaultKind.STOP, FaultKind.GIL, FaultKind.KILL, FaultKind.EXIT, FaultKind.NEVER_STARTED)
_STATES: Final = {
    FaultKind.STOP: ProcessState.STOPPED,
    FaultKind.UNINTERRUPTIBLE: ProcessState.UNINTERRUPTIBLE,
    FaultKind.KILL: ProcessState.EXITED,
    FaultKind.EXIT: ProcessState.EXITED,
}


@dataclass(slots=True)
class Position:
    """Where a rank is in its workload. Times are unix seconds; None: not yet."""

    moved_at: float
    opened: dict[str, float] = field(default_factory=dict)
    """When each open section was entered, outermost first."""
    iteration: int | None = None
    progress: int = 0
    beats: int = 0
    beat_at: float = 0.0
    first_iteration: int | None = None
    first_step_at: float = math.nan
    completed: set[str] = field(default_factory=set)
    """Sections that the process has completed."""
    waits: bool = False
    """In a collective, for other ranks."""

    def copy(self) -> Position:
        """The same position, of a rank that moves apart from the others."""
        return replace(self, opened=dict(self.opened), completed=set(self.completed), waits=False)

    def enter(self, section: str, at: float) -> None:
        """Enter a section, inside of those that are open."""
        self.opened[section] = self.moved_at = at

    def leave(self, at: float) -> tuple[str, float]:
        """Leave the innermost section; its name and its seconds."""
        section, entered = self.opened.popitem()
        self.progress, self.moved_at = self.progress + 1, at
        self.completed.add(section)
        return section, at - entered

    def complete_step(self, step: int, at: float) -> None:
        """Complete a step."""
        self.iteration, self.progress = step, 0
        self.beats, self.beat_at = self.beats + 1, at
        if self.first_iteration is None:
            self.first_iteration, self.first_step_at = step, at

    @property
    def first_time(self) -> tuple[str, ...]:
        """Open sections that the process has not completed before."""
        return tuple(name for name in self.opened if name not in self.completed)

    def open_sections(self, now: float) -> dict[str, float]:
        """Seconds that each open section has been open."""
        return {name: now - at for name, at in self.opened.items()}

    def activity(self, now: float) -> RankActivity:
        """The position as ages, as limits are evaluated on."""
        quiet = now - self.moved_at
        beat = now - self.beat_at if self.beats else None
        idle = None if self.opened else quiet
        return RankActivity(self.open_sections(now), beat, idle, quiet, frozenset(self.first_time))

    def report_fields(self, now: float) -> dict[str, Any]:
        """The fields that a report and an observation share."""
        return {
            "beats": self.beats,
            "heartbeat_age": now - self.beat_at if self.beats else None,
            "iteration": self.iteration,
            "progress": self.progress,
            "open_sections": self.open_sections(now),
            "idle": None if self.opened else now - self.moved_at,
            "first_iteration": self.first_iteration,
            "first_iteration_age": None if self.first_iteration is None else now - self.first_step_at,
            "quiet": now - self.moved_at,
            "first_time": self.first_time,
        }

    def frames(self) -> tuple[Frame, ...]:
        """The stack of a rank at this position, innermost frame first."""
        calls = tuple(Frame(name, TRAIN, 100 + 10 * depth) for depth, name in enumerate(self.opened))[::-1]
        main = (*calls, Frame("main", TRAIN, 20))
        return (Frame("all_reduce", TORCH, 2800), *main) if self.waits else main


@dataclass(slots=True)
class Process:
    """One process of one attempt."""

    number: int
    identity: RankIdentity
    at: Position
    """Shared by the ranks that advance together."""
    fault: FaultKind | None = None
    fault_at: float = 0.0
    disconnected: bool = False
    """Its exports do not arrive."""
    over: bool = False
    """It has ended without a fault, or with its attempt."""

    @property
    def named(self) -> dict[str, Any]:
        """The fields by which an event of its launcher names it."""
        return {"rank": self.number, "local_rank": self.identity.local_rank, "pid": self.identity.pid}

    @property
    def dead(self) -> bool:
        """Its process has ended by a fault."""
        return self.fault in (FaultKind.KILL, FaultKind.EXIT)

    @property
    def exports_arrive(self) -> bool:
        """Whether its exports reach the monitor."""
        return not self.disconnected and not self.over and self.fault not in _SILENT

    @property
    def state(self) -> ProcessState:
        """Its process state in /proc."""
        return ProcessState.ALIVE if self.fault is None else _STATES.get(self.fault, ProcessState.ALIVE)

    def liveness_age(self, now: float) -> float:
        """Seconds since its liveness thread last ran."""
        return now - self.fault_at if self.fault in (FaultKind.STOP, FaultKind.GIL) else 0.1

    def report(self, now: float, **durations: Any) -> RankReport:
        """The report of one export."""
        return RankReport(self.identity, **self.at.report_fields(now), **durations)

    def observation(self, now: float) -> RankObservation:
        """What its launcher observes from outside the process."""
        if self.fault is FaultKind.NEVER_STARTED:
            return RankObservation(self.number, self.identity.pid, ProcessState.ALIVE)
        return RankObservation(
            self.number,
            self.identity.pid,
            self.state,
            pulse_age=self.liveness_age(now),
            uses_sections=bool(self.at.opened or self.at.completed),
            **self.at.report_fields(now),
        )

    def stack(self) -> RankStack:
        """Its stack, as captured."""
        started = self.fault is not FaultKind.NEVER_STARTED
        frames = self.at.frames() if started else (Frame("<module>", TRAIN, 3),)
        return RankStack(self.number, self.identity.pid, "py-spy", frames, process_state=self.state)
