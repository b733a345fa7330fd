"""The formulas of the scores: by hand, against a plain loop over the documented sums, and by their properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_monitor.core.ranks import Floats, Ints
from rankwatch_monitor.core.straggler import scores
from rankwatch_monitor.core.straggler.scores import KernelScoreRequest, KernelScores, kernel_scores

NAN = np.nan


def scored(
    median_RK: Floats,
    spent_RK: Floats,
    *,
    tail_RK: Floats | None = None,
    best_RK: Floats | None = None,
    group_R: Ints | None = None,
) -> KernelScores:
    """The scores of kernels; without tails as long as the medians, without earlier bests, of one group."""
    return kernel_scores(
        KernelScoreRequest(
            number=1,
            at=0.0,
            names=tuple(f"k{k}" for k in range(median_RK.shape[1])),
            median_RK=median_RK,
            tail_RK=median_RK if tail_RK is None else tail_RK,
            spent_RK=spent_RK,
            best_RK=np.full_like(median_RK, NAN) if best_RK is None else best_RK,
            group_R=np.zeros(len(median_RK), dtype=np.int64) if group_R is None else group_R,
            relative=True,
            individual=True,
        )
    )


def by_the_formula(reference_RK: Floats, own_RK: Floats, weight_RK: Floats) -> list[float]:
    """sum_k w (ref / own) / sum_k w over the kernels that both have, in plain Python."""
    found = []
    for reference_K, own_K, weight_K in zip(reference_RK, own_RK, weight_RK, strict=True):
        common = [(r, o, w) for r, o, w in zip(reference_K, own_K, weight_K, strict=True) if r > 0 and o > 0 and w > 0]
        weight = sum(float(w) for _, _, w in common)
        found.append(sum(float(w) * float(r) / float(o) for r, o, w in common) / weight if weight else NAN)
    return found


def test_relative_by_hand() -> None:
    # Rank 1 takes twice as long for the first of two kernels, which is 2/3 of what it spends.
    median_RK = np.array([[1.0, 1.0], [2.0, 1.0]])
    spent_RK = np.array([[10.0, 10.0], [20.0, 10.0]])
    assert scored(median_RK, spent_RK).relative_R == pytest.approx([1.0, (20 * 0.5 + 10 * 1.0) / 30])


def test_a_kernel_that_one_rank_lacks_is_left_out_for_all_and_a_rank_without_kernels_leaves_none() -> None:
    """As nvidia-resiliency-ext does: its least time is unknown where a rank reports none."""
    median_RK = np.array([[1.0, NAN, NAN], [2.0, 3.0, NAN], [NAN, NAN, NAN]])
    spent_RK = np.where(np.isnan(median_RK), NAN, 10.0)
    assert scored(median_RK[:2], spent_RK[:2]).relative_R == pytest.approx([1.0, 0.5])
    assert np.isnan(scored(median_RK, spent_RK).relative_R).all()


def test_ranks_that_are_not_profiled_leave_the_others_their_scores() -> None:
    median_RK = np.array([[1.0], [2.0], [NAN]])
    ones_RK, groups_R = np.ones_like(median_RK), np.zeros(3, dtype=np.int64)
    table = (median_RK, median_RK, ones_RK, median_RK)
    found_R = kernel_scores(KernelScoreRequest(1, 0.0, ("k",), *table, groups_R, True, True, False)).relative_R
    assert found_R == pytest.approx([1.0, 0.5, NAN], nan_ok=True)


def test_individual_compares_with_the_own_best_including_the_present_median() -> None:
    best_RK = np.array([[1.0], [NAN], [4.0]])
    median_RK = np.array([[2.0], [3.0], [2.0]])
    assert scored(median_RK, np.ones((3, 1)), best_RK=best_RK).individual_R == pytest.approx([0.5, 1.0, 1.0])


def test_one_lucky_rank_lowers_the_relative_score_of_all_and_no_robust_score() -> None:
    median_RK = np.full((64, 1), 1.0)
    median_RK[7] = 0.5
    found = scored(median_RK, np.ones((64, 1)))
    assert found.relative_R[0] == pytest.approx(0.5)
    assert found.robust_R[0] == pytest.approx(1.0)


def test_the_robust_score_sees_a_slow_half_that_the_median_hides() -> None:
    median_RK, tail_RK = np.ones((16, 1)), np.full((16, 1), 1.1)
    tail_RK[3] = 2.2
    found = scored(median_RK, np.ones((16, 1)), tail_RK=tail_RK)
    assert found.relative_R[3] == pytest.approx(1.0)
    assert found.robust_R[3:5] == pytest.approx([0.5, 1.0])


times = st.lists(st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=3), min_size=2, max_size=8).map(np.array)


@given(times, times)
def test_a_relative_score_is_above_0_and_at_most_1(median_RK: Floats, spent_RK: Floats) -> None:
    spent_RK = np.resize(spent_RK, median_RK.shape)
    found_R = scored(median_RK, spent_RK).relative_R
    assert np.all((found_R > 0) & (found_R <= 1 + 1e-9))
    assert scored(1000 * median_RK, spent_RK).relative_R == pytest.approx(found_R)  # the unit does not matter


@pytest.mark.parametrize("groups", [1, 3])
def test_scores_of_many_ranks_follow_the_formulas(groups: int) -> None:
    random = np.random.default_rng(1)
    ranks = 1500  # more than one block, fewer than a sample of a group
    median_RK = random.uniform(1, 2, (ranks, 5)).astype(np.float32)
    median_RK[:, 1:][random.uniform(size=(ranks, 4)) < 0.1] = NAN
    tail_RK, spent_RK = (median_RK * 1.5).astype(np.float32), (median_RK * 100).astype(np.float32)
    best_RK = (median_RK * random.uniform(0.5, 1.5, median_RK.shape)).astype(np.float32)
    group_R = np.arange(ranks) % groups
    group_median_RK = np.empty_like(median_RK)
    for group in range(groups):
        group_median_RK[group_R == group] = np.nanmedian(median_RK[group_R == group], axis=0)
    fastest_RK = np.broadcast_to(np.min(median_RK, axis=0), median_RK.shape)

    found = scored(median_RK, spent_RK, tail_RK=tail_RK, best_RK=best_RK, group_R=group_R)
    relative = by_the_formula(fastest_RK, median_RK, spent_RK)
    individual = by_the_formula(np.fmin(best_RK, median_RK), median_RK, spent_RK)
    robust = by_the_formula(group_median_RK, median_RK, spent_RK)  # the tails are all as much longer
    assert found.relative_R == pytest.approx(relative, rel=1e-4, nan_ok=True)
    assert found.individual_R == pytest.approx(individual, rel=1e-4, nan_ok=True)
    assert found.robust_R == pytest.approx(robust, rel=1e-4, nan_ok=True)


def test_scores_that_are_not_wanted_are_nan() -> None:
    one = np.ones((2, 1), dtype=np.float32)
    found = kernel_scores(
        KernelScoreRequest(1, 0.0, ("k",), one, one, one, one, np.zeros(2, dtype=np.int64), False, False)
    )
    assert np.isnan(found.relative_R).all()
    assert np.isnan(found.individual_R).all()
    assert found.robust_R == pytest.approx([1.0, 1.0])


def test_sections_are_scored_one_by_one() -> None:
    median_RS = np.array([[1.0, 4.0], [2.0, NAN]])
    assert scores.relative_sections(median_RS) == pytest.approx(np.array([[1.0, NAN], [0.5, NAN]]), nan_ok=True)
    best_RS = np.array([[0.5, NAN], [4.0, 1.0]])
    individual_RS = scores.individual_sections(best_RS, median_RS)
    assert individual_RS == pytest.approx(np.array([[0.5, 1.0], [1.0, NAN]]), nan_ok=True)


def test_robust_section_scores_need_enough_peers() -> None:
    median_RS = np.array([[1.0], [1.0], [1.0], [2.0]])
    group_R = np.zeros(4, dtype=np.int64)
    assert scores.robust_sections(median_RS, median_RS, group_R)[:, 0] == pytest.approx([1.0, 1.0, 1.0, 0.5])
    assert np.isnan(scores.robust_sections(median_RS[:3], median_RS[:3], group_R[:3])).all()
