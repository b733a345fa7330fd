"""How a live stream ends: its reader goes away, its job is watched here no more, the monitor ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp

from monitor.publish.scored import scored
from rankwatch_monitor.app import create_app
from rankwatch_monitor.http import stream
from rankwatch_monitor.service.monitor import Monitor

PATIENCE = 10.0


class Reader:
    """One who reads a stream, straight from the application; what it is sent waits until it wants to read it."""

    def __init__(self, monitor: Monitor | ASGIApp, path: str) -> None:
        self._app = create_app(monitor) if isinstance(monitor, Monitor) else monitor
        self._path = f"/api/v1{path}"
        self.reads, self.leaves = asyncio.Event(), asyncio.Event()
        self.sending = asyncio.Event()
        """Something is on its way to it."""
        self.received: list[dict[str, Any]] = []
        self._asked = False

    async def stay(self) -> None:
        """Read until the stream ends."""
        head = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}
        where = {"method": "GET", "path": self._path, "raw_path": self._path.encode(), "query_string": b""}
        ends = {"root_path": "", "scheme": "http", "headers": [], "server": ("monitor", 80), "client": ("reader", 1)}
        async with asyncio.timeout(PATIENCE):
            await self._app(head | where | ends, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            self.sending.set()
            await self.reads.wait()
        self.received.append(message)

    @property
    def text(self) -> str:
        """What it was sent."""
        return b"".join(message.get("body", b"") for message in self.received).decode()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)


@pytest.fixture
def monitor() -> Monitor:
    """One whose loop does not run, with one job."""
    made, job = Monitor(), scored(8)
    made.jobs[job.id] = job
    return made


@pytest.mark.parametrize("path", ["/events", "/jobs/job/events"])
def test_a_client_that_leaves_while_something_is_on_its_way_is_no_error(monitor: Monitor, path: str) -> None:
    async def go() -> None:
        reader = Reader(monitor, path)
        staying = asyncio.create_task(reader.stay())
        await reader.until(reader.sending.is_set)
        reader.leaves.set()
        await staying

    asyncio.run(go())


def test_a_job_that_is_watched_here_no_more_ends_its_stream_whole(monitor: Monitor) -> None:
    async def go() -> None:
        reader = Reader(monitor, "/jobs/job/events")
        reader.reads.set()
        staying = asyncio.create_task(reader.stay())
        await reader.until(lambda: "event: grid" in reader.text)
        monitor.drop("job")
        await staying
        assert reader.received[0]["status"] == 200
        assert reader.received[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        assert dict(reader.received[0]["headers"])[b"x-accel-buffering"] == b"no"

    asyncio.run(go())


def test_the_end_of_the_monitor_ends_it(monitor: Monitor) -> None:
    async def go() -> None:
        reader = Reader(monitor, "/events")
        reader.reads.set()
        staying = asyncio.create_task(reader.stay())
        await reader.until(lambda: "event: jobs" in reader.text)
        monitor.broker.end_long_polls()
        await staying

    asyncio.run(go())


def test_nothing_new_is_reported_too_so_that_no_proxy_closes_it(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        monkeypatch.setattr(stream, "CLOCK_INTERVAL", 0.0)
        reader = Reader(monitor, "/jobs/job/events")
        reader.reads.set()
        staying = asyncio.create_task(reader.stay())
        await reader.until(lambda: reader.text.count("event: clock") >= 2)
        reader.leaves.set()
        await staying

    asyncio.run(go())


@pytest.mark.parametrize("path", ["/events", "/jobs/job/events"])
def test_a_reader_has_so_many_streams_open_and_no_more(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Each holds a part of a snapshot for as long as its client takes nothing."""
    monkeypatch.setattr(stream, "MOST_STREAMS", 2)

    async def go() -> None:
        app = create_app(monitor)
        readers = [Reader(app, "/events"), Reader(app, "/jobs/job/events")]
        staying = [asyncio.create_task(reader.stay()) for reader in readers]
        for reader in readers:
            await reader.until(reader.sending.is_set)
        refused = Reader(app, path)
        refused.reads.set()
        await refused.stay()
        assert refused.received[0]["status"] == 429
        assert monitor.counters.rejected["unread"] == 1
        readers[0].leaves.set()
        await staying[0]
        another = Reader(app, path)
        staying.append(asyncio.create_task(another.stay()))
        await another.until(another.sending.is_set)
        for reader in (readers[1], another):
            reader.leaves.set()
        await asyncio.gather(*staying)

    asyncio.run(go())
