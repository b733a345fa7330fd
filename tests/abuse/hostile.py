"""Seeds made by real SDKs, and hostile changes to them, which a mutator of bytes would find late."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from abuse.decoder_target import JSON, TRACES
from rankwatch.contract import semconv
from rankwatch_monitor.ingest.metrics_decoder import READERS
from support.otlp import add_kernels, add_window, gauge, rank_report

IDENTITY: Final = {
    "service.name": "gpt", "service.instance.id": "gpt/1/3", "host.name": "node-a", "process.pid": 1003,
    "rankwatch.job.id": "gpt", "rankwatch.attempt": 1, "dl.rank": 3, "dl.world_size": 4, "hw.id": "GPU-3",
}  # fmt: skip

WORDS: Final = (
    "", "step", "s" * 300, "a\nb", "\x00", "\u202e", "\u200b", "é" * 20, "e\u0301",
    "\U0010ffff", "{}", '"}\n# HELP x', "../..",
    "median", "max", "nan", "1e999", "٣", "１", "-1", "9" * 40, "true", "null", "0x10", "2999-01-01T00:00:00Z",
    "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", *(str(name) for name in READERS),
)  # fmt: skip
FLOATS: Final = (
    float("nan"),
    float("inf"),
    float("-inf"),
    -0.0,
    -1.0,
    5e-324,
    1.8e308,
    1e18,
    2.0**63,
    2.0**53 + 2,
    0.5,
)
WHOLE: Final = (0, 1, -1, 3, 4, 63, 64, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63))
UNSIGNED: Final = (0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 1_750_000_000 * 10**9)


def metrics_by_the_sdk() -> ExportMetricsServiceRequest:
    """Counters, gauges and both kinds of histograms under Rankwatch's names, collected and encoded by OpenTelemetry."""
    reader = InMemoryMetricReader(
        preferred_temporality={Histogram: AggregationTemporality.DELTA},
        preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation(max_scale=6)},
    )
    provider = MeterProvider([reader], Resource(IDENTITY), shutdown_on_exit=False)
    meter = provider.get_meter("rankwatch")
    section = {semconv.ATTR_SECTION: "step"}
    histogram = meter.create_histogram(semconv.SECTION_DURATION.name, "s")
    for seconds in (0.5, 0.25, 0.75):
        histogram.record(seconds, section)
    meter.create_counter(semconv.HEARTBEATS.name).add(7)
    meter.create_counter(semconv.TELEMETRY_DROPPED.name).add(2, {"rankwatch.reason": "backlog"})
    for name, value in ((semconv.ITERATION.name, 7), (semconv.PROGRESS.name, 1), (semconv.HEARTBEAT_AGE.name, 0.5)):
        meter.create_gauge(name).set(value)
    meter.create_gauge(semconv.SECTION_OPEN_DURATION.name, "s").set(1.5, section)
    data = reader.get_metrics_data()
    assert data is not None
    encoded = ExportMetricsServiceRequest.FromString(encode_metrics(data).SerializeToString())
    provider.shutdown()
    return encoded


def spans_by_the_sdk() -> ExportTraceServiceRequest:
    """A step with a section in it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource(IDENTITY), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("rankwatch")
    attributes = {semconv.ATTR_SECTION: "step", semconv.ITERATION.name: 7}
    with tracer.start_as_current_span("step", attributes=attributes), tracer.start_as_current_span("forward"):
        pass
    spans = ExportTraceServiceRequest.FromString(encode_spans(exporter.get_finished_spans()).SerializeToString())
    provider.shutdown()
    return spans


def windows_and_devices() -> ExportMetricsServiceRequest:
    """What the SDK above has no instruments for: a window, kernels, a device."""
    report = rank_report("gpt", 3, 4, iteration=64, attempt=1, open_sections={"step": 0.1}, first_iteration=3)
    add_window(report, 64, sections={"step": {"median": 0.5, "tail": 0.7, "max": 1.0, "mean": 0.6}},
               parts={"data": 0.1, "compute": 0.2}, collectives={"dp": {"busy": 0.1, "exposed": 0.05}})  # fmt: skip
    add_kernels(report, {"gemm": {"min": 0.1, "median": 0.2, "tail": 0.3, "max": 0.4, "mean": 0.2, "stddev": 0.1}})
    for name in READERS:
        gauge(report, name, 0.5)
    gauge(report, "hw.gpu.throttled", 1, rankwatch__reason="sw_power_cap")
    return ExportMetricsServiceRequest(resource_metrics=[report])


def seeds() -> Iterator[bytes]:
    """Inputs of the target: each message as protobuf and JSON, plain and packed both ways."""
    for message in (metrics_by_the_sdk(), windows_and_devices(), spans_by_the_sdk(), ExportMetricsServiceRequest()):
        traces = TRACES if isinstance(message, ExportTraceServiceRequest) else 0
        for encoded, body in ((0, message.SerializeToString()), (JSON, json_format.MessageToJson(message).encode())):
            for encoding in range(3):
                yield bytes([traces | encoded | encoding << 2, 1]) + body


def changed(data: bytes, dice: random.Random) -> bytes:
    """An input with a few hostile changes to its message; of one that holds none, a few of its bytes are changed."""
    if len(data) < 2:
        return data
    kind = ExportTraceServiceRequest if data[0] & TRACES else ExportMetricsServiceRequest
    message = kind()
    try:
        if data[0] & JSON:
            json_format.Parse(data[2:], message, ignore_unknown_fields=True)
        else:
            message.ParseFromString(data[2:])
    except (DecodeError, json_format.ParseError, ValueError, RecursionError, AttributeError, TypeError, KeyError):
        return _with_other_bytes(data, dice)
    for _ in range(dice.choice((1, 1, 2, 4, 9))):
        _change(message, dice)
    if dice.random() < 0.1:
        return _with_other_bytes(data[:2] + message.SerializeToString(), dice)
    body = message.SerializeToString()
    head = bytes([dice.choice((data[0], data[0] & TRACES, data[0] & TRACES | JSON)), data[1]])
    return head + (json_format.MessageToJson(message).encode() if head[0] & JSON else body)


def _with_other_bytes(data: bytes, dice: random.Random) -> bytes:
    body = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        body[dice.randrange(len(body))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    if dice.random() < 0.3:
        at = dice.randrange(2, len(body) + 1)
        body[at:at] = bytes(body[dice.randrange(len(body)) :][: dice.randint(1, 200)])
    return bytes(body)


def _change(message: Message, dice: random.Random) -> None:
    """Walk down by chance and change, repeat, remove, add or swap what is found there."""
    here: Any = message
    while True:
        fields = [field for field, _ in here.ListFields()] if dice.random() < 0.8 else []
        field = dice.choice(fields or here.DESCRIPTOR.fields)
        if field.is_repeated:
            _change_list(getattr(here, field.name), field, dice)
            kept = getattr(here, field.name)
            if field.message_type is None or not kept or dice.random() < 0.15:
                return
            here = dice.choice(kept)
        elif field.message_type is not None:
            here = getattr(here, field.name)
            here.SetInParent()
        else:
            _set(here, field, dice)
            return


def _change_list(kept: Any, field: Any, dice: random.Random) -> None:
    chance = dice.random()
    if chance < 0.12 or not kept:
        if field.message_type is not None:
            kept.add()
        else:
            kept.append(_value(field, dice))
    elif chance < 0.24 and field.message_type is not None:
        kept.add().CopyFrom(dice.choice(kept))
    elif chance < 0.30:
        del kept[dice.randrange(len(kept))]
    elif chance < 0.36 and field.message_type is not None:
        one, other = dice.choice(kept), dice.choice(kept)
        one.CopyFrom(other)


def _set(holder: Any, field: Any, dice: random.Random) -> None:
    setattr(holder, field.name, _value(field, dice))


def _value(field: Any, dice: random.Random) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return dice.randbytes(dice.choice((0, 8, 16, 17)))
        return dice.choice(WORDS)
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return dice.choice(FLOATS)
    if kind == field.CPPTYPE_BOOL:
        return dice.random() < 0.5
    if kind == field.CPPTYPE_ENUM:
        return dice.choice((0, 1, 2, 3, 99, -1))
    if kind in (field.CPPTYPE_UINT32, field.CPPTYPE_INT32):
        return dice.choice((0, 1, 2**31 - 1))
    return dice.choice(UNSIGNED if kind == field.CPPTYPE_UINT64 else WHOLE)
