"""The OpenTelemetry SDK and its OTLP exporter, with no Rankwatch code, over a real connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping

import pytest
import uvicorn
from fastapi import FastAPI
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.limits import Counters
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.routes import OtlpEndpoints, Senders
from rankwatch_monitor.ingest.traces_decoder import SpanRecord

RESOURCE = Resource.create({"service.name": "foreign", "dl.rank": 1, "dl.world_size": 2})
DELTA, CUMULATIVE = AggregationTemporality.DELTA, AggregationTemporality.CUMULATIVE


class Monitor:
    def __init__(self) -> None:
        self.reports: list[RankReport] = []
        self.spans: list[SpanRecord] = []
        self.counters = Counters()
        self.url = ""
        self.refusals: list[Refusal] = []
        """What the next requests are answered."""

    def admit(self, headers: Mapping[str, str]) -> None:
        if self.refusals:
            raise self.refusals.pop(0)

    def take(self, reports: list[RankReport]) -> tuple[()]:
        self.reports.extend(reports)
        return ()


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    monitor = Monitor()
    app = FastAPI()
    endpoints = OtlpEndpoints(
        monitor.take,  # type: ignore[arg-type]
        spans=monitor.spans.extend,  # type: ignore[arg-type]
        counters=monitor.counters,
        senders=Senders(admit=monitor.admit),
    )
    app.include_router(endpoints.router)
    listener = socket.create_server(("127.0.0.1", 0))
    monitor.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield monitor
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
@pytest.mark.parametrize("temporality", [DELTA, CUMULATIVE])
@pytest.mark.parametrize("exponential", [True, False])
def test_metrics(
    monitor: Monitor, compression: Compression, temporality: AggregationTemporality, exponential: bool
) -> None:
    exporter = OTLPMetricExporter(
        f"{monitor.url}/v1/metrics",
        compression=compression,
        preferred_temporality={Counter: temporality, Histogram: temporality},
        preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()} if exponential else {},
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    provider = MeterProvider([reader], RESOURCE, shutdown_on_exit=False)
    meter = provider.get_meter("training-script")
    open_for: dict[str, float] = {"step": 12.5, "backward": 2.0}

    def observe(options: CallbackOptions) -> list[Observation]:
        return [Observation(age, {"rankwatch.section": section}) for section, age in open_for.items()]

    meter.create_observable_gauge("rankwatch.section.open.duration", [observe], "s")
    beats = meter.create_counter("rankwatch.heartbeats")
    durations = meter.create_histogram("rankwatch.section.duration", "s")
    meter.create_gauge("rankwatch.iteration").set(41)
    meter.create_histogram("http.client.duration").record(3.0)
    for seconds in (0.5, 1.5):
        beats.add(1)
        durations.record(seconds, {"rankwatch.section": "step"})
    provider.force_flush()
    beats.add(1)
    durations.record(4.0, {"rankwatch.section": "step"})
    provider.shutdown()

    first, *later = monitor.reports
    assert (first.identity.job_id, first.identity.rank, first.identity.world_size) == ("foreign", 1, 2)
    assert (first.beats, first.iteration, first.open_sections) == (2, 41, open_for)
    assert tuple(first.finished["step"]) == (2, 2.0, 0.5, 1.5)
    assert [report.beats for report in later if report.beats is not None] == [3], "the shutdown's repeat is dropped"
    assert [tuple(report.finished["step"]) for report in later if report.finished] == [(1, 4.0, 4.0, 4.0)]
    assert monitor.counters.rejected == {}


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_spans(monitor: Monitor, compression: Compression) -> None:
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
    provider.add_span_processor(
        SimpleSpanProcessor(OTLPSpanExporter(f"{monitor.url}/v1/traces", compression=compression))
    )
    with provider.get_tracer("training-script").start_as_current_span("step", attributes={"dl.iteration": 41}):
        pass
    provider.shutdown()
    (span,) = monitor.spans
    assert (span.job_id, span.rank, span.section, span.iteration) == ("foreign", 1, "step", 41)
    assert 0 <= span.end_unix_ns - span.start_unix_ns < 60 * 10**9
    assert monitor.counters.rejected == {}


@pytest.mark.parametrize("status", [429, 503])
def test_a_request_that_has_to_come_again_is_sent_again(monitor: Monitor, status: int) -> None:
    monitor.refusals = [Refusal(status, "acquiring", "the job is being acquired", retry_after=1)]
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{monitor.url}/v1/traces")))
    with provider.get_tracer("training-script").start_as_current_span("step", attributes={"dl.iteration": 41}):
        pass
    provider.shutdown()
    assert monitor.refusals == []
    assert [span.iteration for span in monitor.spans] == [41]
