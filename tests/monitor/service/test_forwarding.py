"""A real monitor that forwards: what a sender was told is taken reaches the backend, also over a kill of it."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from support.http_receiver import Answers, HttpReceiver, Posted, http_receiver
from support.monitor_process import Api, RunningMonitor, environment, running_monitor
from support.otlp import PROTOBUF, body, rank_report
from support.waiting import wait_for


@pytest.fixture
def backend() -> Iterator[HttpReceiver]:
    with http_receiver() as made:
        yield made


def run(
    folder: Path, *backends: HttpReceiver, more: tuple[str, ...] = (), database: Path | None = None
) -> AbstractContextManager[RunningMonitor]:
    flags = [word for backend in backends for word in ("--forward", f"{backend.url}/otlp")]
    return running_monitor(folder, *flags, *more, database=database, settings={"NO_PROXY": "127.0.0.1"})


def iteration(posted: Posted) -> int | None:
    """The step that a rank's request tells of; None for what the monitor says itself."""
    sent = gzip.decompress(posted.body) if posted.headers.get("content-encoding") == "gzip" else posted.body
    for metric in ExportMetricsServiceRequest.FromString(sent).resource_metrics[0].scope_metrics[0].metrics:
        if metric.name == "rankwatch.iteration":
            return int(metric.gauge.data_points[0].as_int)
    return None


def steps(backend: HttpReceiver) -> list[int]:
    return [step for posted in backend.taken if (step := iteration(posted)) is not None]


def send(api: Api, step: int) -> None:
    content = body(rank_report("job", 0, 1, iteration=step, idle=0.0))
    assert api.post("/v1/metrics", content=content, headers=PROTOBUF).status_code == 200


def test_every_accepted_request_arrives_over_two_kills(tmp_path: Path, backend: HttpReceiver) -> None:
    database = tmp_path / "rankwatch.db"
    with run(tmp_path / "1", backend, database=database) as monitor, Api(monitor.url) as api:
        for step in range(30):
            send(api, step)
        wait_for(lambda: len(set(steps(backend))) == 30, "the first requests arrive")
        backend.away()
        for step in range(30, 130):
            send(api, step)
        monitor.kill()  # at once after the last answer: nothing that was acknowledged may be lost
    backend.answers = Answers(first=[503, 429, 502])
    backend.back()
    with run(tmp_path / "2", backend, database=database) as monitor, Api(monitor.url) as api:
        for step in range(130, 160):
            send(api, step)
        monitor.kill()  # in the middle of sending
    with run(tmp_path / "3", backend, database=database) as monitor, Api(monitor.url) as api:
        send(api, 160)
        wait_for(lambda: set(steps(backend)) == set(range(161)), "all arrive")
        monitor.process.terminate()
        assert monitor.process.wait(20) == 0
    arrived = steps(backend)
    again = sum(count - 1 for count in Counter(arrived).values())
    assert again <= 2 * 64, "what was on its way at a kill may come twice, no more"
    firsts = list(dict.fromkeys(arrived))
    for process in (range(30, 130), range(130, 160)):  # one connection each
        assert [step for step in firsts if step in process] == list(process), "those of one sender in their order"
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
        answer = api.post("/v1/metrics", content=packed, headers=PROTOBUF | {"Content-Encoding": "gzip"})
        assert answer.status_code == 200
        assert api.post("/v1/metrics", content=b"\xff", headers=PROTOBUF).status_code == 400
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


def test_a_folder_that_cannot_be_used_ends_it_with_words(tmp_path: Path) -> None:
    flags = ("--forward", "http://127.0.0.1/top-secret", "--forward-dir", "/dev/null")
    command = [sys.executable, "-m", "rankwatch_monitor", "--port", "0", "--database", "none", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert ended.returncode == 2
    assert "--forward-dir: cannot write into /dev/null" in ended.stderr
    assert "top-secret" not in ended.stderr
