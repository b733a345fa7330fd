"""The state of straggler detection for one job; its methods are the only writers.

``take`` writes the reports of ranks into columns; nothing is evaluated there. A *window* is complete when all ranks
have reported theirs, or some seconds after the first report; then ``straggler_detector.judge`` closes it
(``close_window``), adds a sample to the history, computes scores, and opens, updates and ends stragglers. Everything
else in this room computes and returns.

Four lifetimes: what is published, counted and kept of devices outlives attempts and the monitor; the trends of kernels
outlive attempts; columns and windows last one attempt; the assembly one window. What is kept of devices is keyed by the
device and the rank's parallel coordinates (:func:`device_key`), never by the rank's number, as ranks move between them.

Shapes: R ranks, S sections, K kernels, P parts of a step, T windows, D devices. Times are seconds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import Action, Cause, StragglerVerdict
from rankwatch.contract.intervals import WINDOW_SECONDS, window_seconds
from rankwatch.contract.policy import Policy
from rankwatch.contract.semconv import POINT_TO_POINT, STEP_SECTION
from rankwatch.contract.statistics import KernelStatistics
from rankwatch_monitor.core.events import DeviceReading, RankIdentity, RankReport
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.regression.sample import Measured, policy_changes, sample_of
from rankwatch_monitor.core.slow_cause import LateRank
from rankwatch_monitor.core.straggler import attribution, peers, scores
from rankwatch_monitor.core.straggler.attribution import NodeExcess, Pipeline
from rankwatch_monitor.core.straggler.bandwidth import Bandwidths
from rankwatch_monitor.core.straggler.best_medians import MAX_KERNELS, MAX_SECTIONS, BestMedians, device_key
from rankwatch_monitor.core.straggler.diagnosis import Observed
from rankwatch_monitor.core.straggler.findings import Finding, Straggler
from rankwatch_monitor.core.straggler.kernel_trends import KernelTrends
from rankwatch_monitor.core.straggler.lateness import COMPUTE, PARTS, Lateness, lateness
from rankwatch_monitor.core.straggler.links import TransferTimes
from rankwatch_monitor.core.straggler.past import Past
from rankwatch_monitor.core.straggler.peers import Layout, Places
from rankwatch_monitor.core.straggler.scores import KernelScoreRequest, KernelScores, Scores
from rankwatch_monitor.core.straggler.table import Table
from rankwatch_monitor.core.straggler.window import Window, WindowAssembly, section_seconds, step_seconds

WINDOWS: Final = 20
"""Windows whose signal is kept of each rank: the noise is measured from them."""
SPARSE: Final = 16
"""Windows in a row without a profiled step after which sections are used instead: ranks need not profile every one."""
KEPT_STRAGGLERS: Final = 200
"""Stragglers kept in memory, ended ones included."""
HOSTS_A_RANK: Final = 2
MIN_HOSTS: Final = 64
"""Host names that are kept of an attempt, before those on which no rank runs now are forgotten."""
DEVICES_A_RANK: Final = 4
MIN_DEVICES: Final = 256
"""Devices whose best medians are kept: for each rank, and at least."""
ALWAYS: Final = 0.9
"""Fraction of an attempt's windows in which a rank is behind above which it has been so from the beginning."""
INTERVALS: Final = 5
"""Intervals between windows whose median is the usual one: an evaluation or a pause is not a longer window."""
SAMPLED_GROUPS: Final = 16
"""Process groups of a window that enter its sample, slow ones first."""
MANY_KERNELS: Final = 1_000_000
RESCORE_AFTER: Final = 30.0
"""Of more kernel medians than that, scores are computed at most every so many seconds: the ranks of a large job report
one after the other, and each time all of it is copied."""


class Description(NamedTuple):
    """What is known of a straggler as of one window; see ``describe``."""

    cause: Cause
    score: float | None
    lateness: float | None
    share: float | None
    reason: str
    section: str | None = None
    own: float | None = None
    peers: float | None = None
    """Seconds of a step that it and its peers spend on the cause."""
    waiting: int | None = None


@dataclass(slots=True)
class Tally:
    """How often something was found, and what it cost."""

    windows: int = 0
    share: float = 0.0
    """Sum over these windows."""
    last: Finding = field(default_factory=Finding)


def _appended(kept_TX: Floats, value_X: Floats) -> Floats:
    """The last :data:`WINDOWS` windows with a new one, all as wide as that."""
    before_TX: Any = kept_TX[-(WINDOWS - 1) :]
    if before_TX.shape[1] != len(value_X):
        resized_TX = np.full((len(before_TX), len(value_X)), np.nan, dtype=np.float32)
        resized_TX[:, : min(before_TX.shape[1], len(value_X))] = before_TX[:, : len(value_X)]
        before_TX = resized_TX
    return np.concatenate([before_TX, value_X[None].astype(np.float32)])


class Performance:
    """How fast the ranks of one job are, and what was found about them."""

    def __init__(self) -> None:
        self.scores: Scores | None = None
        """As of the last window."""
        self.stragglers: list[Straggler] = []
        """Open and ended ones, the oldest first; at most :data:`KEPT_STRAGGLERS`."""
        self.findings: tuple[Finding, ...] = ()
        """Why the job loses time, the costliest first."""
        self.late: LateRank | None = None
        """The rank that is late in the newest window and not named."""
        self.lasted: dict[tuple[StragglerVerdict, tuple[int, ...]], Tally] = {}
        """The findings of all windows that this monitor has judged."""
        self.cost_gpu_hours = 0.0
        """Cost of all stragglers of the job so far."""
        self._waited = 0.0
        self.verdicts: dict[StragglerVerdict, int] = {}
        """Windows of the job by verdict."""
        self.found: dict[Cause, int] = {}
        """Stragglers of the job by the cause they were found with."""
        self.last_straggler = 0
        """Number of the last straggler."""
        self.history = History()
        self.kernel_trends = KernelTrends()
        """Since this monitor has held the job; not stored."""
        self.best = BestMedians()
        self.stride: int | None = None
        """Steps from one window to the next, to be set on the ranks; None: they choose it themselves."""
        self.trace: Mapping[str, Any] | None = None
        """The rank whose trace is requested: ``{"rank", "id"}``."""
        self.kernel_requests = 0
        """Requests for kernel scores so far, over all attempts."""
        self._sampled_policy: Policy | None = None
        """As of the last sample of the history."""
        self._acted_policy: Policy | None = None
        """As of the last decision whether to act on stragglers."""
        self._attempt_changed = False
        self._reset_attempt()

    def _reset_attempt(self) -> None:
        # Columns over ranks.
        self._forget_sections()
        self._forget_kernels()
        self.parts_RP: Floats = np.full((0, len(PARTS)), np.nan)
        self.steps_R: Floats = np.full(0, np.nan)
        """Steps of each rank's last window."""
        self.cpu_waited_R: Floats = np.full(0, np.nan)
        self.compared_R: Bools = np.zeros(0, dtype=np.bool_)
        """Ranks whose own step times are all that is known."""
        self.layout = Layout.unknown(0)
        self.node_R: Ints = np.full(0, -1, dtype=np.int64)
        """Number of each rank's host in ``hosts``; -1: unknown."""
        self.hosts: dict[str, int] = {}
        self.device_R: Ints = np.full(0, -1, dtype=np.int64)
        """Row of each rank's device in ``best``; -1: unknown."""
        self._placed: dict[int, RankIdentity] = {}
        """The process whose coordinates and device are in ``layout`` and ``device_R``, by rank."""
        self.readings: dict[int, DeviceReading] = {}
        self.read_at: dict[int, float] = {}
        """Unix seconds at which each of them was received."""
        """Last device reading of each rank."""
        self.device_RX: Floats = np.full((0, 2), np.nan)
        """Clock and temperature of each rank's device."""
        self.throttled: dict[int, tuple[str, ...]] = {}
        """Reasons for which each rank's device is throttled; only such ranks."""
        self.throttled_since: dict[int, float] = {}
        """Unix seconds since when each rank's device is throttled for a reason that makes it slow; only such ranks."""
        self.sources_of: dict[int, tuple[str, str]] = {}
        """Source of each rank's kernel timings, and why it is not another."""
        # Windows.
        self.assembly = WindowAssembly()
        self.judged = 0
        """Windows evaluated in this attempt."""
        self.judged_at: float | None = None
        self.interval = WINDOW_SECONDS
        """Usual seconds between two windows."""
        self.unprofiled = SPARSE
        """Windows since the last one with a profiled step."""
        self.signal_TR: Floats = np.full((0, 0), np.nan)  # single precision from the first window on
        """Signal of the last :data:`WINDOWS` windows, the newest last."""
        self.lost_TR: Floats = np.full((0, 0), np.nan)
        self.node_TH: Floats = np.full((0, 0), np.nan)
        """Of the same windows: the loss for each rank, and the excess of each node."""
        self.past = Past.unknown(0)
        self.known_R: Ints = np.zeros(0, dtype=np.int64)
        self.behind_R: Ints = np.zeros(0, dtype=np.int64)
        """Windows of the attempt in which a rank's signal was known, and in which it was behind."""
        self.sends = False
        """Ranks send to and receive from each other, as the stages of a pipeline do."""
        self.observed: deque[Observed] = deque(maxlen=WINDOWS)
        """What was observed in the last windows, the newest last."""
        self.transfer_times = TransferTimes()
        self.bandwidths = Bandwidths()
        self.kernel_scores: KernelScores | None = None
        self.unnamed = 0
        """Slow ranks beyond those that are named."""
        self._judged_iteration: int | None = None
        self._intervals: deque[float] = deque(maxlen=INTERVALS)
        self._since_profiled_R: Ints = np.full(0, SPARSE, dtype=np.int64)
        """Windows since each rank last reported a profiled step, at most :data:`SPARSE`."""
        self._places: tuple[Layout, Places] | None = None
        """The layout of the last window, and its numbered places."""
        self._kernels_scored_at = float("-inf")
        self._first_request = self.kernel_requests
        """Results of requests up to this one belong to earlier attempts."""
        self._judged_request = 0
        """The request whose result was last used as a signal."""

    # Attempts ---------------------------------------------------------------------------------------------------------

    def begin_attempt(self) -> None:
        """Drop windows and columns of the attempt before; what is kept of devices stays."""
        self._reset_attempt()
        self._attempt_changed, self.trace = True, None

    def acknowledge_attempt(self) -> bool:
        """Whether an attempt has begun since the last call: stragglers of the one before are to be ended."""
        changed, self._attempt_changed = self._attempt_changed, False
        return changed

    def compact(self) -> None:
        """Free what only a running job needs; kernels are compared again once ranks report them again."""
        if self.kernels.names:
            self._forget_kernels()
            self.kernels.grow(len(self.steps_R))
        self.history.compact()

    def _forget_sections(self) -> None:
        self.sections = Table(("calls", "median", "tail", "mean"), MAX_SECTIONS, of_ranks=True)
        """Of each rank's last window."""

    def _forget_kernels(self) -> None:
        self.kernels = Table(("median", "tail", "spent"), MAX_KERNELS, of_ranks=True)
        """Of each rank's last report."""
        self._kernels_changed = False
        """Kernels were reported since the last request for scores."""

    # Reports of ranks -------------------------------------------------------------------------------------------------

    def take(self, report: RankReport, now: float) -> None:
        """Store a rank's window, kernels and device reading."""
        if report.window is None and report.kernels is None and report.device is None and report.kernel_source is None:
            return
        identity = report.identity
        self._grow(max(identity.rank + 1, identity.world_size))
        if report.kernel_source is not None:
            self.sources_of[identity.rank] = (report.kernel_source, report.kernel_source_reason)
        if report.device is not None:
            self._take_reading(identity.rank, report.device, now)
        if report.window is None and report.kernels is None:
            return
        self._place(identity)
        if report.kernels is not None:
            self._take_kernels(identity.rank, report.kernels)
        if report.window is not None:
            self._take_window(report, now)

    def _take_reading(self, rank: int, reading: DeviceReading, now: float) -> None:
        self.readings[rank], self.read_at[rank] = reading, now
        self.device_RX[rank] = [np.nan if value is None else value for value in (reading.clock, reading.temperature)]
        if reading.throttled:
            self.throttled[rank] = reading.throttled
        else:
            self.throttled.pop(rank, None)
        if reading.slowed_by:
            self.throttled_since.setdefault(rank, now)
        else:
            self.throttled_since.pop(rank, None)

    def _take_window(self, report: RankReport, now: float) -> None:
        window, rank = report.window, report.identity.rank
        assert window is not None
        self.sections.put(rank, {n: (s.calls, s.median, s.tail, s.mean) for n, s in window.sections.items()})
        row_P = self.parts_RP[rank]
        row_P.fill(np.nan)
        if window.parts:
            row_P[:] = [window.parts.get(part, 0.0) for part in PARTS]
        self.steps_R[rank] = window.steps or np.nan
        self.cpu_waited_R[rank] = np.nan if window.cpu_waited is None else window.cpu_waited
        self.compared_R[rank] = window.compared
        self.best.improve_sections(self.device_R.item(rank), window.sections)
        self.assembly.take(rank, window, now, report.identity.host)

    def _take_kernels(self, rank: int, kernels: Mapping[str, KernelStatistics]) -> None:
        # Collectives wait for other ranks: they are compared as lateness, never as the speed of a device.
        own = {n: (s.median, s.tail, s.calls * s.mean) for n, s in kernels.items() if "ncclDev" not in n}
        self.kernels.put(rank, own)
        self._kernels_changed = True

    def _place(self, identity: RankIdentity) -> None:
        """Store a rank's parallel coordinates and its device, unless they are known."""
        rank = identity.rank
        if self._placed.get(rank) == identity:
            return
        self._placed[rank] = identity
        coordinates = (
            identity.data_parallel,
            identity.tensor_parallel,
            identity.pipeline_parallel,
            identity.expert_parallel,
        )
        for column_R, coordinate in zip(self.layout, coordinates, strict=True):
            column_R[rank] = coordinate
        if identity.host:
            if identity.host not in self.hosts and len(self.hosts) >= max(MIN_HOSTS, HOSTS_A_RANK * len(self.node_R)):
                self._drop_hosts()
            self.node_R[rank] = self.hosts.setdefault(identity.host, len(self.hosts))
        key, rows = device_key(identity), self.best.rows
        row = rows.get(key)
        if row is None:
            if len(rows) >= max(MIN_DEVICES, DEVICES_A_RANK * len(self.device_R)):
                self.device_R = self.best.drop_unused(self.device_R)
            row = self.best.rows[key] = len(self.best.rows)
        self.device_R[rank] = row

    def _drop_hosts(self) -> None:
        """Forget the hosts on which no rank runs now, and number the others anew."""
        used = np.unique(self.node_R[self.node_R >= 0])
        self.node_R = np.where(self.node_R >= 0, np.searchsorted(used, self.node_R), -1)
        names = list(self.hosts)
        self.hosts = {names[old]: new for new, old in enumerate(used.tolist())}
        self.node_TH = self.node_TH[:, used[used < self.node_TH.shape[1]]]
        whole_H = self.past.whole_H
        self.past = self.past._replace(whole_H=whole_H[used[used < len(whole_H)]])

    def _grow(self, ranks: int) -> None:
        """Add rows up to rank ``ranks - 1``, and a few more."""
        extra = ranks - len(self.steps_R)
        if extra <= 0:
            return
        extra = max(extra, len(self.steps_R) // 4)  # ranks often arrive one by one
        size = len(self.steps_R) + extra
        if len(self.kernels.names) > self.kernels.room(size):  # its world has grown after its first reports
            self._forget_kernels()
        if len(self.sections.names) > self.sections.room(size):
            self._forget_sections()
        self.sections.grow(size)
        self.kernels.grow(size)
        self.parts_RP = np.concatenate([self.parts_RP, np.full((extra, len(PARTS)), np.nan)])
        self.steps_R = np.concatenate([self.steps_R, np.full(extra, np.nan)])
        self.cpu_waited_R = np.concatenate([self.cpu_waited_R, np.full(extra, np.nan)])
        self.compared_R = np.concatenate([self.compared_R, np.zeros(extra, dtype=np.bool_)])
        self.device_RX = np.concatenate([self.device_RX, np.full((extra, 2), np.nan)])
        self._since_profiled_R = np.concatenate([self._since_profiled_R, np.full(extra, SPARSE, dtype=np.int64)])
        self.node_R, self.device_R = (
            np.concatenate([each_R, np.full(extra, -1, dtype=np.int64)]) for each_R in (self.node_R, self.device_R)
        )
        fresh = Layout.unknown(extra)
        self.layout = Layout(*(np.concatenate(both) for both in zip(self.layout, fresh, strict=True)))

    # Windows ----------------------------------------------------------------------------------------------------------

    def discard_window(self) -> None:
        """Drop the reports gathered so far."""
        self.assembly = WindowAssembly()

    def close_window(self, ranks: int, now: float, slowdown: float) -> Window:
        """Turn the gathered reports into a window over ``ranks`` ranks, and begin the next one.

        ``slowdown``: the fraction of a step from which on it is computed what it costs the job.
        """
        self._grow(ranks)
        fresh_R = np.zeros(ranks, dtype=np.bool_)
        rank_i, iteration, later = self.assembly.closed(now)
        fresh_R[rank_i[rank_i < ranks]] = True
        group_R = self._peer_groups(fresh_R)
        parts_RP = np.where(fresh_R[:, None], self.parts_RP[:ranks], np.nan)
        pipeline = self._pipeline(ranks)
        late, by_stages_R, alone_R = attribution.against_stages(
            pipeline, parts_RP, lateness(parts_RP, group_R), group_R
        )
        names = self.sections.names
        calls_RS, median_RS, tail_RS = (
            self.sections[each][:ranks].astype(np.float64) for each in ("calls", "median", "tail")
        )
        compared_R = self.compared_R[:ranks]
        section_RS = section_seconds(names, calls_RS, median_RS, tail_RS, self.steps_R[:ranks], fresh_R, compared_R)
        excess_RS = section_RS - peers.references(section_RS, group_R)
        excess_RS[~peers.in_large_group(group_R)] = np.nan
        if compared_R.any() and STEP_SECTION in names:  # two suffice: in its own step a rank does not wait
            s = names.index(STEP_SECTION)
            excess_RS[:, s] = section_RS[:, s] - peers.median_of_others(section_RS[:, s], group_R)
        step_R = step_seconds(names, self.sections["mean"][:ranks], section_RS, late)
        self.sends |= POINT_TO_POINT in self.assembly.transfers
        before, self._judged_iteration = self._judged_iteration, iteration
        elapsed = None if self.judged_at is None else max(0.1, now - self.judged_at)
        if elapsed is not None:
            self._intervals.append(elapsed)
            self.interval = median(self._intervals)
        self.judged_at = now
        signal_R = self._signal(parts_RP, fresh_R, late._replace(late_R=by_stages_R), excess_RS, step_R, group_R)
        lost_R, nodes = self._lost(pipeline, parts_RP, late, group_R, signal_R, slowdown)
        window = Window(
            now=now,
            iteration=iteration,
            fresh_R=fresh_R,
            group_R=group_R,
            parts_RP=parts_RP,
            late=late,
            signal_R=signal_R,
            lost_R=lost_R,
            alone_R=alone_R,
            pipeline=pipeline,
            nodes=nodes,
            step_R=step_R,
            section_RS=section_RS,
            section_excess_RS=excess_RS,
            transfers=self.assembly.transfers,
            operations=self.assembly.operations,
            elapsed=elapsed,
            steps=None if iteration is None or before is None or iteration <= before else iteration - before,
        )
        self.assembly = later
        return window

    def _pipeline(self, ranks: int) -> Pipeline:
        calls = {group: transfer.calls for group, transfer in self.assembly.transfers.items()}
        return Pipeline.of(Layout(*(column_R[:ranks] for column_R in self.layout)), calls)

    def _lost(
        self,
        pipeline: Pipeline,
        parts_RP: Floats,
        late: Lateness,
        group_R: Ints,
        signal_R: Floats,
        slowdown: float,
    ) -> tuple[Floats, NodeExcess]:
        """What each rank and each node costs the job, as fractions of the step."""
        if self.unprofiled or np.isnan(late.step_R).all():
            return signal_R, NodeExcess.unknown(len(self.hosts))
        step, node_R = float(np.nanmedian(late.step_R)), self.node_R[: len(signal_R)]
        level_P = pipeline.levels(late.work_R, ~np.isnan(late.work_R))
        with np.errstate(invalid="ignore"):
            lost_R = (
                attribution.losses(pipeline, late.work_R, signal_R * late.step_R, level_P, signal_R > slowdown) / step
            )
        found = attribution.node_excess(pipeline, parts_RP, late, group_R, node_R, slowdown)
        nodes = NodeExcess(found.late_H / step, found.lost_H / step, found.whole_H)
        if len(nodes.late_H):
            of_node_R = np.where(node_R >= 0, nodes.lost_H[node_R], np.nan)
            with np.errstate(invalid="ignore"):
                lost_R = np.where(of_node_R > np.maximum(slowdown, np.nan_to_num(lost_R)), of_node_R, lost_R)
        return lost_R, nodes

    def _peer_groups(self, fresh_R: Bools) -> Ints:
        """The peer groups; their places are numbered again only when the layout has changed."""
        layout = Layout(*(column_R[: len(fresh_R)] for column_R in self.layout))
        if self._places is None or not all(map(np.array_equal, self._places[0], layout)):
            self._places = Layout(*(column_R.copy() for column_R in layout)), Places.of(layout)
        return peers.groups(self._places[1], fresh_R)

    def _signal(
        self, parts_RP: Floats, fresh_R: Bools, late: Lateness, excess_RS: Floats, step_R: Floats, group_R: Ints
    ) -> Floats:
        """By which fraction of a step each rank is slower than its peers (see ``window``); shape (R,)."""
        if self._is_profiled(parts_RP, fresh_R, late):
            return late.late_R / late.step_R
        if self.unprofiled < SPARSE:
            return np.full(len(fresh_R), np.nan)
        if not np.isnan(excess_RS).all():
            with np.errstate(invalid="ignore"):
                excess_R: Floats = np.fmax.reduce(excess_RS, axis=1) / step_R
            return excess_R
        return self._kernel_signal(group_R)

    def _is_profiled(self, parts_RP: Floats, fresh_R: Bools, late: Lateness) -> bool:
        """Whether this window shows which ranks wait; counts the windows since the last one that did.

        A rank may profile every 2nd or 4th window only. Where most of those that profile at all did not do so in this
        one, the median of the others means nothing.
        """
        since_R = self._since_profiled_R[: len(fresh_R)]
        since_R[:] = np.minimum(since_R + 1, SPARSE)
        since_R[~np.isnan(parts_RP[:, 0])] = 0
        profiled, profiling = int(np.sum(since_R == 0)), int(np.sum(fresh_R & (since_R < SPARSE)))
        known = 2 * profiled > profiling and not np.isnan(late.late_R).all()
        self.unprofiled = 0 if known else self.unprofiled + 1
        return known

    def _kernel_signal(self, group_R: Ints) -> Floats:
        """How much slower each rank's kernels are than its peers'; shape (R,), NaN for ranks of small groups.

        A report counts as one window, though many windows pass until the next: it is one measurement, not several.
        """
        known, ranks = self.kernel_scores, len(group_R)
        if known is None or len(known.robust_R) != ranks or known.number == self._judged_request:
            return np.full(ranks, np.nan)
        self._judged_request = known.number
        with np.errstate(divide="ignore"):
            slower_R: Floats = np.where(peers.in_large_group(group_R), 1.0 / known.robust_R - 1.0, np.nan)
        return slower_R

    def add_sample(self, window: Window, policy: Policy, attempt: int, hosts_R: Sequence[str]) -> None:
        """Add a window to the history, with the changes of the policy since the one before."""
        ranks, fresh_R1, kernel_RK = len(window.fresh_R), window.fresh_R[:, None], None
        if self._kernels_changed:
            spent_RK = self.kernels["spent"][:ranks]
            with np.errstate(invalid="ignore"):
                share_RK = spent_RK / np.nansum(spent_RK, axis=1)[:, None]
                kernel_RK = share_RK * self.parts_RP[:ranks, COMPUTE][:, None]
        self.bandwidths.take(window.operations, hosts_R, window.now)
        of_groups = self.bandwidths.of_groups() if window.operations else {}
        slow = {group for group, row in of_groups.items() if row.slow}
        changes = policy_changes(self._sampled_policy, policy) if self._sampled_policy is not None else ()
        self._sampled_policy = policy
        measured = Measured(
            at=window.now,
            seconds=self.interval,
            attempt=attempt,
            iteration=window.iteration,
            hosts_R=hosts_R,
            step_R=window.step_R,
            parts_RP=window.parts_RP,
            sections=self.sections.names,
            section_RS=np.where(fresh_R1, self.sections["median"][:ranks], np.nan),
            calls_RS=self.sections["calls"][:ranks] / self.steps_R[:ranks, None],
            kernels=self.kernels.names if kernel_RK is not None else (),
            kernel_RK=kernel_RK,
            collectives={
                group: (transfer.exposed, transfer.shortest, row.bus if (row := of_groups.get(group)) else 0.0)
                for group, transfer in sorted(window.transfers.items(), key=lambda each: each[0] not in slow)[
                    :SAMPLED_GROUPS
                ]
                if transfer.shortest < np.inf
            },
            clock_R=self.device_RX[:ranks, 0],
            temperature_R=self.device_RX[:ranks, 1],
            throttled=Counter(reason for reasons in self.throttled.values() for reason in reasons),
            waited_R=self.cpu_waited_R[:ranks],
            changes=changes,
        )
        self.history.add(sample_of(measured))

    def add_signal(self, window: Window, slowdown: float) -> None:
        """Keep what the last windows show, all of one width; count those in which a rank is behind.

        ``slowdown``: the fraction of a step above which it is.
        """
        signal_R = window.signal_R
        ranks = len(signal_R)
        if (extra := ranks - len(self.known_R)) > 0:
            fresh_R = np.zeros(extra, dtype=np.int64)
            self.known_R, self.behind_R = (np.concatenate([each, fresh_R]) for each in (self.known_R, self.behind_R))
        self.known_R[:ranks] += ~np.isnan(signal_R)
        with np.errstate(invalid="ignore"):
            self.behind_R[:ranks] += signal_R > slowdown
        self.signal_TR = _appended(self.signal_TR, signal_R)
        self.lost_TR = _appended(self.lost_TR, window.lost_R)
        self.past = self.past.after(window, self.node_R[:ranks], slowdown)
        self.node_TH = _appended(self.node_TH, window.nodes.late_H)

    def always_behind(self, ranks: int) -> Bools:
        """Which ranks have been behind since the attempt's first windows; shape (R,)."""
        known_R, behind_R = self.known_R[:ranks], self.behind_R[:ranks]
        always_R: Bools = (behind_R > 0) & (behind_R >= ALWAYS * known_R)
        return always_R

    @property
    def undeclared_pipeline(self) -> bool:
        """Ranks send to each other, and no rank has declared its pipeline stage."""
        return self.sends and not (self.layout.pipeline_R >= 0).any()

    def finish_window(self, window: Window, profiling_interval: int) -> None:
        """Count the window, and set the stride where ranks do not agree or windows are far too long or too short.

        Args:
            profiling_interval: steps from one profiled step to the next as the policy sets them; 0: not set.
        """
        self.judged += 1
        steps = self.steps_R[: len(window.fresh_R)][window.fresh_R]
        steps = steps[~np.isnan(steps)]
        if profiling_interval or not len(steps) or self.judged < 2:
            self.stride = None if profiling_interval else self.stride
            return
        least, most = float(steps.min()), float(steps.max())
        off = np.log2(window_seconds(len(window.fresh_R)) / self.interval)
        if self.stride is None and least == most:
            return  # the ranks agree by themselves
        if self.stride is None:
            self.stride = 1 << int(np.ceil(np.log2(most)))
        elif abs(off) > 1.5 and least == most == self.stride:
            self.stride = max(1, round(self.stride * 2.0 ** round(float(off))))

    # Scores -----------------------------------------------------------------------------------------------------------

    def score(self, window: Window, policy: Policy) -> KernelScoreRequest | None:
        """Compute the scores of a window; return a request for those of kernels when kernels were reported."""
        ranks, table, before = len(window.fresh_R), self.sections, self.scores
        shown = Scores.empty(ranks, window.now, tuple(table.names))
        median_RS, tail_RS = table["median"][:ranks].astype(np.float64), table["tail"][:ranks].astype(np.float64)
        if policy.calc_relative:
            shown.section_relative_RS = scores.relative_sections(median_RS)
        if policy.calc_individual:
            best_RS = self.best.of_ranks(self.best.sections, table.names, self.device_R)
            shown.section_individual_RS = scores.individual_sections(best_RS[:ranks], median_RS)
        shown.section_robust_RS = scores.robust_sections(median_RS, tail_RS, window.group_R)
        shown.lateness_R, shown.step_R = window.late.late_R, window.late.step_R
        if before is not None:
            shown.seconds = before.seconds
            if np.isnan(shown.lateness_R).all() and len(before.lateness_R) == ranks and self.unprofiled < SPARSE:
                shown.lateness_R, shown.step_R = before.lateness_R, before.step_R  # of the last profiled step
        if self.kernel_scores is not None:
            shown.set_kernels(self.kernel_scores)
        self.scores = shown
        few = self.kernels["median"].size <= MANY_KERNELS
        if self._kernels_changed and (few or window.now - self._kernels_scored_at >= RESCORE_AFTER):
            self._kernels_changed, self._kernels_scored_at = False, window.now
            return self._kernel_request(window, policy)
        return None

    def _kernel_request(self, window: Window, policy: Policy) -> KernelScoreRequest:
        """Copy what kernel scores are computed from; then the present medians count for the devices' best."""
        self.kernel_requests += 1
        ranks, table = len(window.group_R), self.kernels
        request = KernelScoreRequest(
            number=self.kernel_requests,
            at=window.now,
            names=tuple(table.names),
            median_RK=table["median"][:ranks].copy(),
            tail_RK=table["tail"][:ranks].copy(),
            spent_RK=table["spent"][:ranks].copy(),
            best_RK=self.best.of_ranks(self.best.kernels, table.names, self.device_R)[:ranks],
            group_R=window.group_R,
            relative=policy.calc_relative,
            individual=policy.calc_individual,
            everyone=policy.profiled_ranks == "all",
        )
        self.best.improve_kernels(table.names, table["median"], self.device_R)
        return request

    def take_kernel_scores(self, result: KernelScores) -> None:
        """Store requested kernel scores, unless newer ones are known or another attempt has begun."""
        if result.number <= self._first_request:
            return
        if self.kernel_scores is not None and self.kernel_scores.number >= result.number:
            return
        self.kernel_scores = result
        self.kernel_trends.add(result.at, result.kernels)
        if self.scores is not None:
            self.scores.set_kernels(result)

    def timed(self, seconds: float) -> None:
        """Store how long the evaluation of the last window took."""
        if self.scores is not None:
            self.scores.seconds = seconds

    # Stragglers and findings ------------------------------------------------------------------------------------------

    def add_straggler(self, straggler: Straggler) -> None:
        """Open a straggler; the first ended one is dropped when there are too many."""
        self.last_straggler += 1
        self.found[straggler.cause] = self.found.get(straggler.cause, 0) + 1
        self.stragglers.append(straggler)
        if len(self.stragglers) > KEPT_STRAGGLERS:
            self.stragglers.remove(next(s for s in self.stragglers if not s.open))

    def see_straggler(self, straggler: Straggler, at: float, score: float | None, step: float | None) -> None:
        """Store that a straggler is slow in the window of unix seconds ``at``, its GPU score, and the usual step."""
        straggler.seen, straggler.score, straggler.step_since = at, score, step

    def describe_straggler(self, straggler: Straggler, description: Description) -> None:
        """Store what is stated of a straggler: sentence and figures are of one window."""
        straggler.cause = description.cause
        straggler.lateness, straggler.share = description.lateness, description.share
        straggler.reason = description.reason
        straggler.section, straggler.own, straggler.peers = description.section, description.own, description.peers
        straggler.waiting = description.waiting

    def end_straggler(self, straggler: Straggler, at: float) -> None:
        """End a straggler at unix seconds ``at``."""
        straggler.ended = at

    def charge(self, window: Window) -> None:
        """Add what the open stragglers cost since the window before: the waiting of all ranks, in GPU-hours.

        For a rank without a profiled step its last known lateness counts. Ranks cannot have waited for longer than the
        elapsed time, whatever the profiled step was like.
        """
        ranks, longest = int(window.fresh_R.sum()), 0.0
        steps = self.steps_R[: len(window.fresh_R)][window.fresh_R]
        usual = float(np.median(steps[~np.isnan(steps)])) if not np.isnan(steps).all() else 0.0
        for straggler in self.open_stragglers:
            late = np.nan
            if straggler.often is None and straggler.rank < len(window.fresh_R):
                late = float(window.lost_R[straggler.rank] * window.late.step_R[straggler.rank])
            late = (straggler.lateness or 0.0) if np.isnan(late) else max(0.0, late)
            waited = late * (window.steps or usual)
            if window.elapsed is not None:
                waited = min(waited, window.elapsed)
            straggler.cost_gpu_hours += waited * ranks / 3600.0
            longest = max(longest, waited)
        self.cost_gpu_hours += longest * ranks / 3600.0  # ranks that wait for two stragglers at once wait once
        self._waited += longest

    def charge_since_found(self, found: Sequence[Straggler], window: Window) -> None:
        """Add what stragglers that were opened in this window have cost since their first slow one, by their share."""
        ranks, waited = int(window.fresh_R.sum()), [(s.share or 0.0) * (s.seen - s.since) for s in found]
        for straggler, seconds in zip(found, waited, strict=True):
            straggler.cost_gpu_hours += seconds * ranks / 3600.0
        if len(self.open_stragglers) == len(found):  # else the ranks' waiting for the earlier ones is charged already
            self.cost_gpu_hours += max(waited, default=0.0) * ranks / 3600.0
            self._waited += max(waited, default=0.0)

    def take_waited(self) -> float:
        """Seconds that the ranks have waited for stragglers since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def decide(self, straggler: Straggler, action: Action, reason: str) -> None:
        """Store what is done about a straggler, and why."""
        straggler.action, straggler.action_reason = action, reason

    def reconsider(self, policy: Policy) -> None:
        """Under another policy, make stragglers that were only recorded undecided again."""
        if self._acted_policy is not None and self._acted_policy != policy:
            for straggler in self.open_stragglers:
                if straggler.action is Action.LOG:
                    straggler.action_reason = ""
        self._acted_policy = policy

    def set_unnamed(self, ranks: int) -> None:
        """Store how many slow ranks are not named as there are too many."""
        self.unnamed = ranks

    def request_trace(self, rank: int, incident_id: str) -> None:
        """Request a trace of a rank; it is pushed with the next settings."""
        self.trace = {"rank": rank, "id": incident_id}

    def set_findings(self, findings: Sequence[Finding]) -> None:
        """Publish the findings of a window, the one that costs most first, and count its verdict."""
        self.findings = tuple(findings)
        self.verdicts[self.finding.verdict] = self.verdicts.get(self.finding.verdict, 0) + 1
        for finding in findings:
            tally = self.lasted.setdefault((finding.verdict, finding.ranks), Tally())
            tally.windows, tally.share, tally.last = tally.windows + 1, tally.share + finding.share, finding
        while len(self.lasted) > KEPT_STRAGGLERS:
            del self.lasted[min(self.lasted, key=lambda key: self.lasted[key].windows)]

    def set_late(self, late: LateRank | None) -> None:
        """Publish the rank that the newest window shows late, of those that are not named."""
        self.late = late

    def clear_findings(self) -> None:
        """Publish that nothing is found, without counting a window."""
        self.findings, self.late = (), None

    # Stored state -----------------------------------------------------------------------------------------------------

    def merge_stored(self, past: Performance) -> None:
        """Put what was stored of the job before what is known since. ``past`` must not be used any more."""
        since, self.history = self.history.window(), past.history
        for sample in since:
            self.history.add(sample)
        for verdict, windows in past.verdicts.items():
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + windows
        for cause, found in past.found.items():
            self.found[cause] = self.found.get(cause, 0) + found
        self.last_straggler += past.last_straggler
        self.cost_gpu_hours += past.cost_gpu_hours
        for straggler in past.open_stragglers:
            straggler.ended = straggler.seen
        self.stragglers = [*past.stragglers, *self.stragglers][-KEPT_STRAGGLERS:]
        moved = past.best.merge(self.best)
        self.best = past.best
        self.device_R = np.array([moved.get(int(row), -1) for row in self.device_R], dtype=np.int64)

    # Derived ----------------------------------------------------------------------------------------------------------

    @property
    def finding(self) -> Finding:
        """The one that costs most: the verdict."""
        return self.findings[0] if self.findings else Finding()

    @property
    def open_stragglers(self) -> list[Straggler]:
        """Stragglers that are slow now, the costliest first."""
        return sorted((s for s in self.stragglers if s.open), key=lambda s: -s.cost_gpu_hours)

    @property
    def sources(self) -> dict[str, int]:
        """Number of ranks by the source of their kernel timings."""
        return dict(Counter(source for source, _ in self.sources_of.values()))

    def device_of(self, rank: int) -> str:
        """The device a rank runs on; empty while unknown."""
        row = self.device_R[rank]
        return next((key.rpartition(" ")[0] for key, each in self.best.rows.items() if each == row), "")
