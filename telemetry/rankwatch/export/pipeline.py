"""The export pipeline: slots and finished section runs in, OTLP/HTTP requests out.

Everything is private to the session: no global OpenTelemetry provider is set or used. Importing this module takes most
of a second, so it is imported and called on the exporter thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader, MetricsData
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource

from rankwatch.contract.intervals import histogram_seconds
from rankwatch.export.instruments import Instruments
from rankwatch.export.parallel_layout import ParallelLayout
from rankwatch.export.resource import AttributeValue
from rankwatch.export.spans import Spans
from rankwatch.export.transport import MAX_BATCH, MAX_QUEUED, OtlpClient, SendResult, SendStatus
from rankwatch.profiling.profiler import Profiling
from rankwatch.recording.recorder import Recorder, SectionRun
from rankwatch.recording.scalars import Scalars
from rankwatch.settings import Settings

SCOPE: Final = "rankwatch"
BUCKET_SCALE: Final = 6
"""Buckets are 1.1 % wide (2**(1/64)); finer ones, the SDK's default, fill the request with zeros."""
DROP_BACKLOG: Final = "backlog"
"""Whole reports, the oldest ones, because the receiver was away for too long."""
DROP_REFUSED: Final = "refused"
"""Whole reports that the receiver rejected."""
DROP_REFUSED_POINTS: Final = "refused_points"
"""Data points that the receiver left out of an accepted report."""
DROP_SPANS: Final = "spans"


class ForkSafeMeterProvider(MeterProvider):
    """A meter provider that does nothing in a forked child.

    The SDK's own fork hook starts a thread pool there, and waits for ever on a lock of ``concurrent.futures`` if that
    module was imported after the provider was made.
    """

    def _handle_fork(self) -> None:
        """Replaces the hook of opentelemetry-sdk 1.44 and later; earlier ones have none."""


class EncodingReader(MetricReader):
    """Encodes each collection into the queue. No thread and no fork hook: the exporter thread calls ``collect``."""

    def __init__(self, queue: deque[bytes], recorder: Recorder, layout: ParallelLayout) -> None:
        super().__init__(
            preferred_temporality={Histogram: AggregationTemporality.DELTA},
            preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation(max_scale=BUCKET_SCALE)},
        )
        self._queue = queue
        self._recorder = recorder
        self._layout = layout

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> None:  # noqa: ARG002
        # Process groups are made after the provider, whose resource cannot be changed.
        if found := self._layout.attributes():
            further = Resource(found)
            each = [replace(one, resource=one.resource.merge(further)) for one in metrics_data.resource_metrics]
            metrics_data = replace(metrics_data, resource_metrics=each)
        self._recorder.drop(DROP_BACKLOG, int(len(self._queue) == self._queue.maxlen))
        self._queue.append(encode_metrics(metrics_data).SerializeToString())

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """There is nothing to release."""


class ExportPipeline:
    """Collects and sends reports. What cannot be sent is kept for later, or dropped and counted."""

    def __init__(
        self,
        settings: Settings,
        attributes: Mapping[str, AttributeValue],
        recorder: Recorder,
        profiling: Profiling | None = None,
        scalars: Scalars | None = None,
    ) -> None:
        resource = Resource(attributes)
        self._recorder = recorder
        self._profiling = profiling
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUED)
        """The newest encoded reports, the oldest first; used by one thread."""
        self._reader = EncodingReader(self._queue, recorder, ParallelLayout(attributes, settings.rank))
        # The provider is not kept. The SDK's fork hook holds it weakly, so that in a child it finds nothing to call.
        meter = ForkSafeMeterProvider(
            [self._reader], resource, shutdown_on_exit=False, **_without_exemplars()
        ).get_meter(SCOPE)
        self._instruments = Instruments(meter, recorder, profiling, histogram_seconds(settings.world_size), scalars)
        self._spans = Spans(resource, settings.span_stride, SCOPE)
        metrics_url, traces_url = settings.endpoints
        self._metrics = OtlpClient(metrics_url, settings) if metrics_url else None
        self._traces = OtlpClient(traces_url, settings) if traces_url else None

    def report(self) -> bool:
        """Collect one report and send everything queued; return whether all of it was delivered or rejected."""
        runs = self._instruments.refresh()
        delivered = self._send_metrics()
        if self._traces is not None:
            self._send_spans(self._traces, runs, delivered)
        return delivered

    @property
    def retry_after(self) -> float:
        """Seconds after which the receiver asked for what it did not take; 0: it did not ask."""
        return self._metrics.retry_after if self._metrics is not None else 0.0

    def resend(self) -> bool:
        """Send what is queued, without a new report; return as :meth:`report`."""
        return self._metrics is None or self._send_queue(self._metrics)

    def close(self) -> None:
        """Close the connections."""
        for client in (self._metrics, self._traces):
            if client is not None:
                client.close()

    def _send_metrics(self) -> bool:
        """Send the queue, oldest first; False when some of it stays queued."""
        if self._metrics is None:
            return True
        self._reader.collect()
        while self._instruments.more():
            self._reader.collect()
        return self._send_queue(self._metrics)

    def _send_queue(self, client: OtlpClient) -> bool:
        while self._queue:
            batch = tuple(islice(self._queue, MAX_BATCH))
            # Concatenated protobuf messages decode as one message with all their repeated fields.
            result = client.send(b"".join(batch))
            if result.status is SendStatus.RETRY_LATER:
                return False
            for _ in batch:
                self._queue.popleft()
            self._recorder.drop(DROP_REFUSED, len(batch) if result.status is SendStatus.REJECTED else 0)
            self._recorder.drop(DROP_REFUSED_POINTS, _rejected_points(result))
        return True

    def _send_spans(self, traces: OtlpClient, runs: Sequence[SectionRun], metrics_delivered: bool) -> None:
        profiled = self._profiling.take_profiled() if self._profiling is not None else None
        spans, too_many = self._spans.of(runs, profiled)
        # Spans are samples and not kept; where metrics cannot be delivered now, they are not tried.
        sent = not spans or (
            metrics_delivered and traces.send(encode_spans(spans).SerializeToString()).status is SendStatus.DELIVERED
        )
        self._recorder.drop(DROP_SPANS, too_many + (0 if sent else len(spans)))


def _without_exemplars() -> dict[str, Any]:
    """Arguments of the meter provider; opentelemetry-sdk before 1.28 has neither exemplars nor the filter."""
    off = getattr(sdk_metrics, "AlwaysOffExemplarFilter", None)
    return {} if off is None else {"exemplar_filter": off()}


def _rejected_points(result: SendResult) -> int:
    """Number of data points left out of an accepted request; 0 where the response does not name it."""
    try:
        response = ExportMetricsServiceResponse.FromString(result.body)
    except DecodeError:
        return 0
    return max(0, response.partial_success.rejected_data_points)
