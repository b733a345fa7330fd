"""Performance scores of kernels and sections, against two references. Pure: arrays in, arrays out, on any thread.

Formulas
--------
With ``med_rk`` the median seconds of one call of kernel k on rank r, and ``w_rk = calls_rk x mean_rk`` the seconds
that the rank spends in it:

============  ==========================================  =============================================================
score         formula                                     reference of kernel k
============  ==========================================  =============================================================
relative      sum_k w_rk (ref_k / med_rk) / sum_k w_rk    the least median over all ranks
individual    the same                                    the least median the rank's own device ever had
robust        the same, once with medians and once with   the median over the rank's peer group (see ``peers``)
              the mean of the slower half of the calls;
              the lower one counts
============  ==========================================  =============================================================

Relative and individual are the formulas of nvidia-resiliency-ext (``straggler.reporting``); the policy calls them the
*fastest* reference. One lucky rank makes all others slow by them, which the robust score avoids. As there, what one
rank lacks has no fastest rank, and is left out of the relative scores of all; a rank without kernels leaves none. The
robust score skips a kernel that the rank or its group lacks. Without a common kernel a score is NaN. Sections are
scored one by one, without weights.

A score of 1 is as fast as the reference, 0.5 half as fast. NaN: nothing to compare; NaN is never flagged.

Shapes: R ranks, K kernels, S sections, G peer groups. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.semconv import UNEQUAL_SECTIONS
from rankwatch_monitor.core.ranks import Bools, Floats, Ints
from rankwatch_monitor.core.straggler import peers

BLOCK: Final = 1024
"""Ranks scored at once: the intermediate arrays stay in the processor's cache, so that 100,000 ranks with 100 kernels
take about as long as reading their arrays a few times."""


@dataclass(slots=True)
class Scores:
    """Scores of all ranks as of one window, by both references. All of them are computed from the same arrays."""

    at: float
    """Unix seconds."""
    gpu_relative_R: Floats
    """Kernels against the fastest rank."""
    gpu_individual_R: Floats
    """Kernels against the device's own best."""
    gpu_robust_R: Floats
    """Kernels against the median of the rank's peers."""
    sections: tuple[str, ...]
    section_relative_RS: Floats
    section_individual_RS: Floats
    section_robust_RS: Floats
    lateness_R: Floats
    """Seconds of each step for which the peers wait for this rank; negative: it waits for them."""
    step_R: Floats
    """Seconds of a step, as measured on this rank."""
    seconds: float = 0.0
    """Seconds the evaluation took."""
    gpu_at: float | None = None
    """Unix seconds when the kernels were reported that the GPU scores compare; None: there are none."""

    @classmethod
    def empty(cls, ranks: int, at: float, sections: tuple[str, ...] = ()) -> Scores:
        """Scores in which everything is NaN."""
        unknown_R, unknown_RS = np.full(ranks, np.nan), np.full((ranks, len(sections)), np.nan)
        return cls(
            at=at,
            gpu_relative_R=unknown_R,
            gpu_individual_R=unknown_R,
            gpu_robust_R=unknown_R,
            sections=sections,
            section_relative_RS=unknown_RS,
            section_individual_RS=unknown_RS,
            section_robust_RS=unknown_RS,
            lateness_R=unknown_R,
            step_R=unknown_R,
        )

    @property
    def judged(self) -> dict[str, int]:
        """Sections, with their columns, in which a low score makes a straggler."""
        return {name: s for s, name in enumerate(self.sections) if name not in UNEQUAL_SECTIONS}

    def lateness_share(self) -> Floats:
        """Lateness as a fraction of the step; shape (R,)."""
        return self.lateness_R / self.step_R

    def contradicted(self, slowdown: float) -> Bools:
        """Ranks that are not late by ``slowdown`` of a step, while another one is; shape (R,).

        A low score of such a rank is a slow sample, not a slow rank: the others do not wait for it.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            share_R = self.lateness_share()
            if not (share_R >= slowdown).any():
                return np.zeros(len(share_R), dtype=np.bool_)
            contradicted_R: Bools = share_R < slowdown
        return contradicted_R

    def set_kernels(self, kernels: KernelScores) -> None:
        """Fill in the kernel scores, unless they are of another number of ranks."""
        if len(kernels.relative_R) == len(self.gpu_relative_R):
            self.gpu_at = kernels.at
            self.gpu_relative_R = kernels.relative_R
            self.gpu_individual_R = kernels.individual_R
            self.gpu_robust_R = kernels.robust_R


# Kernels --------------------------------------------------------------------------------------------------------------


class KernelScoreRequest(NamedTuple):
    """Input of :func:`kernel_scores`, an effect of the core. The result goes to ``Performance.take_kernel_scores``."""

    number: int
    """Of the request, so that a late result replaces nothing newer."""
    at: float
    """Unix seconds of the newest reports."""
    names: tuple[str, ...]
    """Of the kernels."""
    median_RK: Floats
    tail_RK: Floats
    """Mean of the slower half of the calls."""
    spent_RK: Floats
    """Seconds spent in each kernel: the weights."""
    best_RK: Floats
    """Best earlier medians of each rank's device."""
    group_R: Ints
    relative: bool
    individual: bool
    """Whether these scores are wanted; otherwise they are NaN."""
    everyone: bool = True
    """All ranks are profiled; otherwise those without kernels are left out of the comparison."""


class KernelFigures(NamedTuple):
    """Each kernel over all ranks, by what they last reported; NaN where no rank did. Seconds of one call."""

    names: tuple[str, ...]
    ranks_K: Ints
    """Ranks that reported it."""
    median_K: Floats
    """Median over the ranks of their medians; of many ranks, of a sample (``peers.group_medians``)."""
    tail_K: Floats
    fastest_K: Floats
    slowest_K: Floats
    """Least and largest median of a rank."""
    slowest_rank_K: Ints
    spent_K: Floats
    """Seconds spent in it by all ranks together."""


class KernelScores(NamedTuple):
    """Kernel scores of all ranks."""

    number: int
    """Of the request."""
    at: float
    """Unix seconds of the request."""
    relative_R: Floats
    individual_R: Floats
    robust_R: Floats
    kernels: KernelFigures


def kernel_scores(request: KernelScoreRequest) -> KernelScores:
    """Compute the kernel scores of all ranks, a block of ranks at a time."""
    ranks = len(request.median_RK)
    relative_R, individual_R, robust_R = (np.full(ranks, np.nan) for _ in range(3))
    profiled_R = ... if request.everyone else ~np.isnan(request.median_RK).all(axis=1)
    fastest_K = _fastest(request.median_RK[profiled_R])
    median_GK = peers.group_medians(request.median_RK, request.group_R)
    tail_GK = peers.group_medians(request.tail_RK, request.group_R)
    one_group = ranks > 0 and request.group_R.min() == request.group_R.max()
    for first in range(0, ranks, BLOCK):
        rows = slice(first, first + BLOCK)
        median_RK, spent_RK = request.median_RK[rows], request.spent_RK[rows]
        group_R = request.group_R[first] if one_group else request.group_R[rows]
        usual = _rates(median_RK, spent_RK)
        slower = _rates(request.tail_RK[rows], spent_RK)
        if request.relative:
            relative_R[rows] = _weighted_mean(fastest_K, usual)
        if request.individual:
            individual_R[rows] = _weighted_mean(np.fmin(request.best_RK[rows], median_RK), usual)
        robust_R[rows] = np.fmin(
            _weighted_mean(median_GK[group_R], usual),
            _weighted_mean(tail_GK[group_R], slower),
        )
    return KernelScores(request.number, request.at, relative_R, individual_R, robust_R, _figures(request))


def _figures(request: KernelScoreRequest) -> KernelFigures:
    median_RK = request.median_RK
    ranks, kernels = median_RK.shape
    if not ranks:
        unknown_K, none_K = np.full(kernels, np.nan), np.zeros(kernels, dtype=np.int64)
        return KernelFigures(request.names, none_K, unknown_K, unknown_K, unknown_K, unknown_K, none_K, unknown_K)
    everyone_R = np.zeros(ranks, dtype=np.int64)
    known_RK = ~np.isnan(median_RK)
    slowest_rank_K = np.where(known_RK, median_RK, -1.0).argmax(axis=0)
    return KernelFigures(
        names=request.names,
        ranks_K=known_RK.sum(axis=0),
        median_K=peers.group_medians(median_RK, everyone_R)[0],
        tail_K=peers.group_medians(request.tail_RK, everyone_R)[0],
        fastest_K=np.fmin.reduce(median_RK, axis=0),
        slowest_K=median_RK[slowest_rank_K, np.arange(kernels)],
        slowest_rank_K=slowest_rank_K,
        spent_K=np.nansum(request.spent_RK, axis=0, dtype=np.float64),
    )


class _Rates(NamedTuple):
    """Kernels of some ranks, ready to be compared with any reference; 0 where a rank lacks a kernel."""

    weight_RK: Floats
    rate_RK: Floats
    """``weight / med``."""


def _rates(own_RK: Floats, weight_RK: Floats) -> _Rates:
    """Prepare seconds of one call; NaN, or a weight of NaN or 0, where a rank lacks a kernel."""
    usable_RK = (own_RK > 0) & (weight_RK > 0)
    rate_RK: Floats = np.zeros_like(own_RK)
    np.divide(weight_RK, own_RK, out=rate_RK, where=usable_RK)
    return _Rates(np.where(usable_RK, weight_RK, np.zeros(1, dtype=weight_RK.dtype)), rate_RK)


def _weighted_mean(reference: Floats, own: _Rates) -> Floats:
    """The weighted mean of ``reference / own``; shape (R,). ``reference`` has shape (K,) or (R, K), NaN: unknown."""
    known = reference > 0
    usual = np.where(known, reference, 0).astype(own.rate_RK.dtype, copy=False)
    if reference.ndim == 1:
        total_R, sum_R = own.weight_RK @ known.astype(own.weight_RK.dtype), own.rate_RK @ usual
    else:
        total_R = np.einsum("rk,rk->r", own.weight_RK, known)
        sum_R = np.einsum("rk,rk->r", own.rate_RK, usual)
    score_R: Floats = np.full(len(total_R), np.nan)
    np.divide(sum_R, total_R, out=score_R, where=total_R > 0)
    return score_R


def _fastest(median_RK: Floats) -> Floats:
    """The least median of each kernel or section over the ranks, NaN where one lacks it; shape (K,)."""
    if not len(median_RK):
        return np.full(median_RK.shape[1], np.nan)
    least_K: Floats = np.minimum.reduce(median_RK, axis=0)
    return least_K


# Sections -------------------------------------------------------------------------------------------------------------


def relative_sections(median_RS: Floats) -> Floats:
    """Each section against the fastest rank; shape (R, S)."""
    return _ratio(_fastest(median_RS), median_RS)


def individual_sections(best_RS: Floats, median_RS: Floats) -> Floats:
    """Each section against the device's own best, the present median included; shape (R, S)."""
    return _ratio(np.fmin(best_RS, median_RS), median_RS)


def robust_sections(median_RS: Floats, tail_RS: Floats, group_R: Ints) -> Floats:
    """Each section against the median of the peers; shape (R, S), NaN for ranks of small groups.

    Of two ranks, the one that waits in a section looks as slow as the one that is waited for.
    """
    usual_RS = _ratio(peers.references(median_RS, group_R), median_RS)
    slower_RS = _ratio(peers.references(tail_RS, group_R), tail_RS)
    return np.where(peers.in_large_group(group_R)[:, None], np.fmin(usual_RS, slower_RS), np.nan)


def _ratio(reference: Floats, own_RS: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio_RS: Floats = reference / own_RS
    ratio_RS[~np.isfinite(ratio_RS)] = np.nan
    return ratio_RS
