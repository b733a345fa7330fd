"""An OTLP metrics request -> rank reports, and what of it was not taken.

How this works: one resource is one report. Who speaks is read from the resource's attributes (and remembered by the
resource's bytes, which a process sends unchanged with every export); then :data:`READERS` maps each metric name of the
contract to the function that reads it into a draft of the report; what several metrics say together (a window, a kernel
report, a device) is put together at the end. Metrics of other names are looked at where another emitter speaks: some of
them tell that training moves (:mod:`.lens`). Those of our own ranks are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.fastpath.layout import NO_CUT, Cut, Layout, Layouts, cut
from rankwatch_monitor.ingest.fastpath.learning import learn
from rankwatch_monitor.ingest.fastpath.section_histogram import Finished, FinishedReader
from rankwatch_monitor.ingest.fastpath.section_histogram import take as take_finished
from rankwatch_monitor.ingest.fastpath.wire_format import Slice, slices
from rankwatch_monitor.ingest.foreign.lens_exported import Exported
from rankwatch_monitor.ingest.foreign.lens_progress import Progress
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.lru import Remembered
from rankwatch_monitor.ingest.message import parsed
from rankwatch_monitor.ingest.otlp import windows
from rankwatch_monitor.ingest.otlp.builder import Draft, Read
from rankwatch_monitor.ingest.otlp.devices import READINGS, read_errors, read_throttled, reading
from rankwatch_monitor.ingest.otlp.identity import Identified, identify
from rankwatch_monitor.ingest.otlp.kernels import read_kernel_calls, read_kernel_seconds, read_kernel_source
from rankwatch_monitor.ingest.otlp.scalars import AGES, NUMBERS, age, flag, number, read_dropped
from rankwatch_monitor.ingest.otlp.sections import LONGEST, longest, read_finished, read_first, read_open
from rankwatch_monitor.ingest.otlp.series import SeriesTracker
from rankwatch_monitor.ingest.rejection import Refusal, Rejection, Rejections

_NUMBER: Final = frozenset({"gauge", "sum"})
_HISTOGRAM: Final = frozenset({"histogram", "exponential_histogram"})


class Reader(NamedTuple):
    """How one metric is read, and the kinds it may come as."""

    kinds: frozenset[str]
    read: Read


READERS: Final[Mapping[str, Reader]] = {
    **{name: Reader(_NUMBER, age(field)) for name, field in AGES.items()},
    **{name: Reader(_NUMBER, number(field)) for name, field in NUMBERS.items()},
    **{name: Reader(_NUMBER, longest(field)) for name, field in LONGEST.items()},
    **{name: Reader(_NUMBER, reading(one)) for name, one in READINGS.items()},
    semconv.SESSION_ENDED.name: Reader(_NUMBER, flag("ended")),
    semconv.SECTION_OPEN_DURATION.name: Reader(_NUMBER, read_open),
    semconv.SECTION_FIRST.name: Reader(_NUMBER, read_first),
    semconv.SECTION_DURATION.name: Reader(_HISTOGRAM, read_finished),
    semconv.TELEMETRY_DROPPED.name: Reader(_NUMBER, read_dropped),
    semconv.WINDOW_ITERATION.name: Reader(_NUMBER, windows.read_iteration),
    semconv.WINDOW_STEPS.name: Reader(_NUMBER, windows.read_steps),
    semconv.WINDOW_SECTION_DURATION.name: Reader(_NUMBER, windows.read_section_seconds),
    semconv.WINDOW_SECTION_CALLS.name: Reader(_NUMBER, windows.read_section_calls),
    semconv.STEP_PART.name: Reader(_NUMBER, windows.read_parts),
    semconv.COLLECTIVE_DURATION.name: Reader(_NUMBER, windows.read_collective_seconds),
    semconv.COLLECTIVE_CALLS.name: Reader(_NUMBER, windows.read_collective_calls),
    semconv.CPU_TIME.name: Reader(_NUMBER, windows.read_cpu),
    semconv.KERNEL_DURATION.name: Reader(_NUMBER, read_kernel_seconds),
    semconv.KERNEL_CALLS.name: Reader(_NUMBER, read_kernel_calls),
    semconv.KERNEL_SOURCE.name: Reader(_NUMBER, read_kernel_source),
    semconv.GPU_THROTTLED.name: Reader(_NUMBER, read_throttled),
    semconv.GPU_ERRORS.name: Reader(_NUMBER, read_errors),
}
"""Metric name -> how it is read into a draft."""

Elsewhere = Callable[[str], str | None]
"""Given a job's id: why what is said of it is not taken here; None when it is."""

_OUR_WORDS: Final = frozenset({"open_sections", "idle", "quiet", "beats"})
"""Fields of a report by which a process is judged: where it tells them itself, nothing has to be guessed."""

# A resource of ours takes about 500 bytes; one above this is read anew each time, so that memory stays bounded.
_REMEMBERED_RESOURCE_BYTES: Final = 4096


class Decoded(NamedTuple):
    """What one request came to."""

    reports: list[RankReport]
    points: list[int]
    """Data points behind each report: what is lost when the report is refused later."""
    rejections: Rejections


class MetricsDecoder:
    """Turns requests into reports; remembers identities, running totals and layouts between them, all bounded.

    Args:
        limits: what a request may hold.
        counters: where rejections and repeats are counted.
        since_unix_ns: when the monitor began, see :class:`SeriesTracker`.
        elsewhere: says why reports of a job are not taken here, where another monitor holds it.
        progress: how far the processes of other emitters have come; shared with what reads their spans.
    """

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        since_unix_ns: int = 0,
        elsewhere: Elsewhere | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._progress = progress if progress is not None else Progress(limits.processes_remembered)
        self._elsewhere = elsewhere
        self._limits = limits
        self._counters = counters
        self._tracker = SeriesTracker(limits.processes_remembered, since_unix_ns)
        self._remembered = Remembered(self._identify, limits.processes_remembered)
        self._finished = FinishedReader(limits)
        self.layouts = Layouts(lambda scope: learn(scope, limits))
        """Scopes of known layouts are read without parsing."""

    def decode(self, request: ExportMetricsServiceRequest) -> Decoded:
        """Return the reports of ``request`` in its order.

        Raises:
            Refusal: 413, it holds more resources or points than the limits allow; 503, all of it is about jobs that
                another monitor holds.
        """
        return self._decode([_Parsed(self._who(each.resource), each) for each in self._bounded(request)])

    def decode_bytes(self, body: bytes) -> Decoded:
        """Return the reports of a request as it came; the same as if it was parsed first, but several times faster.

        Raises:
            Refusal: as above; 400, it is not a metrics request.
        """
        try:
            parts = slices(body)
            if len(parts) > self._limits.resources_per_request:
                raise ValueError("more than are taken")
            # All of it is looked at before any of it has effects: a request is taken, or refused, as a whole.
            prepared = [self._prepared(part) for part in parts]
        except (ValueError, DecodeError):
            return self.decode(parsed(body, ExportMetricsServiceRequest))
        return self._decode(prepared)

    def _prepared(self, part: Slice) -> _Parsed | _Known:
        """Read what can be read of one resource without effects.

        Raises:
            DecodeError: it is not what its request says.
        """
        if part.scope is None:
            parsed_part = ResourceMetrics.FromString(part.whole)
            return _Parsed(self._who(parsed_part.resource), parsed_part)
        long = len(part.resource) > _REMEMBERED_RESOURCE_BYTES
        who = self._identify(part.resource) if long else self._remembered(part.resource)
        if isinstance(who, Rejection) or who.foreign:
            # Of another emitter, each export is looked at for signs of progress, those that are not there included.
            return _Parsed(who, ResourceMetrics.FromString(part.whole))
        scope = cut(part.scope)
        layout = self.layouts.find(scope)
        if layout is None:
            return _Parsed(who, ResourceMetrics.FromString(part.whole), scope)
        fields = layout.read(scope.rest)
        if fields is None:
            return _Parsed(who, ResourceMetrics.FromString(part.whole))
        if scope.at == NO_CUT:
            return _Known(who, layout, fields)
        histogram = Metric.FromString(scope.histogram)
        return _Known(who, layout, fields, histogram, self._finished.read(scope.histogram))

    def _decode(self, resources: Sequence[_Parsed | _Known]) -> Decoded:
        reports: list[RankReport] = []
        points: list[int] = []
        rejections = Rejections(self._counters)
        room = _Room(self._limits.points_per_request)
        if self._elsewhere is not None:
            resources = self._ours(resources, self._elsewhere, rejections, room)
        for each in resources:
            who = each.who
            if isinstance(who, Rejection):
                assert isinstance(each, _Parsed)
                if lost := _count(each.metrics, room):
                    rejections.add(who.reason, who.message, lost)
                continue
            for warning in who.warnings:
                rejections.warn(warning.reason, f"rank {who.identity.rank}: {warning.message}")
            draft = Draft(who.identity, self._tracker, self._limits, self._counters, rejections)
            if isinstance(each, _Known):
                points.append(_take(each, draft, room))
                reports.append(draft.report())
            else:
                before = rejections.items
                exported = Exported() if who.foreign else None
                points.append(_read(each.metrics, draft, room, exported))
                if exported is not None:
                    self._add_progress(draft, who, exported)
                reports.append(draft.report())
                if each.unknown is not None and rejections.items == before:
                    self.layouts.missed(each.unknown)
        return Decoded(reports, points, rejections)

    def _add_progress(self, draft: Draft, who: Identified, exported: Exported) -> None:
        """Add what an export of another emitter says of its process's progress to its report."""
        if not exported.recognised and who.identity not in self._progress:
            return
        told = self._progress.take(who.identity, "metrics", exported)
        if not draft.fields.keys() & _OUR_WORDS:
            draft.fields = told | draft.fields

    def _ours(
        self, resources: Sequence[_Parsed | _Known], elsewhere: Elsewhere, rejections: Rejections, room: _Room
    ) -> Sequence[_Parsed | _Known]:
        """Those of no other monitor's jobs; nothing of the others is remembered, so they may be sent again.

        Raises:
            Refusal: 503, there are none.
        """
        of_jobs = {each.who.identity.job_id for each in resources if isinstance(each.who, Identified)}
        words = {job_id: said for job_id in of_jobs if (said := elsewhere(job_id)) is not None}
        if words and len(words) == len(of_jobs):
            raise Refusal(503, "held_elsewhere", next(iter(words.values())), retry_after=1)
        ours = []
        for each in resources:
            said = words.get(each.who.identity.job_id) if isinstance(each.who, Identified) else None
            if said is None:
                ours.append(each)
            else:
                lost = _count(each.metrics, room) if isinstance(each, _Parsed) else each.layout.points
                rejections.add("held_elsewhere", said, lost)
        return ours

    def _bounded(self, request: ExportMetricsServiceRequest) -> Sequence[ResourceMetrics]:
        resources = request.resource_metrics
        if len(resources) > self._limits.resources_per_request:
            raise _too_many("resources", "resources_per_request", self._limits.resources_per_request)
        return resources

    def _who(self, resource: Resource) -> Identified | Rejection:
        serialized = resource.SerializeToString()
        if len(serialized) > _REMEMBERED_RESOURCE_BYTES:
            return identify(resource, self._limits)
        return self._remembered(serialized)

    def _identify(self, serialized: bytes) -> Identified | Rejection:
        return identify(Resource.FromString(serialized), self._limits)


class _Parsed(NamedTuple):
    """A resource that is read in full."""

    who: Identified | Rejection
    metrics: ResourceMetrics
    unknown: Cut | None = None
    """Its scope, where that is of no known layout."""


class _Known(NamedTuple):
    """A resource whose scope is of a known layout."""

    who: Identified
    layout: Layout
    fields: dict[str, Any]
    histogram: Metric | None = None
    """Of finished sections, which are in no layout."""
    finished: list[Finished] | None = None
    """What it tells, where it is as usual."""


class _Room:
    """How many more points one request may hold."""

    __slots__ = ("_left", "_limit")

    def __init__(self, limit: int) -> None:
        self._left = self._limit = limit

    def take(self, points: int) -> None:
        self._left -= points
        if self._left < 0:
            raise _too_many("data points", "points_per_request", self._limit)


def _read(resource_metrics: ResourceMetrics, draft: Draft, room: _Room, exported: Exported | None) -> int:
    """Read one resource's metrics into ``draft``, and those of other names into ``exported`` where another emitter
    speaks; return how many data points that say something they hold."""
    points = 0
    for scope in resource_metrics.scope_metrics:
        room.take(1 + len(scope.metrics))
        for metric in scope.metrics:
            points += _read_metric(metric, draft, room, exported)
    return points


def _read_metric(metric: Metric, draft: Draft, room: _Room, exported: Exported | None = None) -> int:
    reader = READERS.get(metric.name)
    if reader is None:
        return 0 if exported is None else _read_foreign(metric, exported, room)
    kind = metric.WhichOneof("data")
    found = () if kind is None else getattr(metric, kind).data_points
    count = len(found)
    room.take(count)
    if kind in reader.kinds:
        reader.read(draft, metric, found)
    elif count:
        draft.reject("bad_value", metric, f"sent as {kind}, wanted {' or '.join(sorted(reader.kinds))}", count)
    return count


def _read_foreign(metric: Metric, exported: Exported, room: _Room) -> int:
    kind = metric.WhichOneof("data")
    found = () if kind is None else getattr(metric, kind).data_points
    room.take(len(found))
    return len(found) if kind is not None and found and exported.metric(metric, kind, found) else 0


def _take(known: _Known, draft: Draft, room: _Room) -> int:
    """Take what a layout told into ``draft``; return the same as :func:`_read`."""
    layout, draft.fields = known.layout, known.fields
    room.take(layout.items)
    if (window := draft.fields.get("window")) is not None:
        draft.once("window", window.told, window.time_ns, window.told.iteration)
    if (kernels := draft.fields.get("kernels")) is not None:
        draft.once("kernels", kernels.told, kernels.time_ns)
    if known.histogram is None:
        return layout.points
    room.take(1)
    if known.finished is not None and take_finished(known.finished, draft):
        room.take(len(known.finished))
        return layout.points + len(known.finished)
    return layout.points + _read_metric(known.histogram, draft, room)


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
