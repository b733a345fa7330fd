"""Records scores, goodput and speed of a job as points over time, and shows them as columns for charts.

Complements ``core.regression.history``, which records step times; ``core.regression.trends`` keeps the points. A job in
a terminal state gets no further ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES
from rankwatch_monitor.core.regression.trends import LOGGED, NON_FINITE, Point, TrendHistory, finite, mean
from rankwatch_monitor.core.views import goodput_note, job_view, rankings

INTERVAL: Final = 15.0
"""Seconds between two points."""
SHOWN: Final = 1500
"""Points in one response; neighbouring points are merged where there are more."""
ATTEMPTS: Final = 100
"""Attempts that are named in one response, the newest."""
COURSES: Final = ("goodput", "goodput_without_waiting", "goodput_window", "speed")
STATISTICS: Final = ("min", "median", "max", "rank")
"""Of a score over the ranks; ``rank`` is the one with the minimum."""
_SCORES: Final = tuple(rankings.GPU_SCORES)


def sample(job: Job, state: JobState, now: float) -> None:
    """Add a point when the interval has passed, unless the job's state is terminal."""
    if state not in TERMINAL_STATES and now - job.trends.latest_at >= INTERVAL:
        iteration = job.logged.step if job.furthest_iteration is None else job.furthest_iteration
        job.trends.add(Point(now, job.attempt, -1 if iteration is None else iteration, _values(job)))


def _values(job: Job) -> dict[str, float]:
    scores = job.performance.scores
    by_name = {} if scores is None else rankings.gpu_scores(scores)
    ratio = job_view.goodput_ratio(job)
    window = None if ratio is None else goodput_accounting.last_hour(job)[1]
    # An attempt may end before its speed is known well enough to be shown as that of now.
    speed = job.pace.between_samples if job.steps_per_second is None else job.steps_per_second
    without = None if ratio is None else goodput_note.without_waiting(job)
    values = {"goodput": ratio, "goodput_without_waiting": without, "goodput_window": window, "speed": speed}
    for name, score_R in by_name.items():
        if (statistics := rankings.min_median_max(score_R)) is not None:
            statistics["rank"] = rankings.lowest(score_R, 1)[0]
            values |= {f"{name}.{statistic}": value for statistic, value in statistics.items()}
    return finite({**values, **job.logged.take_point()})


def to_json(
    history: TrendHistory, since: float, until: float, attempt: int | None = None, most: int = SHOWN
) -> dict[str, Any]:
    """Points as columns: ``at``, ``goodput``, ``speed``, each score's statistics, and logged values by name.

    ``non_finite`` has how many logged values were NaN or infinite, ``attempts`` those with points in that time.
    """
    found = history.window(since, until)
    attempts = list(dict.fromkeys(point.attempt for point in found))[-ATTEMPTS:]
    if attempt is not None:
        found = [point for point in found if point.attempt == attempt]
    each = -(-len(found) // most) if found else 1
    points = [mean(found[i : i + each]) for i in range(0, len(found), each)]
    names = {name for point in points for name in point.values}
    non_finite = sorted(name.removeprefix(NON_FINITE) for name in names if name.startswith(NON_FINITE))
    logged = sorted({name.removeprefix(LOGGED) for name in names if name.startswith(LOGGED)}.union(non_finite))
    return {
        "attempts": attempts,
        "at": [round(point.at, 1) for point in points],
        "attempt": [point.attempt for point in points],
        "iteration": [None if point.iteration < 0 else point.iteration for point in points],
        **{name: _column(points, name) for name in COURSES},
        "scores": {
            name: {statistic: _column(points, f"{name}.{statistic}") for statistic in STATISTICS}
            for name in _SCORES
            if f"{name}.median" in names
        },
        "logged": {name: _column(points, LOGGED + name) for name in logged},
        "non_finite": {name: _column(points, NON_FINITE + name) for name in non_finite},
    }


def _column(points: Sequence[Point], name: str) -> list[float | None]:
    """Six digits, which is the accuracy of what is kept."""
    return [None if (value := point.values.get(name)) is None else float(f"{value:.6g}") for point in points]
