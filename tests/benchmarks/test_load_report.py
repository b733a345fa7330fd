"""The bytes of emulated reports are those of the rank side, and the monitor reads in them what they hold."""

from __future__ import annotations

import _load_layout
import pytest
from _load_report import GROUPS, SECTIONS, Kind, Pace, encoded
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from rankwatch.contract import semconv
from rankwatch.contract.collectives import parsed
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.metrics_decoder import MetricsDecoder

PACE = Pace(2.0, 3, 4)
IDENTITY: dict[str, str | int | float | bool] = {semconv.JOB_ID: "j", semconv.RANK: 300, semconv.WORLD_SIZE: 512}


def decoded(body: bytes) -> RankReport:
    reported = MetricsDecoder(Limits(), Counters()).decode(ExportMetricsServiceRequest.FromString(body))
    assert reported.rejections.message() == ""
    return reported.reports[0]


def test_a_plain_report_states_where_the_rank_stands() -> None:
    report = decoded(encoded(IDENTITY, PACE, Kind()))
    assert (report.identity.job_id, report.identity.rank, report.iteration) == ("j", 300, 1)
    assert set(report.open_sections or {}) == {"step", "backward"}
    assert not report.finished
    assert report.window is None
    assert not report.longest


def test_finished_sections_come_with_the_times_of_their_steps() -> None:
    report = decoded(encoded(IDENTITY, PACE, Kind(steps=True)))
    assert set(report.finished) == set(SECTIONS)
    assert {reported.count for reported in report.finished.values()} == {PACE.steps_a_report}
    assert report.finished["step"].sum == pytest.approx(PACE.steps_a_report * PACE.step_seconds, rel=0.1)
    assert not report.longest, "only what has grown is reported again"


def test_a_window_and_the_news_are_reported_when_asked_for() -> None:
    report = decoded(encoded(IDENTITY, PACE, Kind(steps=True, window=True, news=True)))
    assert report.window is not None
    assert set(report.window.sections) == set(SECTIONS)
    assert set(report.window.collectives) == set(GROUPS)
    assert [parsed(name)[1] for name in report.window.operations] == list(GROUPS)
    assert set(report.longest) == set(SECTIONS)
    assert report.device is not None
    assert report.kernels is None


def test_kernels_come_with_their_source_and_the_last_report_reports_it() -> None:
    report = decoded(encoded(IDENTITY, PACE, Kind(steps=True, window=True, kernels=True)))
    assert report.kernels is not None
    assert len(report.kernels) == 64
    assert decoded(encoded(IDENTITY, PACE, Kind(ended=True))).ended is True


def test_the_layout_finds_every_time_and_value_that_protobuf_finds() -> None:
    body = encoded(IDENTITY, PACE, Kind(steps=True, window=True))
    found = _load_layout.find(body)
    request = ExportMetricsServiceRequest.FromString(body)
    points = [
        (metric.name, point)
        for scope in request.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        for point in (*metric.gauge.data_points, *metric.sum.data_points, *metric.exponential_histogram.data_points)
    ]
    assert len(found.times) == len(points)
    read = [int.from_bytes(body[at : at + 8], "little") for at in found.times]
    assert sorted(read) == sorted(point.time_unix_nano for _, point in points)
    assert len(found.starts) == len(SECTIONS), "of the histograms, which are deltas"
    assert sorted(value.metric for value in found.values) == sorted(
        name for name, _ in points if name != semconv.SECTION_DURATION.name
    )
    span = found.identity[semconv.RANK]
    assert body[span.at : span.at + span.length] == _load_layout.varint(300)
    assert body[slice(found.identity[semconv.JOB_ID].at, sum(found.identity[semconv.JOB_ID]))] == b"j"


def test_a_request_of_two_resources_is_no_report() -> None:
    with pytest.raises(ValueError, match="one resource, not 2"):
        _load_layout.find(encoded(IDENTITY, PACE, Kind()) * 2)
