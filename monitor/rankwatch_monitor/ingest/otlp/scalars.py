"""Reads metrics that are one number: ages, counts and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, Metric, NumberDataPoint

from rankwatch.contract import semconv
from rankwatch_monitor.core.regression.logged import MAX_NAMES
from rankwatch_monitor.ingest.otlp.builder import WHOLE_END, Read, ReportBuilder, value_of
from rankwatch_monitor.ingest.rejection import quote

AGES: Final[Mapping[str, str]] = {
    semconv.HEARTBEAT_AGE.name: "heartbeat_age",
    semconv.FIRST_ITERATION_AGE.name: "first_iteration_age",
    semconv.SECTION_IDLE_DURATION.name: "idle",
    semconv.SECTION_IDLE_LONGEST.name: "idle_longest",
    semconv.PROGRESS_AGE.name: "quiet",
}
"""Metrics that are one age in seconds, and the report field of each."""
NUMBERS: Final[Mapping[str, str]] = {
    semconv.HEARTBEATS.name: "beats",
    semconv.ITERATION.name: "iteration",
    semconv.PROGRESS.name: "progress",
    semconv.FIRST_ITERATION.name: "first_iteration",
    semconv.SCALAR_STEP.name: "logged_step",
}
"""Metrics that are one whole number, likewise."""


def age(field: str) -> Read:
    """A reader of an age in seconds into ``field``. Ages need no clocks that agree."""

    def read(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
        point = points[0] if len(points) == 1 else _newest(points)
        if point is None or (value := point.as_double or value_of(point)) is None:
            return
        if 0 <= value < inf:
            builder.fields[field] = float(value)
        else:
            builder.reject("bad_value", metric, f"an age of {value} s", len(points))

    return read


def number(field: str) -> Read:
    """A reader of a whole number from 0 up into ``field``."""

    def read(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
        point = points[0] if len(points) == 1 else _newest(points)
        if point is None or (value := point.as_int or value_of(point)) is None:
            return
        if not 0 <= value < WHOLE_END:
            builder.reject("bad_value", metric, f"a value of {value}", len(points))
        elif (total := _total(builder, metric, point, int(value))) is not None:
            builder.fields[field] = total

    return read


def flag(field: str) -> Read:
    """A reader of a metric that is 1 for yes into ``field``."""

    def read(builder: ReportBuilder, _metric: Metric, points: Sequence[Any]) -> None:
        point = _newest(points)
        if point is not None and (value := value_of(point)) is not None:
            builder.fields[field] = value == 1

    return read


def read_dropped(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read how much telemetry the sender dropped, by reason, as totals since its process started."""
    dropped: dict[str, int] = builder.fields.setdefault("dropped", {})
    limit = builder.limits.sections_per_job
    for reason, point in builder.named(points, metric, semconv.ATTR_REASON):
        value = value_of(point)
        if value is None:
            continue
        if not 0 <= value < WHOLE_END:
            builder.reject("bad_value", metric, f"a value of {value}")
        elif len(dropped) >= limit and reason not in dropped:
            builder.reject("too_many_sections", metric, f"more than {limit} reasons")
        elif (total := _total(builder, metric, point, int(value), reason)) is not None:
            dropped[reason] = total


def read_logged(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read values that the training script logged, by name."""
    logged: dict[str, float] = builder.fields.setdefault("logged", {})
    for name, point in builder.named(points, metric, semconv.ATTR_SCALAR):
        value = value_of(point)
        if value is None:
            continue
        if not isfinite(value):
            builder.reject("bad_value", metric, f"{quote(name)} is {value}")
        elif len(logged) >= MAX_NAMES and name not in logged:
            builder.reject("too_many_sections", metric, f"more than {MAX_NAMES} names")
        else:
            logged[name] = float(value)


def read_non_finite(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read how many logged values were not finite, by name."""
    counts: dict[str, int] = builder.fields.setdefault("logged_non_finite", {})
    for name, point in builder.named(points, metric, semconv.ATTR_SCALAR):
        value = value_of(point)
        if value is not None and 0 <= value < WHOLE_END and (name in counts or len(counts) < MAX_NAMES):
            counts[name] = int(value)


def _newest(points: Sequence[NumberDataPoint]) -> NumberDataPoint | None:
    return max(points, key=lambda point: point.time_unix_nano, default=None)


def _total(builder: ReportBuilder, metric: Metric, point: NumberDataPoint, value: int, label: str = "") -> int | None:
    """The total of a counter: a point's value, or the sum of all deltas up to it; None for a repetition."""
    # A metric that is not a sum reads as one of unspecified temporality.
    if metric.sum.aggregation_temporality != AGGREGATION_TEMPORALITY_DELTA:
        return value
    key = (metric.name, label)
    if not builder.has_room_for(key):
        builder.reject("too_many_sections", metric, f"more than {builder.limits.sections_per_job} series")
        return None
    total = builder.tracker.total_of_deltas(builder.series(), key, point.time_unix_nano, value)
    if total is None:
        builder.counters.repeats += 1
    return None if total is None or total >= WHOLE_END else total
