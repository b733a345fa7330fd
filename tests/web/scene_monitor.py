"""The monitor's own application over jobs of the core whose time only the test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from rankwatch_monitor.app import create_app
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.http import stream
from rankwatch_monitor.ingest.traces_decoder import SpanRecord
from rankwatch_monitor.service.monitor import Clock, Monitor
from support.served import served
from support.waiting import wait_for


class StagedClock(Clock):
    """Stands still until it is set; unix seconds."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def now(self) -> float:
        return self.at


class SceneMonitor:
    """A served monitor whose jobs are evaluated by the test. ``change`` runs between its requests."""

    def __init__(self, url: str, clock: StagedClock, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self._clock, self._loop = clock, loop

    def change(self, act: Callable[[], float]) -> None:
        """Let ``act`` change the jobs; it returns the time of the monitor from then on."""

        async def on_loop() -> None:
            self._clock.at = act()

        asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(60)


@contextmanager
def serving_scenes(*jobs: Job, now: float, spans: Sequence[SpanRecord] = ()) -> Iterator[SceneMonitor]:
    """Serve these jobs and their spans on loopback; streams send changes after a tenth of a second."""
    clock = StagedClock(now)
    monitor = Monitor(clock=clock, read_only=True)
    for job in jobs:
        monitor.adopt(job)
    monitor.ingest_spans(spans)
    server = uvicorn.Server(
        uvicorn.Config(create_app(monitor), host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
    )
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await served(server)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    usual, stream.INTERVAL = stream.INTERVAL, 0.1  # type: ignore[misc]
    thread.start()
    try:
        wait_for(lambda: server.started, "the server listens")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield SceneMonitor(f"http://127.0.0.1:{port}", clock, loops[0])
    finally:
        stream.INTERVAL = usual  # type: ignore[misc]
        loops[0].call_soon_threadsafe(monitor.broker.end_long_polls)
        server.should_exit = True
        thread.join()
