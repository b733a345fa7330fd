"""Whatever comes under the names of windows, kernels and devices: nothing raises, and what is reported makes sense."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from monitor.ingest.decoding import Ingest
from monitor.ingest.otlp_requests import NOW_NS, RANK_3, Fill, collective, gauge, histogram, kernel, request_of, section
from rankwatch.contract import semconv
from rankwatch.contract.enums import Part
from rankwatch_monitor.core.events import RankReport

WINDOW_METRICS = semconv.METRICS[
    semconv.METRICS.index(semconv.WINDOW_ITERATION) : semconv.METRICS.index(semconv.KERNEL_SOURCE) + 1
]
LABELS = (
    semconv.ATTR_SECTION,
    semconv.ATTR_KERNEL,
    semconv.ATTR_GROUP,
    semconv.ATTR_SOURCE,
    semconv.ATTR_REASON,
    semconv.HW_ID,
)
WORDS = {
    semconv.ATTR_STATISTIC: (
        "median",
        "tail",
        "max",
        "mean",
        "min",
        "stddev",
        "busy",
        "exposed",
        "shortest",
        "used",
        "p9",
    ),
    semconv.ATTR_PART: (*map(str, Part), "idle"),
}
KNOWN = ("a", "b", "c", "GPU-3")
MOST = len(RANK_3)
"""Attributes of one resource, and reasons of a device."""
NUMBERS = st.one_of(st.none(), st.floats(), st.floats(0, 10), st.integers(-(2**63), 2**63 - 1), st.integers(0, 9))


@st.composite
def points(draw: st.DrawFn) -> Fill:
    metric = draw(st.sampled_from([*WINDOW_METRICS, *semconv.DEVICE_METRICS])).name
    labels = {key: draw(st.one_of(st.sampled_from(KNOWN), st.text(max_size=20))) for key in LABELS}
    labels |= {key: draw(st.sampled_from(words)) for key, words in WORDS.items()}
    kept = draw(st.sets(st.sampled_from(sorted(labels))).map(lambda left_out: labels.keys() - left_out))
    time_ns = draw(st.sampled_from([0, NOW_NS, NOW_NS + 1]))
    return gauge(metric, draw(NUMBERS), time_ns, **{key: labels[key] for key in sorted(kept)})


WHOLE = (
    gauge(semconv.WINDOW_ITERATION.name, 8),
    *section("a", median=1.0),
    *collective("b", busy=1.0),
    *kernel("c", median=1.0),
    gauge(semconv.GPU_POWER.name, 300.0),
)


@given(st.lists(points(), max_size=60), st.sets(st.sampled_from(range(len(WHOLE)))))
def test_any_points_at_all(odd: list[Fill], left_out: set[int]) -> None:
    ingest = Ingest(sections_per_job=2, groups_per_report=2, kernels_per_report=2, name_length=12, attributes=MOST)
    fills = [*(fill for i, fill in enumerate(WHOLE) if i not in left_out), *odd]
    request = request_of(RANK_3, *fills)
    decoded = ingest(request)
    (report,) = decoded.reports
    assert decoded.rejections.items <= len(fills)
    assert all(number >= 0 and isfinite(number) for number in numbers(report))
    assert_bounded(report)
    again = ingest(ExportMetricsServiceRequest.FromString(request.SerializeToString())).reports[0]
    if report.window is not None and (report.window.iteration is not None or has_time(request)):
        assert again.window is None, "taken twice"
    assert again.device == report.device


@given(st.lists(st.binary(max_size=8), max_size=4), st.sampled_from(WINDOW_METRICS))
def test_names_of_any_bytes_that_are_text_and_points_of_another_kind(
    printed: list[bytes], metric: semconv.Metric
) -> None:
    ingest = Ingest()
    texts = [each.decode(errors="ignore") for each in printed]
    request = request_of(RANK_3, *(gauge(metric.name, 1.0, section=text, group=text, kernel=text) for text in texts))
    ingest(request)
    other = request_of(RANK_3, histogram("step", 3, 1.0))
    other.resource_metrics[0].scope_metrics[0].metrics[0].name = metric.name
    decoded = ingest(other)
    assert decoded.reports[0] == RankReport(decoded.reports[0].identity), "nothing is read of a histogram"
    assert decoded.rejections.items == 1


def assert_bounded(report: RankReport) -> None:
    assert report.kernels is None or 0 < len(report.kernels) <= 2
    named = [*(report.kernels or {})]
    if report.window is not None:
        assert max(len(report.window.sections), len(report.window.collectives)) <= 2
        assert set(report.window.parts) <= set(map(str, Part))
        named += [*report.window.sections, *report.window.collectives]
    if report.device is not None:
        named += [*report.device.throttled, *report.device.errors]
        assert max(len(report.device.throttled), len(report.device.errors)) <= MOST
    named += [report.kernel_source or "none"]
    assert all(0 < len(name) <= 12 and name.isprintable() for name in named)


def has_time(request: ExportMetricsServiceRequest) -> bool:
    """Whether any point of the window, rejected ones included, states when it was."""
    window = {metric.name for metric in WINDOW_METRICS if "kernel" not in metric.name}
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    return any(metric.gauge.data_points[0].time_unix_nano for metric in metrics if metric.name in window)


def numbers(reported: Any) -> Iterator[float]:
    """All numbers in what a report reports speed, temperatures left out."""
    if isinstance(reported, RankReport):
        device = reported.device and reported.device._replace(temperature=None)
        yield from numbers([reported.window, reported.kernels, device])
    elif isinstance(reported, dict):
        yield from numbers(list(reported.values()))
    elif isinstance(reported, list | tuple):
        for each in reported:
            yield from numbers(each)
    elif isinstance(reported, int | float):
        yield reported
