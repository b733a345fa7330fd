"""Lateness, its noise, and how far above the noise a rank must be."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch.contract.enums import Cause
from rankwatch_monitor.core.straggler import lateness

ONE_GROUP = np.zeros(4, dtype=np.int64)


def test_the_rank_that_waits_least_and_works_most_is_late() -> None:
    parts_RP = np.array([[0.1, 0.1, 0.4, 0.4], [0.1, 0.1, 0.7, 0.1], [0.1, 0.1, 0.4, 0.4], [0.1, 0.1, 0.4, 0.4]])
    found = lateness.lateness(parts_RP, ONE_GROUP)
    assert found.late_R == pytest.approx([0.0, 0.3, 0.0, 0.0])
    assert found.step_R == pytest.approx([1.0] * 4)
    assert lateness.cause_of(found.excess_RP[1], 0.3) is Cause.COMPUTE


def test_of_two_ranks_each_is_compared_with_the_other() -> None:
    parts_RP = np.array([[0.1, 0.0, 0.5, 0.4], [0.4, 0.0, 0.5, 0.1]])
    assert lateness.lateness(parts_RP, ONE_GROUP[:2]).late_R == pytest.approx([-0.3, 0.3])


def test_little_communication_without_more_work_is_not_late() -> None:
    parts_RP = np.array([[0.0, 0.0, 0.5, 0.5]] * 3 + [[0.0, 0.0, 0.5, 0.1]])
    assert lateness.lateness(parts_RP, ONE_GROUP).late_R[3] == pytest.approx(0.0)


def test_a_rank_without_a_report_is_nan_and_is_no_peer() -> None:
    parts_RP = np.array([[0.1, 0.1, 0.4, 0.4], [np.nan] * 4, [0.1, 0.1, 0.4, 0.4], [0.1, 0.1, 0.4, 0.4]])
    found = lateness.lateness(parts_RP, ONE_GROUP)
    assert found.late_R == pytest.approx([0.0, np.nan, 0.0, 0.0], nan_ok=True)


def test_constantly_late_ranks_do_not_count_as_noise() -> None:
    signal_TR = np.random.default_rng(0).normal(0.0, 0.02, (20, 64))
    assert lateness.noise(signal_TR) == pytest.approx(0.02, rel=0.1)
    signal_TR[:, 3] += 0.5
    signal_TR[10:, 4] += 0.5
    assert lateness.noise(signal_TR) == pytest.approx(0.02, rel=0.15)
    assert np.isnan(lateness.noise(signal_TR[:2, :4]))
    assert lateness.noise(signal_TR[:1]) == pytest.approx(0.02, rel=0.5)


def test_more_ranks_or_windows_or_a_smaller_budget_raise_the_threshold() -> None:
    def needed(ranks: int = 64, a_day: float = 8640.0, alarms: float = 0.1, k: int = 3) -> float:
        chance = lateness.needed_chance(ranks=ranks, windows_a_day=a_day, needed=k, of=5, alarms_a_day=alarms)
        return lateness.needed_sigmas(chance)

    assert needed(512) > needed(64) > needed(8)
    assert needed(a_day=86_400.0) > needed()
    assert needed(alarms=0.01) > needed() > needed(alarms=10.0)
    assert needed(k=1) > needed(k=3)


def test_the_budget_is_kept_by_normal_noise() -> None:
    """With one window for each alarm, about as many tries pass as the budget allows."""
    chance = lateness.needed_chance(ranks=1000, windows_a_day=1000, needed=1, of=1, alarms_a_day=100.0)
    sigmas = lateness.needed_sigmas(chance)
    tries = np.random.default_rng(0).standard_normal(1_000_000)
    assert 70 <= int(np.sum(tries > sigmas)) <= 130


def test_a_cause_must_explain_more_than_half() -> None:
    assert lateness.cause_of(np.array([0.1, 0.09, 0.11]), 0.3) is Cause.UNEXPLAINED
    assert lateness.cause_of(np.array([0.2, 0.05, 0.05]), 0.3) is Cause.DATA
    assert lateness.cause_of(np.array([np.nan, 0.05, 0.05]), 0.3) is Cause.UNEXPLAINED
