"""The content of one request of another emitter about one process, interpreted by the tables of :mod:`.lens`."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, Metric

from rankwatch_monitor.core.events import SectionStatistics
from rankwatch_monitor.ingest.foreign import lens
from rankwatch_monitor.ingest.foreign.lens import Sign
from rankwatch_monitor.ingest.otlp.builder import value_of

SECTIONS: Final = 64
"""Sections of one process; further ones are ignored."""
_STEP_END: Final = 2**53
_NUMBERS: Final = ("gauge", "sum")
_HISTOGRAMS: Final = ("histogram", "exponential_histogram")


class Count(NamedTuple):
    """A count of a metric, over all of its points."""

    at_ns: int
    count: float  # type: ignore[assignment]  # the standard term; tuple.count is not used here
    delta: bool
    """It counts since the last export, not since the start."""


class Timed(NamedTuple):
    """Step times of a histogram, over all of its points."""

    at_ns: int
    count: int  # type: ignore[assignment]  # as above
    seconds: float
    delta: bool


class Exported:
    """Signs of progress in one request."""

    __slots__ = (
        "after_step",
        "finished",
        "over",
        "recognised",
        "signs",
        "stamp_ns",
        "step",
        "step_spans",
        "timed",
        "work",
    )

    def __init__(self) -> None:
        self.recognised = False
        """Whether anything in it concerns training."""
        self.stamp_ns = 0
        """Its latest timestamp."""
        self.step: int | None = None
        """Number of the last step, from a metric or a span attribute."""
        self.step_spans = 0
        self.after_step = 0
        """Spans that ended after the last step did."""
        self.over = False
        """A span that encloses all of training has ended."""
        self.work: dict[str, Count] = {}
        self.timed: dict[str, Timed] = {}
        self.signs: dict[str, float] = {}
        self.finished: dict[str, SectionStatistics] = {}

    def metric(self, metric: Metric, kind: str, points: Sequence[Any]) -> bool:
        """Add a metric with its points; return whether it concerns training progress."""
        self.stamp_ns = max(self.stamp_ns, points[0].time_unix_nano)
        sign = lens.metric(metric.name)
        wanted = _HISTOGRAMS if sign is Sign.STEPS_TIMED else _NUMBERS
        if sign is None or kind not in wanted:
            return False
        self.recognised = True
        at = max(point.time_unix_nano for point in points)
        delta = kind != "gauge" and getattr(metric, kind).aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
        if sign is Sign.STEPS_TIMED:
            steps = sum(point.count for point in points)
            self.work[metric.name] = Count(at, float(steps), delta)
            seconds = sum(point.sum for point in points) * lens.seconds_of(metric.name, metric.unit)
            if isfinite(seconds):
                self.timed[metric.name] = Timed(at, steps, seconds, delta)
            return True
        values = [value for point in points if (value := value_of(point)) is not None and isfinite(value)]
        if not values:
            return True
        if sign is Sign.STEP and not delta:
            self._reached(max(values))
        elif sign is Sign.WEAK:
            self.signs[metric.name] = sum(values)
        else:
            self.work[metric.name] = Count(at, sum(values), delta)
        return True

    def span(self, meaning: lens.SpanMeaning, start_ns: int, end_ns: int, iteration: int | None) -> None:
        """Add a span."""
        self.recognised = True
        self.stamp_ns = max(self.stamp_ns, end_ns)
        if meaning.is_job:
            self.over = True
            return
        seconds = (end_ns - start_ns) / 1e9
        before = self.finished.get(meaning.section)
        if before is None and len(self.finished) >= SECTIONS:
            return
        count, total, least, most = before or (0, 0.0, seconds, seconds)
        self.finished[meaning.section] = SectionStatistics(
            count + 1, total + seconds, min(least, seconds), max(most, seconds)
        )
        self.after_step += 1
        if meaning.is_step:
            self.after_step = 0
            self.step_spans += 1
            if iteration is not None:
                self._reached(iteration)

    def _reached(self, step: float) -> None:
        if 0 <= step < _STEP_END:
            self.step = max(int(step), -1 if self.step is None else self.step)
