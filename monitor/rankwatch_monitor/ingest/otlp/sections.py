"""Readers of sections: which are open and for how long, and how long the finished and the longest ones took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_DELTA,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
)

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import SectionStatistics
from rankwatch_monitor.ingest.otlp.builder import Draft, Read, value_of
from rankwatch_monitor.ingest.rejection import quote

# Whole numbers up to here are exact in the core's float64 columns.
COUNT_END: Final = 2**53

LONGEST: Final[Mapping[str, str]] = {
    semconv.SECTION_LONGEST.name: "longest",
    semconv.SECTION_FIRST_DURATION.name: "first_durations",
}
"""Metrics that are a longest time of each section, and the field of the report that each tells."""


def read_open(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
    """Read the sections that are open now; of several points of one section the newest counts."""
    rejected_before = draft.rejections.items
    limit = draft.limits.sections_per_job
    ages: dict[str, float] = {}
    times: dict[str, int] = {}
    for section, point in draft.named(points, metric, semconv.ATTR_SECTION):
        value = value_of(point)
        if value is None:
            continue
        if not 0 <= value < inf:
            draft.reject("bad_value", metric, f"section {quote(section)} open for {value} s")
        elif len(ages) >= limit and section not in ages:
            draft.reject("too_many_sections", metric, f"more than {limit} open sections")
        elif (time_ns := point.time_unix_nano) >= times.get(section, 0):
            ages[section] = float(value)
            times[section] = time_ns
    if ages or draft.rejections.items == rejected_before:
        # Points that could not be read are not the same as "no section is open".
        draft.fields["open_sections"] = ages


def read_first(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
    """Read which of the open sections the process has never finished before: those whose newest point is 1."""
    limit = draft.limits.sections_per_job
    newest: dict[str, tuple[int, bool]] = {}
    for section, point in draft.named(points, metric, semconv.ATTR_SECTION):
        value = value_of(point)
        if value is None:
            continue
        if value not in (0, 1):
            draft.reject("bad_value", metric, f"section {quote(section)} with {value}, wanted 1 for yes")
        elif len(newest) >= limit and section not in newest:
            draft.reject("too_many_sections", metric, f"more than {limit} open sections")
        else:
            newest[section] = max(newest.get(section, (0, False)), (point.time_unix_nano, value == 1))
    draft.fields["first_time"] = tuple(section for section, (_, first) in newest.items() if first)


def longest(field: str) -> Read:
    """Return a reader of the longest time of each section, in seconds, into ``field``."""

    def read(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
        limit = draft.limits.sections_per_job
        times: dict[str, float] = draft.fields.setdefault(field, {})
        for section, point in draft.named(points, metric, semconv.ATTR_SECTION):
            value = value_of(point)
            if value is None:
                continue
            if not 0 <= value < inf:
                draft.reject("bad_value", metric, f"section {quote(section)} took {value} s")
            elif len(times) >= limit and section not in times:
                draft.reject("too_many_sections", metric, f"more than {limit} sections")
            else:
                times[section] = max(float(value), times.get(section, 0.0))

    return read


def read_finished(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
    """Read the durations of finished sections from explicit or exponential histograms, delta or cumulative."""
    data = metric.exponential_histogram if metric.HasField("exponential_histogram") else metric.histogram
    is_delta = data.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
    finished: dict[str, SectionStatistics] = draft.fields.setdefault("finished", {})
    for section, point in draft.named(points, metric, semconv.ATTR_SECTION):
        count = point.count
        if not count:
            continue
        told = _statistics(point, count)
        if told is None:
            draft.reject("bad_value", metric, f"section {quote(section)} has no sound count, sum, min and max")
        elif not draft.has_room_for(section):
            draft.reject("too_many_sections", metric, f"more than {draft.limits.sections_per_job} sections")
        elif (new := _new(draft, section, point, told, is_delta)) is None:
            draft.counters.repeats += 1
        else:
            finished[section] = _joined(finished[section], new) if section in finished else new


def _new(
    draft: Draft,
    section: str,
    point: HistogramDataPoint | ExponentialHistogramDataPoint,
    told: SectionStatistics,
    is_delta: bool,
) -> SectionStatistics | None:
    tracker, series, time_ns = draft.tracker, draft.series(), point.time_unix_nano
    if is_delta:
        return told if tracker.is_new_delta(series, section, time_ns) else None
    return tracker.increment(series, section, point.start_time_unix_nano, time_ns, told)


def _joined(one: SectionStatistics, other: SectionStatistics) -> SectionStatistics:
    return SectionStatistics(
        one.count + other.count, one.sum + other.sum, min(one.min, other.min), max(one.max, other.max)
    )


def _statistics(point: HistogramDataPoint | ExponentialHistogramDataPoint, count: int) -> SectionStatistics | None:
    """Return what a histogram point tells; where it has no least or most, the mean is as much as is known."""
    total = point.sum
    if count >= COUNT_END or not 0 <= total < inf or not (total or point.HasField("sum")):
        return None
    mean = total / count
    least = point.min if point.HasField("min") else mean
    most = point.max if point.HasField("max") else mean
    return SectionStatistics(count, total, least, most) if 0 <= least <= most < inf else None
