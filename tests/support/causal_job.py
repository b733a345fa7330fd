"""A training job re-timed through its dependencies: what a fault costs is the difference to the same job without it.

Each replica runs 1F1B over its stages, microbatch by microbatch; the tensor ranks of a place meet in each microbatch,
the experts of a stage too; the replicas of a stage meet in the exchange of gradients, all ranks in the clipping.
Nothing is shared with ``support.simulator`` or with the core: who waits for whom follows from the operations alone.

Shapes: T steps, D replicas, P stages, M microbatches, X tensor ranks of a place. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rankwatch.contract.enums import Part
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch.contract.statistics import CollectiveWindow, SectionWindow
from rankwatch_monitor.core.events import RankIdentity, RankReport, WindowReport

Kind = Literal["none", "rank", "two ranks", "node", "stage", "link", "workload", "fast twin", "intermittent"]
START = 1_700_000_000.0
EVERY = 10.0
FORWARD = 0.02
"""Seconds of one microbatch in one stage; backward takes twice as long."""
TRANSFER = 0.0005
EXCHANGE = 0.04
CLIPPING = 0.004


@dataclass(frozen=True)
class CausalJob:
    """A layout, its noise, and one fault."""

    data: int = 4
    pipeline: int = 1
    tensor: int = 1
    nodes: int = 1
    experts: bool = False
    """The replicas of a stage exchange tokens in each microbatch."""
    pipeline_first: bool = False
    """Neighbouring ranks are stages of a replica, not replicas of a stage."""
    microbatches: int = 8
    steps: int = 30
    noise: float = 0.01
    kind: Kind = "none"
    dose: float = 0.0
    """How much longer what is slow takes."""
    victim: int = 0
    """The rank, node or stage at fault."""
    since: int = 0
    """The first step with the fault."""
    every: int = 5
    """An intermittent fault is in one step of so many."""
    seed: int = 0

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.data * self.pipeline * self.tensor

    def place(self, rank: int) -> tuple[int, int, int]:
        """Replica, stage and tensor coordinate of a rank."""
        rest, tensor = divmod(rank, self.tensor)
        if self.pipeline_first:
            replica, stage = divmod(rest, self.pipeline)
        else:
            stage, replica = divmod(rest, self.data)
        return replica, stage, tensor

    def node(self, rank: int) -> int:
        """The node of a rank."""
        return rank * self.nodes // self.world

    def slow_ranks(self) -> tuple[int, ...]:
        """The ranks whose own work takes longer by the fault."""
        match self.kind:
            case "rank" | "intermittent":
                return (self.victim,)
            case "two ranks":
                return tuple(sorted({self.victim, (self.victim + self.world // 2) % self.world}))
            case "node":
                return tuple(rank for rank in range(self.world) if self.node(rank) == self.victim)
            case "stage":
                return tuple(rank for rank in range(self.world) if self.place(rank)[1] == self.victim)
        return ()

    @property
    def share(self) -> float:
        """The part of a step that the fault costs, from its first step on: the truth."""
        own, twin = self.timed().step_T[self.since :], self.twin().timed().step_T[self.since :]
        return float(1.0 - twin.sum() / own.sum())

    def twin(self) -> CausalJob:
        """The same job in good health."""
        return replace(self, dose=0.0)

    def timed(self) -> Timed:
        """Time all steps."""
        return Timed(self)

    def windows(self) -> Iterator[tuple[float, list[RankReport]]]:
        """The reports of all ranks, each step as a window."""
        return self.timed().windows()


class Timed:
    """The steps of a job: the own work of each rank, and how long a step takes for all."""

    def __init__(self, job: CausalJob) -> None:
        self.job = job
        shape = (job.steps, job.data, job.pipeline, job.tensor)
        random = np.random.default_rng(job.seed)
        forward = FORWARD * (1 + job.noise * random.standard_normal((*shape, job.microbatches)))
        forward *= 1 + job.noise * random.standard_normal(shape)[..., None]
        self.data, self.host = (
            seconds * job.microbatches * FORWARD * (1 + 0.1 * random.random(shape)) for seconds in (0.03, 0.1)
        )
        self.transfer = np.full((job.steps, job.pipeline), EXCHANGE if job.data > 1 else 0.0)
        self.pair = TRANSFER
        lengths = random.pareto(3.0, (job.steps, job.data, job.microbatches)).clip(max=5)
        if job.kind == "workload":
            # The twin has as much to do in each step, and evenly.
            even = 1 + lengths.mean(axis=(1, 2), keepdims=True)
            lengths = np.where(job.dose, 1 + job.dose * lengths, 1 + job.dose * (even - 1))
            mean = lengths.mean(axis=(1, 2), keepdims=True)
            forward *= (lengths / mean if job.dose else lengths)[:, :, None, None, :]
        steps = np.arange(job.steps)
        faulty_T = (steps >= job.since) & ((steps % job.every == 0) | (job.kind != "intermittent"))
        for rank in job.slow_ranks():
            replica, stage, tensor = job.place(rank)
            forward[faulty_T, replica, stage, tensor] *= 1 + job.dose
        if job.kind == "fast twin":
            replica, stage, tensor = job.place(job.victim)
            forward[faulty_T, replica, stage, tensor] /= 1 + job.dose
        if job.kind == "link":
            self.transfer[faulty_T, job.victim] += job.dose * 3 * FORWARD * job.microbatches
        self.forward, self.compute = forward, 3 * forward.sum(axis=-1)
        self.step_T, self.arrival = self._steps()

    def _steps(self) -> tuple[Any, Any]:
        """Seconds of each step, and when each place has its gradients; shapes (T,) and (T, D, P)."""
        job = self.job
        took = self.forward.max(axis=3)  # tensor ranks meet
        if job.experts:
            took = np.broadcast_to(took.max(axis=1, keepdims=True), took.shape)
        begun = (self.data + self.host).max(axis=3)
        if job.experts:
            begun = np.broadcast_to(begun.max(axis=1, keepdims=True), begun.shape)
        at = {stage: begun[:, :, stage].copy() for stage in range(job.pipeline)}
        sent: dict[tuple[str, int, int], Any] = {}
        todo = {stage: one_forward_one_backward(stage, job.pipeline, job.microbatches) for stage in at}
        while any(todo.values()):
            for stage, work in todo.items():
                while work:
                    way, mb = work[0]
                    ahead = 1 if way == "forward" else -1
                    source = stage - ahead
                    if 0 <= source < job.pipeline:
                        if (way, source, mb) not in sent:
                            break
                        at[stage] = np.maximum(at[stage], sent[way, source, mb] + self.pair)
                    at[stage] = at[stage] + took[:, :, stage, mb] * (1 if way == "forward" else 2)
                    sent[way, stage, mb] = at[stage]
                    work.pop(0)
        arrival = np.stack([at[stage] for stage in range(job.pipeline)], axis=2)
        return (arrival.max(axis=1) + self.transfer).max(axis=1) + CLIPPING, arrival

    def windows(self) -> Iterator[tuple[float, list[RankReport]]]:
        """See :meth:`CausalJob.windows`."""
        job, at = self.job, START
        calls = 2 * job.microbatches
        for step in range(job.steps):
            at += EVERY
            seconds, reports = float(self.step_T[step]), []
            for rank in range(job.world):
                replica, stage, tensor = job.place(rank)
                where = (step, replica, stage, tensor)
                own = {Part.DATA: float(self.data[where]), Part.HOST: float(self.host[where])}
                own[Part.COMPUTE] = float(self.compute[where])
                waited = seconds - sum(own.values())
                groups = {"world": CollectiveWindow(1, waited, waited, CLIPPING)}
                if job.data > 1:
                    exchange = float(self.transfer[step, stage])
                    groups[f"dp/stage{stage}/tp{tensor}"] = CollectiveWindow(1, waited, waited, exchange)
                for pair in {stage - 1, stage} & set(range(job.pipeline - 1)):
                    name = f"send-recv/stage{pair}-{pair + 1}/dp{replica}"
                    groups[name] = CollectiveWindow(calls, waited, waited, self.pair)
                identity = RankIdentity(
                    "causal",
                    rank,
                    local_rank=rank % max(1, job.world // job.nodes),
                    world_size=job.world,
                    host=f"node{job.node(rank)}",
                    instance=str(rank),
                    data_parallel=replica,
                    tensor_parallel=tensor,
                    pipeline_parallel=stage if job.pipeline > 1 else -1,
                )
                window = WindowReport(
                    iteration=step,
                    steps=1,
                    sections={STEP_SECTION: SectionWindow(1, seconds, seconds, seconds, seconds)},
                    parts={**own, Part.COMMUNICATION: waited},
                    collectives=groups,
                )
                reports.append(RankReport(identity, iteration=step, window=window))
            yield at, reports


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The order of a stage's work: which way, and which microbatch."""
    warm = min(stages - stage - 1, microbatches)
    order = [("forward", mb) for mb in range(warm)]
    for mb in range(microbatches - warm):
        order += [("forward", warm + mb), ("backward", mb)]
    return order + [("backward", mb) for mb in range(microbatches - warm, microbatches)]
