"""Reads sections: which are open and since when, and the durations of finished and of the longest ones."""

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
from rankwatch_monitor.ingest.otlp.builder import COUNT_END, Read, ReportBuilder, value_of
from rankwatch_monitor.ingest.rejection import quote

LONGEST: Final[Mapping[str, str]] = {
    semconv.SECTION_LONGEST.name: "longest",
    semconv.SECTION_FIRST_DURATION.name: "first_durations",
}
"""Metrics with a maximum per section, and the report field of each."""


def read_open(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read the open sections; of several points of one section the newest counts."""
    rejected_before = builder.rejections.items
    limit = builder.limits.sections_per_job
    ages: dict[str, float] = {}
    times: dict[str, int] = {}
    for section, point in builder.named(points, metric, semconv.ATTR_SECTION):
        value = value_of(point)
        if value is None:
            continue
        if not 0 <= value < inf:
            builder.reject("bad_value", metric, f"section {quote(section)} open for {value} s")
        elif len(ages) >= limit and section not in ages:
            builder.reject("too_many_sections", metric, f"more than {limit} open sections")
        elif (time_ns := point.time_unix_nano) >= times.get(section, 0):
            ages[section] = float(value)
            times[section] = time_ns
    if ages or builder.rejections.items == rejected_before:
        # Not where all points were rejected: that would read as "no section is open".
        builder.fields["open_sections"] = ages


def read_first(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read the open sections that the process never finished before: those whose newest point is 1."""
    limit = builder.limits.sections_per_job
    found = builder.flagged(points, metric, semconv.ATTR_SECTION, "section", limit, "too_many_sections")
    builder.fields["first_time"] = found or ()


def longest(field: str) -> Read:
    """A reader of the maximum of each section, in seconds, into ``field``."""

    def read(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
        limit = builder.limits.sections_per_job
        times: dict[str, float] = builder.fields.setdefault(field, {})
        for section, point in builder.named(points, metric, semconv.ATTR_SECTION):
            value = value_of(point)
            if value is None:
                continue
            if not 0 <= value < inf:
                builder.reject("bad_value", metric, f"section {quote(section)} took {value} s")
            elif len(times) >= limit and section not in times:
                builder.reject("too_many_sections", metric, f"more than {limit} sections")
            else:
                times[section] = max(float(value), times.get(section, 0.0))

    return read


def read_finished(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read the durations of finished sections from explicit or exponential histograms, delta or cumulative."""
    data = metric.exponential_histogram if metric.HasField("exponential_histogram") else metric.histogram
    is_delta = data.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
    finished: dict[str, SectionStatistics] = builder.fields.setdefault("finished", {})
    tracker, series, limit = builder.tracker, builder.series(), builder.limits.sections_per_job
    for section, point in builder.named(points, metric, semconv.ATTR_SECTION):
        count = point.count
        if not count:
            continue
        statistics = _statistics(point, count)
        if statistics is None:
            builder.reject("bad_value", metric, f"section {quote(section)} has no valid count, sum, min and max")
            continue
        if section not in series and len(series) >= limit:
            builder.reject("too_many_sections", metric, f"more than {limit} sections")
            continue
        new: SectionStatistics | None = statistics
        if not is_delta:
            new = tracker.increment(series, section, point.start_time_unix_nano, point.time_unix_nano, statistics)
        elif not tracker.is_new_delta(series, section, point.time_unix_nano):
            new = None
        if new is None:
            builder.counters.repeats += 1
        else:
            finished[section] = _merged(finished[section], new) if section in finished else new


def _merged(one: SectionStatistics, other: SectionStatistics) -> SectionStatistics:
    return SectionStatistics(
        one.count + other.count, one.sum + other.sum, min(one.min, other.min), max(one.max, other.max)
    )


def _statistics(point: HistogramDataPoint | ExponentialHistogramDataPoint, count: int) -> SectionStatistics | None:
    """The statistics of a histogram point; the mean stands in for a missing min or max. None if they are invalid."""
    # Only a zero needs the slower check whether the field is set.
    total, least, most = point.sum, point.min, point.max
    if count >= COUNT_END or not 0 <= total < inf or not (total or point.HasField("sum")):
        return None
    if not least and not point.HasField("min"):
        least = total / count
    if not most and not point.HasField("max"):
        most = total / count
    return SectionStatistics(count, total, least, most) if 0 <= least <= most < inf else None
