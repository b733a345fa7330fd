"""The workload of a training script: a sequence of activities that is the same on all ranks.

An activity has a duration and a path of open sections. A collective one starts once all ranks have reached it.
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


TRAIN = "/srv/training/train.py"
TORCH = "/opt/python/site-packages/torch/distributed/distributed_c10d.py"
TRIM_RUNS = 4096
ENTERING = 2e-6
"""Seconds between entering a section and its child: the innermost section is derived from the ages."""


class Position(NamedTuple):
    """Where a rank is in its workload. Times are unix seconds; None: not yet."""

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
    """Open sections that the process has not completed before."""

    def activity(self, now: float) -> RankActivity:
        """The position as ages, as limits are evaluated on."""
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

    def report_fields(self, now: float) -> dict[str, Any]:
        """The fields that a report and an observation share."""
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
        """The stack of a rank at this position, innermost frame first."""
        names = [name for name, _ in self.entered]
        calls = tuple(Frame(name, TRAIN, 100 + 10 * depth) for depth, name in enumerate(names))[::-1]
        main = (*calls, Frame("main", TRAIN, 20))
        return (Frame("all_reduce", TORCH, 2800), *main) if waits else main


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
        self._entered: list[tuple[str, float]] = []
        self.moved_at = now
        self.iteration: int | None = None
        self.first_iteration: int | None = None
        self.first_step_at = math.nan
        self.progress = self.beats = 0
        self.beat_at = now
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
        return self._entered[0][1] if self._entered else self.moved_at

    def begin(self, now: float) -> Activity:
        """Begin the next activity."""
        activity = self.activity = next(self._activities)
        self.number += 1
        self.ends_at, self.moved_at = now + activity.seconds, now
        for depth in range(len(self._entered), len(activity.path)):
            self.moved_at += ENTERING
            self._entered.append((activity.path[depth], self.moved_at))
        return activity

    def end(self, now: float) -> None:
        """End the activity."""
        activity = self.activity
        if not activity.path and self.first_iteration is not None:
            self._record_duration("", activity.seconds, first=False)
        for _ in range(activity.closes):
            name, at = self._entered.pop()
            self._runs.append((name, now - at))
            self.progress += 1
            self._record_duration(name, now - at, first=(name, True) not in self._longest)
        self.moved_at = now
        if activity.completes:
            self.iteration, self.progress = activity.step, 0
            self.beats, self.beat_at = self.beats + 1, now
            if self.first_iteration is None:
                self.first_iteration, self.first_step_at = activity.step, now

    def position(self) -> Position:
        """The position that all of them share."""
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
