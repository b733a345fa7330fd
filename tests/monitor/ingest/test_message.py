"""Messages from protobuf and JSON, and that bad ones raise nothing but a refusal."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.ingest.otlp_requests import RANK_3, counter, gauge, histogram, request_of
from rankwatch_monitor.ingest.body import Format
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.message import decode, encode
from rankwatch_monitor.ingest.metrics_decoder import MetricsDecoder
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.traces_decoder import TracesDecoder

REQUEST = request_of(
    RANK_3,
    gauge("rankwatch.section.open.duration", 1.5, section="step"),
    counter("rankwatch.heartbeats", 4),
    histogram("step", 4, 2.0, 0.4, 0.6),
)
LIMITS = Limits()
FORMATS: tuple[Format, ...] = ("protobuf", "json")


@pytest.mark.parametrize("encoded", FORMATS)
def test_there_and_back(encoded: Format) -> None:
    assert decode(encode(REQUEST, encoded), encoded, ExportMetricsServiceRequest, LIMITS) == REQUEST


def test_enum_numbers_and_unknown_fields_are_fine_in_json() -> None:
    document = json.loads(json_format.MessageToJson(REQUEST, use_integers_for_enums=True))
    document["fromTheFuture"] = {"x": [1]}
    assert decode(json.dumps(document).encode(), "json", ExportMetricsServiceRequest, LIMITS) == REQUEST


def test_an_empty_body_is_an_empty_protobuf_request_but_no_json() -> None:
    assert decode(b"", "protobuf", ExportMetricsServiceRequest, LIMITS) == ExportMetricsServiceRequest()
    with pytest.raises(Refusal, match="the body is not JSON"):
        decode(b"", "json", ExportMetricsServiceRequest, LIMITS)


@pytest.mark.parametrize("encoded", FORMATS)
def test_truncated_messages(encoded: Format) -> None:
    whole = encode(REQUEST, encoded)
    for length in (1, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        with pytest.raises(Refusal, match="send it again") as refused:
            decode(whole[:length], encoded, ExportMetricsServiceRequest, LIMITS)
        assert (refused.value.status, refused.value.reason) == (400, "bad_body")


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"3",
        b"null",
        b'{"resourceMetrics": 3}',
        b'{"resourceMetrics": [null]}',
        b'{"resourceMetrics": {"a": 1}}',
        b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"gauge": {"dataPoints": [{"asInt": "x"}]}}]}]}]}',
        b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "\\ud800"}]}]}]}',
        b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"gauge": {}, "sum": {}}]}]}]}',
        b'{"x":' * 100_000,
        b"[" * 100_000,
        b'{"a": ' + b"9" * 10_000 + b"}",
        b"\xff\xfe{}",
    ],
)
def test_json_of_the_wrong_shape(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        decode(body, "json", ExportMetricsServiceRequest, LIMITS)
    assert refused.value.status == 400
    assert len(refused.value.message) < 300


def test_json_with_more_objects_than_points_may_come() -> None:
    body = b'{"resourceMetrics":[' + b"{}," * 200_000 + b"{}]}"
    with pytest.raises(Refusal, match="more than 400000 values") as refused:
        decode(body, "json", ExportMetricsServiceRequest, LIMITS)
    assert (refused.value.status, refused.value.reason) == (413, "too_many_points")


def test_attributes_nested_without_end() -> None:
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(200):
        value = {"arrayValue": {"values": [value]}}
    document = {"resourceMetrics": [{"resource": {"attributes": [{"key": "k", "value": value}]}}]}
    with pytest.raises(Refusal):
        decode(json.dumps(document).encode(), "json", ExportMetricsServiceRequest, LIMITS)


@pytest.mark.parametrize(
    ("trace_id", "expected"), [("0af7651916cd43dd8448eb211c80319c", 16), ("CvdlGRbNQ92ESOshHIAxnA==", 16), ("", 0)]
)
def test_ids_of_spans_in_hexadecimal_and_base64(trace_id: str, expected: int) -> None:
    link = {"traceId": trace_id, "spanId": "b7ad6b7169203331"}
    span = {"traceId": trace_id, "spanId": "B7AD6B7169203331", "parentSpanId": "", "name": "step", "links": [link]}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    read = decode(body, "json", ExportTraceServiceRequest, LIMITS).resource_spans[0].scope_spans[0].spans[0]
    assert len(read.trace_id) == len(read.links[0].trace_id) == expected
    assert read.span_id == read.links[0].span_id == bytes.fromhex("b7ad6b7169203331")
    assert read.trace_id in (b"", bytes.fromhex("0af7651916cd43dd8448eb211c80319c"))


def test_an_id_that_is_neither() -> None:
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "not hexadecimal!"}]}]}]}).encode()
    with pytest.raises(Refusal):
        decode(body, "json", ExportTraceServiceRequest, LIMITS)


def test_answers_in_both_encodings() -> None:
    answer = ExportMetricsServiceResponse()
    assert (encode(answer, "protobuf"), encode(answer, "json")) == (b"", b"{}")
    answer.partial_success.rejected_data_points = 3
    assert json.loads(encode(answer, "json")) == {"partialSuccess": {"rejectedDataPoints": "3"}}


def read_all(body: bytes, encoded: Format) -> None:
    """Take a body the whole way; anything but a refusal fails the test."""
    limits, counters = Limits(), Counters()
    with suppress(Refusal):
        MetricsDecoder(limits, counters).decode(decode(body, encoded, ExportMetricsServiceRequest, LIMITS))
    with suppress(Refusal):
        TracesDecoder(limits, counters).decode(decode(body, encoded, ExportTraceServiceRequest, LIMITS))


@given(data=st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    read_all(data, "protobuf")
    read_all(data, "json")


WHOLE = REQUEST.SerializeToString()


@given(at=st.integers(0, len(WHOLE) - 1), patch=st.binary(min_size=1, max_size=8), cut=st.integers(0, 8))
def test_a_request_with_some_bytes_changed(at: int, patch: bytes, cut: int) -> None:
    read_all(WHOLE[:at] + patch + WHOLE[at + cut :], "protobuf")


CONTAINERS = ["resourceMetrics", "resourceSpans", "resource", "attributes", "scopeMetrics", "scopeSpans", "metrics"]
KINDS = ["spans", "links", "gauge", "sum", "histogram", "exponentialHistogram", "dataPoints", "aggregationTemporality"]
VALUES = ["asDouble", "asInt", "count", "name", "key", "value", "stringValue", "bytesValue", "traceId", "timeUnixNano"]
FIELDS = st.sampled_from([*CONTAINERS, *KINDS, *VALUES])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("NaN") | st.just("-1")
SHAPES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4))


@given(document=st.dictionaries(FIELDS, SHAPES, max_size=4))
def test_random_json_with_our_field_names(document: dict[str, Any]) -> None:
    read_all(json.dumps(document).encode(), "json")
