"""What a training script does, as a sequence of acts: each is a stretch of time in one place, the same on all ranks.

An act has a path of open sections. A collective one begins on no rank before all have come to it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from rankwatch.contract.limits import RankActivity
from rankwatch.contract.messages import Frame
from rankwatch.contract.semconv import CHECKPOINTING_SECTION, SETUP_SECTION, STEP_SECTION
from rankwatch_monitor.core.events import SectionStatistics
from rankwatch_monitor.simulator.plan import BACKWARD, DATA, EVALUATION, EVALUATION_BATCH, FORWARD, Plan

DATA_SHARE: Final = 0.05
FORWARD_SHARE: Final = 0.4
OUTSIDE_SHARE: Final = 0.01
BATCHES: Final = 20
"""Of an evaluation."""


class Activity(NamedTuple):
    """One stretch of time. ``path``: the sections that are open, outermost first."""

    path: tuple[str, ...]
    seconds: float
    step: int
    """The step that it is part of or, between two, the one before it."""
    closes: int = 1
    """How many sections end with it, innermost first."""
    collective: bool = False
    completes: bool = False
    """A step ends with it."""
    saves: bool = False
    """A checkpoint ends with it: an attempt can resume from here."""
    relaunches: bool = False
    """After it the job is restarted from outside."""


def activities(plan: Plan, rng: random.Random, first_step: int) -> Iterator[Activity]:
    """The acts of one attempt that begins at ``first_step``; it never ends by itself."""
    yield Activity((SETUP_SECTION,), plan.setup, first_step, collective=True)
    step = first_step
    while True:
        seconds = plan.step * max(0.2, 1.0 + plan.noise * rng.gauss(0.0, 1.0))
        data = seconds * DATA_SHARE
        if plan.stall_every and rng.random() * plan.stall_every < 1.0:
            data += plan.stall * rng.uniform(0.2, 1.0)
        yield Activity((STEP_SECTION, DATA), data, step)
        compiling = plan.compilation if step == first_step else 0.0
        yield Activity((STEP_SECTION, FORWARD), compiling + seconds * FORWARD_SHARE, step)
        rest = seconds * (1.0 - DATA_SHARE - FORWARD_SHARE - OUTSIDE_SHARE)
        yield Activity((STEP_SECTION, BACKWARD), rest, step, 2, collective=True, completes=True)
        done = step + 1
        leaves = bool(plan.relaunch_every) and done % plan.relaunch_every == 0
        if plan.evaluate_every and done % plan.evaluate_every == 0:
            yield from _evaluation(plan, rng, step)
        if leaves or (plan.checkpoint_every and done % plan.checkpoint_every == 0):
            seconds = plan.checkpoint * rng.uniform(0.8, 1.2)
            yield Activity((CHECKPOINTING_SECTION,), seconds, step, saves=True)
        yield Activity((), plan.step * OUTSIDE_SHARE, step, 0, relaunches=leaves)
        step = done


def _evaluation(plan: Plan, rng: random.Random, step: int) -> Iterator[Activity]:
    each = plan.evaluation / BATCHES
    for _ in range(BATCHES):
        yield Activity((EVALUATION, EVALUATION_BATCH), each * rng.uniform(0.8, 1.2), step)
    yield Activity((EVALUATION,), 0.2, step, collective=True)


TRAIN = "/srv/training/train.py"
TORCH = "/opt/python/site-packages/torch/distributed/distributed_c10d.py"
TRIM_RUNS = 4096
ENTERING = 2e-6
"""Seconds between entering a section and the one inside of it: which one is the innermost is told from their ages."""


class Position(NamedTuple):
    """Where a rank stands; times are unix seconds, None: not yet."""

    entered: tuple[tuple[str, float], ...]
    """Open sections with the time each was entered, outermost first."""
    moved_at: float
    iteration: int | None
    progress: int
    beats: int
    beat_at: float
    first_iteration: int | None
    first_step_at: float
    first_time: tuple[str, ...]
    """Open sections that the process has never finished before."""

    def activity(self, now: float) -> RankActivity:
        """The same as ages, for limits to judge."""
        return RankActivity(
            self.open_sections(now),
            now - self.beat_at if self.beats else None,
            None if self.entered else now - self.moved_at,
            now - self.moved_at,
            frozenset(self.first_time),
        )

    def open_sections(self, now: float) -> dict[str, float]:
        """Seconds that each open section has been open."""
        return {name: now - at for name, at in self.entered}

    def told(self, now: float) -> dict[str, Any]:
        """What a report and an observation have in common."""
        return {
            "beats": self.beats,
            "heartbeat_age": now - self.beat_at if self.beats else None,
            "iteration": self.iteration,
            "progress": self.progress,
            "open_sections": {name: now - at for name, at in self.entered},
            "idle": None if self.entered else now - self.moved_at,
            "first_iteration": self.first_iteration,
            "first_iteration_age": None if self.first_iteration is None else now - self.first_step_at,
            "quiet": now - self.moved_at,
            "first_time": self.first_time,
        }

    def frames(self, waits: bool) -> tuple[Frame, ...]:
        """The stack of a rank that stands here, innermost frame first."""
        names = [name for name, _ in self.entered]
        calls = tuple(Frame(name, TRAIN, 100 + 10 * depth) for depth, name in enumerate(names))[::-1]
        main = (*calls, Frame("main", TRAIN, 20))
        return (Frame("all_reduce", TORCH, 2800), *main) if waits else main


class LongestDuration(NamedTuple):
    """A section took longer than ever in this process; an empty name: the time outside all sections."""

    name: str
    seconds: float
    first: bool


class JobProgress:
    """The way of all ranks that go on, in lockstep: acts begin and end, sections are finished, steps completed."""

    def __init__(self, plan: Plan, rng: random.Random, first_step: int, now: float) -> None:
        self._acts: Iterator[Activity] = activities(plan, rng, first_step)
        self.act = Activity((), 0.0, first_step, 0)
        self.number = 0
        """Grows with each act."""
        self.ends_at = now
        """When the act ends; infinite while somebody is waited for."""
        self._entered: list[tuple[str, float]] = []
        self.moved_at = now
        self.iteration: int | None = None
        self.first_iteration: int | None = None
        self.first_step_at = math.nan
        self.progress = self.beats = 0
        self.beat_at = now
        self._longest: dict[tuple[str, bool], float] = {}
        self.lessons: list[LongestDuration] = []
        """What was learned, in its order; ranks keep how much of it they have told."""
        self._runs: list[tuple[str, float]] = []
        self._forgotten = 0

    @property
    def blocked(self) -> bool:
        """Whether the act does not end by itself."""
        return self.ends_at == math.inf

    @property
    def oldest(self) -> float:
        """When the outermost open section was entered, or the last one was left."""
        return self._entered[0][1] if self._entered else self.moved_at

    def begin(self, now: float) -> Activity:
        """Begin the next act."""
        act = self.act = next(self._acts)
        self.number += 1
        self.ends_at, self.moved_at = now + act.seconds, now
        for depth in range(len(self._entered), len(act.path)):
            self.moved_at += ENTERING
            self._entered.append((act.path[depth], self.moved_at))
        return act

    def end(self, now: float) -> None:
        """End the act."""
        act = self.act
        if not act.path and self.first_iteration is not None:
            self._learn("", act.seconds, first=False)
        for _ in range(act.closes):
            name, at = self._entered.pop()
            self._runs.append((name, now - at))
            self.progress += 1
            self._learn(name, now - at, first=(name, True) not in self._longest)
        self.moved_at = now
        if act.completes:
            self.iteration, self.progress = act.step, 0
            self.beats, self.beat_at = self.beats + 1, now
            if self.first_iteration is None:
                self.first_iteration, self.first_step_at = act.step, now

    def still(self) -> Position:
        """Where all of them stand now."""
        longest = self._longest
        return Position(
            tuple(self._entered),
            self.moved_at,
            self.iteration,
            self.progress,
            self.beats,
            self.beat_at,
            self.first_iteration,
            self.first_step_at,
            tuple(name for name, _ in self._entered if (name, True) not in longest),
        )

    @property
    def runs(self) -> int:
        """Sections finished so far."""
        return self._forgotten + len(self._runs)

    def finished(self, since: int, until: int) -> dict[str, SectionStatistics]:
        """The sections finished from number ``since`` to before ``until``."""
        took: dict[str, list[float]] = {}
        for name, seconds in self._runs[since - self._forgotten : until - self._forgotten]:
            took.setdefault(name, []).append(seconds)
        return {name: SectionStatistics(len(each), sum(each), min(each), max(each)) for name, each in took.items()}

    def forget_runs(self, before: int) -> None:
        """Forget the runs that every rank has told."""
        if before - self._forgotten > TRIM_RUNS:
            del self._runs[: before - self._forgotten]
            self._forgotten = before

    def all_lessons(self) -> list[LongestDuration]:
        """The longest of everything so far."""
        return [LongestDuration(name, seconds, first) for (name, first), seconds in self._longest.items()]

    def _learn(self, name: str, seconds: float, *, first: bool) -> None:
        if seconds > self._longest.get((name, first), 0.0):
            self._longest[name, first] = seconds
            self.lessons.append(LongestDuration(name, seconds, first))
