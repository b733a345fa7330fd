"""Lateness: for how much of a step the other ranks wait for one, and with which part of it. Pure.

In a synchronous step all ranks take equally long; they differ in how much of it they wait. A rank's *own work* is its
step without its communication, so

    lateness = min(median of the peers' communication - own communication, own work - median of the peers' own work)

Both terms are equal where everything is measured well. The minimum excludes a rank that only looks busy while no other
rank waits for it, and one that waits little because it has little to exchange.

Shapes: R ranks, P parts of a step (:data:`PARTS`), X columns, T windows. Times are seconds of one step.
"""

from __future__ import annotations

from math import comb
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import Cause, Part
from rankwatch_monitor.core.ranks import Floats, Ints
from rankwatch_monitor.core.straggler.peers import column_medians, median_of_others

PARTS: Final = tuple(Part)
DATA, HOST, COMPUTE, COMMUNICATION = range(len(PARTS))
OWN: Final = (DATA, HOST, COMPUTE)
"""Parts of a rank's own work."""
CAUSES: Final = (Cause.DATA, Cause.HOST, Cause.COMPUTE)
EXPLAINS: Final = 0.5
"""A cause is named only when it explains more than this fraction of the lateness."""
MAD_TO_SIGMA: Final = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""
MIN_DIFFERENCES: Final = 8
"""Differences between windows from which on their median means something."""
QUANTILE_80: Final = 1.2816
"""Four fifths of a normal distribution are within so many standard deviations."""


class Lateness(NamedTuple):
    """Of one window; NaN where unknown."""

    late_R: Floats
    """Seconds for which the peers wait for this rank; negative: it waits for them."""
    step_R: Floats
    work_R: Floats
    """The rank's own work."""
    excess_RP: Floats
    """Seconds of each part of the rank's own work beyond the median of its peers; shape (R, 3)."""


def lateness(parts_RP: Floats, group_R: Ints) -> Lateness:
    """Compare the ranks of one step within their peer groups ``group_R``."""
    communication_R = parts_RP[:, COMMUNICATION]
    work_R = parts_RP[:, OWN].sum(axis=1)
    measured_RX = np.column_stack([communication_R, work_R, parts_RP[:, OWN]])
    others_RX = median_of_others(measured_RX, group_R)
    waited_R, excess_R = others_RX[:, 0] - communication_R, work_R - others_RX[:, 1]
    excess_RP = measured_RX[:, 2:] - others_RX[:, 2:]
    return Lateness(np.minimum(waited_R, excess_R), work_R + communication_R, work_R, excess_RP)


def noise(signal_TR: Floats) -> float:
    """The job's own noise as a fraction of a step (one standard deviation), from the signal of its last windows.

    Measured from differences between successive windows of the same rank, in which neither a rank that is constantly
    late nor one that becomes so counts as noise. Heavy tails count: the larger of the estimates from the median and
    from the 80th percentile. With two windows or fewer it is the spread over the ranks of the newest one, from eight
    ranks on; else NaN.
    """
    windows, ranks = signal_TR.shape
    if windows >= 3:
        deviation_TR = np.diff(signal_TR, axis=0) / np.sqrt(2.0)
    elif windows and ranks >= 8 and not np.isnan(signal_TR[-1]).all():
        deviation_TR = signal_TR[-1:] - np.nanmedian(signal_TR[-1])
    else:
        return float("nan")
    known = np.abs(deviation_TR[~np.isnan(deviation_TR)])
    if not len(known):
        return float("nan")
    usual, rare = np.quantile(known, (0.5, 0.8))
    return max(MAD_TO_SIGMA * float(usual), float(rare) / QUANTILE_80)


def recent_noise(signal_TR: Floats) -> float:
    """The noise of a few windows, as a fraction of a step (one standard deviation); 0: unknown.

    From the median of the differences between successive windows: noise that has just begun counts, a rank that has
    just become slow does not.
    """
    known = np.abs(np.diff(signal_TR, axis=0)) / np.sqrt(2.0)
    known = known[~np.isnan(known)]
    return MAD_TO_SIGMA * float(np.median(known)) if len(known) >= MIN_DIFFERENCES else 0.0


def spread(signal_TR: Floats) -> float:
    """Constant differences between ranks, as a fraction of a step (one standard deviation); 0 for fewer than eight."""
    if signal_TR.shape[1] < 8 or not len(signal_TR):
        return 0.0
    typical_R = column_medians(signal_TR)
    known_R = typical_R[~np.isnan(typical_R)]
    if len(known_R) < 8:
        return 0.0
    return MAD_TO_SIGMA * float(np.median(np.abs(known_R - np.median(known_R))))


def blips(signal_TR: Floats, chance: float) -> float:
    """The signal that ranks were seen to reach in a window with probability ``chance``; -infinity: unknown.

    A normal distribution does not describe pauses (garbage collection, a file system) that hit any rank now and then.
    Only the largest value of each rank counts, so that no single one sets the limit, and more ranks than chance may
    bring must reach it: two standard deviations above their expected number, at least three.
    """
    known_TR = signal_TR[:, ~np.isnan(signal_TR).all(axis=0)]
    windows, ranks = known_TR.shape
    if not windows or not ranks:
        return -np.inf
    expected = ranks * (1.0 - (1.0 - chance) ** windows)
    place = int(np.ceil(max(3.0, expected + 2.0 * np.sqrt(expected))))
    if place > ranks:
        return -np.inf
    most_R = np.fmax.reduce(known_TR, axis=0)
    return float(np.partition(most_R, ranks - place)[ranks - place])


def needed_chance(*, ranks: int, windows_a_day: float, needed: int, of: int, alarms_a_day: float) -> float:
    """The probability with which a healthy rank may look slow in a window, for so many false alarms of the job a day.

    A false alarm takes ``needed`` of ``of`` windows of one rank: about C(of, needed) p**needed for independent
    windows, each slow with probability p.
    """
    chances = max(1.0, ranks * windows_a_day * comb(of, needed))
    return float(min(0.02, (alarms_a_day / chances) ** (1.0 / needed)))


def needed_sigmas(chance: float) -> float:
    """Standard deviations that normal noise exceeds with this probability; at least two."""
    return max(2.0, NormalDist().inv_cdf(1.0 - chance))


def cause_of(excess_P: Floats, late: float) -> Cause:
    """The part whose excess explains more than half of a rank's lateness, else unexplained."""
    if np.isnan(excess_P).any() or not late > 0:
        return Cause.UNEXPLAINED
    most = int(np.argmax(excess_P))
    return CAUSES[most] if excess_P[most] > EXPLAINS * late else Cause.UNEXPLAINED
