"""Plans of jobs with a slow part, and the expected finding of each.

``straggler_scene`` models the steps of such a job, ``straggler_outcome`` compares verdicts with the expected ones.
Randomness is seeded. The *silent twin* of a plan is the same plan without its fault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from rankwatch.contract.enums import Cause, StragglerVerdict
from rankwatch_monitor.core.ranks import Bools, Ints


class Slow(StrEnum):
    """Kinds of slowdowns. The dose of each is a fraction of the healthy step."""

    COMPUTE = "compute"
    """A rank's kernels take longer, as on a GPU with a reduced clock."""
    HOST_COMPUTE = "host_compute"
    """The same on all ranks of one host."""
    HOST = "host"
    """A rank's Python, launches or CPU: the GPU is idle between its kernels."""
    INPUT = "input"
    """A rank waits for its input."""
    BACKWARD = "backward"
    """Kernels take longer in the backward pass only, whose section time also contains waiting."""
    HALF = "half"
    """Somewhat less than half of the calls of each kernel take longer, so medians do not change."""
    MASKED = "masked"
    """Kernels take longer, but are not timed: only the waiting of the others shows it."""
    NODE = "node"
    """A host is slow in everything: kernels and Python, on all of its ranks."""
    LINK = "link"
    """The transfers of one data-parallel group take longer for all its members."""
    STAGE = "stage"
    """The last pipeline stage has more layers than the others."""
    SEQUENCES = "sequences"
    """Sequence lengths vary by step: replicas take turns in computing longer."""
    BLIP = "blip"
    """A rank computes longer in a single window."""
    CLOCKS = "clocks"
    """All ranks compute longer alike, as with thermal throttling of all devices."""
    FAST = "fast"
    """One rank computes faster than all others."""


NO_CULPRIT: Final = frozenset({Slow.LINK, Slow.STAGE, Slow.SEQUENCES, Slow.BLIP, Slow.CLOCKS, Slow.FAST})
"""Slowdowns without a culprit."""
VERDICTS: Final = {
    Slow.LINK: StragglerVerdict.LINK,
    Slow.STAGE: StragglerVerdict.STAGE,
    Slow.SEQUENCES: StragglerVerdict.WORKLOAD,
    Slow.BLIP: StragglerVerdict.HEALTHY,
    Slow.CLOCKS: StragglerVerdict.HEALTHY,
    Slow.FAST: StragglerVerdict.HEALTHY,
}
MATTERS: Final = 0.05
"""The default of the policy's ``straggler_slowdown``."""
CAUSES: Final = {Slow.HOST: Cause.HOST, Slow.INPUT: Cause.DATA}


@dataclass(frozen=True, slots=True)
class Layout:
    """The parallel layout. Ranks count tensor coordinates first, then data, then pipeline, as Megatron numbers them."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    """Data-parallel ranks with different experts."""

    def coordinates(self, world: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Data, tensor, pipeline and expert coordinate of each rank (R)."""
        data = world // (self.tensor * self.pipeline)
        rank_R = np.arange(world)
        data_R = rank_R // self.tensor % data
        return data_R, rank_R % self.tensor, rank_R // (self.tensor * data), data_R % self.expert


@dataclass(frozen=True, slots=True)
class Slowdown:
    """One slowdown, over a range of windows."""

    slow: Slow
    dose: float
    """Additional time, as a fraction of the healthy step."""
    ranks: tuple[int, ...] = (0,)
    """For slowdowns of a host, one of its ranks suffices; unused by slowdowns of all ranks."""
    since: int = 0
    """The first window with it."""
    until: int | None = None
    """The first window without it; None: it lasts."""


@dataclass(frozen=True, slots=True)
class StragglerPlan:
    """One job."""

    world: int = 8
    layout: Layout = Layout()
    ranks_a_host: int = 8
    step: float = 1.0
    """Seconds of a healthy step."""
    microbatches: int = 8
    noise: float = 0.02
    """Relative standard deviation of a rank's own work between steps."""
    unlike: float = 0.005
    """Relative standard deviation of speed between healthy devices."""
    tails: float = 1e-4
    """Probability of a rare delay per rank and step; with 512 ranks, one in every twentieth step."""
    tail: float = 0.2
    """Its duration, as a fraction of the step."""
    window: int = 8
    """Steps of a window, one of which is profiled."""
    windows: int = 40
    sections: bool = True
    """The script has sections for the step, input, forward, backward and optimizer; else none."""
    kernels: int = 12
    """Different kernels that are timed; 0: no kernel timings."""
    kernel_every: int = 6
    """Windows between reports of kernel timings: 60 s, as in nvidia-resiliency-ext."""
    calls: int = 48
    """Calls of each kernel in a profiled step."""
    communication: float = 0.15
    """Transfers, as a fraction of the healthy step."""
    host: float = 0.08
    data: float = 0.02
    """Other fractions; the rest is computation."""
    fault: Slowdown | None = None
    seed: int = 0
    job_id: str = "scene"

    def __post_init__(self) -> None:
        """Validate the layout.

        Raises:
            ValueError: the world is no multiple of the layout, or a slow stage has no second stage to be compared with.
        """
        if self.world % (self.layout.tensor * self.layout.pipeline):
            raise ValueError(f"{self.world} ranks cannot be laid out as tensor x pipeline {self.layout}")
        if self.fault is not None and self.fault.slow is Slow.STAGE and self.layout.pipeline < 2:
            raise ValueError("a stage can only be slow where there are several")

    @property
    def interval(self) -> float:
        """Seconds of a window."""
        return self.window * self.step

    def hosts(self) -> Ints:
        """The host of each rank (R)."""
        return np.arange(self.world) // self.ranks_a_host

    def healthy(self) -> StragglerPlan:
        """The silent twin."""
        return replace(self, fault=None)

    def answer(self) -> ExpectedFinding:
        """The expected finding once enough windows were evaluated."""
        fault = self.fault
        if fault is None:
            return ExpectedFinding(StragglerVerdict.HEALTHY, frozenset(), None)
        if fault.slow in NO_CULPRIT:
            return ExpectedFinding(VERDICTS[fault.slow], frozenset(), None, fault.dose <= MATTERS)
        ranks = frozenset(int(r) for r in self.struck().nonzero()[0])
        return ExpectedFinding(StragglerVerdict.WORKER, ranks, CAUSES.get(fault.slow, Cause.COMPUTE))

    def struck(self) -> Bools:
        """The ranks that the fault itself slows down (R)."""
        struck_R = np.zeros(self.world, dtype=np.bool_)
        fault = self.fault
        if fault is None or fault.slow in (Slow.LINK, Slow.SEQUENCES):
            return struck_R
        if fault.slow is Slow.CLOCKS:
            return ~struck_R
        if fault.slow is Slow.STAGE:
            stage_R = self.layout.coordinates(self.world)[2]
            return np.asarray(stage_R == self.layout.pipeline - 1)
        struck_R[list(fault.ranks)] = True
        if fault.slow in (Slow.HOST_COMPUTE, Slow.NODE):
            return np.isin(self.hosts(), self.hosts()[struck_R])
        return struck_R


@dataclass(frozen=True, slots=True)
class ExpectedFinding:
    """The expected finding of a plan."""

    verdict: StragglerVerdict
    ranks: frozenset[int]
    """The culprits."""
    cause: Cause | None
    """None: no cause is expected."""
    or_healthy: bool = False
    """``healthy`` is correct as well, as the slowdown is below the policy's threshold."""


def random_plan(slow: Slow | None, dose: float, world: int, seed: int, **habits: object) -> StragglerPlan:
    """A random job of a size with one fault, drawn from a seed; ``None``: healthy."""
    rng = np.random.default_rng([seed, world, 0 if slow is None else 1 + list(Slow).index(slow)])
    layouts = [Layout(), Layout(tensor=2), Layout(expert=2)] if world < 64 else _large_layouts(world)
    layout = layouts[int(rng.integers(len(layouts)))]
    if slow is Slow.STAGE and layout.pipeline < 2:
        layout = Layout(pipeline=2 if world < 64 else 4)
    if slow is Slow.LINK and world // (layout.tensor * layout.pipeline) < 2:
        layout = Layout()
    step = float(rng.choice([0.3, 1.0, 2.5, 5.0]))
    plan = StragglerPlan(
        world=world,
        layout=layout,
        ranks_a_host=2 if world < 64 else 8,
        step=step,
        window=max(1, 2 ** int(np.round(np.log2(10.0 / step)))),
        kernels=0 if slow is Slow.MASKED else 12,
        communication=float(rng.uniform(0.08, 0.25)),
        seed=seed,
    )
    plan = replace(plan, **habits)  # type: ignore[arg-type]
    if slow is None:
        return plan
    since = int(rng.integers(6, 12)) if slow not in (Slow.STAGE, Slow.SEQUENCES) else 0
    until = since + 1 if slow is Slow.BLIP else None
    return replace(plan, fault=Slowdown(slow, dose, (int(rng.integers(world)),), since, until))


def _large_layouts(world: int) -> list[Layout]:
    chosen = [Layout(), Layout(tensor=8), Layout(tensor=4, pipeline=4), Layout(tensor=8, pipeline=2, expert=2)]
    return [layout for layout in chosen if world // (layout.tensor * layout.pipeline) >= 4]
