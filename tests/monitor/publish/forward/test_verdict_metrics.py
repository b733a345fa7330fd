"""The monitor's own verdicts as OTLP, and that they are said again while a job goes on."""

from __future__ import annotations

from dataclasses import replace

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from monitor.publish.scored import NOW, scored
from rankwatch.contract.enums import JobState
from rankwatch_monitor.publish.forward.spool import Record
from rankwatch_monitor.publish.forward.verdict_metrics import METRICS, Verdicts, record
from rankwatch_monitor.publish.snapshot import Snapshot, snapshot


def told(of: Record) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(metric, attributes) -> value."""
    (resource,) = ExportMetricsServiceRequest.FromString(of.body).resource_metrics
    return {
        (metric.name, frozenset((a.key, a.value.string_value) for a in point.attributes)): point.as_double
        for metric in resource.scope_metrics[0].metrics
        for point in metric.gauge.data_points
    }


def made() -> Snapshot:
    return replace(snapshot(scored(slow=3), NOW), state=JobState.RUNNING, goodput=0.9)


def test_every_metric_names_its_job() -> None:
    found = told(record(made(), NOW))
    assert {name for name, _ in found} == {metric.name for metric in METRICS}
    assert all(("rankwatch.job.id", "job") in attributes for _, attributes in found)
    states = {dict(a)["rankwatch.job.state"]: v for (name, a), v in found.items() if name == "rankwatch.job.state"}
    assert {state for state, value in states.items() if value} == {"running"}
    assert set(states) == set(JobState)
    scores = {frozenset(dict(a).items()): v for (name, a), v in found.items() if name == "rankwatch.job.score"}
    least = {("rankwatch.job.id", "job"), ("rankwatch.score", "gpu_relative"), ("rankwatch.statistic", "min")}
    assert scores[frozenset(least)] == 0.5
    assert found["rankwatch.job.stragglers.open", frozenset({("rankwatch.job.id", "job")})] == 1.0


def test_a_job_that_goes_on_is_said_again_and_one_that_is_over_is_not() -> None:
    verdicts = Verdicts()
    assert len(list(verdicts.told(made()))) == 1
    assert list(verdicts.due(NOW + 59)) == []
    (again,) = verdicts.due(NOW + 61)
    assert told(again) == told(record(made(), NOW))
    assert list(verdicts.due(NOW + 62)) == []
    assert len(list(verdicts.told(replace(made(), state=JobState.FAILED, at=NOW + 70)))) == 1
    assert list(verdicts.due(NOW + 1000)) == []
