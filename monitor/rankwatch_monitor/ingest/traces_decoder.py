"""Decodes an OTLP traces request into section spans, and into progress of ranks of other emitters.

Spans of Rankwatch's ranks are named after sections and carry the number of their step. Those of another emitter are
interpreted by the tables of :mod:`.foreign.lens`; one without a step number inherits that of an enclosing span in the
same request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from rankwatch.contract import semconv
from rankwatch.contract.enums import Part
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.foreign import lens
from rankwatch_monitor.ingest.foreign.lens_exported import Exported
from rankwatch_monitor.ingest.foreign.lens_progress import Progress
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.lru import LruCache
from rankwatch_monitor.ingest.otlp.identity import Identified, check_jobs, identify
from rankwatch_monitor.ingest.rejection import Budget, Forbidden, Rejection, Rejections, quote, too_many

# Spans are sampled and infrequent, so fewer identities are cached than for metrics.
_IDENTITIES: Final = 4096
_CACHED_RESOURCE_BYTES: Final = 4096
_ITERATION_END: Final = 2**63
_DEEPEST: Final = 16
"""Enclosing spans that are searched for a step number."""


class SpanRecord(NamedTuple):
    """One sampled section entry of a rank, on the wall clock of its host."""

    job_id: str
    rank: int
    attempt: int
    section: str
    start_unix_ns: int
    end_unix_ns: int
    iteration: int | None
    waiting: bool = False
    """It is no section, but exposed communication of a profiled step: in collectives, while nothing was computed."""


class TracesDecoder:
    """Decodes requests; caches identities, and the progress of other emitters' ranks."""

    def __init__(self, limits: Limits, counters: Counters, progress: Progress | None = None) -> None:
        self._progress = progress if progress is not None else Progress(limits.processes_remembered)
        self._limits = limits
        self._counters = counters
        self._identities = LruCache(self._identify, _IDENTITIES)

    def decode(
        self,
        request: ExportTraceServiceRequest,
        reports: list[RankReport] | None = None,
        forbidden: Forbidden | None = None,
        rejections: Rejections | None = None,
    ) -> tuple[list[SpanRecord], Rejections]:
        """The section spans in ``request``, and the rejections.

        Args:
            request: as received.
            reports: the progress that spans of other emitters show is appended here.
            forbidden: which jobs the sender must not report on.
            rejections: those of the request that this is a part of.

        Raises:
            Refusal: 413, it holds more resources or spans than the limits allow; 403, one of its jobs is forbidden.
        """
        limits = self._limits
        if len(request.resource_spans) > limits.resources_per_request:
            raise too_many("resources", "resources_per_request", limits.resources_per_request)
        budget = Budget("spans", limits)
        for each in request.resource_spans:
            budget.begin_report()
            budget.take(sum(len(scope.spans) + 1 for scope in each.scope_spans))
        if forbidden is not None:
            check_jobs((identify(each.resource, limits) for each in request.resource_spans), forbidden)
        records: list[SpanRecord] = []
        rejections = Rejections(self._counters) if rejections is None else rejections
        for resource_spans in request.resource_spans:
            self._read(resource_spans, records, rejections, reports)
        return records, rejections

    def _read(
        self,
        resource_spans: ResourceSpans,
        records: list[SpanRecord],
        rejections: Rejections,
        reports: list[RankReport] | None,
    ) -> None:
        serialized = resource_spans.resource.SerializeToString()
        if len(serialized) > _CACHED_RESOURCE_BYTES:
            sender = identify(resource_spans.resource, self._limits)
        else:
            sender = self._identities(serialized)
        if isinstance(sender, Rejection):
            if spans := sum(len(scope.spans) for scope in resource_spans.scope_spans):
                rejections.add(sender.reason, sender.message, spans)
            return
        for warning in sender.warnings:
            rejections.warn(warning.reason, f"rank {sender.identity.rank}: {warning.message}")
        numbers = _numbers(resource_spans) if sender.foreign else {}
        exported = Exported()
        for scope in resource_spans.scope_spans:
            for span in scope.spans:
                read = self._record(span, sender, numbers)
                if isinstance(read, SpanRecord):
                    records.append(read)
                    if sender.foreign:
                        meaning = lens.span(span.name)
                        exported.span(meaning, read.start_unix_ns, read.end_unix_ns, read.iteration)
                else:
                    rejections.add(read.reason, f"span of rank {sender.identity.rank}: {read.message}")
        if exported.recognised:
            fields = self._progress.take(sender.identity, "spans", exported)
            if reports is not None and self._progress.is_monitored(sender.identity):
                reports.append(RankReport(sender.identity, **fields))

    def _record(self, span: Span, sender: Identified, numbers: dict[bytes, int]) -> SpanRecord | Rejection:
        section, start, end = span.name, span.start_time_unix_nano, span.end_time_unix_nano
        limits = self._limits
        if not section or not section.isprintable():
            return Rejection("bad_name", f"its name {quote(section)} is not a section name")
        if len(section) > limits.name_length:
            return Rejection("name_too_long", f"its name has {len(section)} characters, limit {limits.name_length}")
        if not 0 < start <= end < _ITERATION_END:
            return Rejection("bad_value", f"it starts at {start} and ends at {end}")
        if len(span.attributes) > limits.attributes:
            return Rejection("too_many_attributes", f"it has {len(span.attributes)} attributes")
        if sender.foreign:
            section, iteration = lens.span(section).section, _number(span, lens.ITERATIONS)
            iteration = numbers.get(span.span_id) if iteration is None else iteration
        else:
            iteration = _number(span, (semconv.ATTR_ITERATION,))
        identity = sender.identity
        waiting = _part(span) == Part.COMMUNICATION
        return SpanRecord(identity.job_id, identity.rank, identity.attempt, section, start, end, iteration, waiting)

    def _identify(self, serialized: bytes) -> Identified | Rejection:
        return identify(Resource.FromString(serialized), self._limits)


def _part(span: Span) -> str:
    """The part of a step that a span stands for; empty: it is a section."""
    return next((each.value.string_value for each in span.attributes if each.key == semconv.ATTR_PART), "")


def _number(span: Span, keys: Sequence[str]) -> int | None:
    """The step number in the first of the attributes ``keys`` that a span has."""
    found = {
        each.key: each.value.int_value
        for each in span.attributes
        if each.key in keys and each.value.WhichOneof("value") == "int_value"
    }
    return next((number for key in keys if 0 <= (number := found.get(key, -1)) < _ITERATION_END), None)


def _numbers(resource_spans: ResourceSpans) -> dict[bytes, int]:
    """The step number of each span by id: its own, or that of an enclosing span."""
    spans = [span for scope in resource_spans.scope_spans for span in scope.spans if span.span_id]
    numbers = {span.span_id: number for span in spans if (number := _number(span, lens.ITERATIONS)) is not None}
    parents = {span.span_id: span.parent_span_id for span in spans}
    for span in spans:
        enclosing = span.span_id
        for _ in range(_DEEPEST):
            if enclosing in numbers or enclosing not in parents:
                break
            enclosing = parents[enclosing]
        if enclosing in numbers:
            numbers[span.span_id] = numbers[enclosing]
    return numbers
