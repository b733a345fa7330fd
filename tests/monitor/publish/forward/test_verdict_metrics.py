"""The monitor's own verdicts as OTLP metrics, and their repetition while a job runs."""

from __future__ import annotations

from dataclasses import replace

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from monitor.publish.scored import NOW, scored
from rankwatch.contract.enums import JobState
from rankwatch_monitor.publish.forward.verdict_metrics import METRICS, VerdictMetrics, encoded
from rankwatch_monitor.publish.snapshot import Snapshot, snapshot


def points_of(body: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(metric, attributes) -> value."""
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    return {
        (metric.name, frozenset((a.key, a.value.string_value) for a in point.attributes)): point.as_double
        for metric in resource.scope_metrics[0].metrics
        for point in metric.gauge.data_points
    }


def made() -> Snapshot:
    return replace(snapshot(scored(slow=3), NOW), state=JobState.RUNNING, goodput=0.9)


def test_every_metric_names_its_job() -> None:
    found = points_of(encoded(made(), NOW))
    assert {name for name, _ in found} == {metric.name for metric in METRICS}
    assert all(("rankwatch.job.id", "job") in attributes for _, attributes in found)
    states = {dict(a)["rankwatch.job.state"]: v for (name, a), v in found.items() if name == "rankwatch.job.state"}
    assert {state for state, value in states.items() if value} == {"running"}
    assert set(states) == set(JobState)
    scores = {frozenset(dict(a).items()): v for (name, a), v in found.items() if name == "rankwatch.job.score"}
    least = {("rankwatch.job.id", "job"), ("rankwatch.score", "gpu_relative"), ("rankwatch.statistic", "min")}
    assert scores[frozenset(least)] == 0.5
    assert found["rankwatch.job.stragglers.open", frozenset({("rankwatch.job.id", "job")})] == 1.0


def test_an_unchanged_job_is_repeated_until_it_has_ended() -> None:
    verdicts = VerdictMetrics()
    assert verdicts.encode(made()) == encoded(made(), NOW)
    assert list(verdicts.repeats(NOW + 59)) == []
    (repeat,) = verdicts.repeats(NOW + 61)
    assert points_of(repeat) == points_of(encoded(made(), NOW))
    assert list(verdicts.repeats(NOW + 62)) == []
    assert verdicts.encode(replace(made(), state=JobState.FAILED, at=NOW + 70))
    assert list(verdicts.repeats(NOW + 1000)) == []
