"""What a training script does, as a sequence of acts: each is a stretch of time in one place, the same on all ranks.

An act has a path of open sections. A collective one begins on no rank before all have come to it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from rankwatch.contract.semconv import CHECKPOINTING_SECTION, SETUP_SECTION, STEP_SECTION
from rankwatch_monitor.simulator.plan import BACKWARD, DATA, EVALUATION, EVALUATION_BATCH, FORWARD, Plan

DATA_SHARE: Final = 0.05
FORWARD_SHARE: Final = 0.4
OUTSIDE_SHARE: Final = 0.01
BATCHES: Final = 20
"""Of an evaluation."""


class Act(NamedTuple):
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


def program(plan: Plan, rng: random.Random, first_step: int) -> Iterator[Act]:
    """The acts of one attempt that begins at ``first_step``; it never ends by itself."""
    yield Act((SETUP_SECTION,), plan.setup, first_step, collective=True)
    step = first_step
    while True:
        seconds = plan.step * max(0.2, 1.0 + plan.noise * rng.gauss(0.0, 1.0))
        data = seconds * DATA_SHARE
        if plan.stall_every and rng.random() * plan.stall_every < 1.0:
            data += plan.stall * rng.uniform(0.2, 1.0)
        yield Act((STEP_SECTION, DATA), data, step)
        compiling = plan.compilation if step == first_step else 0.0
        yield Act((STEP_SECTION, FORWARD), compiling + seconds * FORWARD_SHARE, step)
        rest = seconds * (1.0 - DATA_SHARE - FORWARD_SHARE - OUTSIDE_SHARE)
        yield Act((STEP_SECTION, BACKWARD), rest, step, 2, collective=True, completes=True)
        done = step + 1
        leaves = bool(plan.relaunch_every) and done % plan.relaunch_every == 0
        if plan.evaluate_every and done % plan.evaluate_every == 0:
            yield from _evaluation(plan, rng, step)
        if leaves or (plan.checkpoint_every and done % plan.checkpoint_every == 0):
            seconds = plan.checkpoint * rng.uniform(0.8, 1.2)
            yield Act((CHECKPOINTING_SECTION,), seconds, step, saves=True)
        yield Act((), plan.step * OUTSIDE_SHARE, step, 0, relaunches=leaves)
        step = done


def _evaluation(plan: Plan, rng: random.Random, step: int) -> Iterator[Act]:
    each = plan.evaluation / BATCHES
    for _ in range(BATCHES):
        yield Act((EVALUATION, EVALUATION_BATCH), each * rng.uniform(0.8, 1.2), step)
    yield Act((EVALUATION,), 0.2, step, collective=True)
