"""An OTLP traces request -> the section entries its spans stand for."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from rankwatch.wire import names
from rankwatch_monitor.ingest.identity import Identified, identify
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.refusal import Refusal, Refused, Rejections, quote

# Spans are sampled and come seldom, so fewer identities are kept for them than for metrics.
_IDENTITIES: Final = 4096
_REMEMBERED_RESOURCE_BYTES: Final = 4096
_ITERATION_END: Final = 2**63


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
    """Turns requests into span records; keeps nothing between them but identities."""

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        self._remembered = lru_cache(_IDENTITIES)(self._identify)

    def decode(self, request: ExportTraceServiceRequest) -> tuple[list[SpanRecord], Rejections]:
        """Return the section entries in ``request`` and what was not taken.

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
            self._read(resource_spans, records, rejections)
        return records, rejections

    def _read(self, resource_spans: ResourceSpans, records: list[SpanRecord], rejections: Rejections) -> None:
        serialized = resource_spans.resource.SerializeToString()
        if len(serialized) > _REMEMBERED_RESOURCE_BYTES:
            who = identify(resource_spans.resource, self._limits)
        else:
            who = self._remembered(serialized)
        if isinstance(who, Refused):
            if spans := sum(len(scope.spans) for scope in resource_spans.scope_spans):
                rejections.add(who.reason, who.words, spans)
            return
        for warning in who.warnings:
            rejections.warn(warning.reason, f"rank {who.identity.rank}: {warning.words}")
        for scope in resource_spans.scope_spans:
            for span in scope.spans:
                read = self._record(span, who)
                if isinstance(read, SpanRecord):
                    records.append(read)
                else:
                    rejections.add(read.reason, f"span of rank {who.identity.rank}: {read.words}")

    def _record(self, span: Span, who: Identified) -> SpanRecord | Refused:
        section, start, end = span.name, span.start_time_unix_nano, span.end_time_unix_nano
        limits = self._limits
        if not section or not section.isprintable():
            return Refused("bad_name", f"its name {quote(section)} names no section")
        if len(section) > limits.name_length:
            return Refused("name_too_long", f"its name has {len(section)} characters, limit {limits.name_length}")
        if not 0 < start <= end < _ITERATION_END:
            return Refused("bad_value", f"it starts at {start} and ends at {end}")
        if len(span.attributes) > limits.attributes:
            return Refused("too_many_attributes", f"it has {len(span.attributes)} attributes")
        iteration = None
        for attribute in span.attributes:
            if attribute.key == names.ATTR_ITERATION and attribute.value.WhichOneof("value") == "int_value":
                iteration = attribute.value.int_value
        identity = who.identity
        return SpanRecord(identity.job_id, identity.rank, identity.attempt, section, start, end, iteration)

    def _identify(self, serialized: bytes) -> Identified | Refused:
        return identify(Resource.FromString(serialized), self._limits)


def _too_many(what: str, limit_name: str, limit: int) -> Refusal:
    return Refusal(
        413,
        "too_many_points",
        f"{what} in one request are above the limit of {limit} ({limit_name}): send smaller batches",
    )
