"""What counts as flat."""

from __future__ import annotations

import random

import pytest
from endurance import trend

EVERY_TEN = [10.0 * i for i in range(360)]


def test_noise_around_a_level_is_flat_whatever_came_before() -> None:
    chance = random.Random(1)
    settling = [100.0 - 40.0 * max(0.0, 1 - t / 900) + chance.gauss(0, 0.5) for t in EVERY_TEN]
    found = trend(EVERY_TEN, settling)
    assert found.flat(1.0)
    assert abs(found.slope) < 1.0


def test_a_leak_is_found_by_its_size() -> None:
    chance = random.Random(2)
    leaking = [100.0 + 12.0 * t / 3600 + chance.gauss(0, 0.5) for t in EVERY_TEN]
    found = trend(EVERY_TEN, leaking)
    assert found.slope == pytest.approx(12.0, abs=found.margin + 1)
    assert found.step == pytest.approx(12.0, abs=3)
    assert not found.flat(2.0)


def test_one_late_jump_is_not_flat() -> None:
    jumped = [100.0 if t < 2400 else 110.0 for t in EVERY_TEN]
    assert not trend(EVERY_TEN, jumped).flat(2.0)


def test_a_run_that_is_too_short_reports_nothing() -> None:
    with pytest.raises(ValueError, match="too few"):
        trend(EVERY_TEN[:8], EVERY_TEN[:8])
