"""Cuts a large request into parts, so that no turn of the event loop decodes all of it.

A body of a kilobyte may inflate to 16 MiB of a million messages, and a part of them is what one turn has time for. The
request is checked as a whole before the first part has any effect: on a thread, one resource after the other, since
parsing keeps the interpreter's lock, and a hostile message takes up to 50 times its bytes in memory.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from rankwatch_monitor.ingest.body import Format
from rankwatch_monitor.ingest.fastpath.wire_format import BYTES, fields
from rankwatch_monitor.ingest.limits import KIB, Limits
from rankwatch_monitor.ingest.message import decode
from rankwatch_monitor.ingest.otlp.identity import Identified, identify
from rankwatch_monitor.ingest.rejection import Budget, Refusal, Rejection, too_many

Kind = Literal["metrics", "traces"]
PART: Final = 64 * KIB
"""Bytes of a part that has several resources."""
REQUESTS: Final = {"metrics": ExportMetricsServiceRequest, "traces": ExportTraceServiceRequest}
_RESOURCES: Final = 1
"""The only field of both requests."""


class Parts(NamedTuple):
    """A request in parts."""

    bodies: list[bytes]
    """Each a request of whole resources, in protobuf."""
    senders: list[Identified | Rejection]
    """Of the resources."""


def cut(body: bytes, encoded: Format, kind: Kind, limits: Limits) -> Parts:
    """Check the content of a request, and cut it. Has no effects, so it may run on any thread.

    Raises:
        Refusal: 400, it is no such request; 413, it holds more than the limits allow.
    """
    if encoded == "json":
        body = decode(body, encoded, REQUESTS[kind], limits).SerializeToString()
    parts = Parts([], [])
    budget = Budget("data points" if kind == "metrics" else "spans", limits)
    held: list[bytes] = []
    begin = size = 0
    try:
        for count, each in enumerate(fields(body, 0, len(body)), 1):
            if count > limits.resources_per_request:
                raise too_many("resources", "resources_per_request", limits.resources_per_request)
            if each.end - each.start > limits.report_bytes:
                message = f"a resource is above the limit of {limits.report_bytes} bytes (report_bytes): split it"
                raise Refusal(413, "body_too_large", message)
            if (each.number, each.wire) == (_RESOURCES, BYTES):
                parts.senders.append(_checked(body[each.start : each.end], kind, budget, limits))
                if held and size + each.end - begin > PART:
                    parts.bodies.append(b"".join(held))
                    held, size = [], 0
                held.append(body[begin : each.end])
                size += each.end - begin
            begin = each.end
    except (ValueError, DecodeError):
        name = REQUESTS[kind].__name__
        raise Refusal(400, "bad_body", f"the body is not a valid protobuf {name}: send it again") from None
    if held:
        parts.bodies.append(b"".join(held))
    return parts


def _checked(body: bytes, kind: Kind, budget: Budget, limits: Limits) -> Identified | Rejection:
    """The sender of one resource, whose points or spans are counted."""
    budget.begin_report()
    if kind == "traces":
        spans = ResourceSpans.FromString(body)
        for scope in spans.scope_spans:
            budget.take(1 + len(scope.spans))
        return identify(spans.resource, limits)
    metrics = ResourceMetrics.FromString(body)
    for each in metrics.scope_metrics:
        budget.take(1 + len(each.metrics))
        for metric in each.metrics:
            data = metric.WhichOneof("data")
            budget.take(0 if data is None else len(getattr(metric, data).data_points))
    return identify(metrics.resource, limits)
