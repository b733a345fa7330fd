"""An OTLP metrics request -> rank reports, and what of it was not taken.

How this works: one resource is one report. Who speaks is read from the resource's attributes (and remembered by the
resource's bytes, which a process sends unchanged with every export); then :data:`READERS` maps each metric name of the
contract to the function that reads it into a draft of the report; what several metrics say together (a window, a kernel
report, a device) is put together at the end. A metric of any other name is nobody's business here and is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from rankwatch.wire import names
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest import windows
from rankwatch_monitor.ingest.devices import read_errors, read_throttled, reading
from rankwatch_monitor.ingest.draft import Draft, Read
from rankwatch_monitor.ingest.identity import Identified, identify
from rankwatch_monitor.ingest.kernels import read_kernel_calls, read_kernel_seconds, read_kernel_source
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.refusal import Refusal, Refused, Rejections
from rankwatch_monitor.ingest.scalars import age, flag, number, read_dropped
from rankwatch_monitor.ingest.sections import longest, read_finished, read_first, read_open
from rankwatch_monitor.ingest.series import SeriesTracker

_NUMBER: Final = frozenset({"gauge", "sum"})
_ABSOLUTE_ZERO: Final = -273.15
_HISTOGRAM: Final = frozenset({"histogram", "exponential_histogram"})


class Reader(NamedTuple):
    """How one metric is read, and the kinds it may come as."""

    kinds: frozenset[str]
    read: Read


READERS: Final[Mapping[str, Reader]] = {
    names.HEARTBEATS.name: Reader(_NUMBER, number("beats")),
    names.HEARTBEAT_AGE.name: Reader(_NUMBER, age("heartbeat_age")),
    names.ITERATION.name: Reader(_NUMBER, number("iteration")),
    names.PROGRESS.name: Reader(_NUMBER, number("progress")),
    names.FIRST_ITERATION.name: Reader(_NUMBER, number("first_iteration")),
    names.FIRST_ITERATION_AGE.name: Reader(_NUMBER, age("first_iteration_age")),
    names.SESSION_ENDED.name: Reader(_NUMBER, flag("ended")),
    names.SECTION_OPEN_DURATION.name: Reader(_NUMBER, read_open),
    names.SECTION_IDLE_DURATION.name: Reader(_NUMBER, age("idle")),
    names.SECTION_FIRST.name: Reader(_NUMBER, read_first),
    names.SECTION_LONGEST.name: Reader(_NUMBER, longest("longest")),
    names.SECTION_FIRST_DURATION.name: Reader(_NUMBER, longest("first_durations")),
    names.SECTION_IDLE_LONGEST.name: Reader(_NUMBER, age("idle_longest")),
    names.PROGRESS_AGE.name: Reader(_NUMBER, age("quiet")),
    names.SECTION_DURATION.name: Reader(_HISTOGRAM, read_finished),
    names.TELEMETRY_DROPPED.name: Reader(_NUMBER, read_dropped),
    names.WINDOW_ITERATION.name: Reader(_NUMBER, windows.read_iteration),
    names.WINDOW_STEPS.name: Reader(_NUMBER, windows.read_steps),
    names.WINDOW_SECTION_DURATION.name: Reader(_NUMBER, windows.read_section_seconds),
    names.WINDOW_SECTION_CALLS.name: Reader(_NUMBER, windows.read_section_calls),
    names.STEP_PART.name: Reader(_NUMBER, windows.read_parts),
    names.COLLECTIVE_DURATION.name: Reader(_NUMBER, windows.read_collective_seconds),
    names.COLLECTIVE_CALLS.name: Reader(_NUMBER, windows.read_collective_calls),
    names.CPU_TIME.name: Reader(_NUMBER, windows.read_cpu),
    names.KERNEL_DURATION.name: Reader(_NUMBER, read_kernel_seconds),
    names.KERNEL_CALLS.name: Reader(_NUMBER, read_kernel_calls),
    names.KERNEL_SOURCE.name: Reader(_NUMBER, read_kernel_source),
    names.GPU_UTILIZATION.name: Reader(_NUMBER, reading("utilization", most=1.0)),
    names.GPU_MEMORY_USAGE.name: Reader(_NUMBER, reading("memory_used")),
    names.GPU_MEMORY_LIMIT.name: Reader(_NUMBER, reading("memory_total")),
    names.GPU_TEMPERATURE.name: Reader(_NUMBER, reading("temperature", least=_ABSOLUTE_ZERO)),
    names.GPU_POWER.name: Reader(_NUMBER, reading("power")),
    names.GPU_POWER_LIMIT.name: Reader(_NUMBER, reading("power_limit")),
    names.GPU_CLOCK.name: Reader(_NUMBER, reading("clock")),
    names.GPU_CLOCK_LIMIT.name: Reader(_NUMBER, reading("clock_limit")),
    names.GPU_THROTTLED.name: Reader(_NUMBER, read_throttled),
    names.GPU_ERRORS.name: Reader(_NUMBER, read_errors),
}
"""Metric name -> how it is read into a draft."""

# A resource of ours takes about 500 bytes; one above this is read anew each time, so that memory stays bounded.
_REMEMBERED_RESOURCE_BYTES: Final = 4096


class Decoded(NamedTuple):
    """What one request came to."""

    reports: list[RankReport]
    points: list[int]
    """Data points behind each report: what is lost when the report is refused later."""
    rejections: Rejections


class MetricsDecoder:
    """Turns requests into reports; remembers identities and running totals between them, both bounded.

    Args:
        limits: what a request may hold.
        counters: where rejections and repeats are counted.
        since_unix_ns: when the monitor began, see :class:`SeriesTracker`.
    """

    def __init__(self, limits: Limits, counters: Counters, since_unix_ns: int = 0) -> None:
        self._limits = limits
        self._counters = counters
        self._tracker = SeriesTracker(limits.processes_remembered, since_unix_ns)
        self._remembered = lru_cache(limits.processes_remembered)(self._identify)

    def decode(self, request: ExportMetricsServiceRequest) -> Decoded:
        """Return the reports of ``request`` in its order.

        Raises:
            Refusal: 413, it holds more resources or points than the limits allow.
        """
        limits = self._limits
        resources = request.resource_metrics
        if len(resources) > limits.resources_per_request:
            raise _too_many("resources", "resources_per_request", limits.resources_per_request)
        reports: list[RankReport] = []
        points: list[int] = []
        rejections = Rejections(self._counters)
        room = _Room(limits.points_per_request)
        for resource_metrics in resources:
            who = self._who(resource_metrics.resource)
            if isinstance(who, Refused):
                if lost := _count(resource_metrics, room):
                    rejections.add(who.reason, who.words, lost)
                continue
            for warning in who.warnings:
                rejections.warn(warning.reason, f"rank {who.identity.rank}: {warning.words}")
            draft = Draft(who.identity, self._tracker, limits, self._counters, rejections)
            points.append(_read(resource_metrics, draft, room))
            reports.append(draft.report())
        return Decoded(reports, points, rejections)

    def _who(self, resource: Resource) -> Identified | Refused:
        serialized = resource.SerializeToString()
        if len(serialized) > _REMEMBERED_RESOURCE_BYTES:
            return identify(resource, self._limits)
        return self._remembered(serialized)

    def _identify(self, serialized: bytes) -> Identified | Refused:
        return identify(Resource.FromString(serialized), self._limits)


class _Room:
    """How many more points one request may hold."""

    __slots__ = ("_left", "_limit")

    def __init__(self, limit: int) -> None:
        self._left = self._limit = limit

    def take(self, points: int) -> None:
        self._left -= points
        if self._left < 0:
            raise _too_many("data points", "points_per_request", self._limit)


def _read(resource_metrics: ResourceMetrics, draft: Draft, room: _Room) -> int:
    """Read one resource's metrics into ``draft``; return how many data points of the contract they hold."""
    points = 0
    for scope in resource_metrics.scope_metrics:
        metrics = scope.metrics
        room.take(1 + len(metrics))
        for metric in metrics:
            reader = READERS.get(metric.name)
            if reader is None:
                continue
            kind = metric.WhichOneof("data")
            found = () if kind is None else getattr(metric, kind).data_points
            count = len(found)
            room.take(count)
            points += count
            if kind in reader.kinds:
                reader.read(draft, metric, found)
            elif count:
                draft.reject("bad_value", metric, f"sent as {kind}, wanted {' or '.join(sorted(reader.kinds))}", count)
    return points


def _count(resource_metrics: ResourceMetrics, room: _Room) -> int:
    """Return how many data points of any metric a resource holds."""
    points = 0
    for scope in resource_metrics.scope_metrics:
        room.take(1 + len(scope.metrics))
        for metric in scope.metrics:
            kind = metric.WhichOneof("data")
            count = 0 if kind is None else len(getattr(metric, kind).data_points)
            room.take(count)
            points += count
    return points


def _too_many(what: str, limit_name: str, limit: int) -> Refusal:
    return Refusal(
        413,
        "too_many_points",
        f"{what} in one request are above the limit of {limit} ({limit_name}): send smaller batches",
    )
