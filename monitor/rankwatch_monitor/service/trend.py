"""How scores and effective time went over the last hours: a small row of points for each job, for the page's charts.

What a step's time went into is kept by ``core.history``; this is what it does not hold. Points are kept in memory
only, :data:`KEPT` of them :data:`EVERY` seconds apart (200 KB a job), and none of a job that is over: after a restart
of the monitor they begin anew.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Mapping
from math import isnan, nan
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.goodput import accounting
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES
from rankwatch_monitor.core.views import job_view, rankings

EVERY: Final = 15.0
"""Seconds between two points."""
KEPT: Final = 1440
"""Points of a job: six hours."""
LINES: Final = ("min", "median", "max")
_COLUMNS: Final = [(name, line) for name in rankings.GPU_SCORES for line in LINES]
_PACKED: Final = struct.Struct(f"<3d{len(_COLUMNS)}d")
"""Of a point; NaN: not known. As dictionaries, the points of six hours would take 6 MB a job."""


class Point(NamedTuple):
    """What a job was like at one moment; None: not known then."""

    at: float
    """Unix seconds."""
    goodput: float | None
    """Effective time as a part of the whole run so far."""
    goodput_window: float | None
    """The same of the last hour."""
    scores: Mapping[str, Mapping[str, float]]
    """By score ``min``, ``median`` and ``max`` over all ranks; only scores that are known."""


class Trends:
    """The points of all jobs."""

    def __init__(self) -> None:
        self._points: dict[str, deque[bytes]] = {}

    def look(self, job: Job, state: JobState, now: float) -> None:
        """Add a point to a job that is not over, when its last one is old enough."""
        points = self._points.setdefault(job.id, deque(maxlen=KEPT))
        if state not in TERMINAL_STATES and not (points and now - _read(points[-1]).at < EVERY):
            points.append(_packed(_point(job, now)))

    def forget(self, job_id: str) -> None:
        """Let the points of a job go."""
        self._points.pop(job_id, None)

    def of(self, job_id: str) -> Collection[Point]:
        """The points of a job, the oldest first."""
        return [_read(packed) for packed in self._points.get(job_id, ())]


def _point(job: Job, now: float) -> Point:
    scores = job.performance.told.scores
    by_name = {} if scores is None else rankings.gpu_scores(scores)
    spreads = {name: rankings.overall(score_R) for name, score_R in by_name.items()}
    whole = job_view.shown_ratio(job)
    lately = None if whole is None else accounting.window(job)[1]
    known = {name: spread for name, spread in spreads.items() if spread is not None}
    return Point(now, whole, None if lately is None else round(lately, 4), known)


def _packed(point: Point) -> bytes:
    known = (point.at, *(nan if each is None else each for each in (point.goodput, point.goodput_window)))
    return _PACKED.pack(*known, *(point.scores.get(name, {}).get(line, nan) for name, line in _COLUMNS))


def _read(packed: bytes) -> Point:
    at, whole, lately, *spreads = _PACKED.unpack(packed)
    scores: dict[str, dict[str, float]] = {}
    for (name, line), value in zip(_COLUMNS, spreads, strict=True):
        if not isnan(value):
            scores.setdefault(name, {})[line] = value
    return Point(at, None if isnan(whole) else whole, None if isnan(lately) else lately, scores)


def to_json(points: Collection[Point]) -> dict[str, Any]:
    """Points as columns, as charts want them: ``at``, ``goodput``, ``goodput_window`` and each score's three lines."""
    names = sorted({name for point in points for name in point.scores})
    return {
        "at": [round(point.at, 1) for point in points],
        "goodput": [point.goodput for point in points],
        "goodput_window": [point.goodput_window for point in points],
        "scores": {
            name: {
                line: [point.scores[name][line] if name in point.scores else None for point in points] for line in LINES
            }
            for name in names
        },
    }
