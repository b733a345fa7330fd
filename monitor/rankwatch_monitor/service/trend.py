"""Records scores and goodput of the last six hours as points, for the page's charts.

Complements ``core.regression.history``, which records step times. Points are kept in memory only, 200 KB a job, and are
lost when the monitor restarts; a job in a terminal state gets no further points.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Mapping
from math import isnan, nan
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES
from rankwatch_monitor.core.views import job_view, rankings

INTERVAL: Final = 15.0
"""Seconds between two points."""
MAX_POINTS: Final = 1440
"""Points of a job: six hours."""
STATISTICS: Final = ("min", "median", "max")
_COLUMNS: Final = [(name, statistic) for name in rankings.GPU_SCORES for statistic in STATISTICS]
_PACKED: Final = struct.Struct(f"<3d{len(_COLUMNS)}d")
"""A packed point; NaN: unknown. As dictionaries, six hours of points would take 6 MB a job."""


class Point(NamedTuple):
    """One sample of a job; None: unknown at that time."""

    at: float
    """Unix seconds."""
    goodput: float | None
    """Goodput ratio of the run so far."""
    goodput_window: float | None
    """Goodput ratio of the last hour."""
    scores: Mapping[str, Mapping[str, float]]
    """By score name, ``min``, ``median`` and ``max`` over all ranks; only known scores."""


class Trends:
    """The points of all jobs."""

    def __init__(self) -> None:
        self._points: dict[str, deque[bytes]] = {}

    def sample(self, job: Job, state: JobState, now: float) -> None:
        """Add a point when the interval has passed, unless the job's state is terminal."""
        points = self._points.setdefault(job.id, deque(maxlen=MAX_POINTS))
        if state not in TERMINAL_STATES and not (points and now - _read(points[-1]).at < INTERVAL):
            points.append(_packed(_point(job, now)))

    def forget(self, job_id: str) -> None:
        """Remove the points of a dropped job."""
        self._points.pop(job_id, None)

    def of(self, job_id: str) -> Collection[Point]:
        """The points of a job, oldest first."""
        return [_read(packed) for packed in self._points.get(job_id, ())]


def _point(job: Job, now: float) -> Point:
    scores = job.performance.scores
    by_name = {} if scores is None else rankings.gpu_scores(scores)
    spreads = {name: rankings.min_median_max(score_R) for name, score_R in by_name.items()}
    ratio = job_view.goodput_ratio(job)
    window = None if ratio is None else goodput_accounting.last_hour(job)[1]
    known = {name: spread for name, spread in spreads.items() if spread is not None}
    return Point(now, ratio, None if window is None else round(window, 4), known)


def _packed(point: Point) -> bytes:
    known = (point.at, *(nan if each is None else each for each in (point.goodput, point.goodput_window)))
    return _PACKED.pack(*known, *(point.scores.get(name, {}).get(statistic, nan) for name, statistic in _COLUMNS))


def _read(packed: bytes) -> Point:
    at, ratio, window, *spreads = _PACKED.unpack(packed)
    scores: dict[str, dict[str, float]] = {}
    for (name, statistic), value in zip(_COLUMNS, spreads, strict=True):
        if not isnan(value):
            scores.setdefault(name, {})[statistic] = value
    return Point(at, None if isnan(ratio) else ratio, None if isnan(window) else window, scores)


def to_json(points: Collection[Point]) -> dict[str, Any]:
    """Points as columns for charts: ``at``, ``goodput``, ``goodput_window`` and each score's statistics."""
    names = sorted({name for point in points for name in point.scores})
    return {
        "at": [round(point.at, 1) for point in points],
        "goodput": [point.goodput for point in points],
        "goodput_window": [point.goodput_window for point in points],
        "scores": {
            name: {
                statistic: [point.scores[name][statistic] if name in point.scores else None for point in points]
                for statistic in STATISTICS
            }
            for name in names
        },
    }
