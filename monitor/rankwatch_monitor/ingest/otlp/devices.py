"""Reads NVML figures of a rank's device: single numbers, throttle reasons and errors.

A report is about the rank's own device. Where a sender reports several, with ``hw.id`` on the points, and one of them
is the device of the resource, only that one's points are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import DeviceReading
from rankwatch_monitor.ingest.otlp.builder import WHOLE_END, Read, ReportBuilder, attribute, value_of
from rankwatch_monitor.ingest.rejection import quote

# More bytes, watts or hertz than any device has.
_NUMBER_END: Final = 1e18
_ABSOLUTE_ZERO: Final = -273.15


class Reading(NamedTuple):
    """One number of a device: its report field and its valid range."""

    field: str
    least: float = 0.0
    most: float = _NUMBER_END


READINGS: Final[Mapping[str, Reading]] = {
    semconv.GPU_UTILIZATION.name: Reading("utilization", most=1.0),
    semconv.GPU_MEMORY_USAGE.name: Reading("memory_used"),
    semconv.GPU_MEMORY_LIMIT.name: Reading("memory_total"),
    semconv.GPU_TEMPERATURE.name: Reading("temperature", least=_ABSOLUTE_ZERO),
    semconv.GPU_POWER.name: Reading("power"),
    semconv.GPU_POWER_LIMIT.name: Reading("power_limit"),
    semconv.GPU_CLOCK.name: Reading("clock"),
    semconv.GPU_CLOCK_LIMIT.name: Reading("clock_limit"),
}
"""Metrics that are one number of a device."""
ERROR_TYPE: Final = "error.type"
"""OpenTelemetry's attribute of ``hw.errors``, read where Rankwatch's own is missing."""


class DeviceComposite:
    """The device reading under construction: fields of :class:`DeviceReading`."""

    __slots__ = ("_builder", "fields")

    def __init__(self, builder: ReportBuilder) -> None:
        self._builder = builder
        self.fields: dict[str, Any] = {}

    def finish(self) -> None:
        """Assemble the reading, unless it is empty."""
        if self.fields:
            self._builder.fields["device"] = DeviceReading(**self.fields)


def reading(one: Reading) -> Read:
    """A reader of one number of the device; the newest point counts."""
    field, least, most = one

    def read(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
        own = _own(builder, points)
        point = own[0] if len(own) == 1 else max(own, key=lambda each: each.time_unix_nano, default=None)
        if point is None or (value := value_of(point)) is None:
            return
        if least <= value <= most:
            builder.composite(DeviceComposite).fields[field] = float(value)
        else:
            builder.reject("bad_value", metric, f"a value of {value}", len(own))

    return read


def read_throttled(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read the active throttle reasons: those whose newest point is 1."""
    own, limit = _own(builder, points), builder.limits.attributes
    found = builder.flagged(own, metric, semconv.ATTR_REASON, "reason", limit, "too_many_attributes")
    if found is not None:
        builder.composite(DeviceComposite).fields["throttled"] = found


def read_errors(builder: ReportBuilder, metric: Metric, points: Sequence[Any]) -> None:
    """Read the device's error counts by reason. Errors of other hardware have neither attribute and are ignored."""
    errors: dict[str, int] = {}
    limit = builder.limits.attributes
    for key in (ERROR_TYPE, semconv.ATTR_REASON):  # Rankwatch's own last: it takes precedence
        points_of_key = [point for point in _own(builder, points) if attribute(point.attributes, key)]
        for reason, point in builder.named(points_of_key, metric, key):
            value = value_of(point)
            if value is None:
                continue
            if not 0 <= value < WHOLE_END:
                builder.reject("bad_value", metric, f"{value} errors of {quote(reason)}")
            elif len(errors) >= limit and reason not in errors:
                builder.reject("too_many_attributes", metric, f"more than {limit} reasons")
            else:
                errors[reason] = int(value)
    if errors:
        builder.composite(DeviceComposite).fields["errors"] = errors


def _own(builder: ReportBuilder, points: Sequence[Any]) -> Sequence[Any]:
    """The points of the rank's own device."""
    device = builder.device
    if not device or len(points) == 1:
        return points
    return [point for point in points if attribute(point.attributes, semconv.HW_ID) == device] or points
