"""OTLP requests made with opentelemetry-proto alone, as a foreign client would make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics

SECOND = 10**9
NOW_NS = 1_750_000_000 * SECOND
DELTA, CUMULATIVE = 1, 2

RANK_3: dict[str, object] = {
    "rankwatch.job.id": "job-1",
    "service.name": "gpt",
    "service.instance.id": "instance-3",
    "host.name": "node-0",
    "process.pid": 4242,
    "process.creation.time": "2025-06-15T15:06:40Z",
    "rankwatch.attempt": 2,
    "dl.rank": 3,
    "dl.local_rank": 1,
    "dl.world_size": 4,
    "hw.id": "GPU-3",
}

Fill = Callable[[ResourceMetrics], object]


def add_resource(
    request: ExportMetricsServiceRequest, attributes: Mapping[str, object] = RANK_3, *fills: Fill
) -> ResourceMetrics:
    resource_metrics = request.resource_metrics.add()
    for key, value in attributes.items():
        attribute = resource_metrics.resource.attributes.add(key=key)
        if isinstance(value, bool):
            attribute.value.bool_value = value
        elif isinstance(value, int):
            attribute.value.int_value = value
        elif isinstance(value, float):
            attribute.value.double_value = value
        else:
            attribute.value.string_value = str(value)
    resource_metrics.scope_metrics.add()
    for fill in fills:
        fill(resource_metrics)
    return resource_metrics


def request_of(attributes: Mapping[str, object] = RANK_3, *fills: Fill) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    add_resource(request, attributes, *fills)
    return request


def without(*names: str) -> dict[str, object]:
    return {key: value for key, value in RANK_3.items() if key not in names}


def _metric(resource_metrics: ResourceMetrics, name: str) -> Metric:
    metrics = resource_metrics.scope_metrics[0].metrics
    return next((metric for metric in metrics if metric.name == name), None) or metrics.add(name=name)


def gauge(name: str, value: float | None, time_ns: int = NOW_NS, **attributes: str) -> Fill:
    """One point; an attribute without a dot in its name is one of Rankwatch's own."""

    def fill(resource_metrics: ResourceMetrics) -> None:
        point = _metric(resource_metrics, name).gauge.data_points.add(time_unix_nano=time_ns)
        if isinstance(value, int):
            point.as_int = value
        elif value is not None:
            point.as_double = value
        for key, text in attributes.items():
            point.attributes.add(key=key if "." in key else f"rankwatch.{key}").value.string_value = text

    return fill


def counter(name: str, value: int, temporality: int = CUMULATIVE, time_ns: int = NOW_NS, **attributes: str) -> Fill:
    def fill(resource_metrics: ResourceMetrics) -> None:
        metric = _metric(resource_metrics, name)
        metric.sum.aggregation_temporality = temporality  # type: ignore[assignment]
        point = metric.sum.data_points.add(time_unix_nano=time_ns, as_int=value)
        for key, text in attributes.items():
            point.attributes.add(key=f"rankwatch.{key}").value.string_value = text

    return fill


def histogram(
    section: str | None,
    count: int,
    total: float | None,
    least: float | None = None,
    most: float | None = None,
    *,
    temporality: int = DELTA,
    start_ns: int = NOW_NS - SECOND,
    time_ns: int = NOW_NS,
    exponential: bool = True,
) -> Fill:
    def fill(resource_metrics: ResourceMetrics) -> None:
        metric = _metric(resource_metrics, "rankwatch.section.duration")
        data = metric.exponential_histogram if exponential else metric.histogram
        data.aggregation_temporality = temporality  # type: ignore[assignment]
        point = data.data_points.add(start_time_unix_nano=start_ns, time_unix_nano=time_ns, count=count)
        for name, value in (("sum", total), ("min", least), ("max", most)):
            if value is not None:
                setattr(point, name, value)
        if section is not None:
            point.attributes.add(key="rankwatch.section").value.string_value = section

    return fill


WINDOW = "rankwatch.window"


def section(name: str, calls: float | None = 4, *, time_ns: int = NOW_NS, **seconds: float) -> list[Fill]:
    """A section's runs within a window: ``median=0.1, tail=0.2``."""
    return _named("section", f"{WINDOW}.section", name, calls, time_ns, seconds)


def collective(group: str, calls: float | None = 4, *, time_ns: int = NOW_NS, **seconds: float) -> list[Fill]:
    """A process group in the step that closed a window: ``busy=0.1, exposed=0.05``."""
    return _named("group", "rankwatch.collective", group, calls, time_ns, seconds)


def operation(
    name: str, calls: float | None = 4, *, time_ns: int = NOW_NS, sizes: Mapping[str, float], **seconds: float
) -> list[Fill]:
    """The collectives of one operation and group in the same step: ``total=0.1, sizes={"bytes": 100}``."""
    made = _named("operation", "rankwatch.collective.operation", name, calls, time_ns, seconds)
    size = "rankwatch.collective.operation.size"
    return made + [gauge(size, value, time_ns, operation=name, statistic=word) for word, value in sizes.items()]


def kernel(name: str, calls: float | None = 4, *, time_ns: int = NOW_NS, **seconds: float) -> list[Fill]:
    """A kernel over one report: ``median=0.1, mean=0.2``."""
    return _named("kernel", "rankwatch.kernel", name, calls, time_ns, seconds)


def _named(
    key: str, metric: str, name: str, calls: float | None, time_ns: int, seconds: Mapping[str, float]
) -> list[Fill]:
    reported = [] if calls is None else [gauge(f"{metric}.calls", calls, time_ns, **{key: name})]
    duration = f"{metric}.duration"
    return reported + [
        gauge(duration, value, time_ns, **{key: name, "statistic": word}) for word, value in seconds.items()
    ]
