"""Readers of what NVML says of a rank's device: one number each, and what holds its clocks down or went wrong.

A rank's report is about its own device. A sender that speaks of several names them with ``hw.id`` on the points; if one
of them is the device that the resource names, only its points are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import DeviceReading
from rankwatch_monitor.ingest.otlp.builder import Draft, Read, attribute, value_of
from rankwatch_monitor.ingest.rejection import quote

# Above it a number no longer fits the columns of the core.
_WHOLE_END: Final = 2**63
# More bytes, watts or hertz than any device has.
_NUMBER_END: Final = 1e18
_ABSOLUTE_ZERO: Final = -273.15


class Reading(NamedTuple):
    """One number of a device: the field it is read into, and the least and most it can be."""

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
"""OpenTelemetry's own attribute of ``hw.errors``, read where ours is missing."""


class DevicePiece:
    """A reading in the making: fields of :class:`DeviceReading` that were told."""

    __slots__ = ("_draft", "fields")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.fields: dict[str, Any] = {}

    def finish(self) -> None:
        """Make the reading, unless nothing in it could be taken."""
        if self.fields:
            self._draft.fields["device"] = DeviceReading(**self.fields)


def reading(one: Reading) -> Read:
    """Return a reader of one number of the device; the newest point counts."""
    field, least, most = one

    def read(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
        own = _own(draft, points)
        point = own[0] if len(own) == 1 else max(own, key=lambda each: each.time_unix_nano, default=None)
        if point is None or (value := value_of(point)) is None:
            return
        if least <= value <= most:
            draft.piece(DevicePiece).fields[field] = float(value)
        else:
            draft.reject("bad_value", metric, f"a value of {value}", len(own))

    return read


def read_throttled(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
    """Read the reasons for which the clocks are held down: those whose newest point is 1."""
    newest: dict[str, tuple[int, bool]] = {}
    limit = draft.limits.attributes
    own = _own(draft, points)
    for reason, point in draft.named(own, metric, semconv.ATTR_REASON):
        value = value_of(point)
        if value is None:
            continue
        if value not in (0, 1):
            draft.reject("bad_value", metric, f"reason {quote(reason)} with {value}, wanted 1 for yes")
        elif len(newest) >= limit and reason not in newest:
            draft.reject("too_many_attributes", metric, f"more than {limit} reasons")
        else:
            newest[reason] = max(newest.get(reason, (0, False)), (point.time_unix_nano, value == 1))
    if newest:
        draft.piece(DevicePiece).fields["throttled"] = tuple(reason for reason, (_, held) in newest.items() if held)


def read_errors(draft: Draft, metric: Metric, points: Sequence[Any]) -> None:
    """Read how many errors the device has counted, by reason; other hardware's errors are nobody's business here."""
    errors: dict[str, int] = {}
    limit = draft.limits.attributes
    for key in (ERROR_TYPE, semconv.ATTR_REASON):  # ours last: it goes before the other
        said = [point for point in _own(draft, points) if attribute(point.attributes, key)]
        for reason, point in draft.named(said, metric, key):
            value = value_of(point)
            if value is None:
                continue
            if not 0 <= value < _WHOLE_END:
                draft.reject("bad_value", metric, f"{value} errors of {quote(reason)}")
            elif len(errors) >= limit and reason not in errors:
                draft.reject("too_many_attributes", metric, f"more than {limit} reasons")
            else:
                errors[reason] = int(value)
    if errors:
        draft.piece(DevicePiece).fields["errors"] = errors


def _own(draft: Draft, points: Sequence[Any]) -> Sequence[Any]:
    """The points that are about the rank's own device."""
    device = draft.device
    if not device or len(points) == 1:
        return points
    return [point for point in points if attribute(point.attributes, semconv.HW_ID) == device] or points
