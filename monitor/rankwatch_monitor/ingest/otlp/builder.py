"""The report under construction, and what the readers of single metrics share.

A rejected point leaves the report as if it had not been sent. Most readers fill one field. A field that needs several
metrics, such as a window, is collected in a :class:`Composite` and assembled when all metrics were read.
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
Read = Callable[["ReportBuilder", Metric, Sequence[Any]], None]
"""Reads the points of a metric into a builder. The points are an argument of their own since every access to a
protobuf field costs as much as reading a point."""

COUNT_END: Final = 2**53
"""Counts below are exact in the core's float64 columns."""
WHOLE_END: Final = 2**63
"""Whole numbers below fit the core's columns."""
SECONDS_END: Final = 1e9
"""Thirty years: a longer time is invalid, and the core keeps seconds as float32."""
_NO_RECORDED_VALUE: Final = 1


class Composite(Protocol):
    """A field that is assembled from several metrics."""

    def __init__(self, builder: ReportBuilder) -> None: ...

    def finish(self) -> None:
        """Write the field, once all metrics of the report were read."""


AnyComposite = TypeVar("AnyComposite", bound=Composite)


class ReportBuilder:
    """Collects the fields of one rank's report; rejects what cannot be read."""

    __slots__ = ("_composites", "_identity", "_series", "counters", "fields", "limits", "rejections", "tracker")

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
        self._composites: dict[type[Composite], Any] | None = None
        self.tracker = tracker
        self.limits = limits
        self.counters = counters
        self.rejections = rejections
        self.fields: dict[str, Any] = {}
        """Fields of :class:`RankReport` read so far."""

    def report(self) -> RankReport:
        """Assemble the report."""
        if self._composites is not None:
            for composite in self._composites.values():
                composite.finish()
        if "idle" in self.fields:
            # Idle time is sent only while no section is open.
            self.fields.setdefault("open_sections", {})
        return RankReport(self._identity, **self.fields)

    @property
    def device(self) -> str:
        """``hw.id`` of the resource; empty if it has none."""
        return self._identity.device

    def composite(self, kind: type[AnyComposite]) -> AnyComposite:
        """The composite of this kind, created on first use."""
        if self._composites is None:
            self._composites = {}
        found: AnyComposite | None = self._composites.get(kind)
        if found is None:
            found = self._composites[kind] = kind(self)
        return found

    def series(self) -> ProcessSeries:
        """The last values of this process's series."""
        if self._series is None:
            self._series = self.tracker.of(self._identity)
        return self._series

    def set_once(self, field: str, value: Any, time_ns: int, iteration: int | None = None) -> None:
        """Set a window or kernel report, unless it is a repetition of the last one."""
        self.fields.pop(field, None)
        if self.tracker.is_new_window(self.series(), (field, ""), time_ns, iteration):
            self.fields[field] = value
        else:
            self.counters.repeats += 1

    def has_room_for(self, key: SeriesKey) -> bool:
        """Whether one more series of this process may be remembered."""
        series = self.series()
        return key in series or len(series) < self.limits.sections_per_job

    def reject(self, reason: str, metric: Metric, problem: str, points: int = 1) -> None:
        """Reject ``points`` data points of a metric; ``problem`` is the end of the message."""
        rank = f"rank {self._identity.rank} of {quote(self._identity.job_id)}"
        self.rejections.add(reason, f"{metric.name} of {rank}: {problem}", points)

    def named(self, points: Sequence[Point], metric: Metric, key: str) -> list[tuple[str, Point]]:
        """The points with the value of their attribute ``key``; those without a usable one are rejected."""
        found: list[tuple[str, Point]] = []
        longest, most = self.limits.name_length, self.limits.attributes
        for point in points:
            attributes = point.attributes
            if len(attributes) > most:
                self.reject("too_many_attributes", metric, f"a point with {len(attributes)} attributes")
                continue
            name = ""
            for each in attributes:  # as attribute() does, without a call for each point
                if each.key == key:
                    name = each.value.string_value
                    break
            if not name or not name.isprintable() or len(name) > longest:
                self.reject_name(metric, key, name)
            else:
                found.append((name, point))
        return found

    def flagged(
        self, points: Sequence[NumberDataPoint], metric: Metric, key: str, noun: str, limit: int, too_many: str
    ) -> tuple[str, ...] | None:
        """The names whose newest point is 1, for yes; None: no point has a usable name and value."""
        newest: dict[str, tuple[int, bool]] = {}
        for name, point in self.named(points, metric, key):
            value = value_of(point)
            if value is None:
                continue
            if value not in (0, 1):
                self.reject("bad_value", metric, f"{noun} {quote(name)} with {value}, wanted 1 for yes")
            elif len(newest) >= limit and name not in newest:
                self.reject(too_many, metric, f"more than {limit} {noun}s")
            else:
                newest[name] = max(newest.get(name, (0, False)), (point.time_unix_nano, value == 1))
        return tuple(name for name, (_, yes) in newest.items() if yes) if newest else None

    def reject_name(self, metric: Metric, key: str, name: str) -> None:
        """Reject a point whose attribute ``key`` is missing, unprintable or too long."""
        longest = self.limits.name_length
        if not name:
            self.reject("bad_name", metric, f"a point without {key}")
        elif not name.isprintable():
            self.reject("bad_name", metric, f"{key} {quote(name)} contains control characters")
        else:
            self.reject("name_too_long", metric, f"{key} has {len(name)} characters, limit {longest}")


def attribute(attributes: Sequence[KeyValue], key: str) -> str:
    """The text of an attribute; empty when there is none."""
    for each in attributes:
        if each.key == key:
            return each.value.string_value
    return ""


def value_of(point: NumberDataPoint) -> float | None:
    """The value of a point, an ``int`` or ``float``; None when it has none (the series has ended)."""
    # An unset arm of the oneof reads as zero, so only a zero needs the slower check whether a value is set.
    value = point.as_double or point.as_int
    if not value and (point.flags & _NO_RECORDED_VALUE or point.WhichOneof("value") is None):
        return None
    return value
