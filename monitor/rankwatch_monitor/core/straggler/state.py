"""How fast each rank of a job is: what its windows, kernel reports and device tell, as columns over ranks.

How this works
--------------
``take`` puts what a rank says into the columns; nothing is judged there. A *window* is complete when all ranks that
speak have told theirs, or when :data:`.gathering.GATHER` seconds have passed since the first; then ``stragglers.judge``
looks at all of it at once. ``told`` is what everybody shows.

Shapes: R ranks, S sections, K kernels, P parts of a step, T windows, D devices. Times are seconds.

What outlives an attempt and a monitor is keyed by the device and the rank's parallel coordinates (:func:`device_key`),
never by the rank's number, since ranks move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rankwatch.contract.enums import Cause, StragglerVerdict
from rankwatch.contract.intervals import WINDOW_SECONDS, window_seconds
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.events import DeviceReading, KernelStatistics, RankIdentity, RankReport
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.straggler.diagnosis import Windows
from rankwatch_monitor.core.straggler.kernel_scores import KernelScores
from rankwatch_monitor.core.straggler.lateness import PARTS
from rankwatch_monitor.core.straggler.links import Links
from rankwatch_monitor.core.straggler.peers import Layout
from rankwatch_monitor.core.straggler.scores import Told
from rankwatch_monitor.core.straggler.tables import Table
from rankwatch_monitor.core.straggler.window import Gathering

WINDOWS: Final = 20
"""Windows whose lateness is kept of each rank: the noise is measured from them."""
SPARSE: Final = 16
"""Windows in a row without a profiled step after which sections are judged instead: ranks may not profile every one."""
MAX_SECTIONS: Final = 32
MAX_KERNELS: Final = 512
"""Different sections and kernels of one job that are compared; further ones are not, and counted."""
DEVICES_A_RANK: Final = 4
LEAST_DEVICES: Final = 256
"""Devices whose own best is remembered, for each rank and at least."""
INTERVALS: Final = 5
"""Intervals between windows whose median counts: an evaluation, or a pause, is no longer window."""


def device_key(who: RankIdentity) -> str:
    """What a rank's own history is kept under: the device, and the coordinates that decide what work it does."""
    device = who.device or f"{who.host}/{who.local_rank}"
    return f"{device} {who.pipeline_parallel},{who.tensor_parallel},{who.expert_parallel}"


class Performance:
    """What is known of the speed of one job's ranks."""

    def __init__(self) -> None:
        self.told = Told()
        self.history = History()
        self.policy_seen: Policy | None = None
        """The policy as of the last window."""
        self.verdicts: dict[StragglerVerdict, int] = {}
        """Judged windows by verdict, over the whole job."""
        self.found: dict[Cause, int] = {}
        """Stragglers found by the cause they had then, over the whole job."""
        self.last_straggler = 0
        self.kernel_reports = 0
        """How often kernels were given away to be scored, over the whole job."""
        self.stride: int | None = None
        """Steps from one window to the next, as the ranks are to keep it; None: they find it themselves."""
        self.begun = False
        """An attempt has begun, and what was open before it was not ended yet."""
        self.decided_under: Policy | None = None
        """The policy as of the last decision whether to act on stragglers."""
        self.trace: Mapping[str, Any] | None = None
        """Of which rank a trace is wanted: ``{"rank", "id"}``."""
        self.best = Table(("median",), MAX_KERNELS)
        """Best kernel medians, one row a device."""
        self.best_sections = Table(("median",), MAX_SECTIONS)
        self.devices: dict[str, int] = {}
        """Row of each device in the tables above."""
        self._begin()

    def begin_attempt(self) -> None:
        """Another attempt runs: windows and readings of the one before are gone, the history of devices stays."""
        self._begin()
        self.begun, self.trace = True, None

    def _begin(self) -> None:
        self.sections = Table(("calls", "median", "tail", "mean"), MAX_SECTIONS)
        self.kernels = Table(("median", "tail", "spent"), MAX_KERNELS)
        self.kernels_changed = False
        self.reports_before = self.kernel_reports
        """Those of the attempts before: what is still being scored of them comes too late."""
        self.kernels_scored_at = float("-inf")
        self.kernel_scores: KernelScores | None = None
        self.windows = Windows()
        self.links = Links()
        self.parts_RP: Floats = np.full((0, len(PARTS)), np.nan)
        self.steps_R: Floats = np.full(0, np.nan)
        self.cpu_waited_R: Floats = np.full(0, np.nan)
        self.layout = Layout.unknown(0)
        self.device_R: Ints = np.full(0, -1, dtype=np.int64)
        self.readings: dict[int, DeviceReading] = {}
        self.sources_of: dict[int, tuple[str, str]] = {}
        """Source of each rank's kernel timings, and why it is not another."""
        self.gathering = Gathering()
        self.share_TR: Floats = np.full((0, 0), np.nan)  # single precision from the first window on
        """Lateness as a part of the step, of the last windows, the newest last."""
        self.sampled_R: Ints = np.full(0, SPARSE, dtype=np.int64)
        """Windows since the last one in which each rank told of a profiled step; at most that many."""
        self.unprofiled = SPARSE
        """Windows since the last one in which a step was profiled."""
        self.judged = 0
        """Windows of this attempt that were judged."""
        self.judged_at: float | None = None
        self.judged_iteration: int | None = None
        """The step that closed the last window that was judged."""
        self.intervals: deque[float] = deque(maxlen=INTERVALS)
        self.interval = WINDOW_SECONDS
        """Seconds between two windows, lately: the median of the last ones."""
        self.scored_windows = 0
        """Kernel reports that have been judged as a window: the number of the last one."""
        self.grouped: tuple[Bools, Layout, Ints] | None = None
        """Peer groups of the last window, with the ranks and the layout they were made from."""
        self.unnamed = 0
        """Slow ranks beyond those that are named."""

    def rest(self) -> None:
        """Let go what only a running job needs: its ranks tell kernels anew before they are compared again."""
        if self.kernels.names:
            self.kernels, self.kernels_changed = Table(("median", "tail", "spent"), MAX_KERNELS), False
            self.kernels.grow(len(self.steps_R))
        self.history.rest()

    # In ---------------------------------------------------------------------------------------------------------------

    def take(self, report: RankReport, now: float) -> None:
        """Take in what a rank says of its windows, kernels and device."""
        if report.window is None and report.kernels is None and report.device is None and report.kernel_source is None:
            return
        who = report.identity
        self.grow(who.rank + 1)
        if report.kernel_source is not None:
            self.sources_of[who.rank] = (report.kernel_source, report.kernel_source_reason)
        if report.device is not None:
            self.readings[who.rank] = report.device
        if report.window is None and report.kernels is None:
            return
        self._place(who)
        if report.kernels is not None:
            self._take_kernels(who.rank, report.kernels)
        if report.window is not None:
            self._take_window(report, now)

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
        device = self.device_R[rank]
        self.best_sections.grow(int(device) + 1)
        self._improve(self.best_sections, int(device), {n: s.median for n, s in window.sections.items()})
        self.gathering.take(rank, window, now)

    def _take_kernels(self, rank: int, kernels: Mapping[str, KernelStatistics]) -> None:
        # Collectives wait for others: they are compared as lateness, never as the speed of a device.
        own = {n: (s.median, s.tail, s.calls * s.mean) for n, s in kernels.items() if "ncclDev" not in n}
        self.kernels.put(rank, own)
        self.kernels_changed = True

    def _improve(self, best: Table, row: int, medians: Mapping[str, float]) -> None:
        # A number at a time, as Python's own: that is ten times as fast as numpy's scalars, and few are written.
        for name, median in medians.items():
            column = best.index(name)
            if column is not None and not best.value("median", row, column) <= median:  # NaN: none yet
                best["median"][row, column] = median

    def keep_best_kernels(self) -> None:
        """Let the present kernel medians count as the devices' own best, where they are; after they were scored."""
        known_R = np.flatnonzero(self.device_R >= 0)
        columns = [self.best.index(name) for name in self.kernels.names]
        self.best.grow(len(self.devices))
        best_DK, median_RK = self.best["median"], self.kernels["median"]
        kept = [(k, column) for k, column in enumerate(columns) if column is not None]
        if not kept or not len(known_R):
            return
        from_K, to_K = (np.array(each) for each in zip(*kept, strict=True))
        rows_D = self.device_R[known_R]
        best_DK[np.ix_(rows_D, to_K)] = np.fmin(best_DK[np.ix_(rows_D, to_K)], median_RK[np.ix_(known_R, from_K)])

    def settle_stride(self, profiling_interval: int, fresh_R: Bools) -> None:
        """Say how many steps a window has, where ranks do not agree or windows have become far too long or short."""
        steps = self.steps_R[: len(fresh_R)][fresh_R]
        steps = steps[~np.isnan(steps)]
        if profiling_interval or not len(steps) or self.judged < 2:
            self.stride = None if profiling_interval else self.stride
            return
        least, most = float(steps.min()), float(steps.max())
        off = np.log2(window_seconds(len(fresh_R)) / self.interval)
        if self.stride is None and least == most:
            return  # the ranks have found it by themselves
        if self.stride is None:
            self.stride = 1 << int(np.ceil(np.log2(most)))
        elif abs(off) > 1.5 and least == most == self.stride:
            self.stride = max(1, round(self.stride * 2.0 ** round(float(off))))

    # Derived ----------------------------------------------------------------------------------------------------------

    def device_of(self, rank: int) -> str:
        """The device a rank runs on, empty while that is not known."""
        row = self.device_R[rank]
        return next((key.rpartition(" ")[0] for key, each in self.devices.items() if each == row), "")

    @property
    def sources(self) -> dict[str, int]:
        """How many ranks have their kernel timings from which source."""
        counts: dict[str, int] = {}
        for source, _ in self.sources_of.values():
            counts[source] = counts.get(source, 0) + 1
        return counts

    def best_kernels_of_ranks(self) -> Floats:
        """Each rank's own best kernel medians, in the order of the table of kernels; shape (R, K)."""
        return self._best(self.best, self.kernels.names)

    def best_sections_of_ranks(self) -> Floats:
        """The same of sections; shape (R, S)."""
        return self._best(self.best_sections, self.sections.names)

    def _best(self, best: Table, names: Sequence[str]) -> Floats:
        found_RK: Any = np.full((len(self.device_R), len(names)), np.nan, dtype=np.float32)
        known_R = (self.device_R >= 0) & (self.device_R < len(best["median"]))
        for column, name in enumerate(names):
            kept = best.index(name)
            if kept is not None:
                values_DK = best["median"]
                found_RK[known_R, column] = values_DK[self.device_R[known_R], kept]
        best_RK: Floats = found_RK
        return best_RK

    # Rows -------------------------------------------------------------------------------------------------------------

    def grow(self, ranks: int) -> None:
        """Have columns for ranks up to ``ranks - 1``, and a few more."""
        extra = ranks - len(self.steps_R)
        if extra <= 0:
            return
        extra = max(extra, len(self.steps_R) // 4)  # ranks often come one by one
        size = len(self.steps_R) + extra
        self.sections.grow(size)
        self.kernels.grow(size)
        self.parts_RP = np.concatenate([self.parts_RP, np.full((extra, len(PARTS)), np.nan)])
        self.steps_R = np.concatenate([self.steps_R, np.full(extra, np.nan)])
        self.cpu_waited_R = np.concatenate([self.cpu_waited_R, np.full(extra, np.nan)])
        self.sampled_R = np.concatenate([self.sampled_R, np.full(extra, SPARSE, dtype=np.int64)])
        self.device_R = np.concatenate([self.device_R, np.full(extra, -1, dtype=np.int64)])
        fresh = Layout.unknown(extra)
        self.layout = Layout(*(np.concatenate(both) for both in zip(self.layout, fresh, strict=True)))

    def _place(self, who: RankIdentity) -> None:
        """Note where in the layout a rank is, and which device it runs on."""
        rank = who.rank
        told = (who.data_parallel, who.tensor_parallel, who.pipeline_parallel, who.expert_parallel)
        for column_R, coordinate in zip(self.layout, told, strict=True):
            column_R[rank] = coordinate
        key = device_key(who)
        row = self.devices.get(key)
        if row is None:
            if len(self.devices) >= max(LEAST_DEVICES, DEVICES_A_RANK * len(self.device_R)):
                self._forget_devices()
            row = self.devices[key] = len(self.devices)
        self.device_R[rank] = row

    def _forget_devices(self) -> None:
        """Forget the older half of the devices that no rank runs on now: ranks may come back on others for months."""
        used = set(self.device_R[self.device_R >= 0].tolist())
        unused = [row for row in self.devices.values() if row not in used]
        dropped = set(unused[: max(1, len(unused) // 2)]) if unused else set()
        kept = [(key, row) for key, row in self.devices.items() if row not in dropped]
        moved = {old: new for new, (_, old) in enumerate(kept)}
        for table in (self.best, self.best_sections):
            table.keep([row for _, row in kept])
        self.devices = {key: new for new, (key, _) in enumerate(kept)}
        self.device_R = np.array([moved.get(int(row), -1) for row in self.device_R], dtype=np.int64)
