"""OTLP made with opentelemetry-proto alone: what a client that knows nothing of Rankwatch's code would send.

The names stand here as text on purpose: they are the contract, and a foreign client cannot import them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}


def attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    def value(of: Any) -> AnyValue:
        if isinstance(of, int):
            return AnyValue(int_value=of)
        return AnyValue(double_value=of) if isinstance(of, float) else AnyValue(string_value=of)

    return [KeyValue(key=key, value=value(of)) for key, of in values.items() if of is not None]


def gauge(report: ResourceMetrics, name: str, value: float, **point_attributes: str) -> None:
    """Add one point of a gauge to a report; point attributes carry ``__`` for a dot."""
    scope = report.scope_metrics[0] if report.scope_metrics else report.scope_metrics.add()
    metric = next((m for m in scope.metrics if m.name == name), None)
    if metric is None:
        metric = scope.metrics.add()
        metric.name = name
    point = metric.gauge.data_points.add()
    point.time_unix_nano = time.time_ns()
    if isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value
    point.attributes.extend(attributes({key.replace("__", "."): of for key, of in point_attributes.items()}))


def rank_report(
    job: str,
    rank: int,
    world_size: int = 4,
    *,
    iteration: int | None = None,
    progress: int | None = None,
    beats: int | None = None,
    heartbeat_age: float | None = None,
    open_sections: Mapping[str, float] | None = None,
    idle: float | None = None,
    first_iteration: int | None = None,
    ended: bool = False,
    attempt: int | None = None,
    host: str = "node-a",
    resource: Mapping[str, Any] | None = None,
) -> ResourceMetrics:
    """What one rank reports in one export. ``resource`` replaces or removes (None) attributes of the resource."""
    report = ResourceMetrics()
    identity = {
        "service.name": job,
        "service.instance.id": f"{job}/{attempt or 0}/{rank}",
        "host.name": host,
        "process.pid": 1000 + rank,
        "rankwatch.job.id": job,
        "rankwatch.attempt": attempt,
        "dl.rank": rank,
        "dl.world_size": world_size,
    }
    report.resource.attributes.extend(attributes(identity | dict(resource or {})))
    reported = {
        "rankwatch.iteration": iteration,
        "rankwatch.progress": progress,
        "rankwatch.heartbeats": beats,
        "rankwatch.heartbeat.age": heartbeat_age,
        "rankwatch.section.idle.duration": idle,
        "rankwatch.iteration.first": first_iteration,
        "rankwatch.iteration.first.age": None if first_iteration is None else 0.0,
        "rankwatch.session.ended": 1 if ended else None,
    }
    for name, value in reported.items():
        if value is not None:
            gauge(report, name, value)
    for section, seconds in (open_sections or {}).items():
        gauge(report, "rankwatch.section.open.duration", seconds, rankwatch__section=section)
    return report


def add_window(
    report: ResourceMetrics,
    iteration: int | None = None,
    *,
    steps: int = 8,
    sections: Mapping[str, Mapping[str, float]] | None = None,
    parts: Mapping[str, float] | None = None,
    collectives: Mapping[str, Mapping[str, float]] | None = None,
    operations: Mapping[str, tuple[float, int]] | None = None,
) -> None:
    """Add a window of steps.

    Args:
        report: gets it.
        iteration: the step that closed the window.
        steps: how many it has; each section and process group is called once a step.
        sections: by name and statistic (median, tail, max, mean), in seconds.
        parts: what the closing step was spent on, in seconds.
        collectives: by process group and statistic (busy, exposed, shortest), in seconds.
        operations: seconds and bytes of one call, by operation and process group.
    """
    if iteration is not None:
        gauge(report, "rankwatch.window.iteration", iteration)
    gauge(report, "rankwatch.window.steps", steps)
    for name, reported in (sections or {}).items():
        _add_statistics(report, "rankwatch.window.section", {"rankwatch.section": name}, steps, reported)
    for part, seconds in (parts or {}).items():
        gauge(report, "rankwatch.step.part", seconds, rankwatch__part=part)
    for group, reported in (collectives or {}).items():
        _add_statistics(report, "rankwatch.collective", {"rankwatch.group": group}, steps, reported)
    for name, (seconds, size) in (operations or {}).items():
        key, metric = {"rankwatch.operation": name}, "rankwatch.collective.operation"
        _add_statistics(report, metric, key, 1, {"total": seconds, "shortest": seconds})
        for statistic in ("bytes", "largest", "bus"):
            gauge(report, f"{metric}.size", size, **key, rankwatch__statistic=statistic)


def add_kernels(
    report: ResourceMetrics, kernels: Mapping[str, Mapping[str, float]], *, calls: int = 100, source: str = "cupti"
) -> None:
    """Add a kernel report: by name and statistic (min, median, tail, max, mean, stddev), in seconds."""
    gauge(report, "rankwatch.kernel.source", 1, rankwatch__source=source)
    for name, reported in kernels.items():
        _add_statistics(report, "rankwatch.kernel", {"rankwatch.kernel": name}, calls, reported)


def _add_statistics(
    report: ResourceMetrics, metric: str, name: Mapping[str, str], calls: int, reported: Mapping[str, float]
) -> None:
    gauge(report, f"{metric}.calls", calls, **name)
    for statistic, seconds in reported.items():
        gauge(report, f"{metric}.duration", float(seconds), **name, rankwatch__statistic=statistic)


def message(reports: Iterable[ResourceMetrics]) -> ExportMetricsServiceRequest:
    return ExportMetricsServiceRequest(resource_metrics=list(reports))


def body(*reports: ResourceMetrics) -> bytes:
    return message(reports).SerializeToString()


def reports_of_all(
    job: str, world: int, *, attempt: int = 1, overdue: float = 0.0, resumed_at: int | None = None
) -> list[ResourceMetrics]:
    """Reports of all ranks in a step; with ``overdue`` they have been in it for so long, and rank 2 is one behind."""
    return [
        rank_report(
            job,
            rank,
            world,
            attempt=attempt,
            iteration=resumed_at if resumed_at is not None else (6 if rank == 2 and overdue else 7),
            progress=0,
            open_sections={"step": overdue or 0.1},
            first_iteration=resumed_at,
        )
        for rank in range(world)
    ]
