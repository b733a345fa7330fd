"""The workload of a training script: a sequence of activities that is the same on all ranks.

An activity has a duration and a path of open sections. A collective one starts once all ranks have reached it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from rankwatch.contract.semconv import CHECKPOINTING_SECTION, SETUP_SECTION, STEP_SECTION
from rankwatch_monitor.core.events import SectionStatistics
from support.simulator.plan import BACKWARD, DATA, EVALUATION, EVALUATION_BATCH, FORWARD, Plan
from support.simulator.process import Position

DATA_SHARE: Final = 0.05
FORWARD_SHARE: Final = 0.4
OUTSIDE_SHARE: Final = 0.01
BATCHES: Final = 20
"""Of an evaluation."""


class Activity(NamedTuple):
    """One time interval. ``path``: the open sections, outermost first."""

    path: tuple[str, ...]
    seconds: float
    step: int
    """The step that it belongs to; between two steps, the earlier one."""
    closes: int = 1
    """Sections that end with it, innermost first."""
    collective: bool = False
    completes: bool = False
    """A step ends with it."""
    saves: bool = False
    """A checkpoint ends with it, from which an attempt can resume."""
    relaunches: bool = False
    """After it the job is restarted from outside."""


def activities(plan: Plan, rng: random.Random, first_step: int) -> Iterator[Activity]:
    """The activities of one attempt that begins at ``first_step``; infinite."""
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


TRIM_RUNS = 4096
ENTERING = 2e-6
"""Seconds between entering a section and its child: the innermost section is derived from the ages."""


class LongestDuration(NamedTuple):
    """A new maximum duration of a section in this process; an empty name: the time outside all sections."""

    name: str
    seconds: float
    first: bool


class JobProgress:
    """The progress of all ranks that advance, in lockstep: activities, finished sections and completed steps."""

    def __init__(self, plan: Plan, rng: random.Random, first_step: int, now: float) -> None:
        self._activities: Iterator[Activity] = activities(plan, rng, first_step)
        self.activity = Activity((), 0.0, first_step, 0)
        self.number = 0
        """Incremented by each activity."""
        self.ends_at = now
        """When the activity ends; infinite while ranks wait for another one."""
        self.at = Position(now)
        """Shared by all of them."""
        self._longest: dict[tuple[str, bool], float] = {}
        self.durations: list[LongestDuration] = []
        """Log of new maxima; each rank keeps the length that it has reported."""
        self._runs: list[tuple[str, float]] = []
        self._dropped = 0

    @property
    def blocked(self) -> bool:
        """Whether the activity does not end by itself."""
        return self.ends_at == math.inf

    @property
    def oldest(self) -> float:
        """When the outermost open section was entered, or the last one was left."""
        return next(iter(self.at.opened.values()), self.at.moved_at)

    def block(self) -> None:
        """The activity does not end while ranks wait for another one."""
        self.ends_at, self.at.waits = math.inf, self.activity.collective

    def unblock(self, now: float) -> None:
        """The activity begins again."""
        self.ends_at, self.at.waits = now + self.activity.seconds, False

    def begin(self, now: float) -> Activity:
        """Begin the next activity."""
        activity, at = next(self._activities), self.at
        self.activity = activity
        self.number += 1
        self.ends_at, at.moved_at = now + activity.seconds, now
        for name in activity.path[len(at.opened) :]:
            at.enter(name, at.moved_at + ENTERING)
        return activity

    def end(self, now: float) -> None:
        """End the activity."""
        activity, at = self.activity, self.at
        if not activity.path and at.first_iteration is not None:
            self._record_duration("", activity.seconds, first=False)
        for _ in range(activity.closes):
            first = next(reversed(at.opened)) not in at.completed
            name, seconds = at.leave(now)
            self._runs.append((name, seconds))
            self._record_duration(name, seconds, first=first)
        at.moved_at = now
        if activity.completes:
            at.complete_step(activity.step, now)

    @property
    def runs(self) -> int:
        """Sections finished so far."""
        return self._dropped + len(self._runs)

    def finished(self, since: int, until: int) -> dict[str, SectionStatistics]:
        """The sections finished from number ``since`` to before ``until``."""
        took: dict[str, list[float]] = {}
        for name, seconds in self._runs[since - self._dropped : until - self._dropped]:
            took.setdefault(name, []).append(seconds)
        return {name: SectionStatistics(len(each), sum(each), min(each), max(each)) for name, each in took.items()}

    def drop_runs(self, before: int) -> None:
        """Drop the runs that every rank has reported."""
        if before - self._dropped > TRIM_RUNS:
            del self._runs[: before - self._dropped]
            self._dropped = before

    def all_durations(self) -> list[LongestDuration]:
        """All maxima so far."""
        return [LongestDuration(name, seconds, first) for (name, first), seconds in self._longest.items()]

    def _record_duration(self, name: str, seconds: float, *, first: bool) -> None:
        if seconds > self._longest.get((name, first), 0.0):
            self._longest[name, first] = seconds
            self.durations.append(LongestDuration(name, seconds, first))
