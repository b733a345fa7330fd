"""Without windows of steps, attempts are compared by their speed."""

from __future__ import annotations

import pytest

from rankwatch_monitor.core.regression.of_attempts import of_attempts
from rankwatch_monitor.core.regression.trends import Point


def points(*speeds: tuple[int, float | None]) -> list[Point]:
    """Points 15 s apart: attempt, and steps per second."""
    return [
        Point(1000.0 + 15 * i, attempt, -1, {} if speed is None else {"speed": speed})
        for i, (attempt, speed) in enumerate(speeds)
    ]


def test_the_step_time_is_as_before_a_restart() -> None:
    found = of_attempts(points((1, None), (1, 1.0), (1, 1.0), (1, 0.0), (2, 0.0), (2, 1.01)))
    assert found is not None
    assert (found.kind, found.sentence) == ("steady", "Step time as before the restart: 990 ms.")
    assert (found.since, found.before, found.after) == (1075.0, 1.0, pytest.approx(1 / 1.01))


def test_as_before_several_of_which_one_completed_no_step() -> None:
    found = of_attempts(points((1, 2.0), (2, 2.0), (3, 0.0), (4, 2.0)))
    assert found is not None
    assert found.sentence == "Step time as before the 3 restarts: 500 ms."


def test_its_twin_steps_take_longer_since_the_restart() -> None:
    found = of_attempts(points((1, 1.0), (1, 1.0), (2, 0.8), (2, 0.8), (2, 0.8)))
    assert found is not None
    assert (found.kind, found.since) == ("change", 1030.0)
    assert found.sentence == (
        "Steps take 25 % longer than before the restart (1 s -> 1.25 s); without windows of steps, what changed is not "
        "known."
    )


@pytest.mark.parametrize("some", [(), ((1, 1.0), (1, 1.0)), ((1, 1.0), (2, 0.0)), ((1, 1.0), (2, 0.8)), ((1, None),)])
def test_one_attempt_or_a_few_points_are_compared_with_nothing(some: tuple[tuple[int, float | None], ...]) -> None:
    assert of_attempts(points(*some)) is None
