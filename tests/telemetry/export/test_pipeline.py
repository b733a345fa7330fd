"""The whole way: training code, slots, exporter's thread, OTLP over HTTP to a real server."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from datetime import datetime
from typing import Any

import pytest

import rankwatch
from rankwatch.contract import semconv
from rankwatch.export.transport import MAX_BATCH, MAX_QUEUED
from telemetry.receiver import Answer, Receiver, Report, partial_success

FAST = 0.05
"""Seconds between reports: as fast as the setting allows."""


def start(receiver: Receiver, **more: Any) -> None:
    rankwatch.init(**{"monitor": receiver.url, "job_id": "j", "export_interval": FAST, "span_stride": 0} | more)


def test_a_report_identifies_its_sender(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "cluster=north,dl.rank=99")
    start(
        receiver,
        rank=3,
        local_rank=1,
        world_size=8,
        attempt=2,
        job_name="gpt",
        attributes={"dl.tensor_parallel.rank": 1},
    )
    resource = receiver.wait_for_report().resource
    expected = {
        semconv.SERVICE_NAME: "gpt",
        semconv.PROCESS_PID: os.getpid(),
        semconv.JOB_ID: "j",
        semconv.ATTEMPT: 2,
        semconv.RANK: 3,
        semconv.LOCAL_RANK: 1,
        semconv.WORLD_SIZE: 8,
        "cluster": "north",
        "dl.tensor_parallel.rank": 1,
    }
    assert expected.items() <= resource.items()
    assert {semconv.HOST_NAME, semconv.SERVICE_INSTANCE_ID, semconv.PROCESS_START_TIME} <= resource.keys()
    started = datetime.fromisoformat(resource[semconv.PROCESS_START_TIME])
    assert 0 <= time.time() - started.timestamp() < 86_400


def test_progress_arrives_by_the_names_and_units_of_the_contract(receiver: Receiver) -> None:
    start(receiver)
    for step in range(40, 43):
        with rankwatch.step(step), rankwatch.section("forward"):
            pass
        rankwatch.heartbeat()
    rankwatch.progress(10)
    report = receiver.wait_for_report(lambda r: r.value("rankwatch.progress") == 10)
    assert report.value("rankwatch.heartbeats") == 3
    assert report.value("rankwatch.iteration") == 42
    assert report.value("rankwatch.iteration.first") == 40
    assert 0 <= report.value("rankwatch.iteration.first.age") < 60
    assert report.value("rankwatch.session.ended") is None
    assert 0 <= report.value("rankwatch.heartbeat.age") < 60
    assert 0 <= report.value("rankwatch.section.idle.duration") < 60
    units = {metric.name: metric.unit for metric in semconv.METRICS}
    seen = {name: unit for report in receiver.reports for name, unit in report.units.items()}
    assert seen.items() <= units.items()


@pytest.mark.parametrize(("given", "resumed"), [(None, None), (0, 0), (40, 40)])
def test_the_first_step_has_a_number_only_where_the_script_gave_it_one(
    receiver: Receiver, given: int | None, resumed: int | None
) -> None:
    start(receiver)
    with rankwatch.step(given):
        pass
    with rankwatch.step():
        pass
    report = receiver.wait_for_report(lambda r: r.value("rankwatch.iteration") == (given or 0) + 1)
    assert report.value("rankwatch.iteration.first") == resumed
    assert 0 <= report.value("rankwatch.iteration.first.age") < 60


def test_what_has_not_happened_yet_is_left_out(receiver: Receiver) -> None:
    start(receiver)
    report = receiver.wait_for_report()
    assert report.value("rankwatch.heartbeats") == 0
    for metric in (
        semconv.HEARTBEAT_AGE,
        semconv.ITERATION,
        semconv.SECTION_IDLE_DURATION,
        semconv.SECTION_OPEN_DURATION,
    ):
        assert not report.points.get(metric.name), metric.name


def test_open_sections_age_until_they_close(receiver: Receiver) -> None:
    start(receiver)

    def age(report: Report) -> float:
        return float(report.value("rankwatch.section.open.duration", "save") or 0.0)

    with rankwatch.section("save"):
        first = age(receiver.wait_for_report(age))
        receiver.wait_for_report(lambda r: age(r) > first)
        assert receiver.reports[-1].value("rankwatch.section.idle.duration") is None
    receiver.wait_for_report(lambda r: r.value("rankwatch.section.idle.duration") is not None)


def test_finished_sections_make_a_histogram_of_each_interval(receiver: Receiver) -> None:
    start(receiver)
    begin = time.monotonic()
    for _ in range(2):
        for _ in range(10):
            with rankwatch.section("forward"):
                time.sleep(0.001)
        receiver.wait_for_report(lambda report: report.value("rankwatch.section.duration", "forward"))
    longest = time.monotonic() - begin
    rankwatch.shutdown()
    points = [p for r in receiver.reports if (p := r.value("rankwatch.section.duration", "forward"))]
    assert sum(point.count for point in points) == 20, "each section is in one report only"
    assert all(0.001 <= point.min <= point.sum / point.count <= point.max <= longest for point in points)
    assert sum(sum(point.positive.bucket_counts) for point in points) == 20


def test_spans_of_every_nth_step_with_their_own_times(receiver: Receiver) -> None:
    start(receiver, span_stride=4)
    before = time.time_ns()
    for _ in range(9):
        with rankwatch.step(), rankwatch.section("forward"):
            pass
    rankwatch.shutdown()
    after = time.time_ns()
    seen = sorted((span.attributes[0].value.int_value, span.name) for span in receiver.spans)
    assert seen == [(i, name) for i in (0, 4, 8) for name in ("forward", "step")]
    assert all(span.attributes[0].key == "dl.iteration" for span in receiver.spans)
    slack = 50_000_000  # the wall clock may be slewed while the test runs
    for span in receiver.spans:
        assert before - slack <= span.start_time_unix_nano <= span.end_time_unix_nano <= after + slack


def test_no_global_provider_is_touched(receiver: Receiver) -> None:
    start(receiver, span_stride=1)
    receiver.wait_for_report()
    from opentelemetry import metrics, trace

    assert "Proxy" in type(metrics.get_meter_provider()).__name__
    assert "Proxy" in type(trace.get_tracer_provider()).__name__


def test_shutdown_sends_what_is_left(receiver: Receiver) -> None:
    start(receiver, export_interval=3600)
    receiver.wait_for_report()
    rankwatch.heartbeat()
    rankwatch.shutdown()
    assert receiver.reports[-1].value("rankwatch.heartbeats") == 1
    assert receiver.reports[-1].value("rankwatch.session.ended") == 1


def test_shutdown_waits_two_seconds_at_most_for_a_receiver_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import socket

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10000")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        rankwatch.init(monitor=f"http://127.0.0.1:{deaf.getsockname()[1]}", job_id="j", export_interval=FAST)
        connection, _ = deaf.accept()
        with connection:
            begin = time.monotonic()
            rankwatch.shutdown()
            assert time.monotonic() - begin < 9.0, "a request ends after 10 s"


def test_a_receiver_that_goes_away_and_comes_back_gets_what_it_missed(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start(receiver)
    receiver.wait_for_report()
    receiver.close()
    with rankwatch.section("meanwhile"):
        pass
    wait_until(lambda: "does not accept telemetry now (connection refused)" in caplog.text)
    back = Receiver(receiver.port)
    try:
        report = back.wait_for_report(lambda r: r.value("rankwatch.section.duration", "meanwhile"))
        assert report.value("rankwatch.telemetry.dropped", "backlog") is None
        wait_until(lambda: "accepts telemetry again" in caplog.text)
    finally:
        rankwatch.shutdown()
        back.close()
    ours = [record for record in caplog.records if record.name == "rankwatch"]
    assert [record.levelname for record in ours] == ["WARNING", "WARNING"], "once when away, once when back"
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_receiver_is_left_alone_as_long_as_it_asks(receiver: Receiver, status: int) -> None:
    receiver.first = Answer(status, {"Retry-After": "1"})
    start(receiver)
    receiver.wait_for(lambda: receiver.requests)
    rankwatch.heartbeat()
    receiver.wait_for_report(lambda report: report.value("rankwatch.heartbeats"))
    (refused_at, none), (taken_at, several) = receiver.taken[:2]
    assert taken_at - refused_at >= 1.0
    assert none == 0
    assert several > 1, "what waited went in one request"
    counts = [report.value("rankwatch.heartbeats") for report in receiver.reports]
    assert counts[0] == 0
    assert counts == sorted(counts), "oldest first"


def test_what_a_busy_receiver_asked_for_again_comes_before_the_next_report_is_due(receiver: Receiver) -> None:
    receiver.answer = Answer(429, {"Retry-After": "1"})
    start(receiver, export_interval=3600.0)
    receiver.wait_for(lambda: receiver.requests)
    receiver.answer = Answer()
    receiver.wait_for_report()
    assert len(receiver.reports) == 1, "the same once more, and no new one"


def test_a_long_absence_loses_the_oldest_and_states_how_many(receiver: Receiver) -> None:
    receiver.answer = Answer(503)
    start(receiver)
    receiver.wait_for(lambda: len(receiver.requests) > MAX_QUEUED + 5)
    receiver.answer = Answer()
    report = receiver.wait_for_report(lambda r: r.value("rankwatch.telemetry.dropped", "backlog"))
    assert report.value("rankwatch.telemetry.dropped", "backlog") >= 1
    full = MAX_QUEUED // MAX_BATCH
    receiver.wait_for(lambda: sum(reports > 0 for _, reports in receiver.taken) >= full)
    batches = [reports for _, reports in receiver.taken if reports]
    assert batches[:full] == [MAX_BATCH] * full, "as many as are kept"


def test_a_refusal_is_reported_once_counted_and_not_repeated(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = Answer(401)
    start(receiver)
    receiver.wait_for(lambda: len(receiver.requests) >= 3)
    receiver.answer = Answer()
    report = receiver.wait_for_report(lambda r: r.value("rankwatch.telemetry.dropped", "refused"))
    assert report.value("rankwatch.telemetry.dropped", "refused") >= 2
    assert caplog.text.count("rejects telemetry") == 1
    assert "RANKWATCH_TOKEN" in caplog.text


def test_points_left_out_by_the_receiver_are_counted(receiver: Receiver) -> None:
    receiver.answer = partial_success(3)
    start(receiver)
    receiver.wait_for_report(lambda r: r.value("rankwatch.telemetry.dropped", "refused_points"))


def test_the_token_goes_with_every_request(receiver: Receiver) -> None:
    start(receiver, token="secret", span_stride=1)
    with rankwatch.step():
        pass
    receiver.wait_for(lambda: receiver.spans)
    assert {request["authorization"] for request in receiver.requests} == {"Bearer secret"}
    assert set(receiver.paths) == {"/v1/metrics", "/v1/traces"}


def test_the_standard_variables_are_enough(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "X-Key=k")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    monkeypatch.setenv("RANKWATCH_EXPORT_INTERVAL", "0.05")
    rankwatch.init()
    receiver.wait_for(lambda: len(receiver.reports) >= 3)
    assert receiver.requests[-1]["x-key"] == "k"
    assert receiver.requests[-1]["content-encoding"] == "gzip"


def test_a_forked_child_is_silent_until_it_starts_itself(receiver: Receiver) -> None:
    start(receiver)
    receiver.wait_for_report()
    with rankwatch.section("loading"):
        child = os.fork()
        if child == 0:
            try:
                rankwatch.heartbeat()
                threads = [t.name for t in threading.enumerate() if t.name.startswith("rankwatch-")]
                silent = not threads and not rankwatch.should_stop()
                rankwatch.init(monitor=receiver.url, job_id="child", export_interval=FAST)
                rankwatch.heartbeat()
                rankwatch.heartbeat()
                rankwatch.shutdown()
                os._exit(0 if silent else 1)
            except BaseException:  # noqa: BLE001 - a forked child must not go on as a second test run
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        parent = receiver.wait_for_report(lambda r: r.value("rankwatch.section.open.duration", "loading"))
    assert parent.value("rankwatch.heartbeats") == 0, "the child's beat is not the parent's"
    own = receiver.wait_for_report(lambda r: r.resource["process.pid"] == child and r.value("rankwatch.heartbeats"))
    assert (own.resource["rankwatch.job.id"], own.value("rankwatch.heartbeats")) == ("child", 2)


def test_a_stopped_process_resumes(receiver: Receiver) -> None:
    """SIGSTOP and SIGCONT in a child: the thread goes on where it was."""
    child = os.fork()
    if child == 0:
        try:
            rankwatch.init(monitor=receiver.url, job_id="j", export_interval=FAST)
            signal.pause()
        finally:
            os._exit(0)
    try:
        receiver.wait_for_report()
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        seen = len(receiver.reports)
        os.kill(child, signal.SIGCONT)
        receiver.wait_for(lambda: len(receiver.reports) > seen + 1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
