"""The formulas of the scores, by hand and by what must hold for any numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_monitor.core.effects import Score
from rankwatch_monitor.core.straggler import score
from rankwatch_monitor.core.straggler.kernel_scores import scored

NAN = np.nan


def test_relative_by_hand() -> None:
    # Two kernels; rank 1 takes twice as long for the first, which is 2/3 of what rank 1 spends.
    median_RK = np.array([[1.0, 1.0], [2.0, 1.0]])
    spent_RK = np.array([[10.0, 10.0], [20.0, 10.0]])
    assert score.relative(median_RK, spent_RK) == pytest.approx([1.0, (20 * 0.5 + 10 * 1.0) / 30])


def test_a_kernel_that_a_rank_lacks_is_skipped_and_no_common_kernel_is_nan() -> None:
    median_RK = np.array([[1.0, NAN, NAN], [2.0, 3.0, NAN], [NAN, NAN, NAN]])
    spent_RK = np.where(np.isnan(median_RK), NAN, 10.0)
    found_R = score.relative(median_RK, spent_RK)
    assert found_R[:2] == pytest.approx([1.0, 0.75])
    assert np.isnan(found_R[2])


def test_individual_is_against_the_ranks_own_best_the_present_one_included() -> None:
    best_RK = np.array([[1.0], [NAN], [4.0]])
    median_RK = np.array([[2.0], [3.0], [2.0]])
    assert score.individual(best_RK, median_RK, np.ones((3, 1))) == pytest.approx([0.5, 1.0, 1.0])


def test_one_lucky_rank_makes_everybody_slow_by_the_fastest_reference_only() -> None:
    median_RK = np.full((64, 1), 1.0)
    median_RK[7] = 0.5
    spent_RK, group_R = np.ones((64, 1)), np.zeros(64, dtype=np.int64)
    assert score.relative(median_RK, spent_RK)[0] == pytest.approx(0.5)
    assert score.robust(median_RK, median_RK, spent_RK, group_R)[0] == pytest.approx(1.0)


def test_the_slow_half_of_the_calls_does_not_hide_behind_the_median() -> None:
    median_RK, tail_RK = np.ones((16, 1)), np.full((16, 1), 1.1)
    tail_RK[3] = 2.2
    spent_RK, group_R = np.ones((16, 1)), np.zeros(16, dtype=np.int64)
    assert score.relative(median_RK, spent_RK)[3] == pytest.approx(1.0)
    assert score.robust(median_RK, tail_RK, spent_RK, group_R)[3] == pytest.approx(0.5)
    assert score.robust(median_RK, tail_RK, spent_RK, group_R)[4] == pytest.approx(1.0)


times = st.lists(st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=3), min_size=2, max_size=8).map(np.array)


@given(times, times)
def test_a_relative_score_is_above_0_and_at_most_1(median_RK: np.ndarray, spent_RK: np.ndarray) -> None:
    spent_RK = np.resize(spent_RK, median_RK.shape)
    found_R = score.relative(median_RK, spent_RK)
    assert np.all((found_R > 0) & (found_R <= 1 + 1e-9))
    assert score.relative(1000 * median_RK, spent_RK) == pytest.approx(found_R)  # the unit does not matter


@pytest.mark.parametrize("groups", [1, 3])
def test_many_ranks_at_once_are_scored_as_by_the_formulas(groups: int) -> None:
    random = np.random.default_rng(1)
    ranks = 5000  # more than one block
    median_RK = random.uniform(1, 2, (ranks, 5)).astype(np.float32)
    median_RK[random.uniform(size=median_RK.shape) < 0.1] = NAN
    tail_RK, spent_RK = (median_RK * 1.5).astype(np.float32), (median_RK * 100).astype(np.float32)
    best_RK = (median_RK * random.uniform(0.5, 1.5, median_RK.shape)).astype(np.float32)
    group_R = np.arange(ranks) % groups
    told = scored(Score(1, median_RK, tail_RK, spent_RK, best_RK, group_R, True, True))
    assert told.relative_R == pytest.approx(score.relative(median_RK, spent_RK), rel=1e-4, nan_ok=True)
    assert told.individual_R == pytest.approx(score.individual(best_RK, median_RK, spent_RK), rel=1e-4, nan_ok=True)
    assert told.robust_R == pytest.approx(score.robust(median_RK, tail_RK, spent_RK, group_R), rel=1e-4, nan_ok=True)


def test_what_is_switched_off_is_not_computed() -> None:
    one = np.ones((2, 1), dtype=np.float32)
    told = scored(Score(1, one, one, one, one, np.zeros(2, dtype=np.int64), False, False))
    assert np.isnan(told.relative_R).all()
    assert np.isnan(told.individual_R).all()
