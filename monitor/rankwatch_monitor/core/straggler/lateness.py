"""Who makes the others wait, by how much, and with what. Pure.

Shapes: R ranks, P parts (:data:`PARTS`), T windows. Times are seconds of one step.

In a synchronous step all ranks take equally long; they differ in how much of it they wait. A rank's *own work* is its
step without its communication, so

    lateness = min(median of the peers' communication - own communication, own work - median of the peers' own work)

Both are the same where everything is measured well. A rank that only looks busy while nobody waits more than it does,
and one that waits little because it has little to exchange, are late by neither.
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
"""The parts of a rank's own work."""
CAUSES: Final = (Cause.DATA, Cause.HOST, Cause.COMPUTE)
EXPLAINS: Final = 0.5
"""A cause is named only when it explains more than this part of the excess."""
MAD_TO_SIGMA: Final = 1.4826
"""Of a normal distribution: its standard deviation by its median absolute deviation."""

USUAL_80: Final = 1.2816
"""Of a normal distribution: four fifths of it are within so many standard deviations."""


class Lateness(NamedTuple):
    """One window; NaN where nothing is known."""

    late_R: Floats
    """Seconds of the step for which the peers wait for this rank; negative: it waits for them."""
    step_R: Floats
    work_R: Floats
    excess_RP: Floats
    """Seconds of each part of the rank's own work beyond the median of its peers; shape (R, 3)."""


def lateness(parts_RP: Floats, group_R: Ints) -> Lateness:
    """Compare the ranks of one step; ``group_R`` numbers their peer groups."""
    communication_R = parts_RP[:, COMMUNICATION]
    work_R = parts_RP[:, OWN].sum(axis=1)
    told_RX = np.column_stack([communication_R, work_R, parts_RP[:, OWN]])
    others_RX = median_of_others(told_RX, group_R)
    waited_R, excess_R = others_RX[:, 0] - communication_R, work_R - others_RX[:, 1]
    excess_RP = told_RX[:, 2:] - others_RX[:, 2:]
    return Lateness(np.minimum(waited_R, excess_R), work_R + communication_R, work_R, excess_RP)


def noise(share_TR: Floats) -> float:
    """The job's own noise as a part of a step (one standard deviation), from the lateness of its last windows.

    Taken from the differences between successive windows of the same rank, in which neither a rank that is late for
    good nor one that becomes so shows as noise. Heavy tails count: the 80th percentile is looked at besides the median
    (:data:`USUAL_80`). With two windows or fewer nothing is known of that, and the spread over at least eight ranks
    of the newest one is all there is; else NaN.
    """
    windows, ranks = share_TR.shape
    if windows >= 3:
        deviation_TR = np.diff(share_TR, axis=0) / np.sqrt(2.0)
    elif windows and ranks >= 8 and not np.isnan(share_TR[-1]).all():
        deviation_TR = share_TR[-1:] - np.nanmedian(share_TR[-1])
    else:
        return float("nan")
    known = np.abs(deviation_TR[~np.isnan(deviation_TR)])
    if not len(known):
        return float("nan")
    usual, rare = np.quantile(known, (0.5, 0.8))
    return max(MAD_TO_SIGMA * float(usual), float(rare) / USUAL_80)


def spread(share_TR: Floats) -> float:
    """How much the ranks differ for good, as a part of a step (one standard deviation): 0 where there are too few."""
    if share_TR.shape[1] < 8 or not len(share_TR):
        return 0.0
    typical_R = column_medians(share_TR)
    known_R = typical_R[~np.isnan(typical_R)]
    if len(known_R) < 8:
        return 0.0
    return MAD_TO_SIGMA * float(np.median(np.abs(known_R - np.median(known_R))))


def blips(share_TR: Floats, chance: float) -> float:
    """What the ranks reach by chance in a window with this probability, as it was seen; -infinity: nothing is known.

    A normal distribution says nothing of pauses (garbage collection, a file system) that hit any rank now and then.
    Of each rank only the largest value counts, so that no single one sets the measure, and more ranks than chance may
    bring are asked for: two standard deviations above their expected number, at least three.
    """
    known_TR = share_TR[:, ~np.isnan(share_TR).all(axis=0)]
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
    """How often a healthy rank may pass for slow in one window, for that many false alarms of the job a day.

    A false alarm takes ``needed`` of ``of`` windows of one rank: about C(of, needed) p**needed for windows that are
    independent, each passed with probability p.
    """
    chances = max(1.0, ranks * windows_a_day * comb(of, needed))
    return float(min(0.02, (alarms_a_day / chances) ** (1.0 / needed)))


def needed_sigmas(chance: float) -> float:
    """How many standard deviations out normal noise stands with this probability; at least two."""
    return max(2.0, NormalDist().inv_cdf(1.0 - chance))


def cause_of(excess_P: Floats, late: float) -> Cause:
    """What makes a rank late: the part whose excess explains more than half of it, else unexplained."""
    if np.isnan(excess_P).any() or not late > 0:
        return Cause.UNEXPLAINED
    most = int(np.argmax(excess_P))
    return CAUSES[most] if excess_P[most] > EXPLAINS * late else Cause.UNEXPLAINED
