"""Compares step times before and after a moment: by how much they differ, and what the windows allow to state. Pure.

:func:`compare` takes two pieces of a series and gives the ratio of their medians with its interval of 95 %. A statement
needs its evidence (:class:`Evidence`): *changed* where the interval excludes that nothing did, *same* only where a
change of :data:`~.change_points.LEAST` would have been seen, else *unsure*.

:func:`recent` chooses the pieces: the largest lasting change that ``change_points`` is certain of, else a line, else
the moment at which a rank became slow, else the moment at which a change would be likeliest. ``why``, charts, status
and page state this one comparison.

Shapes: T samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

import numpy as np

from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.regression import change_points
from rankwatch_monitor.core.regression.change_points import LEAST, QUIET, SIDE, Change
from rankwatch_monitor.core.regression.sample import Sample

HOUR: Final = 3600.0
"""Seconds that are searched."""
EPISODE: Final = 180.0
"""An episode of fewer seconds counts only when there is nothing else."""
SLOWER_FIRST: Final = 1.1
"""Factor by which changes to longer steps are preferred."""
LIKELY: Final = 4.0
"""Standard errors between the sides of the likeliest of many moments: noise alone stays below."""
FEW: Final = 9
"""Up to so many windows nothing is certain, so the likeliest moment is stated from :data:`POSSIBLE` on."""
POSSIBLE: Final = 2.0
POWER: Final = 1.65
"""Standard errors beyond the threshold at which a change is seen in 95 % of cases."""
_ROBUST: Final = 12
"""Samples from which on the noise is the median deviation; fewer are too few for that."""
_QUANTILE: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t of 95 %, two-sided, for 1, 2, ... degrees of freedom."""


class Evidence(StrEnum):
    """What the windows of both sides allow to state."""

    CHANGED = "changed"
    DRIFT = "drift"
    """It changes along a line."""
    SAME = "same"
    """A change of :data:`~.change_points.LEAST` would have been seen, and there is none."""
    UNSEEN = "unseen"
    """No change is visible, and only a larger one would be: see :attr:`Comparison.visible`."""
    UNSURE = "unsure"
    """The sides differ, but windows are too few, or vary too much."""


class Comparison(NamedTuple):
    """Step times on both sides of a moment."""

    evidence: Evidence
    first: int
    at: int
    end: int
    """Positions: where the side before begins, the first window after, and one after the last."""
    before: float
    after: float
    """Median seconds of a step."""
    low: float
    high: float
    """The interval of the factor that holds it with 95 %."""
    visible: float
    """The least change, as a fraction, that would have been seen in 95 % of cases."""

    @property
    def factor(self) -> float:
        """How many times as long a step takes."""
        return self.after / self.before

    @property
    def windows(self) -> tuple[int, int]:
        """Of both sides."""
        return self.at - self.first, self.end - self.at


def compare(step_T: Floats, first: int, at: int, end: int) -> Comparison:
    """Compare the windows from ``first`` with those from ``at``; both sides have one at least."""
    left_T, right_T = np.log(step_T[first:at]), np.log(step_T[at:end])
    left, right = float(np.median(left_T)), float(np.median(right_T))
    shift, error, degrees = right - left, _error(left_T - left, right_T - right), len(left_T) + len(right_T) - 2
    width = error * (_QUANTILE[degrees - 1] if 1 <= degrees <= len(_QUANTILE) else 1.96 + 2.4 / max(1, degrees))
    differs = abs(shift) > width and abs(shift) >= np.log1p(LEAST)
    enough = min(len(left_T), len(right_T)) >= SIDE
    if differs and enough:
        evidence = Evidence.CHANGED
    elif enough and abs(shift) + width < np.log1p(LEAST):
        evidence = Evidence.SAME
    else:
        evidence = Evidence.UNSURE if abs(shift) >= np.log1p(LEAST) else Evidence.UNSEEN
    edges = (float(np.exp(shift - width)), float(np.exp(shift + width)))
    visible = float(np.expm1(width + POWER * error))
    return Comparison(evidence, first, at, end, float(np.exp(left)), float(np.exp(right)), *edges, visible)


def recent(samples: Sequence[Sample], slow_since: Sequence[float] = ()) -> Comparison | None:
    """What is to be stated of the step times of these samples; None: there are too few.

    ``slow_since``: unix seconds at which ranks became slow.
    """
    step_T = steps(samples)
    if change := largest(samples, change_points.changes(step_T)):
        found = compare(step_T, change.first, change.at, change.end)
        return found._replace(evidence=Evidence.CHANGED)
    if change_points.has_drift(step_T):
        sixth = max(SIDE, len(samples) // 6)
        ends = compare(np.concatenate([step_T[:sixth], step_T[-sixth:]]), 0, sixth, 2 * sixth)
        return ends._replace(evidence=Evidence.DRIFT, at=len(samples) - sixth, end=len(samples))
    for since in sorted(slow_since):
        at = sum(began(samples, i) < since - 1.0 for i in range(len(samples)))
        if 0 < at < len(samples):
            found = compare(step_T, 0, at, len(samples))
            if found.evidence is Evidence.CHANGED:
                return found
    return _likeliest(step_T)


def _likeliest(step_T: Floats) -> Comparison | None:
    """The moment at which a change is likeliest, where it is likely; else the sides of the middle; None: too short."""
    log_T, length = np.log(step_T), len(step_T)
    if length <= SIDE:
        return None
    residual_T = log_T - np.median(log_T)
    half = length // 2
    error = _error(residual_T[:half], residual_T[half:])
    visible = float(np.expm1((LIKELY + POWER) * error))
    least, best = inf, None
    for at in range(1, length - SIDE + 1):
        left, right = float(np.median(log_T[:at])), float(np.median(log_T[at:]))
        # A first window or two that took longer are the warm-up.
        if abs(right - left) < np.log1p(LEAST) or (at < SIDE and right < left):
            continue
        middle, higher = (left + right) / 2, right > left
        own = [((log_T[at:] > middle) == higher).sum(), ((log_T[:at] < middle) == higher).sum()]
        if own[0] < SIDE or own[1] < min(SIDE, at):  # the other windows of the side are spikes
            continue
        left_T, right_T = log_T[:at] - left, log_T[at:] - right
        rest = float(np.abs(left_T).sum() + np.abs(right_T).sum())
        if rest < least and abs(right - left) >= (POSSIBLE if length <= FEW else LIKELY) * _error(left_T, right_T):
            least, best = rest, at
    if best is not None:
        return compare(step_T, 0, best, length)._replace(evidence=Evidence.UNSURE, visible=visible)
    if half < SIDE:
        return None
    found = compare(step_T, 0, half, length)
    return found._replace(evidence=Evidence.SAME if visible <= LEAST else Evidence.UNSEEN, visible=visible)


def _error(left_T: Floats, right_T: Floats) -> float:
    """The standard error of the difference of two medians, from the deviations of both sides."""
    deviation_T = np.concatenate([left_T, right_T])
    if len(deviation_T) >= _ROBUST:
        noise = 1.4826 * float(np.median(np.abs(deviation_T)))
    else:
        noise = float(np.sqrt(np.sum(deviation_T**2) / max(1, len(deviation_T) - 2)))
    # 1.25 is the standard error of a median against that of a mean; 1.15 of a few samples.
    median = 1.25 if min(len(left_T), len(right_T)) >= _ROBUST else 1.15
    return float(median * max(noise, QUIET) * np.sqrt(1 / len(left_T) + 1 / len(right_T)))


def steps(samples: Sequence[Sample]) -> Floats:
    """Seconds of a step in each sample."""
    return np.array([sample.step for sample in samples], dtype=np.float64)


def largest(samples: Sequence[Sample], found: Sequence[Change]) -> Change | None:
    """The change that is meant where none was asked for."""

    def size(change: Change) -> tuple[bool, float]:
        before = began(samples, change.at) - began(samples, change.first)
        after = samples[change.end - 1].at - began(samples, change.at)
        # A level at the edge of the samples may have lasted, or may last, longer than they show.
        lasting = (before >= EPISODE or change.first == 0) and (after >= EPISODE or change.end == len(samples))
        return lasting, abs(float(np.log(change.factor))) * (SLOWER_FIRST if change.factor > 1 else 1.0)

    return max(found, key=size, default=None)


def began(samples: Sequence[Sample], at: int) -> float:
    """When a sample's time began: at the end of the one before, unless there is a gap."""
    begin = samples[at].at - samples[at].seconds
    return max(begin, samples[at - 1].at) if at else begin
