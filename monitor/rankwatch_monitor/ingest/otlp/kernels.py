"""Readers of kernel reports: statistics of each kernel over the last report interval, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import KernelStatistics
from rankwatch_monitor.ingest.otlp.builder import Draft, attribute, value_of
from rankwatch_monitor.ingest.otlp.named_statistics import NamedStatistics, Things
from rankwatch_monitor.ingest.rejection import quote

KERNELS: Final = Things(
    "kernel",
    semconv.ATTR_KERNEL,
    frozenset({"min", "median", "tail", "max", "mean", "stddev"}),
    "median",
    "kernels_per_report",
    "too_many_kernels",
)


class KernelPiece:
    """A kernel report in the making."""

    __slots__ = ("_draft", "_time_ns", "kernels")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._time_ns = 0
        self.kernels = NamedStatistics(draft, KERNELS)

    def saw(self, points: Sequence[Any]) -> None:
        """Note the time of a metric; all points of a report carry the same one."""
        self._time_ns = max(self._time_ns, points[0].time_unix_nano)

    def finish(self) -> None:
        """Make the report, unless it was told before."""
        draft, kernels = self._draft, dict(self._whole())
        if kernels:
            draft.once("kernels", kernels, self._time_ns)

    def _whole(self) -> Iterator[tuple[str, KernelStatistics]]:
        for name, calls, told in self.kernels.whole():
            median = told["median"]
            mean = told.get("mean", median)
            least, tail = told.get("min", median), told.get("tail", max(median, mean))
            most = told.get("max", max(median, tail))
            if least <= median <= most:
                yield name, KernelStatistics(calls, median, tail, mean, least, most, told.get("stddev", 0.0))
            else:
                words = f"has a median of {median} s, but a min of {least} s and a max of {most} s"
                self.kernels.reject(name, words, 1 + len(told))


def read_kernel_seconds(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
    """Read the timings of kernels."""
    if points:
        piece = draft.piece(KernelPiece)
        piece.saw(points)
        piece.kernels.read_seconds(metric, points)


def read_kernel_calls(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
    """Read how often kernels were called."""
    if points:
        piece = draft.piece(KernelPiece)
        piece.saw(points)
        piece.kernels.read_calls(metric, points)


def read_kernel_source(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
    """Read where kernel timings come from: the source whose newest point is 1, and why it is not another."""
    newest = -1
    for source, point in draft.named(points, metric, semconv.ATTR_SOURCE):
        value = value_of(point)
        if value is None:
            continue
        if value not in (0, 1):
            draft.reject("bad_value", metric, f"source {quote(source)} with {value}, wanted 1 for yes")
        elif value == 1 and point.time_unix_nano > newest:
            newest = point.time_unix_nano
            draft.fields["kernel_source"] = source
            draft.fields["kernel_source_reason"] = _shown(draft, attribute(point.attributes, semconv.ATTR_REASON))


def _shown(draft: Draft, reason: str) -> str:
    """A reason as it may be shown: on one line, and not longer than a name."""
    line = " ".join(reason.split())
    plain = line if line.isprintable() else "".join(each if each.isprintable() else "?" for each in line)
    longest = draft.limits.name_length
    if len(plain) > longest:
        draft.rejections.warn("name_too_long", f"{semconv.ATTR_REASON} of a kernel source cut to {longest} characters")
    return plain[:longest]
