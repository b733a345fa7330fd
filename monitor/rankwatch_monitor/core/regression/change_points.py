"""Change points: moments at which a series changed its level and stayed there, as opposed to spikes, noise and drift.

Works on the logarithm of the series, so that a change is a factor. A running median of five removes spikes of one or
two samples and keeps edges in place. The result is cut into the pieces with the least sum of squares about their means,
with a penalty for each cut, over all ways to cut (optimal partitioning: Jackson et al., IEEE Signal Processing Letters
12, 2005). Each cut is then tested on the raw series: the difference of the two medians against the noise of both sides,
a change of at least :data:`LEAST`, at least :data:`SIDE` samples on each side that are nearer to their own level than
to the other one, and a better fit than a straight line. The weakest cut that fails is removed, and its neighbours are
tested again.

Shapes: T samples.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from rankwatch_monitor.core.ranks import Bools, Floats

SIDE: Final = 3
"""Samples a level must last."""
LEAST: Final = 0.05
"""The smallest change that matters, as a fraction of the level."""
CERTAIN: Final = 6.0
"""Standard errors between two medians: over 400 possible splits, noise alone stays below 4."""
PENALTY: Final = 40.0
"""By how much a cut must lower the sum of squares, in variances of the noise: met by a shift that :data:`SIDE` samples
make certain, and by a smaller one of many samples; rarely by noise alone."""
OWN_LEVEL: Final = 0.7
"""Fraction of the samples of a side that must be nearer to its level than to the other one."""
QUIET: Final = 0.002
"""Least assumed noise, as a fraction of the level: durations have four digits."""
DRIFT_POINTS: Final = 120
"""Points a line is fitted through at most: all pairs of them are used."""


class Change(NamedTuple):
    """A change of level: positions of the pieces on both sides, and their medians."""

    first: int
    """Where the piece before begins."""
    at: int
    """The first sample after."""
    end: int
    """One after the piece after."""
    before: float
    after: float

    @property
    def factor(self) -> float:
        """The level after divided by the one before."""
        return self.after / self.before


def changes(series_T: Floats) -> list[Change]:
    """All lasting changes of level, the earliest first. The series must be positive."""
    if len(series_T) < 2 * SIDE:
        return []
    log_T = np.log(series_T)
    step_T = np.abs(np.diff(log_T))
    noise = max(1.4826 * float(np.median(step_T)) / np.sqrt(2), QUIET)
    cuts = _cuts(_smooth(log_T), PENALTY * noise**2)
    while True:
        edges = [0, *cuts, len(log_T)]
        tested = [(edges[i], edges[i + 1], edges[i + 2]) for i in range(len(cuts))]
        failed = [
            (_shift(log_T[first:end], at - first), at) for first, at, end in tested if not _holds(log_T, first, at, end)
        ]
        if not failed:
            break
        cuts.remove(min(failed)[1])
    return [
        Change(first, at, end, float(np.exp(np.median(log_T[first:at]))), float(np.exp(np.median(log_T[at:end]))))
        for first, at, end in tested
    ]


def has_drift(series_T: Floats) -> bool:
    """Whether a series without changes of level rises or falls along a line; False when it is too short to decide."""
    if len(series_T) < 8 * SIDE:
        return False
    log_T = np.log(series_T)
    line_T = _line(log_T)
    level = float(np.median(log_T))
    risen = abs(line_T[-1] - line_T[0]) >= np.log1p(LEAST)
    return bool(risen and _cost(log_T - line_T) <= 0.8 * _cost(log_T - level))


def _cuts(smooth_T: Floats, penalty: float) -> list[int]:
    """Where the pieces with the least sum of squares and penalties begin, without the first one."""
    total_T = np.concatenate([[0.0], np.cumsum(smooth_T)])
    square_T = np.concatenate([[0.0], np.cumsum(smooth_T**2)])
    # The best of all ways to cut what comes before each position.
    least_T = np.full(len(smooth_T) + 1, np.inf)
    least_T[0] = -penalty
    came_from_T = np.zeros(len(smooth_T) + 1, dtype=np.int64)
    for end in range(SIDE, len(smooth_T) + 1):
        begin_T = np.arange(end - SIDE + 1)
        squares_T = square_T[end] - square_T[begin_T] - (total_T[end] - total_T[begin_T]) ** 2 / (end - begin_T)
        sum_T = least_T[begin_T] + squares_T + penalty
        came_from_T[end] = np.argmin(sum_T)
        least_T[end] = sum_T[came_from_T[end]]
    cuts: list[int] = []
    at = int(came_from_T[-1])
    while at > 0:
        cuts.append(at)
        at = int(came_from_T[at])
    return cuts[::-1]


def _holds(log_T: Floats, first: int, at: int, end: int) -> bool:
    """Whether a cut between two pieces is significant, and no line fits both of them better."""
    left_T, right_T, both_T = log_T[first:at], log_T[at:end], log_T[first:end]
    if not _shifted(both_T, at - first):
        return False
    levels = _cost(left_T - np.median(left_T)) + _cost(right_T - np.median(right_T))
    return levels <= _cost(both_T - _line(both_T))


def _shift(log_T: Floats, at: int) -> float:
    return abs(float(np.median(log_T[at:]) - np.median(log_T[:at])))


def _shifted(log_T: Floats, at: int) -> bool:
    left_T, right_T = log_T[:at], log_T[at:]
    if min(len(left_T), len(right_T)) < SIDE:
        return False
    left, right = float(np.median(left_T)), float(np.median(right_T))
    shift = abs(right - left)
    if shift < np.log1p(LEAST):
        return False
    residual_T = np.abs(np.concatenate([left_T - left, right_T - right]))
    noise = max(1.4826 * float(np.median(residual_T)), QUIET)
    # 1.25 is the standard error of a median against that of a mean.
    error = 1.25 * noise * np.sqrt(1 / len(left_T) + 1 / len(right_T))
    middle = (left + right) / 2
    higher = right > left
    return shift >= CERTAIN * error and _own((right_T > middle) == higher) and _own((left_T < middle) == higher)


def _own(nearer_T: Bools) -> bool:
    return bool(nearer_T.sum() >= max(SIDE, OWN_LEVEL * len(nearer_T)))


def _smooth(log_T: Floats) -> Floats:
    """A running median of five; at the ends of fewer."""
    padded_T = np.pad(log_T, 2, constant_values=np.nan)
    smooth_T: Floats = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded_T, 5), axis=1)
    return smooth_T


def _line(log_T: Floats) -> Floats:
    """The Theil-Sen line: the median of the slopes of all pairs, robust against outliers."""
    position_T = np.arange(len(log_T), dtype=np.float64)
    chosen = np.unique(np.linspace(0, len(log_T) - 1, DRIFT_POINTS).round().astype(int))
    x, y = position_T[chosen], log_T[chosen]
    low, high = np.triu_indices(len(chosen), 1)
    slope = float(np.median((y[high] - y[low]) / (x[high] - x[low])))
    line_T: Floats = slope * position_T + np.median(log_T - slope * position_T)
    return line_T


def _cost(residual_T: Floats) -> float:
    return float(np.abs(residual_T).sum())
