"""Readers of the metrics that are one number: ages, counts and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, Metric, NumberDataPoint

from rankwatch.contract import semconv
from rankwatch_monitor.ingest.otlp.builder import Draft, Read, value_of

# Above it a number no longer fits the columns of the core.
WHOLE_END: Final = 2**63

AGES: Final[Mapping[str, str]] = {
    semconv.HEARTBEAT_AGE.name: "heartbeat_age",
    semconv.FIRST_ITERATION_AGE.name: "first_iteration_age",
    semconv.SECTION_IDLE_DURATION.name: "idle",
    semconv.SECTION_IDLE_LONGEST.name: "idle_longest",
    semconv.PROGRESS_AGE.name: "quiet",
}
"""Metrics that are one age, in seconds, and the field of the report that each tells."""
NUMBERS: Final[Mapping[str, str]] = {
    semconv.HEARTBEATS.name: "beats",
    semconv.ITERATION.name: "iteration",
    semconv.PROGRESS.name: "progress",
    semconv.FIRST_ITERATION.name: "first_iteration",
}
"""The same of those that are one whole number."""


def age(field: str) -> Read:
    """Return a reader of an age in seconds into ``field``; it is taken as it is, whatever the clocks say."""

    def read(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
        point = points[0] if len(points) == 1 else _newest(points)
        if point is None or (value := point.as_double or value_of(point)) is None:
            return
        if 0 <= value < inf:
            draft.fields[field] = float(value)
        else:
            draft.reject("bad_value", metric, f"an age of {value} s", len(points))

    return read


def number(field: str) -> Read:
    """Return a reader of a whole number from 0 up into ``field``."""

    def read(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
        point = points[0] if len(points) == 1 else _newest(points)
        if point is None or (value := point.as_int or value_of(point)) is None:
            return
        if not 0 <= value < WHOLE_END:
            draft.reject("bad_value", metric, f"a value of {value}", len(points))
        elif (total := _total(draft, metric, point, int(value))) is not None:
            draft.fields[field] = total

    return read


def flag(field: str) -> Read:
    """Return a reader of a metric that is 1 for yes into ``field``."""

    def read(draft: Draft, _metric: Metric, points: Sequence[Any]) -> None:
        point = _newest(points)
        if point is not None and (value := value_of(point)) is not None:
            draft.fields[field] = value == 1

    return read


def read_dropped(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
    """Read what the sender's telemetry lost, by reason, as totals since its process started."""
    dropped: dict[str, int] = draft.fields.setdefault("dropped", {})
    limit = draft.limits.sections_per_job
    for reason, point in draft.named(points, metric, semconv.ATTR_REASON):
        value = value_of(point)
        if value is None:
            continue
        if not 0 <= value < WHOLE_END:
            draft.reject("bad_value", metric, f"a value of {value}")
        elif len(dropped) >= limit and reason not in dropped:
            draft.reject("too_many_sections", metric, f"more than {limit} reasons")
        elif (total := _total(draft, metric, point, int(value), reason)) is not None:
            dropped[reason] = total


def _newest(points: Sequence[NumberDataPoint]) -> NumberDataPoint | None:
    return max(points, key=lambda point: point.time_unix_nano, default=None)


def _total(draft: Draft, metric: Metric, point: NumberDataPoint, value: int, label: str = "") -> int | None:
    """Return the total that a point stands for: its value, or for a delta counter that and all deltas before."""
    # A metric that is no sum reads as one of unspecified temporality.
    if metric.sum.aggregation_temporality != AGGREGATION_TEMPORALITY_DELTA:
        return value
    key = (metric.name, label)
    if not draft.has_room_for(key):
        draft.reject("too_many_sections", metric, f"more than {draft.limits.sections_per_job} series")
        return None
    total = draft.tracker.total_of_deltas(draft.series(), key, point.time_unix_nano, value)
    if total is None:
        draft.counters.repeats += 1
    return None if total is None or total >= WHOLE_END else total
