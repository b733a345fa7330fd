"""An OTLP traces request -> the section entries its spans stand for, and how far ranks of other emitters have come.

Spans of our own ranks bear the names of sections, and the number of their step. Those of another emitter are read by
the tables of :mod:`.lens`; where one has no number of its own, that of a span around it in the same request holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.foreign import lens
from rankwatch_monitor.ingest.foreign.lens_exported import Exported
from rankwatch_monitor.ingest.foreign.lens_progress import Progress
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.lru import Remembered
from rankwatch_monitor.ingest.otlp.identity import Identified, identify
from rankwatch_monitor.ingest.rejection import Refusal, Rejection, Rejections, quote

# Spans are sampled and come seldom, so fewer identities are kept for them than for metrics.
_IDENTITIES: Final = 4096
_REMEMBERED_RESOURCE_BYTES: Final = 4096
_ITERATION_END: Final = 2**63
_DEEPEST: Final = 16
"""Spans around a span that are asked for the number of the step."""


class SpanRecord(NamedTuple):
    """One sampled section entry of a rank, on the wall clock of its host."""

    job_id: str
    rank: int
    attempt: int
    section: str
    start_unix_ns: int
    end_unix_ns: int
    iteration: int | None


class TracesDecoder:
    """Turns requests into span records; keeps identities between them, and the progress of other emitters' ranks."""

    def __init__(self, limits: Limits, counters: Counters, progress: Progress | None = None) -> None:
        self._progress = progress if progress is not None else Progress(limits.processes_remembered)
        self._limits = limits
        self._counters = counters
        self._remembered = Remembered(self._identify, _IDENTITIES)

    def decode(
        self, request: ExportTraceServiceRequest, reports: list[RankReport] | None = None
    ) -> tuple[list[SpanRecord], Rejections]:
        """Return the section entries in ``request`` and what was not taken.

        Args:
            request: as it came.
            reports: what the spans of other emitters say of their ranks is added here.

        Raises:
            Refusal: 413, it holds more resources or spans than the limits allow.
        """
        limits = self._limits
        if len(request.resource_spans) > limits.resources_per_request:
            raise _too_many("resources", "resources_per_request", limits.resources_per_request)
        if sum(len(s.spans) + 1 for r in request.resource_spans for s in r.scope_spans) > limits.spans_per_request:
            raise _too_many("spans", "spans_per_request", limits.spans_per_request)
        records: list[SpanRecord] = []
        rejections = Rejections(self._counters)
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
        if len(serialized) > _REMEMBERED_RESOURCE_BYTES:
            who = identify(resource_spans.resource, self._limits)
        else:
            who = self._remembered(serialized)
        if isinstance(who, Rejection):
            if spans := sum(len(scope.spans) for scope in resource_spans.scope_spans):
                rejections.add(who.reason, who.message, spans)
            return
        for warning in who.warnings:
            rejections.warn(warning.reason, f"rank {who.identity.rank}: {warning.message}")
        numbers = _numbers(resource_spans) if who.foreign else {}
        exported = Exported()
        for scope in resource_spans.scope_spans:
            for span in scope.spans:
                read = self._record(span, who, numbers)
                if isinstance(read, SpanRecord):
                    records.append(read)
                    if who.foreign:
                        meaning = lens.span(span.name)
                        exported.span(meaning, read.start_unix_ns, read.end_unix_ns, read.iteration)
                else:
                    rejections.add(read.reason, f"span of rank {who.identity.rank}: {read.message}")
        if exported.recognised:
            told = self._progress.take(who.identity, "spans", exported)
            if reports is not None and self._progress.speaks(who.identity):
                reports.append(RankReport(who.identity, **told))

    def _record(self, span: Span, who: Identified, numbers: dict[bytes, int]) -> SpanRecord | Rejection:
        section, start, end = span.name, span.start_time_unix_nano, span.end_time_unix_nano
        limits = self._limits
        if not section or not section.isprintable():
            return Rejection("bad_name", f"its name {quote(section)} names no section")
        if len(section) > limits.name_length:
            return Rejection("name_too_long", f"its name has {len(section)} characters, limit {limits.name_length}")
        if not 0 < start <= end < _ITERATION_END:
            return Rejection("bad_value", f"it starts at {start} and ends at {end}")
        if len(span.attributes) > limits.attributes:
            return Rejection("too_many_attributes", f"it has {len(span.attributes)} attributes")
        if who.foreign:
            section, iteration = lens.span(section).section, _number(span, lens.ITERATIONS)
            iteration = numbers.get(span.span_id) if iteration is None else iteration
        else:
            iteration = _number(span, (semconv.ATTR_ITERATION,))
        identity = who.identity
        return SpanRecord(identity.job_id, identity.rank, identity.attempt, section, start, end, iteration)

    def _identify(self, serialized: bytes) -> Identified | Rejection:
        return identify(Resource.FromString(serialized), self._limits)


def _number(span: Span, keys: Sequence[str]) -> int | None:
    """Return the number of its step that a span bears under one of ``keys``, the first of them that there is."""
    found = {
        each.key: each.value.int_value
        for each in span.attributes
        if each.key in keys and each.value.WhichOneof("value") == "int_value"
    }
    return next((number for key in keys if 0 <= (number := found.get(key, -1)) < _ITERATION_END), None)


def _numbers(resource_spans: ResourceSpans) -> dict[bytes, int]:
    """Return the number of the step of each span, by its id: its own, or that of a span around it."""
    spans = [span for scope in resource_spans.scope_spans for span in scope.spans if span.span_id]
    numbers = {span.span_id: number for span in spans if (number := _number(span, lens.ITERATIONS)) is not None}
    parents = {span.span_id: span.parent_span_id for span in spans}
    for span in spans:
        around = span.span_id
        for _ in range(_DEEPEST):
            if around in numbers or around not in parents:
                break
            around = parents[around]
        if around in numbers:
            numbers[span.span_id] = numbers[around]
    return numbers


def _too_many(what: str, limit_name: str, limit: int) -> Refusal:
    return Refusal(
        413,
        "too_many_points",
        f"{what} in one request are above the limit of {limit} ({limit_name}): send smaller batches",
    )
