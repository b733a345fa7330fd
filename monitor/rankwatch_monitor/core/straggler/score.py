"""Scores of kernels and sections, by both references from the same arrays. Pure.

Shapes: R ranks, K kernels (or sections). Times are seconds, NaN where a rank lacks a kernel.

Formulas
--------
=====================  ================================================================================================
relative, individual   sum_k w_k (ref_k / med_k) / sum_k w_k with w_k = calls_k x mean_k of that rank: the formula of
                       nvidia-resiliency-ext. ``ref_k`` is the least median over the ranks, or the rank's own best one.
                       A kernel that a rank or the reference lacks is skipped; no common kernel gives NaN.
robust                 the same sum with the median over the rank's peers as reference; once with medians, once with the
                       mean of the slower half of the calls, and the lower of the two counts
=====================  ================================================================================================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.straggler import peers


class Rates(NamedTuple):
    """Kernels of some ranks, ready to be compared with any reference; shape (R, K)."""

    weight_RK: Floats
    """Seconds spent in each kernel; 0 where a rank lacks it."""
    rate_RK: Floats
    """The same divided by the rank's own time of one call; 0 where a rank lacks it."""


def rates(own_RK: Floats, weight_RK: Floats) -> Rates:
    """Make ready: ``own_RK`` are seconds of one call, NaN (or a weight of NaN or 0) where a rank lacks a kernel."""
    usable_RK = (own_RK > 0) & (weight_RK > 0)
    rate_RK: Floats = np.zeros_like(own_RK)
    np.divide(weight_RK, own_RK, out=rate_RK, where=usable_RK)
    return Rates(np.where(usable_RK, weight_RK, np.zeros(1, dtype=weight_RK.dtype)), rate_RK)


def against(reference: Floats, of: Rates) -> Floats:
    """The weighted mean of ``reference / own`` of each rank; shape (R,), NaN where they have no kernel in common.

    ``reference`` is seconds of one call, of shape (K,) or (R, K), NaN where it knows a kernel not.
    """
    known = reference > 0
    usual = np.where(known, reference, 0).astype(of.rate_RK.dtype, copy=False)
    if reference.ndim == 1:
        total_R, sum_R = of.weight_RK @ known.astype(of.weight_RK.dtype), of.rate_RK @ usual
    else:
        total_R = np.einsum("rk,rk->r", of.weight_RK, known)
        sum_R = np.einsum("rk,rk->r", of.rate_RK, usual)
    score_R: Floats = np.full(len(total_R), np.nan)
    np.divide(sum_R, total_R, out=score_R, where=total_R > 0)
    return score_R


def relative(median_RK: Floats, weight_RK: Floats) -> Floats:
    """Each rank against the fastest one, kernel by kernel; shape (R,), 1 is best."""
    return against(fastest(median_RK), rates(median_RK, weight_RK))


def individual(best_RK: Floats, median_RK: Floats, weight_RK: Floats) -> Floats:
    """Each rank against its own best medians ``best_RK``, the present ones included; shape (R,)."""
    return against(np.fmin(best_RK, median_RK), rates(median_RK, weight_RK))


def robust(median_RK: Floats, tail_RK: Floats, weight_RK: Floats, group_R: Ints) -> Floats:
    """Each rank against the middle of its peers, the slower half of its calls included; shape (R,), 1 is usual."""
    usual_R = against(peers.references(median_RK, group_R), rates(median_RK, weight_RK))
    return np.fmin(usual_R, against(peers.references(tail_RK, group_R), rates(tail_RK, weight_RK)))


def fastest(median_RK: Floats) -> Floats:
    """The least median of each kernel over the ranks; shape (K,)."""
    if not len(median_RK):
        return np.full(median_RK.shape[1], np.nan)
    least_K: Floats = np.fmin.reduce(median_RK, axis=0)
    return least_K


def each(reference: Floats, own_RK: Floats) -> Floats:
    """``reference / own`` one by one, for sections; shape (R, K)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio_RK: Floats = reference / own_RK
    return np.where(np.isfinite(ratio_RK), ratio_RK, np.nan)


def each_robust(median_RK: Floats, tail_RK: Floats, group_R: Ints, enough_R: Bools) -> Floats:
    """Sections one by one against the middle of the peers; shape (R, K).

    ``enough_R`` says whose group is large enough: of two ranks, the one that waits in a section looks as slow as the
    one that is waited for.
    """
    usual_RK = each(peers.references(median_RK, group_R), median_RK)
    slower_RK = each(peers.references(tail_RK, group_R), tail_RK)
    return np.where(enough_R[:, None], np.fmin(usual_RK, slower_RK), np.nan)
