"""Models the steps of a synchronous training job, and the reports of its ranks.

How this works
--------------
Each rank has *own work*: input, Python, forward and backward computation, each with noise. The rest is waiting and
transfers. A step has four synchronisation points, each of which ends when its last member has arrived; early members
wait, so their communication consists of the transfer and the wait:

1. ``tp``     tensor-parallel ranks of one replica and stage, after forward and again after backward;
2. ``pp``     the stages of one replica: a 1F1B pipeline of m microbatches takes (m - 1) x slowest stage + all stages
   (Narayanan et al., PipeDream; the bubble of a balanced pipeline is (p - 1) / (m + p - 1) of it), and each stage waits
   while it has no own work;
3. ``dp``     all replicas of one shard exchange gradients;
4. ``world``  the gradient norm is computed over all ranks, so that all steps end together.

So every rank's step takes equally long, whichever rank is slow. The sections are those of a user's script on a GPU: the
wall-clock time of ``backward`` contains the waiting, and that of ``step`` does not depend on the rank.

Shapes: R ranks, S steps of one window, K kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import Part
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch.contract.statistics import CollectiveWindow, KernelStatistics, SectionWindow
from rankwatch_monitor.core.events import RankIdentity, RankReport, WindowReport
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from support.simulator.straggler_plan import Slow, Slowdown, StragglerPlan

START: Final = 1_700_000_000.0
"""Unix seconds at which a scene begins."""
FORWARD: Final = 1 / 3
"""Fraction of the computation: backward takes twice as long."""
GROUPS: Final = ("tp", "pp", "dp", "world")
TRANSFERS: Final = {"tp": 0.45, "pp": 0.1, "dp": 0.4, "world": 0.05}
"""Fraction of all transfers by kind of group."""
CALLS: Final = {"tp": 48, "pp": 16, "dp": 12, "world": 1}
HIDDEN: Final = {"tp": 0.0, "pp": 0.0, "dp": 0.6, "world": 0.0}
"""Fraction of the transfers overlapped by computation: gradients are exchanged during backward."""
LONG_SEQUENCES: Final = 0.15
"""Fraction of the replicas with long sequences in a step of :data:`Slow.SEQUENCES`."""


class Steps(NamedTuple):
    """Seconds of each rank in each step of a window; each of shape (R, S)."""

    data_RS: Floats
    host_RS: Floats
    forward_RS: Floats
    backward_RS: Floats
    waits_RS: dict[str, Floats]
    """By kind of group."""
    transfers_RS: dict[str, Floats]


class StragglerScene:
    """Plays a plan: :meth:`windows` yields the reports of all ranks, window by window. Deterministic."""

    def __init__(self, plan: StragglerPlan) -> None:
        self.plan = plan
        self._rng = np.random.default_rng([plan.seed, 20_251])
        self._struck_R = plan.struck()
        coordinates = plan.layout.coordinates(plan.world)
        self._data_R, self._tensor_R, self._pipeline_R, self._expert_R = coordinates
        data, tensor, pipeline, _ = coordinates
        self._groups: dict[str, Ints] = {
            "tp": _numbered(data, pipeline),
            "pp": _numbered(data, tensor),
            "dp": _numbered(tensor, pipeline),
            "world": np.zeros(plan.world, np.int64),
        }
        self._device_R = 1 + plan.unlike * self._rng.standard_normal(plan.world)
        share_K = self._rng.dirichlet(np.full(max(1, plan.kernels), 2.0))
        self._share_K = share_K
        self._identities = [self._identity(rank) for rank in range(plan.world)]
        self._shares = self._kinds()

    def windows(self) -> Iterator[tuple[float, list[RankReport]]]:
        """The arrival time (unix seconds) and the reports of each window."""
        at = START
        for window in range(self.plan.windows):
            steps = self._steps(window)
            at += float(np.sum(_total(steps).max(axis=0)))
            yield at, self._reports(window, steps)

    # The job ----------------------------------------------------------------------------------------------------------

    def _identity(self, rank: int) -> RankIdentity:
        plan = self.plan
        host = int(plan.hosts()[rank])
        return RankIdentity(
            job_id=plan.job_id,
            rank=rank,
            job_name=plan.job_id,
            local_rank=rank % plan.ranks_a_host,
            world_size=plan.world,
            host=f"node-{host}",
            pid=1000 + rank,
            instance=f"{plan.job_id}/{rank}",
            device=f"GPU-{rank:05d}",
            data_parallel=int(self._data_R[rank]),
            tensor_parallel=int(self._tensor_R[rank]),
            pipeline_parallel=int(self._pipeline_R[rank]),
            expert_parallel=int(self._expert_R[rank]) if plan.layout.expert > 1 else -1,
        )

    def _kinds(self) -> dict[str, float]:
        """Fraction of the step spent in transfers by kind of group; kinds with groups of one rank have none."""
        sizes = {kind: self.plan.world // (int(number_R.max()) + 1) for kind, number_R in self._groups.items()}
        present = {kind: TRANSFERS[kind] for kind in GROUPS if sizes[kind] > 1}
        total = sum(present.values())
        return {kind: self.plan.communication * share / total for kind, share in present.items()}

    def _active(self, window: int) -> Slowdown | None:
        fault = self.plan.fault
        if fault is None or window < fault.since or (fault.until is not None and window >= fault.until):
            return None
        return fault

    def _steps(self, window: int) -> Steps:
        plan, rng = self.plan, self._rng
        shape = (plan.world, plan.window)
        transfers = {kind: share * (1 - HIDDEN[kind]) for kind, share in self._shares.items()}
        within = transfers.get("tp", 0.0)
        bubble = (plan.layout.pipeline - 1) / (plan.microbatches + plan.layout.pipeline - 1)
        # The bubble applies to the work of the stages, tensor-parallel transfers included, not to what follows.
        own = plan.step * ((1 - sum(transfers.values()) + within) * (1 - bubble) - within)
        data, host = own * plan.data, own * plan.host
        compute = own - data - host

        def noisy(seconds: float) -> Floats:
            return seconds * np.abs(1 + plan.noise * rng.standard_normal(shape))

        data_RS, host_RS = noisy(data), noisy(host)
        forward_RS, backward_RS = (noisy(compute * part) * self._device_R[:, None] for part in (FORWARD, 1 - FORWARD))
        rare_RS = rng.random(shape) < plan.tails
        host_RS += rare_RS * plan.tail * plan.step * rng.exponential(1.0, shape)
        if (fault := self._active(window)) is not None:
            self._strike(fault, data_RS, host_RS, forward_RS, backward_RS)
        return self._synchronised(fault, data_RS, host_RS, forward_RS, backward_RS)

    def _strike(
        self, fault: Slowdown, data_RS: Floats, host_RS: Floats, forward_RS: Floats, backward_RS: Floats
    ) -> None:
        """Add the cost of a fault to the own work of the affected ranks; arrays are changed in place."""
        extra = fault.dose * self.plan.step
        struck_R1 = self._struck_R[:, None]
        slow = fault.slow
        if slow in (Slow.COMPUTE, Slow.HOST_COMPUTE, Slow.HALF, Slow.MASKED, Slow.STAGE, Slow.BLIP, Slow.CLOCKS):
            forward_RS += struck_R1 * extra * FORWARD
            backward_RS += struck_R1 * extra * (1 - FORWARD)
        elif slow is Slow.BACKWARD:
            backward_RS += struck_R1 * extra
        elif slow is Slow.HOST:
            host_RS += struck_R1 * extra
        elif slow is Slow.INPUT:
            data_RS += struck_R1 * extra
        elif slow is Slow.NODE:
            forward_RS += struck_R1 * extra * 0.7 * FORWARD
            backward_RS += struck_R1 * extra * 0.7 * (1 - FORWARD)
            host_RS += struck_R1 * extra * 0.3
        elif slow is Slow.FAST:
            faster = max(0.3, 1 - extra / float((forward_RS + backward_RS).mean()))
            forward_RS *= np.where(struck_R1, faster, 1.0)
            backward_RS *= np.where(struck_R1, faster, 1.0)
        elif slow is Slow.SEQUENCES:
            replicas, steps = int(self._data_R.max()) + 1, forward_RS.shape[1]
            long_DS = self._rng.random((replicas, steps)) < max(LONG_SEQUENCES, 1.5 / replicas)
            more_DS = long_DS * self._rng.uniform(0.5, 1.5, (replicas, steps)) * extra
            forward_RS += more_DS[self._data_R] * FORWARD
            backward_RS += more_DS[self._data_R] * (1 - FORWARD)

    def _synchronised(
        self, fault: Slowdown | None, data_RS: Floats, host_RS: Floats, forward_RS: Floats, backward_RS: Floats
    ) -> Steps:
        """Add waits and transfers."""
        transfers_RS = {kind: self._transfer(kind, fault, forward_RS.shape) for kind in self._shares}
        nothing_RS = np.zeros_like(forward_RS)
        waits_RS: dict[str, Floats] = dict.fromkeys(self._shares, nothing_RS)
        before_RS = data_RS + host_RS + forward_RS
        done_RS = before_RS + backward_RS
        if "tp" in waits_RS:
            first_RS = self._latest("tp", before_RS)
            done_RS = self._latest("tp", first_RS + backward_RS)
            waits_RS["tp"] = done_RS - before_RS - backward_RS
            done_RS = done_RS + transfers_RS["tp"]
        if "pp" in waits_RS:
            pipe_RS = self._pipeline(done_RS)
            waits_RS["pp"] = pipe_RS - done_RS
            done_RS = pipe_RS + self._latest("pp", transfers_RS["pp"])
            transfers_RS["pp"] = self._latest("pp", transfers_RS["pp"])
        for kind in ("dp", "world"):
            if kind in waits_RS:
                end_RS = self._latest(kind, done_RS)
                waits_RS[kind] = end_RS - done_RS
                done_RS = end_RS + transfers_RS[kind] * (1 - HIDDEN[kind])
        return Steps(data_RS, host_RS, forward_RS, backward_RS, waits_RS, transfers_RS)

    def _transfer(self, kind: str, fault: Slowdown | None, shape: tuple[int, ...]) -> Floats:
        """Seconds of a group's transfers, the same for all members."""
        number_R = self._groups[kind]
        groups = int(number_R.max()) + 1
        usual = self._shares[kind] * self.plan.step
        seconds_GS = usual * np.abs(1 + self.plan.noise * self._rng.standard_normal((groups, shape[1])))
        if fault is not None and fault.slow is Slow.LINK and kind == "dp":
            # The dose is the loss of the job: the part that computation does not overlap.
            seconds_GS[number_R[fault.ranks[0]]] += fault.dose * self.plan.step / (1 - HIDDEN[kind])
        return seconds_GS[number_R]

    def _latest(self, kind: str, value_RS: Floats) -> Floats:
        """For each rank the largest value in its group."""
        number_R = self._groups[kind]
        most_GS = np.full((int(number_R.max()) + 1, value_RS.shape[1]), -np.inf)
        np.maximum.at(most_GS, number_R, value_RS)
        found_RS: Floats = most_GS[number_R]
        return found_RS

    def _pipeline(self, done_RS: Floats) -> Floats:
        """When the pipeline of each rank's replica ends, by the own work of all its stages."""
        number_R = self._groups["pp"]
        sum_GS = np.zeros((int(number_R.max()) + 1, done_RS.shape[1]))
        np.add.at(sum_GS, number_R, done_RS)
        m = self.plan.microbatches
        return ((m - 1) * self._latest("pp", done_RS) + sum_GS[number_R]) / m

    # The reports -----------------------------------------------------------------------------------------------------

    def _reports(self, window: int, steps: Steps) -> list[RankReport]:
        plan = self.plan
        iteration = (window + 1) * plan.window
        sections = self._sections(steps)
        parts, collectives = self._parts(steps), self._collectives(steps)
        kernels = self._kernels(window, steps)
        return [
            RankReport(
                identity,
                iteration=iteration,
                progress=0,
                open_sections={STEP_SECTION: 0.1},
                window=WindowReport(iteration, plan.window, sections[rank], parts[rank], collectives[rank]),
                kernels=None if kernels is None else kernels[rank],
                kernel_source="cupti" if plan.kernels else "none",
            )
            for rank, identity in enumerate(self._identities)
        ]

    def _sections(self, steps: Steps) -> list[dict[str, SectionWindow]]:
        wait_RS = sum(steps.waits_RS.values()) + sum(  # a section's clock includes waiting
            transfer_RS * (1 - HIDDEN[kind]) for kind, transfer_RS in steps.transfers_RS.items()
        )
        host_RS = steps.host_RS
        last_RS = steps.waits_RS.get("world", np.zeros_like(host_RS))
        shown = {
            "data": steps.data_RS,
            "forward": 0.6 * host_RS + steps.forward_RS,
            "backward": 0.3 * host_RS + steps.backward_RS + wait_RS - last_RS,
            "optimizer": 0.1 * host_RS + last_RS,
            STEP_SECTION: _total(steps),
        }
        if not self.plan.sections:
            return [{} for _ in range(self.plan.world)]
        return _rows(shown, self.plan.window)

    def _parts(self, steps: Steps) -> list[dict[str, float]]:
        """Parts of the last step of the window."""
        total_RS = _total(steps)
        parts = {
            Part.DATA: steps.data_RS,
            Part.HOST: steps.host_RS,
            Part.COMPUTE: steps.forward_RS + steps.backward_RS,
            Part.COMMUNICATION: total_RS - steps.data_RS - steps.host_RS - steps.forward_RS - steps.backward_RS,
        }
        columns = {part: seconds_RS[:, -1].tolist() for part, seconds_RS in parts.items()}
        return [{part: column[rank] for part, column in columns.items()} for rank in range(self.plan.world)]

    def _collectives(self, steps: Steps) -> list[dict[str, CollectiveWindow]]:
        found: list[dict[str, CollectiveWindow]] = [{} for _ in range(self.plan.world)]
        for kind, wait_RS in steps.waits_RS.items():
            wait_R, transfer_R = wait_RS[:, -1], steps.transfers_RS[kind][:, -1]
            exposed_R = wait_R + transfer_R * (1 - HIDDEN[kind])
            calls = CALLS[kind]
            # An early rank waits in every call, though not equally long.
            shortest_R = (transfer_R + (0.5 if calls > 1 else 1.0) * wait_R) / calls
            columns = (self._groups[kind], wait_R + transfer_R, exposed_R, shortest_R)
            for rank, (group, *seconds) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
                found[rank][kind if kind == "world" else f"{kind}_{group}"] = CollectiveWindow(calls, *seconds)
        return found

    def _kernels(self, window: int, steps: Steps) -> list[dict[str, KernelStatistics]] | None:
        """Kernel statistics of the last profiled steps, once per report; they are computed, not measured."""
        plan = self.plan
        first = min(plan.kernel_every, 5)
        if not plan.kernels or (window + 1) % plan.kernel_every not in {0, first} or window + 1 < first:
            return None
        compute_R = (steps.forward_RS + steps.backward_RS).mean(axis=1)
        fault = self._active(window)
        half_R: Bools = self._struck_R & (fault is not None and fault.slow is Slow.HALF)
        jitter_RK = 1 + plan.noise / 4 * self._rng.standard_normal((plan.world, plan.kernels))
        mean_RK = compute_R[:, None] * self._share_K * jitter_RK / plan.calls
        usual_RK = mean_RK - half_R[:, None] * (fault.dose if fault else 0.0) * plan.step * self._share_K / plan.calls
        spread = 3 * plan.noise
        # The slower half of the calls contains all slow ones, so their average cost counts twice in it.
        tail_RK = usual_RK * (1 + spread) + 2 * (mean_RK - usual_RK)
        columns = np.stack(
            [usual_RK, tail_RK, mean_RK, usual_RK * (1 - 2 * spread), tail_RK * (1 + spread), mean_RK * spread], axis=-1
        ).tolist()
        names = [f"kernel_{k}_<128,1,1>" for k in range(plan.kernels)]
        calls = plan.calls * min(window + 1, plan.kernel_every)
        return [{n: KernelStatistics(calls, *row[k]) for k, n in enumerate(names)} for row in columns]


def _total(steps: Steps) -> Floats:
    """Seconds of each step as each rank sees it (R, S)."""
    own_RS = steps.data_RS + steps.host_RS + steps.forward_RS + steps.backward_RS
    for kind, wait_RS in steps.waits_RS.items():
        own_RS = own_RS + wait_RS + steps.transfers_RS[kind] * (1 - HIDDEN[kind])
    return own_RS


def _rows(shown: dict[str, Floats], calls: int) -> list[dict[str, SectionWindow]]:
    """Statistics of sections over a window, for each rank."""
    rows: dict[str, list[list[float]]] = {}
    for name, seconds_RS in shown.items():
        sorted_RS = np.sort(seconds_RS, axis=1)
        columns = (
            np.median(sorted_RS, axis=1),
            sorted_RS[:, calls // 2 :].mean(axis=1),
            sorted_RS[:, -1],
            sorted_RS.mean(axis=1),
        )
        rows[name] = np.stack(columns, axis=1).tolist()
    return [
        {name: SectionWindow(calls, *values[rank]) for name, values in rows.items()} for rank in range(len(sorted_RS))
    ]


def _numbered(*coordinates: Ints) -> Ints:
    """One number for each combination of coordinates, from 0."""
    return np.unique(np.stack(coordinates, axis=1), axis=0, return_inverse=True)[1].ravel().astype(np.int64)
