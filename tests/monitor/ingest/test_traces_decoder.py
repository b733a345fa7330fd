"""Spans -> section entries."""

from __future__ import annotations

import json

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.ingest.otlp_requests import NOW_NS, RANK_3, SECOND, request_of
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.message import decode
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.traces_decoder import SpanRecord, TracesDecoder


def spans_of(*spans: dict[str, object], attributes: dict[str, object] | None = None) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.CopyFrom(request_of(attributes or dict(RANK_3)).resource_metrics[0].resource)
    scope = resource_spans.scope_spans.add()
    for span in spans:
        iteration = span.pop("iteration", None)
        made = scope.spans.add(
            **{"name": "step", "start_time_unix_nano": NOW_NS, "end_time_unix_nano": NOW_NS + SECOND} | span
        )
        if iteration is not None:
            made.attributes.add(key="dl.iteration").value.int_value = iteration  # type: ignore[assignment]
    return request


def test_a_span_is_a_section_entry() -> None:
    records, rejections = TracesDecoder(Limits(), Counters()).decode(spans_of({"iteration": 12}, {"name": "eval"}))
    assert records == [
        SpanRecord("job-1", 3, 2, "step", NOW_NS, NOW_NS + SECOND, 12),
        SpanRecord("job-1", 3, 2, "eval", NOW_NS, NOW_NS + SECOND, None),
    ]
    assert rejections.message() == ""


def test_json_written_by_hand() -> None:
    span = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "b7ad6b7169203331",
        "name": "step",
        "startTimeUnixNano": str(NOW_NS),
        "endTimeUnixNano": str(NOW_NS + 5),
        "attributes": [{"key": "dl.iteration", "value": {"intValue": "7"}}],
    }
    attributes = [
        {"key": "service.name", "value": {"stringValue": "gpt"}},
        {"key": "dl.rank", "value": {"intValue": 0}},
    ]
    body = {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": [span]}]}]}
    request = decode(json.dumps(body).encode(), "json", ExportTraceServiceRequest, Limits())
    records, _ = TracesDecoder(Limits(), Counters()).decode(request)
    assert records == [SpanRecord("gpt", 0, 0, "step", NOW_NS, NOW_NS + 5, 7)]


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        ({"name": ""}, "bad_name"),
        ({"name": "a\nb"}, "bad_name"),
        ({"name": "s" * 257}, "name_too_long"),
        ({"end_time_unix_nano": NOW_NS - 1}, "bad_value"),
        ({"start_time_unix_nano": 0}, "bad_value"),
        ({"end_time_unix_nano": 2**64 - 1}, "bad_value"),
    ],
)
def test_a_span_that_cannot_be_used_is_rejected_alone(span: dict[str, object], reason: str) -> None:
    counters = Counters()
    records, rejections = TracesDecoder(Limits(), counters).decode(spans_of(span, {}))
    assert len(records) == 1
    assert rejections.items == 1
    assert rejections.message().startswith("span of rank 3: ")
    assert counters.rejected == {reason: 1}


def test_spans_without_identity() -> None:
    counters = Counters()
    records, rejections = TracesDecoder(Limits(), counters).decode(spans_of({}, {}, attributes={"service.name": "web"}))
    assert (records, rejections.items) == ([], 2)
    assert "resource without dl.rank" in rejections.message()


def test_more_than_the_limits() -> None:
    with pytest.raises(Refusal, match="spans in one request") as refused:
        TracesDecoder(Limits(spans_per_request=2), Counters()).decode(spans_of({}, {}))
    assert refused.value.status == 413
    request = spans_of({})
    request.resource_spans.add()
    with pytest.raises(Refusal, match="resources in one request"):
        TracesDecoder(Limits(resources_per_request=1), Counters()).decode(request)
