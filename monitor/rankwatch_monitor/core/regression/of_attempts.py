"""Compares the step times of a job's attempts by their speed, for a job without windows of steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rankwatch_monitor.core.regression.change_points import LEAST, SIDE
from rankwatch_monitor.core.regression.explain import Explanation
from rankwatch_monitor.core.regression.trends import Point
from rankwatch_monitor.core.words.step_times import change_words, duration


def of_attempts(points: Sequence[Point]) -> Explanation | None:
    """How long a completed step takes in the last attempt and took before it; None: too little is known of one of them.

    Args:
        points: of the job, the oldest first, without speed in outages.
    """
    moving = [point for point in points if point.values.get("speed", 0.0) > 0]
    if not moving or moving[0].attempt == moving[-1].attempt:
        return None
    last, restarts = moving[-1].attempt, moving[-1].attempt - moving[0].attempt
    before = median(1 / point.values["speed"] for point in moving if point.attempt != last)
    after = median(1 / point.values["speed"] for point in moving if point.attempt == last)
    since = next(point.at for point in moving if point.attempt == last)
    than = "the restart" if restarts == 1 else f"the {restarts} restarts"
    if abs(after / before - 1) < LEAST:
        return Explanation("steady", f"Step time as before {than}: {duration(after)}.", since, before, after)
    if sum(point.attempt == last for point in moving) < SIDE:
        return None
    words = f"{change_words(after / before)} than before {than} ({duration(before)} -> {duration(after)})"
    return Explanation("change", f"{words}; without windows of steps, what changed is not known.", since, before, after)
