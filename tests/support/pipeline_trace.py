"""Tables of operations of pipeline-parallel jobs with known answers: each send, receive and computation in its turn.

Each replica runs 1F1B: a stage receives a microbatch, computes, sends it on; a receive ends when the data is there.
Replicas meet in the exchange of gradients of their stage, and all ranks in the clipping of gradients. Nothing is shared
with ``support.simulator``: it is another model of the same thing.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from support.causal_job import one_forward_one_backward

COLUMNS = ("rank", "step", "optype", "start_ts", "duration", "dp_rank", "stage", "mb_id", "seq_id")
Slow = Literal["worker", "stage", "workload", "link", "pair", "host", "input", "none"]


@dataclass(frozen=True)
class Trace:
    """A job to make a table of. Seconds."""

    slow: Slow = "none"
    dose: float = 0.0
    """How much longer what is slow takes, as a part of its computation (of a step, for host and input)."""
    replicas: int = 4
    stages: int = 4
    microbatches: int = 8
    steps: int = 30
    forward: float = 0.02
    noise: float = 0.02
    transfer: float = 0.001
    exchange: float = 0.02
    victim: tuple[int, int] = (1, 2)
    """Replica and stage. Of a slow ``pair`` the stage that sends forward, of a slow ``link`` the one that exchanges."""
    during: tuple[float, float] = (0.0, 1.0)
    """From which part of the steps to which the fault lasts."""
    heavier: float = 0.0
    """How much longer the last stage computes, whatever else there is."""
    waits: Literal["inside", "gaps"] = "inside"
    """Whether a communication that waits is recorded from when it began to wait, or the transfer alone."""
    every: int = 1
    """One step in so many is in the table."""
    restart_clock: bool = False
    """Each step begins at 0."""
    tensor: int = 1
    """Rank numbers count so many ranks for each that is in the table."""
    seed: int = 0

    @property
    def victim_rank(self) -> int:
        """The rank that is slow."""
        return self.rank(*self.victim)

    def rank(self, replica: int, stage: int) -> int:
        """The number of a rank."""
        return (stage * self.replicas + replica) * self.tensor

    def rows(self) -> list[dict[str, Any]]:
        """The table, row by row."""
        return list(_Job(self).rows())


class _Job:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.rng = np.random.default_rng(trace.seed)
        self.made: list[dict[str, Any]] = []
        self.slow: Slow = trace.slow
        self.counts: dict[tuple[int, str], int] = {}

    def rows(self) -> Iterator[dict[str, Any]]:
        trace, clock = self.trace, 0.0
        for number in range(trace.steps):
            self.made, self.counts = [], {}
            begun = 0.0 if trace.restart_clock else clock
            end = self._step(number * trace.every, begun)
            clock = end + (trace.every - 1) * (end - begun)
            yield from self.made

    def _put(
        self, step: int, place: tuple[int, int], optype: str, start: float, end: float, mb: int | str = ""
    ) -> None:
        rank = self.trace.rank(*place)
        turn = self.counts[rank, optype] = self.counts.get((rank, optype), -1) + 1
        values = (rank, step, optype, start, end - start, *place, mb, turn)
        self.made.append(dict(zip(COLUMNS, values, strict=True)))

    def _step(self, step: int, begun: float) -> float:
        trace, rng = self.trace, self.rng
        first, last = (part * trace.steps * trace.every for part in trace.during)
        self.slow = trace.slow if first <= step < last else "none"
        lengths = np.ones((trace.replicas, trace.microbatches))
        if self.slow == "workload":  # a few sequences are long; attention makes them longer than their tokens
            lengths += trace.dose * rng.pareto(2.5, lengths.shape).clip(max=6)
        at: dict[tuple[int, int], float] = {}
        for replica in range(trace.replicas):
            at |= self._replica(step, replica, begun, lengths[replica])
        for stage in range(trace.stages):
            slowed = self.slow == "link" and stage == trace.victim[1]
            seconds = trace.exchange + (trace.dose * self._usual() if slowed else 0.0)
            self._meet(step, at, [(r, stage) for r in range(trace.replicas)], "grads-reduce-scatter", seconds)
        self._meet(step, at, list(at), "optimizer-clip-main-grad", trace.exchange / 10)
        for place, begin in at.items():
            at[place] = begin + trace.forward * self._noise()
            self._put(step, place, "optimizer", begin, at[place])
        return max(at.values())

    def _usual(self) -> float:
        """Seconds of computation of a rank in a step."""
        return 3 * self.trace.forward * self.trace.microbatches

    def _noise(self) -> float:
        return 1 + self.trace.noise * float(self.rng.standard_normal())

    def _meet(self, step: int, at: dict[tuple[int, int], float], places: list[Any], optype: str, took: float) -> None:
        """A collective: it begins for all when the last one is there."""
        began = max(at[place] for place in places)
        for place in places:
            end = began + took
            self._put(step, place, optype, at[place] if self.trace.waits == "inside" else began, end)
            at[place] = end

    def _replica(self, step: int, replica: int, begun: float, lengths: Any) -> dict[tuple[int, int], float]:
        """Run the stages of a replica until all of them are through with their lists of work."""
        trace = self.trace
        todo = {
            stage: one_forward_one_backward(stage, trace.stages, trace.microbatches) for stage in range(trace.stages)
        }
        at = dict.fromkeys(range(trace.stages), begun)
        sent: dict[tuple[str, int, int], float] = {}
        for stage in at:
            if (replica, stage) == trace.victim and self.slow == "input":
                end = begun + trace.dose * self._usual()
                self._put(step, (replica, stage), "data-load", begun, end)
                at[stage] = end
        while any(todo.values()):
            for stage, work in todo.items():
                while work and self._one(step, replica, stage, *work[0], at, sent, float(lengths[work[0][1]])):
                    work.pop(0)
        return {(replica, stage): ended for stage, ended in at.items()}

    def _one(
        self,
        step: int,
        replica: int,
        stage: int,
        way: str,
        mb: int,
        at: dict[int, float],
        sent: dict[tuple[str, int, int], float],
        length: float,
    ) -> bool:
        """One microbatch one way through a stage: whether what it needs has been sent."""
        trace, place = self.trace, (replica, stage)
        ahead = 1 if way == "forward" else -1
        source, target = stage - ahead, stage + ahead
        if 0 <= source < trace.stages:
            came = sent.get((way, source, mb))
            if came is None:
                return False
            pair = (replica, min(stage, source))
            slowed = self.slow == "pair" and pair == trace.victim
            transfer = trace.transfer + (trace.dose * self._usual() / trace.microbatches / 2 if slowed else 0.0)
            end = max(at[stage], came) + transfer
            begin = at[stage] if trace.waits == "inside" else end - transfer
            self._put(step, place, f"{way}-recv", begin, end, mb)
            at[stage] = end
        if self.slow == "host" and place == trace.victim:
            at[stage] += trace.dose * self._usual() / (2 * trace.microbatches)
        took = trace.forward * (1 if way == "forward" else 2) * length * self._noise()
        if (self.slow == "worker" and place == trace.victim) or (self.slow == "stage" and stage == trace.stages - 1):
            took *= 1 + trace.dose
        took *= 1 + (trace.heavier if stage == trace.stages - 1 else 0.0)
        self._put(step, place, f"{way}-compute", at[stage], at[stage] + took, mb)
        at[stage] += took
        if 0 <= target < trace.stages:
            self._put(step, place, f"{way}-send", at[stage], at[stage] + trace.transfer / 10, mb)
            sent[way, stage, mb] = at[stage]
            at[stage] += trace.transfer / 10
        return True


def write(path: Path, rows: list[dict[str, Any]], scale: float = 1.0) -> Path:
    """Write a table in the form that its name states; times are multiplied by ``scale``."""
    scaled = [{**row, "start_ts": row["start_ts"] * scale, "duration": row["duration"] * scale} for row in rows]
    heads = list(dict.fromkeys(head for row in rows for head in row))
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        columns = {head: [None if row[head] == "" else row[head] for row in scaled] for head in heads}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        return path
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        writer = csv.DictWriter(file, heads)
        writer.writeheader()
        writer.writerows(scaled)
    return path
