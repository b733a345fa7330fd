"""Windows of steps: gathers the reports of all ranks, and measures how slow each rank looks in a complete window. Pure.

Assembly
--------
Ranks close the same windows but report them at their next export. When one of them reports none, the next windows of
the others arrive while it is waited for. Then only the reports of one step are evaluated together, the step of most
ranks; later ones are kept for the next window. Where no step has most of the ranks, because windows are shorter than
the time between two exports, all reports count as one window.

Signal
------
One number a rank: by which fraction of a step it is slower than its peers.

==========  =======================================================================================================
signal      used when
==========  =======================================================================================================
lateness    the window has a profiled step (see ``lateness``); between two of those there is no signal
sections    no rank profiles its steps, but ranks report sections: the largest excess of a section over the median of
            at least four peers
kernels     there are kernel reports only: 1 / robust score - 1
==========  =======================================================================================================

Shapes: R ranks, P parts of a step, S sections, i reporting ranks. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.intervals import window_spread
from rankwatch.contract.semconv import STEP_SECTION
from rankwatch_monitor.core.events import WindowReport
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.straggler.attribution import NodeExcess, Pipeline
from rankwatch_monitor.core.straggler.bandwidth import Moved
from rankwatch_monitor.core.straggler.lateness import Lateness
from rankwatch_monitor.core.straggler.links import Transfer

GATHER: Final = 3.0
"""Seconds to wait for the windows of the other ranks."""
GATHER_GAPS: Final = 2.5
"""At scale ranks export less often: wait for so many usual export intervals, if that is longer."""
MAX_GROUPS: Final = 4096
"""Process groups of one job whose transfers are measured."""
NO_STEP, ABSENT = -1, -2
"""Stand for the step of a window closed by the clock, as the job counts no steps; and of a rank without a window."""


@dataclass(slots=True)
class WindowAssembly:
    """Reports gathered for the next window."""

    step_R: Ints = field(default_factory=lambda: np.full(0, ABSENT, dtype=np.int64))
    """The step that closed the window of each rank; :data:`NO_STEP`: none, :data:`ABSENT`: it has not reported."""
    reported: int = 0
    """Ranks that have reported."""
    since: float | None = None
    """Unix seconds of the first report."""
    overtaken: bool = False
    """A rank has reported its next window already."""
    transfers: dict[str, Transfer] = field(default_factory=dict)
    """By process group."""
    operations: dict[str, Moved] = field(default_factory=dict)
    """By operation and process group."""

    def take(self, rank: int, window: WindowReport, now: float, host: str = "") -> None:
        """Add the report of one rank on a host."""
        if (extra := rank + 1 - len(self.step_R)) > 0:
            fresh_R = np.full(max(extra, len(self.step_R) // 4), ABSENT, dtype=np.int64)
            self.step_R = np.concatenate([self.step_R, fresh_R])
        iteration = NO_STEP if window.iteration is None else window.iteration
        before = self.step_R.item(rank)
        self.reported += before == ABSENT
        self.overtaken |= ABSENT != before < iteration
        self.step_R[rank] = iteration
        if self.since is None:
            self.since = now
        for group, collectives in window.collectives.items():
            transfer = self.transfers.get(group)
            if transfer is None:
                if len(self.transfers) >= MAX_GROUPS:
                    continue
                transfer = self.transfers[group] = Transfer()
            transfer.take(collectives, host)
        for name, reported in window.operations.items():
            moved = self.operations.get(name)
            if moved is None:
                if len(self.operations) >= MAX_GROUPS:
                    continue
                moved = self.operations[name] = Moved()
            moved.take(rank, reported)

    def ready_at(self, expected: int, report_interval: float) -> float:
        """When the window can be evaluated (unix seconds); infinity while there is no report.

        Args:
            expected: how many ranks to wait for.
            report_interval: usual seconds between two exports of a rank.
        """
        if self.since is None:
            return np.inf
        if self.reported >= expected or (self.overtaken and 2 * self.reported > expected):
            return self.since
        return self.since + max(GATHER, GATHER_GAPS * report_interval) + window_spread(expected)

    def closed(self, now: float) -> tuple[Ints, int | None, WindowAssembly]:
        """The ranks evaluated together, the step that closed their window, and what is gathered for the next one."""
        rank_i = np.flatnonzero(self.step_R != ABSENT)
        step_i = self.step_R[rank_i]
        steps, ranks = np.unique(step_i, return_counts=True)
        if steps[0] == NO_STEP:
            return rank_i, None, WindowAssembly()
        most = int(np.argmax(ranks))
        if 2 * ranks[most] <= len(rank_i):
            return rank_i, int(steps[-1]), WindowAssembly()
        step = int(steps[most])
        later_R = self.step_R > step
        reported = int(np.count_nonzero(later_R))
        later = WindowAssembly(np.where(later_R, self.step_R, ABSENT), reported, now if reported else None)
        return rank_i[step_i == step], step, later


class Window(NamedTuple):
    """A complete window, as arrays over the ranks of the attempt."""

    now: float
    iteration: int | None
    """The step that closed it; None: the job counts no steps."""
    fresh_R: Bools
    """Ranks that reported it; all other arrays are NaN for the others."""
    group_R: Ints
    parts_RP: Floats
    late: Lateness
    signal_R: Floats
    lost_R: Floats
    """By which fraction of itself the step is longer for each rank, or for its node where that is slow."""
    alone_R: Bools
    """Ranks without a peer, whose signal is by the other stages: what they have to do may be theirs."""
    pipeline: Pipeline
    nodes: NodeExcess
    """Of each node, as fractions of the step."""
    step_R: Floats
    """Seconds of a step: of the section ``step`` or the profiled one, whichever is more, else of all sections."""
    section_RS: Floats
    """Seconds a step that each section takes."""
    section_excess_RS: Floats
    """The same beyond the median of the peers; NaN where there are too few of them."""
    transfers: Mapping[str, Transfer]
    """By process group."""
    operations: Mapping[str, Moved]
    """By operation and process group."""
    elapsed: float | None
    """Seconds since the window before; None: it is the first one."""
    steps: int | None
    """Steps since the window before; None: unknown."""


def section_seconds(
    names: list[str],
    calls_RS: Floats,
    median_RS: Floats,
    tail_RS: Floats,
    steps_R: Floats,
    fresh_R: Bools,
    compared_R: Bools,
) -> Floats:
    """Seconds a step that each section takes, midway between its median and the mean of its slower half; (R, S).

    The section ``step`` contains the others and the waiting, so it is NaN unless it is what ranks are compared by.
    """
    each_RS = np.where(np.isnan(steps_R[:, None]), 1.0, calls_RS / steps_R[:, None])
    seconds_RS: Floats = np.where(fresh_R[:, None], 0.5 * (median_RS + tail_RS) * each_RS, np.nan)
    for s, name in enumerate(names):
        if name == STEP_SECTION:
            seconds_RS[~compared_R, s] = np.nan
    return seconds_RS


def step_seconds(names: list[str], mean_RS: Floats, section_RS: Floats, late: Lateness) -> Floats:
    """Seconds of a step on each rank; shape (R,). See :attr:`Window.step_R`."""
    if STEP_SECTION in names:
        step_R: Floats = mean_RS[:, names.index(STEP_SECTION)].astype(np.float64)
        return np.fmax(step_R, late.step_R)  # work between two steps is in the profiled one only
    total_R: Floats = np.nansum(section_RS, axis=1)
    return np.where(np.isnan(late.step_R), np.where(total_R > 0, total_R, np.nan), late.step_R)
