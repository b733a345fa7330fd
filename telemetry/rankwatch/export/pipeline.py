"""OpenTelemetry wiring: slots and finished sections in, OTLP/HTTP requests out.

Everything is private to this session: no global provider is set or used. Importing this takes a good part of a second,
so it is done on the exporter's thread only, which is also the only one that calls anything here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader, MetricsData
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource

from rankwatch.contract.intervals import histogram_seconds
from rankwatch.export.destination import Destination
from rankwatch.export.instruments import Instruments
from rankwatch.export.outbox import Outbox
from rankwatch.export.resource import AttributeValue
from rankwatch.export.spans import Spans
from rankwatch.export.transport import Answer, Fate
from rankwatch.profiling.profiler import Profiling
from rankwatch.recording.recorder import Recorder, SectionRun
from rankwatch.settings import Settings

SCOPE: Final = "rankwatch"
BUCKET_SCALE: Final = 6
"""Buckets are 1.1 % wide (2**(1/64)); finer ones, the SDK's default, fill the request with zeros."""
DROP_BACKLOG: Final = "backlog"
"""Whole reports, the oldest ones, because the receiver was away for too long."""
DROP_REFUSED: Final = "refused"
"""Whole reports that the receiver will never take."""
DROP_REFUSED_POINTS: Final = "refused_points"
"""Data points that the receiver left out of a report that it took."""
DROP_SPANS: Final = "spans"


class Meters(MeterProvider):
    """A meter provider that does nothing in a forked child.

    The SDK's own fork hook starts a thread pool there, and waits for ever on a lock of ``concurrent.futures`` if that
    module was imported after the provider was made.
    """

    def _handle_fork(self) -> None:
        """Replaces the hook of opentelemetry-sdk 1.44 and later; earlier ones have none."""


class Reader(MetricReader):
    """Encodes each collection into the outbox. No thread and no fork hook: the exporter's thread calls ``collect``."""

    def __init__(self, outbox: Outbox[bytes], recorder: Recorder) -> None:
        super().__init__(
            preferred_temporality={Histogram: AggregationTemporality.DELTA},
            preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation(max_scale=BUCKET_SCALE)},
        )
        self._outbox = outbox
        self._recorder = recorder

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> None:  # noqa: ARG002
        lost = self._outbox.put(encode_metrics(metrics_data).SerializeToString())
        self._recorder.drop(DROP_BACKLOG, lost)

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Nothing is held here."""


class Export:
    """Collects and sends. What cannot be sent is kept or counted, and told once in the log."""

    def __init__(
        self,
        settings: Settings,
        attributes: Mapping[str, AttributeValue],
        recorder: Recorder,
        profiling: Profiling | None = None,
    ) -> None:
        resource = Resource(attributes)
        self._recorder = recorder
        self._outbox: Outbox[bytes] = Outbox()
        self._reader = Reader(self._outbox, recorder)
        # The provider is not kept. The SDK's fork hook holds it weakly, so that in a child it finds nothing to call.
        meter = Meters(
            [self._reader], resource, exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False
        ).get_meter(SCOPE)
        every = histogram_seconds(settings.world_size)
        self._instruments = Instruments(meter, recorder, profiling, every)
        self._spans = Spans(resource, settings.span_stride, SCOPE)
        metrics_url, traces_url = settings.endpoints
        self._metrics = Destination(metrics_url, settings) if metrics_url else None
        self._traces = Destination(traces_url, settings) if traces_url else None

    def report(self) -> bool:
        """Take one report of this moment, and send what there is to send; say whether all of it was delivered."""
        runs = self._instruments.refresh()
        delivered = self._send_metrics()
        if self._traces is not None:
            self._send_spans(self._traces, runs, delivered)
        return delivered

    def close(self) -> None:
        """Close the connections."""
        for destination in (self._metrics, self._traces):
            if destination is not None:
                destination.close()

    def _send_metrics(self) -> bool:
        """Send all that waits, oldest first; False when some of it still waits."""
        if self._metrics is None:
            return True
        self._reader.collect()
        while self._instruments.more():
            self._reader.collect()
        while len(self._outbox):
            batches = self._outbox.oldest()
            # Encoded requests one behind the other are the encoding of one request that holds what they hold.
            answer = self._metrics.send(b"".join(batches))
            if answer.fate is Fate.LATER:
                return False
            self._outbox.settle(len(batches))
            self._recorder.drop(DROP_REFUSED, len(batches) if answer.fate is Fate.REFUSED else 0)
            self._recorder.drop(DROP_REFUSED_POINTS, _refused_points(answer))
        return True

    def _send_spans(self, traces: Destination, runs: list[SectionRun], metrics_delivered: bool) -> None:
        spans, too_many = self._spans.of(runs)
        # Where metrics cannot go now, spans would only wait for the same answer; they are samples, and not kept.
        sent = not spans or (
            metrics_delivered and traces.send(encode_spans(spans).SerializeToString()).fate is Fate.DELIVERED
        )
        self._recorder.drop(DROP_SPANS, too_many + (0 if sent else len(spans)))


def _refused_points(answer: Answer) -> int:
    """How many data points a receiver left out of a request that it took; 0 where its answer does not tell."""
    try:
        response = ExportMetricsServiceResponse.FromString(answer.body)
    except DecodeError:
        return 0
    return max(0, response.partial_success.rejected_data_points)
