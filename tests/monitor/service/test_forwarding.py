"""A real monitor that forwards OTLP to real backends."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from support.http_receiver import Answers, HttpReceiver, Posted, http_receiver
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import PROTOBUF, body, rank_report
from support.waiting import wait_for


@pytest.fixture
def backend() -> Iterator[HttpReceiver]:
    with http_receiver() as made:
        yield made


def run(folder: Path, *backends: HttpReceiver, more: tuple[str, ...] = ()) -> AbstractContextManager[RunningMonitor]:
    flags = [word for backend in backends for word in ("--forward", f"{backend.url}/otlp")]
    return running_monitor(folder, *flags, *more, settings={"NO_PROXY": "127.0.0.1"})


def iteration(posted: Posted) -> int | None:
    """The step that a rank's request reports; None for what the monitor reports itself."""
    sent = gzip.decompress(posted.body) if posted.headers.get("content-encoding") == "gzip" else posted.body
    for metric in ExportMetricsServiceRequest.FromString(sent).resource_metrics[0].scope_metrics[0].metrics:
        if metric.name == "rankwatch.iteration":
            return int(metric.gauge.data_points[0].as_int)
    return None


def steps(backend: HttpReceiver) -> list[int]:
    return [step for posted in backend.taken if (step := iteration(posted)) is not None]


def send(api: Api, step: int) -> None:
    content = body(rank_report("job", 0, 1, iteration=step, idle=0.0))
    assert api.export(content).status_code == 200


def test_accepted_requests_arrive_in_order_after_an_outage(tmp_path: Path, backend: HttpReceiver) -> None:
    with run(tmp_path, backend) as monitor, Api(monitor.url) as api:
        for step in range(30):
            send(api, step)
        wait_for(lambda: len(steps(backend)) == 30, "the first requests arrive")
        backend.away()
        for step in range(30, 130):
            send(api, step)
        backend.answers = Answers(first=[503, 429, 502])
        backend.back()
        wait_for(lambda: len(steps(backend)) == 130, "all arrive")
        monitor.process.terminate()
        assert monitor.process.wait(20) == 0
    assert steps(backend) == list(range(130))
    assert {posted.path for posted in backend.taken} == {"/otlp/v1/metrics"}


def test_bytes_stay_as_they_were_and_headers_are_added(tmp_path: Path, backend: HttpReceiver) -> None:
    packed = gzip.compress(body(rank_report("job", 0, 1, iteration=5, idle=0.0)))
    with (
        http_receiver() as second,
        run(
            tmp_path, backend, second, more=("--forward-header", "X-Tenant=t", "--forward-header", "2:X-Key=k")
        ) as monitor,
        Api(monitor.url) as api,
    ):
        answer = api.export(packed, headers=PROTOBUF | {"Content-Encoding": "gzip"})
        assert answer.status_code == 200
        assert api.export(b"\xff").status_code == 400
        for each, key in ((backend, None), (second, "k")):
            wait_for(lambda each=each: 5 in steps(each), "it arrives")
            posted = next(p for p in each.taken if iteration(p) == 5)
            assert posted.body == packed
            assert (posted.headers.get("x-tenant"), posted.headers.get("x-key")) == ("t", key)
        assert b"\xff" not in [posted.body for posted in backend.posted], "what was refused goes nowhere"
        wait_for(lambda: any(b"rankwatch.job.state" in p.body for p in backend.taken), "its own verdicts arrive too")


def test_a_backend_that_hangs_holds_up_no_sender(tmp_path: Path, backend: HttpReceiver) -> None:
    backend.answers = Answers(status=None)
    with run(tmp_path, backend) as monitor, Api(monitor.url) as api:
        for step in range(200):
            send(api, step)
        assert api.get("/readyz").status_code == 200
        assert api.job("job")["iteration"] == 199
        assert backend.taken == []
