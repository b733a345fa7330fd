"""Windows of a synchronous job, for tests of the core: own work of each rank, and the waiting that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rankwatch.contract.enums import DirectiveKind, ProcessEventKind
from rankwatch.contract.messages import Directive, NodeRegistration, ProcessEvent
from rankwatch.contract.policy import Policy
from rankwatch.contract.statistics import CollectiveWindow, KernelStatistics, SectionWindow
from rankwatch_monitor.core import straggler_detector
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.effects import Effect, Issue, Slowed
from rankwatch_monitor.core.events import RankIdentity, RankReport, WindowReport
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Job

START = 1_000_000.0
EVERY = 10.0
DATA, HOST, COMPUTE = range(3)
TRANSFER = 0.02
"""Seconds of a step that the collectives take by themselves."""

KERNELS = {"gemm": 2e-3, "softmax": 5e-4}
"""Seconds of one call."""

Work = npt.NDArray[np.float64]
Fault = Callable[[int, Work], None]
"""Changes the work of one window, shape (R, 3), in place."""


@dataclass
class Ranks:
    """A job of so many ranks, one window after the other; deterministic by its seed."""

    ranks: int
    noise: float = 0.02
    seed: int = 0
    stages: int = 1
    per_host: int = 8
    policy: Mapping[str, Any] = field(default_factory=dict)
    parts: bool = True
    """Whether ranks profile their steps."""
    profiled_by: set[int] | None = None
    """Ranks that do so; None: all."""
    sections: bool = True
    """Whether ranks use sections."""
    launchers: bool = False
    """Whether there is a launcher on each host, which can act."""
    work: Sequence[float] = (0.02, 0.08, 0.9)
    """Seconds of data, host and computation."""
    silent: set[int] = field(default_factory=set)
    """Ranks that report no windows."""
    sends: bool = False
    """Whether ranks send to each other."""
    waited: Callable[[int], float] | None = None
    """Seconds of the step for which a rank waits for a CPU; they count as computation."""
    attempt: int = 1
    paced: bool = False
    """Whether a window has as many steps as fit into it, with the step in progress in the report; else it has 64."""
    moved: dict[int, str] = field(default_factory=dict)
    """Hosts of ranks that run elsewhere than their number states."""

    def __post_init__(self) -> None:
        self.job = Job("job", START, policy=Policy().changed(self.policy))
        self.random = np.random.default_rng(self.seed)
        self.window = self.iteration = 0
        self.now = START
        self.log: list[str] = []
        self.effects: list[Effect] = []
        for first in range(0, self.ranks if self.launchers else 0, self.per_host):
            host = f"host-{first // self.per_host}"
            members = min(self.per_host, self.ranks - first)
            apply(self.job, NodeRegistration(host, host, 1, members, attempt=1), self.now)
        self._started()

    def _started(self) -> None:
        for rank in range(self.ranks if self.launchers else 0):
            kind, host = ProcessEventKind.STARTED, f"host-{rank // self.per_host}"
            apply(self.job, ProcessEvent(host, kind, self.attempt, rank=rank, pid=1000 + rank), self.now)

    def restart(self) -> Ranks:
        """Begin the next attempt: every rank completes a step, and no window yet."""
        self.attempt += 1
        self.now += EVERY
        self._started()
        for rank in range(self.ranks):
            step = RankReport(self.identity(rank), iteration=1, first_iteration=1, first_iteration_age=0.0)
            apply(self.job, step, self.now)
        self._judge()
        return self

    @property
    def performance(self) -> Any:
        return self.job.performance

    def run(self, windows: int, fault: Fault | None = None, transfer: float = TRANSFER) -> Ranks:
        """Let so many windows come, the fault in each of them."""
        for _ in range(windows):
            self.now += EVERY
            work_RP = np.array(self.work) * (1 + self.noise * self.random.standard_normal((self.ranks, 3)))
            if fault is not None:
                fault(self.window, work_RP)
            self._report(work_RP, transfer)
            self._judge()
            self.window += 1
        return self

    def _report(self, work_RP: Work, transfer: float) -> None:
        own_R = work_RP.sum(axis=1)
        step = own_R.max() + transfer
        steps = max(1, round(EVERY / step)) if self.paced else 64
        self.iteration += steps
        for rank in sorted(set(range(self.ranks)) - self.silent):
            data, host, compute = (float(each) for each in work_RP[rank])
            waits = float(step - own_R[rank])
            sections = {"data": data, "forward": compute / 3, "backward": compute * 2 / 3 + waits + host, "step": step}
            profiled = self.parts and (self.profiled_by is None or rank in self.profiled_by)
            transfers = {"default_pg": CollectiveWindow(10, waits, waits, transfer / 10)}
            if self.sends:
                transfers["point_to_point"] = CollectiveWindow(2, waits, waits, transfer / 2)
            window = WindowReport(
                iteration=self.iteration,
                steps=steps,
                sections={n: SectionWindow(steps, s, s, s, s) for n, s in sections.items() if self.sections},
                parts={"data": data, "host": host, "compute": compute, "communication": waits} if profiled else {},
                collectives=transfers if profiled else {},
                cpu_waited=None if self.waited is None else self.waited(rank),
            )
            inside = {"step": step / 2, "backward": waits} if self.paced else None
            report = RankReport(self.identity(rank), iteration=self.iteration, open_sections=inside, window=window)
            apply(self.job, report, self.now)

    def kernels(
        self,
        speed: Mapping[int, float],
        slow_half: Mapping[int, float] | None = None,
        usual: Mapping[str, float] = KERNELS,
    ) -> None:
        """A report of kernels of every rank: ``speed`` of each that is not 1, the slower half of the calls apart."""
        for rank in range(self.ranks):
            reports = {}
            for name, seconds in {**usual, "ncclDevKernel_AllReduce": 1e-2 * (1 + rank)}.items():
                median = seconds / speed.get(rank, 1.0) * (1 + self.noise / 4 * float(self.random.standard_normal()))
                tail = median * (slow_half or {}).get(rank, 1.02)
                reports[name] = KernelStatistics(100, median, tail, (median + tail) / 2, median, tail, 0.0)
            apply(self.job, RankReport(self.identity(rank), kernels=reports), self.now)

    def report(self, rank: int) -> RankReport:
        """The report of a rank between two windows."""
        return RankReport(self.identity(rank), iteration=self.iteration)

    def wait(self, seconds: float) -> Ranks:
        """Let time pass without reports of ranks or launchers."""
        self.now += seconds
        self._judge()
        return self

    @property
    def directives(self) -> list[Directive]:
        """What the launchers were asked to do, settings left out."""
        issued = [effect.directive for effect in self.effects if isinstance(effect, Issue)]
        return [directive for directive in issued if directive.kind is not DirectiveKind.SETTINGS]

    def _judge(self) -> None:
        for effect in straggler_detector.score_now(self.job, advance(self.job, self.now)):
            self.effects.append(effect)
            if isinstance(effect, Slowed) and effect.message:
                self.log.append(effect.message)

    def identity(self, rank: int) -> RankIdentity:
        return RankIdentity(
            "job",
            rank,
            local_rank=rank % self.per_host,
            world_size=self.ranks,
            attempt=self.attempt,
            host=self.moved.get(rank, f"host-{rank // self.per_host}"),
            pid=1000 + rank,
            instance=f"p{rank}-{self.attempt}",
            data_parallel=rank // self.stages,
            pipeline_parallel=rank % self.stages if self.stages > 1 else -1,
        )


def slower(rank: int, part: int, seconds: float) -> Fault:
    """A rank that takes so much longer for a part of each step."""

    def fault(_: int, work_RP: Work) -> None:
        work_RP[rank, part] += seconds

    return fault
