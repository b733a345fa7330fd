"""A job's windows made by a small model of synchronous training, for tests of its history: no rank goes on alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.regression.sample import Measured, PolicyChange, Sample, sample_of

START = 1_760_000_000.0
PERIOD = 10.0
SECTIONS = ("load_batch", "forward", "backward")
KERNELS = ("gemm", "attention")


@dataclass
class Steps:
    """What a step is made of from now on; change a field and the next windows are like that."""

    world: int = 8
    noise: float = 0.02
    data: float = 0.04
    host: float = 0.03
    compute: float = 0.30
    transfer: float = 0.04
    """Seconds of each part on every rank; communication is the transfer and waiting for the slowest."""
    slower: dict[tuple[int, str], float] = field(default_factory=dict)
    """Seconds more, by rank and part."""
    attention: float = 0.25
    """Part of the compute that is in one kernel."""
    clock: float = 1980e6
    clocks: dict[int, float] = field(default_factory=dict)
    temperature: float = 61.0
    throttled: dict[str, int] = field(default_factory=dict)
    waited: float = 0.001
    attempt: int = 0
    hosts: Sequence[str] = ("node-a", "node-b")
    profiled: bool = True
    """Whether parts, kernels and collectives are known, or sections only."""
    at: float = START
    seed: int = 1

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.windows = 0

    def sample(self, changes: Sequence[PolicyChange] = (), factor: float = 1.0) -> Sample:
        """The next window; ``factor`` makes this one longer as a whole."""
        self.at += PERIOD
        self.windows += 1
        ranks = self.world
        own_RP = np.tile([self.data, self.host, self.compute], (ranks, 1)) * factor
        for (rank, part), seconds in self.slower.items():
            own_RP[rank, ("data", "host", "compute").index(part)] += seconds
        own_RP *= self.random.normal(1.0, self.noise, own_RP.shape).clip(0.5, 2.0)
        work_R = own_RP.sum(axis=1)
        step_R = np.full(ranks, work_R.max() + self.transfer * factor)
        communication_R = step_R - work_R
        parts_RP = np.column_stack([own_RP, communication_R])
        forward_R = own_RP[:, 2] / 3
        backward_R = own_RP[:, 2] * 2 / 3 + communication_R
        clock_R = np.full(ranks, self.clock)
        for rank, clock in self.clocks.items():
            clock_R[rank] = clock
        compute_R, attention = own_RP[:, 2], self.attention
        reported = self.profiled and self.windows % 6 == 0
        measured = Measured(
            at=self.at,
            seconds=PERIOD,
            attempt=self.attempt,
            iteration=self.windows * 32,
            hosts_R=[self.hosts[rank * len(self.hosts) // ranks] for rank in range(ranks)],
            step_R=step_R,
            parts_RP=parts_RP if self.profiled else None,
            sections=SECTIONS,
            section_RS=np.column_stack([own_RP[:, 0], forward_R, backward_R]),
            kernels=KERNELS,
            kernel_RK=np.column_stack([compute_R * (1 - attention), compute_R * attention]) if reported else None,
            collectives={"data_parallel": (float(np.median(communication_R)), self.transfer)} if self.profiled else {},
            clock_R=clock_R,
            temperature_R=np.full(ranks, self.temperature),
            throttled=self.throttled,
            waited_R=np.full(ranks, self.waited),
            changes=changes,
        )
        made = sample_of(measured)
        assert made is not None
        return made

    def go(self, history: History, windows: int) -> None:
        """Let so many windows pass."""
        for _ in range(windows):
            history.add(self.sample())
