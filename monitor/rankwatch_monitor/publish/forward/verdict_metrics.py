"""Encodes the monitor's verdicts about a job as OTLP metrics: state, incidents, stragglers, scores and goodput.

The input are the snapshots that every publisher gets. Each is repeated once a minute, since a backend drops a series
that received no point for some minutes, and a healthy job may not change for longer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ScopeMetrics

from rankwatch.contract import semconv
from rankwatch.contract.enums import JobState
from rankwatch_monitor.publish.snapshot import Snapshot

SERVICE: Final = "rankwatch-monitor"
"""``service.name`` of the metrics' resource."""
STATE: Final = semconv.Metric("rankwatch.job.state", "gauge", "1", "1 for the state a job is in, 0 for the others")
GOODPUT: Final = semconv.Metric(
    "rankwatch.job.goodput", "gauge", "1", "part of a job's life that was spent on steps that were kept"
)
INCIDENTS: Final = semconv.Metric("rankwatch.job.incidents.open", "gauge", "{incident}", "incidents that are open")
STRAGGLERS: Final = semconv.Metric("rankwatch.job.stragglers.open", "gauge", "{rank}", "ranks that are slow now")
RESTARTS: Final = semconv.Metric("rankwatch.job.restarts", "gauge", "{restart}", "restarts of the ranks so far")
COST: Final = semconv.Metric("rankwatch.job.stragglers.cost", "gauge", "h", "GPU-hours that stragglers cost so far")
SCORE: Final = semconv.Metric(
    "rankwatch.job.score", "gauge", "1", "least and median score over the ranks, by score; 1 is as fast as the others"
)
METRICS: Final = (STATE, GOODPUT, INCIDENTS, STRAGGLERS, RESTARTS, COST, SCORE)
ATTR_STATE: Final = "rankwatch.job.state"
ATTR_SCORE: Final = "rankwatch.score"
JOBS: Final = 1000
"""Jobs that are repeated; of further ones only changes are sent."""


class VerdictMetrics:
    """Encodes snapshots, and keeps the latest of each job to repeat it. Thread-safe."""

    INTERVAL: Final = 60.0
    """Seconds after which an unchanged job is repeated."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, Snapshot]] = {}
        """Per job id: when it was last encoded, and what."""
        self._lock = threading.Lock()

    def encode(self, snapshot: Snapshot) -> bytes:
        """The metrics request of a new snapshot."""
        with self._lock:
            if snapshot.over:
                self._latest.pop(snapshot.job_id, None)
            elif snapshot.job_id in self._latest or len(self._latest) < JOBS:
                self._latest[snapshot.job_id] = (snapshot.at, snapshot)
        return encoded(snapshot, snapshot.at)

    def repeats(self, now: float) -> Iterator[bytes]:
        """The requests of jobs that were last encoded an interval before ``now`` (unix seconds), with new times."""
        with self._lock:
            due = [snapshot for at, snapshot in self._latest.values() if now - at >= self.INTERVAL]
            self._latest |= {snapshot.job_id: (now, snapshot) for snapshot in due}
        for snapshot in due:
            yield encoded(snapshot, now)


def encoded(snapshot: Snapshot, at: float) -> bytes:
    """One serialized request with all metrics of a job at ``at`` (unix seconds)."""
    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    for key, text in ((semconv.SERVICE_NAME, SERVICE), (semconv.JOB_ID, snapshot.job_id)):
        resource_metrics.resource.attributes.add(key=key).value.string_value = text
    scope = resource_metrics.scope_metrics.add()
    scope.scope.name = "rankwatch.monitor"
    for metric, value, labels in _points(snapshot):
        point = _metric(scope, metric).gauge.data_points.add(time_unix_nano=int(at * 1e9), as_double=value)
        for key, text in ({semconv.JOB_ID: snapshot.job_id} | labels).items():
            point.attributes.add(key=key).value.string_value = text
    return request.SerializeToString()


def _points(snapshot: Snapshot) -> Iterator[tuple[semconv.Metric, float, dict[str, str]]]:
    for state in JobState:
        yield STATE, float(state is snapshot.state), {ATTR_STATE: str(state)}
    yield INCIDENTS, float(sum(i["closed_at"] is None for i in snapshot.incidents)), {}
    yield STRAGGLERS, float(snapshot.open_stragglers), {}
    yield RESTARTS, float(snapshot.restarts), {}
    yield COST, snapshot.cost_gpu_hours, {}
    if snapshot.goodput is not None:
        yield GOODPUT, snapshot.goodput, {}
    for score, spread in snapshot.spreads.items():
        yield SCORE, spread.min, {ATTR_SCORE: score, semconv.ATTR_STATISTIC: "min"}
        yield SCORE, spread.median, {ATTR_SCORE: score, semconv.ATTR_STATISTIC: "median"}


def _metric(scope: ScopeMetrics, metric: semconv.Metric) -> Metric:
    found = next((m for m in scope.metrics if m.name == metric.name), None)
    return found or scope.metrics.add(name=metric.name, unit=metric.unit, description=metric.meaning)
