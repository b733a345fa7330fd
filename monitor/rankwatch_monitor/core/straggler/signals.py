"""One complete window of a job as arrays over its ranks, and how slow each rank looks in it. Pure.

Which signal
------------
==========  =======================================================================================================
signal      used when
==========  =======================================================================================================
lateness    the profiled step tells who waits for whom (``lateness``); none in windows without one in between
sections    no rank says what its step went into, but sections are told: the largest excess of a section over the
            middle of at least four peers, as a part of the step
kernels     there are kernel reports only: 1 / score - 1 by the robust reference
==========  =======================================================================================================

Shapes: R ranks, S sections, T windows. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rankwatch.contract.semconv import STEP_SECTION
from rankwatch_monitor.core.ranks import EXITED, Bools, Floats, Ints
from rankwatch_monitor.core.straggler import lateness, peers
from rankwatch_monitor.core.straggler.lateness import Lateness
from rankwatch_monitor.core.straggler.state import SPARSE, Performance

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job

MIN_SECTION_PEERS: Final = 4
"""Of fewer, the one that waits in a section looks as slow as the one that is waited for."""
SETTLED: Final = 60.0
"""Seconds after which the ranks that have spoken are all that will."""


class Window(NamedTuple):
    """One complete window, as arrays over the ranks of the attempt."""

    now: float
    iteration: int | None
    """The step that closed it; None: the job counts none."""
    fresh_R: Bools
    group_R: Ints
    late: Lateness
    signal_R: Floats
    step_R: Floats
    """Seconds of a step: of the section ``step`` or the profiled one, whichever is more, else of all sections."""
    section_RS: Floats
    """Seconds a step that each section takes."""
    section_excess_RS: Floats
    """The same beyond the middle of the peers; NaN where there are too few of them."""
    lasted: float | None
    """Seconds since the window before; None: it is the first one."""
    steps: int | None
    """Steps since then; None: not known."""
    later: Mapping[int, int]
    """Ranks that have told of their next window already, and the step that closed it."""


def present(job: Job) -> Bools:
    """Ranks that speak for themselves in this attempt; shape (R,)."""
    there_R: Bools = job.columns.reported_R & ~gone(job)
    return there_R


def expected(job: Job, at: float) -> int:
    """How many ranks a window is waited for, at ``at``.

    Those that speak; and while the monitor has only begun to watch, all that may, since the first one to speak is not
    the whole job.
    """
    if at - job.silence_baseline > SETTLED:
        return int(present(job).sum())
    return int(np.sum(~gone(job)))


def gone(job: Job) -> Bools:
    """Ranks that have ended; shape (R,)."""
    gone_R: Bools = job.columns.shut_down_R | (job.columns.process_R == EXITED)
    return gone_R


def usual_gap(job: Job) -> float:
    """Seconds between two exports of a rank, lately; 0 while that is not known."""
    report_interval_R = job.columns.report_interval_R
    known_R = report_interval_R[~np.isnan(report_interval_R)]
    return float(np.median(known_R)) if len(known_R) else 0.0


def window_of(job: Job, now: float) -> Window:
    """The window that was gathered, at ``now`` (unix seconds)."""
    performance, ranks = job.performance, len(job.columns)
    performance.grow(ranks)
    fresh_R = np.zeros(ranks, dtype=np.bool_)
    rank_i, iteration, later = performance.gathering.closed()
    fresh_R[rank_i[rank_i < ranks]] = True
    group_R = _groups(performance, fresh_R)
    parts_RP = np.where(fresh_R[:, None], performance.parts_RP[:ranks], np.nan)
    late = lateness.lateness(parts_RP, group_R)
    section_RS = _section_seconds(performance, fresh_R)
    excess_RS = section_RS - peers.references(section_RS, group_R)
    excess_RS[~enough(group_R)] = np.nan
    step_R = _step_seconds(performance, section_RS, late)
    if _profiled(performance, parts_RP, fresh_R, late):
        signal_R = late.late_R / late.step_R
    elif performance.unprofiled < SPARSE:
        signal_R = np.full(ranks, np.nan)
    elif not np.isnan(excess_RS).all():
        with np.errstate(invalid="ignore"):
            signal_R = np.fmax.reduce(excess_RS, axis=1) / step_R
    else:
        signal_R = _by_kernels(performance, group_R)
    lasted = None if performance.judged_at is None else max(0.1, now - performance.judged_at)
    if lasted is not None:
        performance.intervals.append(lasted)
        performance.interval = median(performance.intervals)
    before, performance.judged_iteration = performance.judged_iteration, iteration
    performance.judged_at = now
    steps = None if iteration is None or before is None or iteration <= before else iteration - before
    return Window(now, iteration, fresh_R, group_R, late, signal_R, step_R, section_RS, excess_RS, lasted, steps, later)


def _groups(performance: Performance, fresh_R: Bools) -> Ints:
    """The peer groups; those of the window before, as long as the same ranks tell theirs from the same places."""
    layout = peers.Layout(*(column_R[: len(fresh_R)] for column_R in performance.layout))
    known = performance.grouped
    if known is not None and np.array_equal(known[0], fresh_R) and all(map(np.array_equal, known[1], layout)):
        return known[2]
    group_R = peers.groups(layout, fresh_R)
    performance.grouped = (fresh_R, peers.Layout(*(column_R.copy() for column_R in layout)), group_R)
    return group_R


def _profiled(performance: Performance, parts_RP: Floats, fresh_R: Bools, late: Lateness) -> bool:
    """Whether this window tells who waits for whom; counts for how many windows none has.

    A rank may sample every 2nd or 4th window only. Where most of those that sample at all did not, the middle of the
    others is nobody's.
    """
    since_R = performance.sampled_R[: len(fresh_R)]
    since_R[:] = np.minimum(since_R + 1, SPARSE)
    since_R[~np.isnan(parts_RP[:, 0])] = 0
    told, sampling = int(np.sum(since_R == 0)), int(np.sum(fresh_R & (since_R < SPARSE)))
    known = 2 * told > sampling and not np.isnan(late.late_R).all()
    performance.unprofiled = 0 if known else performance.unprofiled + 1
    return known


def _by_kernels(performance: Performance, group_R: Ints) -> Floats:
    """How much slower each rank's kernels are than its peers'; shape (R,), NaN where there are too few of them.

    A report counts as one window, though many windows pass until the next: it is one look at the ranks, not several.
    """
    told, ranks = performance.kernel_scores, len(group_R)
    if told is None or len(told.robust_R) != ranks or told.number == performance.scored_windows:
        return np.full(ranks, np.nan)
    performance.scored_windows = told.number
    with np.errstate(divide="ignore"):
        slower_R: Floats = np.where(enough(group_R), 1.0 / told.robust_R - 1.0, np.nan)
    return slower_R


def _section_seconds(performance: Performance, fresh_R: Bools) -> Floats:
    """Seconds a step that each section takes, midway between its median and the mean of its slower half; (R, S).

    The section ``step`` holds the others and the waiting, so it says nothing about one rank.
    """
    ranks, table = len(fresh_R), performance.sections
    steps_R = performance.steps_R[:ranks, None]
    calls_RS, median_RS, tail_RS = (table[each][:ranks].astype(np.float64) for each in ("calls", "median", "tail"))
    each_RS = np.where(np.isnan(steps_R), 1.0, calls_RS / steps_R)
    seconds_RS: Floats = np.where(fresh_R[:, None], 0.5 * (median_RS + tail_RS) * each_RS, np.nan)
    for s, name in enumerate(table.names):
        if name == STEP_SECTION:
            seconds_RS[:, s] = np.nan
    return seconds_RS


def _step_seconds(performance: Performance, section_RS: Floats, late: Lateness) -> Floats:
    ranks, table = len(section_RS), performance.sections
    if STEP_SECTION in table.names:
        step_R: Floats = table["mean"][:ranks, table.names.index(STEP_SECTION)].astype(np.float64)
        return np.fmax(step_R, late.step_R)  # what is done between two steps is in the profiled one only
    total_R: Floats = np.nansum(section_RS, axis=1)
    return np.where(np.isnan(late.step_R), np.where(total_R > 0, total_R, np.nan), late.step_R)


def enough(group_R: Ints) -> Bools:
    """Whose group has enough ranks for the middle of it to mean something; shape (R,)."""
    if not len(group_R) or group_R.max() < 0:
        return np.zeros(len(group_R), dtype=np.bool_)
    sizes = np.bincount(group_R[group_R >= 0], minlength=int(group_R.max()) + 1)
    return (group_R >= 0) & (sizes[group_R] >= MIN_SECTION_PEERS)
