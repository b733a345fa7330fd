"""All kernel scores of a job at once, from arrays alone: may run on any thread.

The formulas are those of ``score``; here they share what they have in common, a block of ranks at a time, so that
100,000 ranks with 100 kernels take about as long as reading their arrays a few times.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from rankwatch_monitor.core.effects import Score
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.straggler import peers, score

BLOCK: Final = 1024
"""Ranks that are scored in one go: what is made on the way stays in the processor's cache."""


class KernelScores(NamedTuple):
    """Scores of each rank, shape (R,); NaN: nothing to compare."""

    number: int
    relative_R: Floats
    individual_R: Floats
    robust_R: Floats


def scored(asked: Score) -> KernelScores:
    """Compute what was asked for; what the policy has switched off is NaN."""
    ranks = len(asked.median_RK)
    relative_R, individual_R, robust_R = (np.full(ranks, np.nan) for _ in range(3))
    fastest_K = score.fastest(asked.median_RK)
    median_GK = peers.group_medians(asked.median_RK, asked.group_R)
    tail_GK = peers.group_medians(asked.tail_RK, asked.group_R)
    one_group = ranks > 0 and asked.group_R.min() == asked.group_R.max()
    for first in range(0, ranks, BLOCK):
        rows = slice(first, first + BLOCK)
        median_RK, spent_RK = asked.median_RK[rows], asked.spent_RK[rows]
        group_R = asked.group_R[first] if one_group else asked.group_R[rows]
        usual = score.rates(median_RK, spent_RK)
        slower = score.rates(asked.tail_RK[rows], spent_RK)
        if asked.relative:
            relative_R[rows] = score.against(fastest_K, usual)
        if asked.individual:
            individual_R[rows] = score.against(np.fmin(asked.best_RK[rows], median_RK), usual)
        robust_R[rows] = np.fmin(
            score.against(median_GK[group_R], usual),
            score.against(tail_GK[group_R], slower),
        )
    return KernelScores(asked.number, relative_R, individual_R, robust_R)
