"""Decodes an OTLP metrics request into rank reports, and into rejections.

One resource is one report. The process is read from the resource's attributes, and cached by the resource's bytes,
which are the same in every export of a process. Then :data:`READERS` maps each metric of the contract to the function
that reads it. Fields that need several metrics (a window, a kernel report, a device) are assembled at the end. Metrics
of other names are ignored, unless another emitter sent them: some show that training makes progress
(:mod:`.foreign.lens`).

:meth:`MetricsDecoder.decode_bytes` first cuts the request into resources without parsing it. Where the bytes of a scope
have a known layout (:mod:`.fastpath.layout`), its fields are read from them; all else is parsed by protobuf.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.ingest.fastpath.layout import NO_CUT, Cut, Layout, Layouts, cut
from rankwatch_monitor.ingest.fastpath.learning import learn
from rankwatch_monitor.ingest.fastpath.wire_format import Slice, slices
from rankwatch_monitor.ingest.foreign.lens_exported import Exported
from rankwatch_monitor.ingest.foreign.lens_progress import Progress
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.lru import LruCache
from rankwatch_monitor.ingest.message import parse_protobuf
from rankwatch_monitor.ingest.otlp import windows
from rankwatch_monitor.ingest.otlp.builder import Read, ReportBuilder
from rankwatch_monitor.ingest.otlp.devices import READINGS, read_errors, read_throttled, reading
from rankwatch_monitor.ingest.otlp.identity import Identified, check_jobs, identify
from rankwatch_monitor.ingest.otlp.kernels import read_kernel_calls, read_kernel_seconds, read_kernel_source
from rankwatch_monitor.ingest.otlp.scalars import (
    AGES,
    NUMBERS,
    age,
    flag,
    number,
    read_dropped,
    read_logged,
    read_non_finite,
)
from rankwatch_monitor.ingest.otlp.sections import LONGEST, longest, read_finished, read_first, read_open
from rankwatch_monitor.ingest.otlp.series import SeriesTracker
from rankwatch_monitor.ingest.rejection import Budget, Forbidden, Refusal, Rejection, Rejections, too_many

_NUMBER: Final = frozenset({"gauge", "sum"})
_HISTOGRAM: Final = frozenset({"histogram", "exponential_histogram"})


class Reader(NamedTuple):
    """How a metric is read, and the OTLP types it may have."""

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
    semconv.SCALAR.name: Reader(_NUMBER, read_logged),
    semconv.SCALAR_NON_FINITE.name: Reader(_NUMBER, read_non_finite),
    semconv.WINDOW_ITERATION.name: Reader(_NUMBER, windows.read_iteration),
    semconv.WINDOW_STEPS.name: Reader(_NUMBER, windows.read_steps),
    semconv.WINDOW_SECTION_DURATION.name: Reader(_NUMBER, windows.read_section_seconds),
    semconv.WINDOW_SECTION_CALLS.name: Reader(_NUMBER, windows.read_section_calls),
    semconv.STEP_PART.name: Reader(_NUMBER, windows.read_parts),
    semconv.COLLECTIVE_DURATION.name: Reader(_NUMBER, windows.read_collective_seconds),
    semconv.COLLECTIVE_CALLS.name: Reader(_NUMBER, windows.read_collective_calls),
    semconv.OPERATION_DURATION.name: Reader(_NUMBER, windows.read_operation_seconds),
    semconv.OPERATION_SIZE.name: Reader(_NUMBER, windows.read_operation_sizes),
    semconv.OPERATION_CALLS.name: Reader(_NUMBER, windows.read_operation_calls),
    semconv.CPU_TIME.name: Reader(_NUMBER, windows.read_cpu),
    semconv.KERNEL_DURATION.name: Reader(_NUMBER, read_kernel_seconds),
    semconv.KERNEL_CALLS.name: Reader(_NUMBER, read_kernel_calls),
    semconv.KERNEL_SOURCE.name: Reader(_NUMBER, read_kernel_source),
    semconv.GPU_THROTTLED.name: Reader(_NUMBER, read_throttled),
    semconv.GPU_ERRORS.name: Reader(_NUMBER, read_errors),
}
"""By metric name."""

_AT: Final = {field: at for at, field in enumerate(RankReport._field_defaults)}
"""Of each field of a report, without the identity."""
_WINDOW: Final = _AT["window"]
_KERNELS: Final = _AT["kernels"]

Elsewhere = Callable[[str], str | None]
"""Takes a job id; returns why its reports belong to another monitor, None if they do not."""

Replaced = Callable[[RankIdentity], bool]
"""Whether other processes have replaced this one for good."""
SWEEP_INTERVAL: Final = 1.0
"""Seconds between two looks for processes that were replaced."""
SWEEP_ON: Final = 0.05
"""The same once some were found: all of a job are forgotten within seconds, while those that replace them begin."""

_LIVENESS_FIELDS: Final = frozenset({"open_sections", "idle", "quiet", "beats"})
"""Fields that show whether a process makes progress; where it sends them itself, none have to be inferred."""

# A rank's resource takes about 500 bytes. Larger ones than this are not cached, so that memory stays bounded.
_CACHED_RESOURCE_BYTES: Final = 2048


class Decoded(NamedTuple):
    """The content of one request."""

    reports: list[RankReport]
    points: list[int]
    """Number of data points of each report, for counting those of a report that the sink refuses."""
    rejections: Rejections


class MetricsDecoder:
    """Decodes requests; caches identities, running totals and layouts between them, all bounded.

    Args:
        limits: what a request may hold.
        counters: where rejections and repeats are counted.
        since_unix_ns: when the monitor started, see :class:`SeriesTracker`.
        elsewhere: why the reports of a job belong to another monitor.
        progress: of processes of other emitters; shared with the decoder of spans.
        replaced: which processes can be forgotten; without it those that are silent for long.
    """

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        since_unix_ns: int = 0,
        elsewhere: Elsewhere | None = None,
        progress: Progress | None = None,
        replaced: Replaced | None = None,
    ) -> None:
        self._replaced, self._sweep_at = replaced, 0.0
        self._progress = progress if progress is not None else Progress(limits.processes_remembered)
        self._elsewhere = elsewhere
        self._limits = limits
        self._counters = counters
        self._tracker = SeriesTracker(limits.processes_remembered, since_unix_ns)
        self._identities = LruCache(self._identify, limits.processes_remembered)
        self.layouts = Layouts(lambda scope: learn(scope, limits))
        """Known layouts of scopes."""

    def decode(
        self,
        request: ExportMetricsServiceRequest,
        forbidden: Forbidden | None = None,
        rejections: Rejections | None = None,
    ) -> Decoded:
        """The reports of a parsed request, in its order.

        Raises:
            Refusal: 413, it holds more resources or points than the limits allow; 503, all its jobs belong to
                other monitors; 403, one of its jobs is ``forbidden`` to the sender.
        """
        prepared = [_Parsed(self._sender_of(each.resource), each) for each in self._bounded(request)]
        return self._decode(prepared, forbidden, rejections)

    def check(self, senders: Collection[Identified | Rejection], forbidden: Forbidden | None) -> None:
        """Check of whom a request is, before it has any effect.

        Raises:
            Refusal: 503, all its jobs belong to other monitors; 403, one of its jobs is ``forbidden`` to the sender.
        """
        if forbidden is not None:
            check_jobs(senders, forbidden)
        of_jobs = {each.identity.job_id for each in senders if isinstance(each, Identified)}
        owners = self._owners(of_jobs)
        if owners and len(owners) == len(of_jobs):
            raise Refusal(503, "held_elsewhere", next(iter(owners.values())), retry_after=1)

    def _owners(self, jobs: Iterable[str]) -> dict[str, str]:
        """Why some of the jobs belong to other monitors."""
        elsewhere = self._elsewhere
        if elsewhere is None:
            return {}
        return {job_id: message for job_id in jobs if (message := elsewhere(job_id)) is not None}

    def decode_bytes(
        self, body: bytes, forbidden: Forbidden | None = None, rejections: Rejections | None = None
    ) -> Decoded:
        """The reports of an unparsed request: the same as of the parsed one, but several times faster.

        Args:
            body: of at most 512 KiB, or a part of a larger one.
            forbidden: which jobs it must not be about.
            rejections: those of the request that it is a part of, which was checked as a whole.

        Raises:
            Refusal: as above; 400, it is not a metrics request.
        """
        most = self._limits.resources_per_request
        try:
            parts = slices(body, most)
            if len(parts) > most:
                raise too_many("resources", "resources_per_request", most)
            # Prepared as a whole before anything has effects, so a request is accepted or refused as a whole.
            prepared = [self._prepared(part) for part in parts]
        except (ValueError, DecodeError):
            return self.decode(parse_protobuf(body, ExportMetricsServiceRequest), forbidden, rejections)
        return self._decode(prepared, forbidden, rejections)

    def _prepared(self, part: Slice) -> _Parsed | _Known:
        """Decode one resource as far as possible without effects.

        Raises:
            DecodeError: it is not valid protobuf.
        """
        if part.scope is None:
            parsed_part = ResourceMetrics.FromString(part.whole)
            return _Parsed(self._sender_of(parsed_part.resource), parsed_part)
        long = len(part.resource) > _CACHED_RESOURCE_BYTES
        sender = self._identify(part.resource) if long else self._identities(part.resource)
        if isinstance(sender, Rejection) or sender.foreign:
            # Inferring the progress of another emitter needs all its metrics, also those that are absent.
            return _Parsed(sender, ResourceMetrics.FromString(part.whole))
        scope = Cut(part.scope, NO_CUT, b"")
        layout = self.layouts.find(scope)
        # Most reports of a large job have no histogram. No layout covers one, so there is nothing to search for.
        if layout is None and (scope := cut(part.scope)).at != NO_CUT:
            layout = self.layouts.find(scope)
        if layout is None:
            return _Parsed(sender, ResourceMetrics.FromString(part.whole), scope)
        fields = layout.read(scope.rest)
        if fields is None:
            return _Parsed(sender, ResourceMetrics.FromString(part.whole))
        histogram = None if scope.at == NO_CUT else Metric.FromString(scope.histogram)
        return _Known(sender, layout, fields, histogram)

    def _decode(
        self, resources: Sequence[_Parsed | _Known], forbidden: Forbidden | None, rejections: Rejections | None
    ) -> Decoded:
        if rejections is None:
            rejections = Rejections(self._counters)
            if forbidden is not None or self._elsewhere is not None:
                self.check([each.sender for each in resources], forbidden)
        reports: list[RankReport] = []
        points: list[int] = []
        budget = Budget("data points", self._limits)
        if self._elsewhere is not None:
            resources = self._ours(resources, rejections, budget)
        for each in resources:
            budget.begin_report()
            sender = each.sender
            if isinstance(sender, Rejection):
                assert isinstance(each, _Parsed)
                if lost := _count(each.metrics, budget):
                    rejections.add(sender.reason, sender.message, lost)
                continue
            for warning in sender.warnings:
                rejections.warn(warning.reason, f"rank {sender.identity.rank}: {warning.message}")
            if isinstance(each, _Known) and not each.stateful:
                budget.take(each.layout.items)
                points.append(each.layout.points)
                reports.append(RankReport(sender.identity, *each.fields))
                continue
            builder = ReportBuilder(sender.identity, self._tracker, self._limits, self._counters, rejections)
            if isinstance(each, _Known):
                points.append(_take_rest(each, builder, budget))
                reports.append(RankReport(sender.identity, *each.fields))
            else:
                before = rejections.items
                exported = Exported() if sender.foreign else None
                points.append(_read(each.metrics, builder, budget, exported))
                if exported is not None:
                    self._add_progress(builder, sender, exported)
                reports.append(builder.report())
                if each.unknown is not None and rejections.items == before:
                    self.layouts.missed(each.unknown)
        if self._replaced is not None and time.monotonic() >= self._sweep_at:
            self._sweep(self._replaced)
        return Decoded(reports, points, rejections)

    def _sweep(self, replaced: Replaced) -> None:
        """Forget some of the processes that were replaced."""
        found = self._tracker.sweep(replaced)
        found |= self._identities.sweep(lambda _, each: isinstance(each, Identified) and replaced(each.identity))
        self._sweep_at = time.monotonic() + (SWEEP_ON if found else SWEEP_INTERVAL)

    def _add_progress(self, builder: ReportBuilder, sender: Identified, exported: Exported) -> None:
        """Add the progress inferred from an export of another emitter to its report."""
        if builder.fields.keys() & (_LIVENESS_FIELDS | {"iteration"}):
            builder.fields["foreign"] = True
        if not exported.recognised and sender.identity not in self._progress:
            return
        inferred = self._progress.take(sender.identity, "metrics", exported)
        if not builder.fields.keys() & _LIVENESS_FIELDS:
            builder.fields = inferred | builder.fields

    def _ours(
        self, resources: Sequence[_Parsed | _Known], rejections: Rejections, budget: Budget
    ) -> Sequence[_Parsed | _Known]:
        """The resources of this monitor's jobs. The others leave no trace in this decoder: they may be sent again."""
        senders = (each.sender for each in resources)
        owners = self._owners({each.identity.job_id for each in senders if isinstance(each, Identified)})
        ours = []
        for each in resources:
            budget.begin_report()
            message = owners.get(each.sender.identity.job_id) if isinstance(each.sender, Identified) else None
            if message is None:
                ours.append(each)
            else:
                lost = _count(each.metrics, budget) if isinstance(each, _Parsed) else each.layout.points
                rejections.add("held_elsewhere", message, lost)
        return ours

    def _bounded(self, request: ExportMetricsServiceRequest) -> Sequence[ResourceMetrics]:
        resources = request.resource_metrics
        if len(resources) > self._limits.resources_per_request:
            raise too_many("resources", "resources_per_request", self._limits.resources_per_request)
        return resources

    def _sender_of(self, resource: Resource) -> Identified | Rejection:
        serialized = resource.SerializeToString()
        if len(serialized) > _CACHED_RESOURCE_BYTES:
            return identify(resource, self._limits)
        return self._identities(serialized)

    def _identify(self, serialized: bytes) -> Identified | Rejection:
        return identify(Resource.FromString(serialized), self._limits)


class _Parsed(NamedTuple):
    """A parsed resource."""

    sender: Identified | Rejection
    metrics: ResourceMetrics
    unknown: Cut | None = None
    """Its scope, if that has no known layout yet."""


class _Known(NamedTuple):
    """A resource whose scope has a known layout, and was not parsed."""

    sender: Identified
    layout: Layout
    fields: list[Any]
    histogram: Metric | None
    """Of finished sections, which no layout covers."""

    @property
    def stateful(self) -> bool:
        """Whether some fields depend on earlier reports."""
        fields = self.fields
        return self.histogram is not None or fields[_WINDOW] is not None or fields[_KERNELS] is not None


def _read(resource_metrics: ResourceMetrics, builder: ReportBuilder, budget: Budget, exported: Exported | None) -> int:
    """Read a resource's metrics into ``builder``, and other metrics of another emitter into ``exported``.

    Returns the number of data points in metrics that were recognised.
    """
    points = 0
    for scope in resource_metrics.scope_metrics:
        budget.take(1 + len(scope.metrics))
        for metric in scope.metrics:
            points += _read_metric(metric, builder, budget, exported)
    return points


def _read_metric(metric: Metric, builder: ReportBuilder, budget: Budget, exported: Exported | None = None) -> int:
    reader = READERS.get(metric.name)
    if reader is None:
        return 0 if exported is None else _read_foreign(metric, exported, budget)
    kind = metric.WhichOneof("data")
    found = () if kind is None else getattr(metric, kind).data_points
    count = len(found)
    budget.take(count)
    if kind in reader.kinds:
        reader.read(builder, metric, found)
    elif count:
        builder.reject("bad_value", metric, f"sent as {kind}, wanted {' or '.join(sorted(reader.kinds))}", count)
    return count


def _read_foreign(metric: Metric, exported: Exported, budget: Budget) -> int:
    kind = metric.WhichOneof("data")
    found = () if kind is None else getattr(metric, kind).data_points
    budget.take(len(found))
    return len(found) if kind is not None and found and exported.metric(metric, kind, found) else 0


def _take_rest(known: _Known, builder: ReportBuilder, budget: Budget) -> int:
    """Complete the fields with what depends on earlier reports; return the number of data points."""
    points, fields = known.layout.points, known.fields
    budget.take(known.layout.items)
    if known.histogram is not None:
        budget.take(1)
        points += _read_metric(known.histogram, builder, budget)
        fields[_AT["finished"]] = builder.fields.get("finished", {})
    for field in ("window", "kernels"):
        if (once := fields[_AT[field]]) is not None:
            builder.set_once(field, *once)
            fields[_AT[field]] = builder.fields.get(field)
    return points


def _count(resource_metrics: ResourceMetrics, budget: Budget) -> int:
    """The number of all data points of a resource."""
    points = 0
    for scope in resource_metrics.scope_metrics:
        budget.take(1 + len(scope.metrics))
        for metric in scope.metrics:
            kind = metric.WhichOneof("data")
            count = 0 if kind is None else len(getattr(metric, kind).data_points)
            budget.take(count)
            points += count
    return points
