"""Lateness, the noise it stands in, and how far out of it a rank must be."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch.contract.enums import Cause
from rankwatch_monitor.core.straggler import lateness

ONE_GROUP = np.zeros(4, dtype=np.int64)


def test_who_waits_least_and_works_most_is_late() -> None:
    parts_RP = np.array([[0.1, 0.1, 0.4, 0.4], [0.1, 0.1, 0.7, 0.1], [0.1, 0.1, 0.4, 0.4], [0.1, 0.1, 0.4, 0.4]])
    found = lateness.lateness(parts_RP, ONE_GROUP)
    assert found.late_R == pytest.approx([0.0, 0.3, 0.0, 0.0])
    assert found.step_R == pytest.approx([1.0] * 4)
    assert lateness.cause_of(found.excess_RP[1], 0.3) is Cause.COMPUTE


def test_of_two_ranks_each_is_compared_with_the_other() -> None:
    parts_RP = np.array([[0.1, 0.0, 0.5, 0.4], [0.4, 0.0, 0.5, 0.1]])
    assert lateness.lateness(parts_RP, ONE_GROUP[:2]).late_R == pytest.approx([-0.3, 0.3])


def test_who_has_little_to_exchange_but_does_no_more_work_is_not_late() -> None:
    parts_RP = np.array([[0.0, 0.0, 0.5, 0.5]] * 3 + [[0.0, 0.0, 0.5, 0.1]])
    assert lateness.lateness(parts_RP, ONE_GROUP).late_R[3] == pytest.approx(0.0)


def test_a_rank_that_told_nothing_is_nan_and_counts_for_nobody() -> None:
    parts_RP = np.array([[0.1, 0.1, 0.4, 0.4], [np.nan] * 4, [0.1, 0.1, 0.4, 0.4], [0.1, 0.1, 0.4, 0.4]])
    found = lateness.lateness(parts_RP, ONE_GROUP)
    assert found.late_R == pytest.approx([0.0, np.nan, 0.0, 0.0], nan_ok=True)


def test_noise_is_that_of_the_ranks_whether_or_not_one_is_late_for_good() -> None:
    share_TR = np.random.default_rng(0).normal(0.0, 0.02, (20, 64))
    assert lateness.noise(share_TR) == pytest.approx(0.02, rel=0.1)
    share_TR[:, 3] += 0.5
    share_TR[10:, 4] += 0.5
    assert lateness.noise(share_TR) == pytest.approx(0.02, rel=0.15)
    assert np.isnan(lateness.noise(share_TR[:2, :4]))
    assert lateness.noise(share_TR[:1]) == pytest.approx(0.02, rel=0.5)


def test_more_ranks_windows_or_a_smaller_budget_ask_for_more() -> None:
    def needed(ranks: int = 64, a_day: float = 8640.0, alarms: float = 0.1, k: int = 3) -> float:
        chance = lateness.needed_chance(ranks=ranks, windows_a_day=a_day, needed=k, of=5, alarms_a_day=alarms)
        return lateness.needed_sigmas(chance)

    assert needed(512) > needed(64) > needed(8)
    assert needed(a_day=86_400.0) > needed()
    assert needed(alarms=0.01) > needed() > needed(alarms=10.0)
    assert needed(k=1) > needed(k=3)


def test_the_budget_is_kept_by_normal_noise() -> None:
    """One window, one chance: of so many tries about as many pass as the budget allows."""
    chance = lateness.needed_chance(ranks=1000, windows_a_day=1000, needed=1, of=1, alarms_a_day=100.0)
    sigmas = lateness.needed_sigmas(chance)
    tries = np.random.default_rng(0).standard_normal(1_000_000)
    assert 70 <= int(np.sum(tries > sigmas)) <= 130


def test_a_cause_must_explain_more_than_half() -> None:
    assert lateness.cause_of(np.array([0.1, 0.09, 0.11]), 0.3) is Cause.UNEXPLAINED
    assert lateness.cause_of(np.array([0.2, 0.05, 0.05]), 0.3) is Cause.DATA
    assert lateness.cause_of(np.array([np.nan, 0.05, 0.05]), 0.3) is Cause.UNEXPLAINED
