"""Changes of level in series with a known answer, and series in which there is none."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.regression.change_points import _shifted, changes, has_drift

LENGTH = 360
SEEDS = range(20)


def noisy(seed: int, noise: float = 0.02, length: int = LENGTH) -> Floats:
    series_T: Floats = np.random.default_rng(seed).normal(1.0, noise, length).clip(0.05)
    return series_T


@pytest.mark.parametrize("seed", SEEDS)
def test_one_change_is_found_where_it_is(seed: int) -> None:
    at = int(np.random.default_rng(seed + 100).integers(5, LENGTH - 5))
    series_T = noisy(seed)
    series_T[at:] *= 1.2
    (found,) = changes(series_T)
    assert abs(found.at - at) <= 1
    assert found.factor == pytest.approx(1.2, rel=0.03)
    assert (found.first, found.end) == (0, LENGTH)


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_of_every_kind_changes_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    heavy_T = (1 + 0.02 * random.standard_t(2, LENGTH)).clip(0.2, 5.0)
    for series_T in (noisy(seed), noisy(seed, 0.2), noisy(seed, 0.0), heavy_T):
        assert changes(series_T) == []
        assert not has_drift(series_T)


def test_a_checkpoint_every_ten_minutes_changes_nothing() -> None:
    series_T = noisy(1)
    series_T[::60] *= 8
    series_T[1::60] *= 3
    assert changes(series_T) == []


def test_there_and_back() -> None:
    series_T = noisy(2)
    series_T[100:200] *= 2
    assert [change.at for change in changes(series_T)] == [100, 200]
    assert [round(change.factor, 1) for change in changes(series_T)] == [2.0, 0.5]


@pytest.mark.parametrize(("last", "found"), [(1, []), (2, []), (3, [LENGTH - 3]), (4, [LENGTH - 4])])
def test_a_change_needs_three_samples_on_each_side(last: int, found: list[int]) -> None:
    series_T = noisy(3)
    series_T[-last:] *= 3
    assert [change.at for change in changes(series_T)] == found
    assert [LENGTH - change.at for change in changes(series_T[::-1])] == found


def test_a_change_too_small_to_speak_of() -> None:
    series_T = noisy(4, 0.001)
    series_T[100:] *= 1.04
    assert changes(series_T) == []
    series_T[100:] *= 1.03
    assert [change.at for change in changes(series_T)] == [100]


@pytest.mark.parametrize("to", [0.6, 1.5])
def test_a_line_is_a_drift_and_no_change_of_level(to: float) -> None:
    series_T = noisy(5) * np.linspace(1.0, to, LENGTH)
    assert changes(series_T) == []
    assert has_drift(series_T)


def test_a_change_on_a_line_is_found() -> None:
    series_T = noisy(6) * np.linspace(1.0, 1.2, LENGTH)
    series_T[150:] *= 2
    assert [change.at for change in changes(series_T)] == [150]


@pytest.mark.parametrize("length", [0, 1, 5])
def test_short_series(length: int) -> None:
    assert changes(noisy(7, length=length)) == []
    assert not has_drift(noisy(7, length=length))


def test_two_levels_that_few_samples_do_not_tell_apart_are_one() -> None:
    """Each sample is nearer to its own level, but the noise of three of them is too large for certainty."""
    log_T = np.array([-0.03, 0.0, 0.03, 0.07, 0.1, 0.13])
    assert not _shifted(log_T, 3)
    assert _shifted(np.array([-0.003, 0.0, 0.003, 0.097, 0.1, 0.103]), 3)
