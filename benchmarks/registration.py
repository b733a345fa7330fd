"""What the launchers of one large job cost the monitor while they join: CPU time of each step, for each launcher.

Every launcher connects twice, registers, reports its started ranks and begins to poll for directives. The bytes are
those of real launchers and pass the monitor's own protocol, fast lane, core and SQLite database, in one process and
without sockets, whose cost is the kernel's. The ranks of the job have reported before.

Run: python benchmarks/registration.py [--ranks 100000] [--json FILE]
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from _table import arguments, report, spread
from uvicorn import Config
from uvicorn.server import ServerState

from rankwatch.contract.enums import ProcessEventKind
from rankwatch.contract.intervals import POLL_SECONDS
from rankwatch.contract.messages import NodeRegistration, ProcessEvent
from rankwatch.contract.semconv import API_PREFIX, JOB_HEADER
from rankwatch_monitor.app import create_app
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.http.fastlane.protocol import FastLaneProtocol
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.store.repository import Repository

RANKS_A_NODE: Final = 8
TOGETHER: Final = 50
"""Launchers that take each step at the same time."""
JOB: Final = "job"
HEAD: Final = (
    f"{{}} {API_PREFIX}/jobs/{JOB}/{{}} HTTP/1.1\r\nhost: localhost:8790\r\nuser-agent: python-requests/2\r\n"
    f"accept-encoding: gzip, deflate\r\naccept: */*\r\nconnection: keep-alive\r\n{JOB_HEADER}: {JOB}\r\n"
)


class Wire(asyncio.Transport):
    """The monitor's end of a connection without a socket; counts the responses of all."""

    answered = 0

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 40_000), "sockname": ("10.0.0.2", 8790)})

    def write(self, data: Any) -> None:
        if data.startswith(b"HTTP/1.1 "):
            assert data[9:12] in (b"200", b"204"), data
            Wire.answered += 1

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open: a connection without a request is closed after a while."""

    abort = close


def main() -> None:
    """Measure and print."""
    asked = arguments(__doc__ or "", ranks=(100_000, "ranks of the job"))
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(asked.ranks, Path(folder) / "rankwatch.db"))
    report(rows, "us of CPU a launcher", asked.json)


async def measure(ranks: int, database: Path) -> dict[str, dict[str, float]]:
    """Microseconds of CPU time of each step for one launcher, over groups of launchers that take it together."""
    monitor = Monitor(repository=Repository(str(database)))
    app = create_app(monitor)
    took: dict[str, list[float]] = {}
    async with app.router.lifespan_context(app) as state:
        monitor.ingest([RankReport(RankIdentity(JOB, rank, world_size=ranks), iteration=1) for rank in range(ranks)])
        config, server = Config(app, log_config=None), ServerState()
        config.load()

        def connect() -> FastLaneProtocol:
            protocol = FastLaneProtocol(config=config, server_state=server, app_state=state)
            protocol.connection_made(Wire())
            return protocol

        nodes = range(ranks // RANKS_A_NODE)
        FastLaneProtocol.most = 3 * len(nodes)
        connect().data_received(registration(0))  # the first launcher of a job takes the way of the application
        await answers(1)
        for first in range(1, len(nodes), TOGETHER):
            some = nodes[first : first + TOGETHER]

            async def step(name: str, calls: Iterable[Callable[[], Any]], expected: int = 0) -> list[Any]:
                began, before = time.thread_time(), Wire.answered
                results = [call() for call in calls]
                await answers(before + expected)
                took.setdefault(name, []).append((time.thread_time() - began) / len(results) * 1e6)
                return results

            bodies = [(registration(node), started(node, ranks), poll(node)) for node in some]
            lines = await step("connection", [connect for _ in some])
            others = await step("second connection", [connect for _ in some])
            pairs = list(zip(lines, others, bodies, strict=True))
            await step("registration", [partial(line.data_received, each[0]) for line, _, each in pairs], len(some))
            await step("started ranks", [partial(line.data_received, each[1]) for _, line, each in pairs], len(some))
            await step("long poll", [partial(line.data_received, each[2]) for line, _, each in pairs])
    return {name: spread(took[name]) | {"mean": sum(took[name]) / len(took[name])} for name in took}


async def answers(count: int) -> None:
    """Return when so many responses were written in all, after one more turn of the loop."""
    await asyncio.sleep(0)
    while Wire.answered < count:
        await asyncio.sleep(0)


def name_of(node: int) -> str:
    """The name of a launcher, as launchers make it."""
    return f"node-{node:05d}-70000-{node:04x}"


def registration(node: int) -> bytes:
    """A launcher registers."""
    name = name_of(node)
    return post("nodes", asdict(NodeRegistration(name, f"{name}.cluster.internal", 70_000, RANKS_A_NODE)))


def started(node: int, ranks: int) -> bytes:
    """It has started its ranks."""
    kind, name, first = ProcessEventKind.STARTED, name_of(node), node * RANKS_A_NODE
    events = [
        ProcessEvent(name, kind, 1, rank=first + local, local_rank=local, pid=70_000 + local, world_size=ranks)
        for local in range(RANKS_A_NODE)
    ]
    return post("process-events", {"events": [asdict(event) for event in events]})


def poll(node: int) -> bytes:
    """It waits for directives."""
    path = f"directives?after=0&node={name_of(node)}&wait={POLL_SECONDS:g}"
    return (HEAD.format("GET", path) + "\r\n").encode()


def post(path: str, content: dict[str, Any]) -> bytes:
    """A message of a launcher."""
    body = json.dumps(content).encode()
    head = HEAD.format("POST", path) + f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


if __name__ == "__main__":
    main()
