"""A decoder of metrics requests as the tests of the ingest use it."""

from __future__ import annotations

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from monitor.ingest.otlp_requests import RANK_3, request_of
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.limits import REASONS, Counters, Limits
from rankwatch_monitor.ingest.metrics_decoder import Decoded, MetricsDecoder


class Ingest:
    """A decoder with its counters; checks at every call that what was rejected was also counted."""

    def __init__(self, since_unix_ns: int = 0, **limits: int) -> None:
        self.counters = Counters()
        self.decoder = MetricsDecoder(Limits(**limits), self.counters, since_unix_ns)

    def __call__(self, request: ExportMetricsServiceRequest) -> Decoded:
        before = sum(self.counters.rejected.values())
        decoded = self.decoder.decode(request)
        assert sum(self.counters.rejected.values()) - before >= decoded.rejections.items
        assert bool(decoded.rejections.message()) == (sum(self.counters.rejected.values()) > before)
        assert set(self.counters.rejected) <= set(REASONS)
        return decoded

    def one(self, *fills: object, attributes: object = RANK_3) -> RankReport:
        """Return the one report of a request of which nothing is turned away."""
        decoded = self(request_of(attributes, *fills))  # type: ignore[arg-type]
        assert decoded.rejections.message() == ""
        (report,) = decoded.reports
        return report
