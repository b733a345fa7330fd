"""Reads kernel reports: statistics of each kernel over the last report interval, and the source of the timings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from rankwatch.contract import semconv
from rankwatch.contract.statistics import KernelStatistics
from rankwatch_monitor.ingest.otlp.builder import ReportBuilder, attribute, value_of
from rankwatch_monitor.ingest.otlp.named_statistics import NamedStatistics, SeriesKind
from rankwatch_monitor.ingest.rejection import quote

KERNELS: Final = SeriesKind(
    "kernel",
    semconv.ATTR_KERNEL,
    frozenset({"min", "median", "tail", "max", "mean", "stddev"}),
    "median",
    "kernels_per_report",
    "too_many_kernels",
)


class KernelComposite:
    """The kernel report under construction."""

    __slots__ = ("_builder", "_time_ns", "kernels")

    def __init__(self, builder: ReportBuilder) -> None:
        self._builder = builder
        self._time_ns = 0
        self.kernels = NamedStatistics(builder, KERNELS)

    def note_time(self, points: Sequence[Any]) -> None:
        """Note the time of a metric; all points of a report carry the same one."""
        self._time_ns = max(self._time_ns, points[0].time_unix_nano)

    def finish(self) -> None:
        """Assemble the report, unless it is a repetition."""
        builder, kernels = self._builder, dict(self._whole())
        if kernels:
            builder.set_once("kernels", kernels, self._time_ns)

    def _whole(self) -> Iterator[tuple[str, KernelStatistics]]:
        for name, calls, statistics in self.kernels.complete():
            median = statistics["median"]
            mean = statistics.get("mean", median)
            least, tail = statistics.get("min", median), statistics.get("tail", max(median, mean))
            most = statistics.get("max", max(median, tail))
            if least <= median <= most:
                yield name, KernelStatistics(calls, median, tail, mean, least, most, statistics.get("stddev", 0.0))
            else:
                problem = f"has a median of {median} s, but a min of {least} s and a max of {most} s"
                self.kernels.reject(name, problem, 1 + len(statistics))


def read_kernel_seconds(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read the timings of kernels."""
    if points:
        composite = builder.composite(KernelComposite)
        composite.note_time(points)
        composite.kernels.read_seconds(metric, points)


def read_kernel_calls(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read the number of calls of kernels."""
    if points:
        composite = builder.composite(KernelComposite)
        composite.note_time(points)
        composite.kernels.read_calls(metric, points)


def read_kernel_source(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read the source of kernel timings: the one whose newest point is 1, and why no other is used."""
    newest = -1
    for source, point in builder.named(points, metric, semconv.ATTR_SOURCE):
        value = value_of(point)
        if value is None:
            continue
        if value not in (0, 1):
            builder.reject("bad_value", metric, f"source {quote(source)} with {value}, wanted 1 for yes")
        elif value == 1 and point.time_unix_nano > newest:
            newest = point.time_unix_nano
            builder.fields["kernel_source"] = source
            builder.fields["kernel_source_reason"] = _shown(builder, attribute(point.attributes, semconv.ATTR_REASON))


def _shown(builder: ReportBuilder, reason: str) -> str:
    """A reason on one line, without control characters, cut to the length of a name."""
    line = " ".join(reason.split())
    plain = line if line.isprintable() else "".join(each if each.isprintable() else "?" for each in line)
    longest = builder.limits.name_length
    if len(plain) > longest:
        builder.rejections.warn("name_too_long", f"{semconv.ATTR_REASON} of kernel source cut to {longest} characters")
    return plain[:longest]
