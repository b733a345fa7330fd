"""A report in the making: what the readers of single metrics write into, and what they share.

What a reader turns away is told to the draft's rejections and leaves the report as if it had not been sent. Most
readers fill one field each. What comes in many metrics that make sense only together, as a window does, is gathered
in a *piece* of the draft, which is put together when all metrics have been read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)

from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.otlp.series import ProcessSeries, SeriesKey, SeriesTracker
from rankwatch_monitor.ingest.rejection import Rejections, quote

Point = TypeVar("Point", NumberDataPoint, HistogramDataPoint, ExponentialHistogramDataPoint)
Read = Callable[["Draft", Metric, Sequence[Any]], None]
"""Reads the points of a metric into a draft. They are handed over beside the metric because each look into a message
costs as much as all else that is done with a point."""

_NO_RECORDED_VALUE: Final = 1


class Piece(Protocol):
    """What several metrics tell together."""

    def __init__(self, draft: Draft) -> None: ...

    def finish(self) -> None:
        """Write what was told into the draft's fields, once all metrics of the report were read."""


AnyPiece = TypeVar("AnyPiece", bound=Piece)


class Draft:
    """A report in the making, and what its readers need beside it."""

    __slots__ = ("_identity", "_pieces", "_series", "counters", "fields", "limits", "rejections", "tracker")

    def __init__(
        self,
        identity: RankIdentity,
        tracker: SeriesTracker,
        limits: Limits,
        counters: Counters,
        rejections: Rejections,
    ) -> None:
        self._identity = identity
        self._series: ProcessSeries | None = None
        self._pieces: dict[type[Piece], Any] | None = None
        self.tracker = tracker
        self.limits = limits
        self.counters = counters
        self.rejections = rejections
        self.fields: dict[str, Any] = {}
        """Fields of :class:`RankReport` that were told so far."""

    def report(self) -> RankReport:
        """Return what was said."""
        if self._pieces is not None:
            for piece in self._pieces.values():
                piece.finish()
        if "idle" in self.fields:
            # Idle time is sent only while no section is open.
            self.fields.setdefault("open_sections", {})
        return RankReport(self._identity, **self.fields)

    @property
    def device(self) -> str:
        """The ``hw.id`` that the resource names; empty: none."""
        return self._identity.device

    def piece(self, kind: type[AnyPiece]) -> AnyPiece:
        """Return the piece of this kind, made when it is first asked for."""
        if self._pieces is None:
            self._pieces = {}
        found: AnyPiece | None = self._pieces.get(kind)
        if found is None:
            found = self._pieces[kind] = kind(self)
        return found

    def series(self) -> ProcessSeries:
        """Return what is remembered of this process."""
        if self._series is None:
            self._series = self.tracker.of(self._identity)
        return self._series

    def once(self, field: str, told: Any, time_ns: int, iteration: int | None = None) -> None:
        """Write what is told once, a window or a kernel report, into ``field``, unless it was told before."""
        self.fields.pop(field, None)
        if self.tracker.is_new_window(self.series(), (field, ""), time_ns, iteration):
            self.fields[field] = told
        else:
            self.counters.repeats += 1

    def has_room_for(self, key: SeriesKey) -> bool:
        """Say whether one more series of this process may be remembered."""
        series = self.series()
        return key in series or len(series) < self.limits.sections_per_job

    def reject(self, reason: str, metric: Metric, what: str, points: int = 1) -> None:
        """Turn ``points`` data points of ``metric`` away because of ``what``."""
        who = f"rank {self._identity.rank} of {quote(self._identity.job_id)}"
        self.rejections.add(reason, f"{metric.name} of {who}: {what}", points)

    def named(self, points: Sequence[Point], metric: Metric, key: str) -> list[tuple[str, Point]]:
        """Return the points with the name each carries under ``key``; those without a usable name are rejected."""
        found: list[tuple[str, Point]] = []
        longest = self.limits.name_length
        for point in points:
            attributes = point.attributes
            if len(attributes) > self.limits.attributes:
                self.reject("too_many_attributes", metric, f"a point with {len(attributes)} attributes")
                continue
            name = attribute(attributes, key)
            if not name or not name.isprintable() or len(name) > longest:
                self.reject_name(metric, key, name)
            else:
                found.append((name, point))
        return found

    def reject_name(self, metric: Metric, key: str, name: str) -> None:
        """Turn a point away whose ``name`` under ``key`` is missing, unprintable or too long."""
        longest = self.limits.name_length
        if not name:
            self.reject("bad_name", metric, f"a point without {key}")
        elif not name.isprintable():
            self.reject("bad_name", metric, f"{key} {quote(name)} has control characters in it")
        else:
            self.reject("name_too_long", metric, f"{key} has {len(name)} characters, limit {longest}")


def attribute(attributes: Sequence[KeyValue], key: str) -> str:
    """Return the text that stands under ``key``, empty when there is none."""
    for each in attributes:
        if each.key == key:
            return each.value.string_value
    return ""


def value_of(point: NumberDataPoint) -> float | None:
    """Return the value of a point, an ``int`` or a ``float``; None when it has none (a series that has ended)."""
    # An arm of the union that is not set reads as zero, so only a zero needs a look at whether there was a value.
    value = point.as_double or point.as_int
    if not value and (point.flags & _NO_RECORDED_VALUE or point.WhichOneof("value") is None):
        return None
    return value
