"""More than a monitor can take: real ranks wait, come back and lose nothing; a flooded monitor goes on judging."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import rankwatch
from monitor.ingest.otlp_requests import DELTA, NOW_NS, RANK_3, SECOND, add_resource, counter, gauge
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest import admission as rules
from rankwatch_monitor.ingest.limits import Counters
from rankwatch_monitor.ingest.routes import OtlpEndpoints
from support.monitor_process import Api, running_monitor
from support.waiting import wait_for


class Served:
    """The endpoints on a port of loopback, in a thread; keeps what it was sent."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.reports: list[RankReport] = []
        app = FastAPI()
        app.include_router(OtlpEndpoints(self._take, counters=self.counters).router)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True)
        self._thread.start()

    def _take(self, reports: Sequence[RankReport]) -> tuple[()]:
        self.reports.extend(reports)
        return ()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._listener.close()
        assert not self._thread.is_alive()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()
    gc.collect()  # sockets that were left to the collector would warn in some later test


@pytest.fixture
def ended() -> Iterator[None]:
    yield
    rankwatch.shutdown()


def test_a_rank_that_is_asked_to_retry_comes_back_and_loses_nothing(
    served: Served, ended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "RETRY_AFTER", (1, 1))
    monkeypatch.setattr(rules, "LATE", -1.0)  # whatever comes is too late
    rankwatch.init(monitor=served.url, job_id="j", rank=0, world_size=1, export_interval=0.1, span_stride=0)
    for _ in range(40):
        with rankwatch.step():
            pass
    wait_for(lambda: served.counters.rejected.get("unavailable", 0) >= 2, "the rank tries again after the pause")
    assert served.reports == []
    asked = served.counters.requests
    monkeypatch.setattr(rules, "LATE", 600.0)
    for _ in range(2):
        with rankwatch.step():
            pass

    def steps() -> int:
        return sum(report.finished["step"].count for report in served.reports if "step" in report.finished)

    wait_for(lambda: steps() == 42, "all steps arrive, those from before as well")
    wait_for(lambda: served.reports[-1].iteration == 41, "and what is true now")
    assert asked < 20, "it waited: a request for each report would have been many more"
    assert all(not report.dropped for report in served.reports), "nothing was given up"


RANKS, CONNECTIONS, EACH = 150, 250, 4


def heavy(number: int) -> bytes:
    """A request that takes long to read: delta counters are of no layout."""
    request = ExportMetricsServiceRequest()
    for rank in range(RANKS):
        identity = {**RANK_3, "dl.rank": rank, "dl.world_size": RANKS, "service.instance.id": f"i{rank}"}
        time_ns = NOW_NS + number * SECOND
        fills = [counter("rankwatch.heartbeats", 1, DELTA, time_ns), gauge("rankwatch.heartbeat.age", 0.1, time_ns)]
        named = [gauge("rankwatch.section.open.duration", 0.1, time_ns, section=f"s{i}") for i in range(12)]
        add_resource(request, identity, *fills, *named)
    return request.SerializeToString()


async def flood(url: str) -> tuple[list[int], list[int]]:
    """Post over many connections at once; return the statuses and what ``/readyz`` answered meanwhile."""
    host, port = url.removeprefix("http://").split(":")
    bodies = [heavy(number) for number in range(EACH)]
    head = (
        "POST /v1/metrics HTTP/1.1\r\nhost: localhost\r\n"
        "content-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n"
    )

    async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
        headers = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in headers.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        return int(headers.split(b" ", 2)[1]), headers.lower()

    async def sender() -> list[int]:
        reader, writer = await asyncio.open_connection(host, int(port))
        statuses = []
        for body in bodies:
            writer.write(head.format(len(body)).encode() + body)
            status, headers = await answer(reader)
            assert (status == 503) == (b"retry-after:" in headers)
            statuses.append(status)
        writer.close()
        return statuses

    async def lives(senders: asyncio.Future[list[list[int]]]) -> list[int]:
        found = []
        while not senders.done():
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            found.append((await answer(reader))[0])
            writer.close()
        return found

    senders = asyncio.gather(*(sender() for _ in range(CONNECTIONS)))
    ready = await lives(senders)
    return [status for each in await senders for status in each], ready


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_a_flooded_monitor_refuses_some_goes_on_judging_and_stays_small(tmp_path: Path) -> None:
    with running_monitor(tmp_path, "--database", "none") as monitor, Api(monitor.url) as api:
        before = resident_bytes(monitor.pid)
        statuses, ready = asyncio.run(flood(monitor.url))
        assert set(statuses) == {200, 503}
        assert len(statuses) == CONNECTIONS * EACH, "each was answered"
        assert ready, "somebody asked meanwhile"
        assert set(ready) == {200}, "jobs were judged all the time"
        assert api.rejected()["unavailable"] == statuses.count(503)
        assert resident_bytes(monitor.pid) - before < rules.HELD_BYTES + CONNECTIONS * 2 * len(heavy(0))
        headers = {"content-type": "application/x-protobuf"}
        wait_for(lambda: api.post("/v1/metrics", content=heavy(9), headers=headers).is_success, "it takes all again")
