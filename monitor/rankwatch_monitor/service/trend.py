"""Records scores, goodput and speed of a job as points over time, and shows them as columns for charts.

Complements ``core.regression.history``, which records step times; ``core.regression.trends`` keeps the points. There is
one every 15 s, and one at each event: where a fault begins, at the first step after it, and where the job ends.
``core.regression.outages`` lays what is known of faults later over the points when they are read. A job in a terminal
state gets no further ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import PACE_WINDOW, Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES
from rankwatch_monitor.core.regression.logged import Value
from rankwatch_monitor.core.regression.outages import Outage, goodput_at, with_edges
from rankwatch_monitor.core.regression.trends import (
    LOGGED,
    NON_FINITE,
    Point,
    Selection,
    TrendHistory,
    finite,
    mean,
    neighbours,
)
from rankwatch_monitor.core.views import rankings, verdict

INTERVAL: Final = 15.0
"""Seconds between two points."""
SIX_HOURS: Final = 21_600.0
ATTEMPTS: Final = 100
"""Attempts that are named in one response, the newest."""
COURSES: Final = ("goodput", "goodput_window", "speed")
STATISTICS: Final = ("min", "median", "max", "rank")
"""Of a score over the ranks; ``rank`` is the one with the minimum."""
_SCORES: Final = tuple(rankings.GPU_SCORES)


def sample(job: Job, state: JobState, now: float) -> None:
    """Add a point when the interval has passed or something happened, unless the job's state was terminal before."""
    if not job.attempt and not job.instrumented:  # no attempt has begun
        return
    incident = job.incidents[-1] if job.incidents else None
    stepped = incident is not None and incident.timeline.first_step is not None
    event = (incident and incident.id, stepped, state in TERMINAL_STATES)
    before, job.trends.event = job.trends.event, event
    happened = before is not None and before != event
    if happened or (state not in TERMINAL_STATES and now - job.trends.latest_at >= INTERVAL):
        at = _moment(job, incident, now) if happened else now
        values = _values(job, now)
        if at < now and job.ended is None:  # a fault, since when nothing was kept
            values |= goodput_at(values, now, at, job.ledger.began)
        job.trends.add(Point(at, job.attempt, _iteration(job), values))


def _iteration(job: Job) -> int:
    iteration = job.logged.step if job.furthest_iteration is None else job.furthest_iteration
    return -1 if iteration is None else iteration


def _moment(job: Job, incident: Incident | None, now: float) -> float:
    """When what happened did, in unix seconds; ``now`` where there is a later point, or a step completed again."""
    since = None if incident is None or incident.timeline.first_step is not None else incident.timeline.since
    at = since if job.ended is None else job.ended.at
    return at if at is not None and job.trends.latest_at < at <= now else now


def _speed(job: Job, now: float) -> float | None:
    """Steps per second; of an attempt that is too young for those of now, what is known so far."""
    if job.steps_per_second is not None:
        return job.steps_per_second
    latest = job.performance.history.latest
    known = latest is not None and latest.attempt == job.attempt and now - latest.at <= PACE_WINDOW
    return job.pace.between_samples or (1.0 / latest.step if latest is not None and known else None)


def _values(job: Job, now: float) -> dict[str, float]:
    scores = job.performance.scores
    by_name = {} if scores is None else rankings.gpu_scores(scores)
    ratio = verdict.goodput(job)
    window = None if ratio is None else goodput_accounting.last_hour(job)[1]
    values = {"goodput": ratio, "goodput_window": window, "speed": _speed(job, now)}
    for name, score_R in by_name.items():
        if (statistics := rankings.min_median_max(score_R)) is not None:
            statistics["rank"] = rankings.lowest(score_R, 1)[0]
            values |= {f"{name}.{statistic}": value for statistic, value in statistics.items()}
    return finite({**values, **job.logged.take_point()})


class Newest(NamedTuple):
    """The newest logged values by name, and the step of the attempt that logged them."""

    attempt: int
    iteration: int
    values: Mapping[str, Value]


def newest(job: Job, until: float | None) -> Newest:
    """Those up to a moment (unix seconds); None: up to now."""
    kept = {name: each for name, each in job.logged.latest.items() if until is None or each.at <= until}
    return Newest(job.attempt, _iteration(job), kept)


def to_json(
    history: TrendHistory,
    wanted: Selection,
    *,
    outages: Sequence[Outage] = (),
    began: float = 0.0,
    newest: Newest | None = None,
) -> dict[str, Any]:
    """Points as columns: ``at``, ``goodput``, ``speed``, each score's statistics, and logged values by name.

    ``non_finite`` has how many logged values were NaN or infinite, ``attempts`` those with points in that time. Each
    end of an outage has points of its own, beside ``most``; goodput counts since ``began``. Logged values are means,
    but the last ones are the ``newest``.
    """
    since = wanted.begin(history.latest_at, SIX_HOURS)
    until = history.latest_at if wanted.until is None else wanted.until
    found = history.window(since, until)
    attempts = list(dict.fromkeys(point.attempt for point in found))[-ATTEMPTS:]
    if wanted.attempt is not None:
        found = [point for point in found if point.attempt == wanted.attempt]
    merged = [mean(some) for some in neighbours(found, wanted.most)]
    points = [point for point in with_edges(merged, outages, began) if since <= point.at <= until]
    points = _with_newest(points, newest)
    names = {name for point in points for name in point.values}
    non_finite = sorted(name.removeprefix(NON_FINITE) for name in names if name.startswith(NON_FINITE))
    logged = sorted({name.removeprefix(LOGGED) for name in names if name.startswith(LOGGED)}.union(non_finite))
    return {
        "attempts": attempts,
        "at": [round(point.at, 3) for point in points],
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


def _with_newest(points: list[Point], newest: Newest | None) -> list[Point]:
    """With the newest logged values: in a point of their own if any is later than the last one, else in that."""
    if newest is None or not points or points[-1].attempt != newest.attempt:
        return points
    last = points[-1]
    known = {LOGGED + name: each.value for name, each in newest.values.items()}
    at = max((each.at for each in newest.values.values()), default=last.at)
    if at > last.at:
        held = {name: value for name, value in last.values.items() if not name.startswith((LOGGED, NON_FINITE))}
        later = {LOGGED + name for name, each in newest.values.items() if each.at > last.at}
        # Of another rank some are newer; those that the last point has are as new as they come.
        values = held | {name: value for name, value in known.items() if name in later or name in last.values}
        return [*points, Point(at, last.attempt, newest.iteration, values)]
    shown = {name: known.get(name, value) for name, value in last.values.items()}
    return [*points[:-1], last._replace(values=shown)]


def _column(points: Sequence[Point], name: str) -> list[float | None]:
    """Six digits, which is the accuracy of what is kept."""
    return [None if (value := point.values.get(name)) is None else float(f"{value:.6g}") for point in points]
