"""OTLP requests over a bounded number of kept connections, as cheap as Python can send them.

Raw asyncio protocols: an HTTP library takes ten times as long as the answer is worth. Only what a monitor, or a proxy
before it, answers to an export is understood: a status, ``Content-Length`` and ``Retry-After``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from _load_fleet import Due

from rankwatch.contract import semconv
from rankwatch.export.transport import SendResult, SendStatus, interpret

ANSWER_SECONDS: Final = 10.0
"""After which an answer is not waited for any more."""
_END: Final = b"\r\n\r\n"


@dataclass(slots=True)
class Counts:
    """What became of what was sent. Reports are those of one rank, of which a request may hold several."""

    requests: int = 0
    sent: int = 0
    """Reports in requests that were written, each attempt counted."""
    bytes: int = 0
    accepted: int = 0
    rejected_points: list[str] = field(default_factory=list)
    """What the monitor reported of requests of which it left something out."""
    statuses: dict[int, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    """Requests without an answer, by reason."""
    answer_seconds: list[float] = field(default_factory=list)
    """From the first byte written to the answer."""
    due_seconds: list[float] = field(default_factory=list)
    """From when the report was due to the answer: what had to wait for a free connection waits in this figure too."""


Done = Callable[[Due, SendResult], None]


class Client:
    """Sends requests and states what became of each.

    Args:
        url: base address of the monitor.
        connections: as many requests are under way at most.
        done: called with each request and its fate.
    """

    def __init__(self, url: str, connections: int, done: Done) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is not the address of a monitor: write it as http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or 80
        lines = [f"POST {parts.path.rstrip('/')}{semconv.OTLP_METRICS_PATH} HTTP/1.1", f"host: {parts.netloc}"]
        lines += ["content-type: application/x-protobuf", "user-agent: rankwatch"]
        self.head = "\r\n".join(lines).encode()
        self.done = done
        self.counts = Counts()
        self.connections = connections
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._waiting: deque[Due] = deque()
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def room(self) -> int:
        """How many more requests would find a place: twice as many as there are connections may wait."""
        return 3 * self.connections - self.under_way

    @property
    def under_way(self) -> int:
        """Requests that wait for a connection or for their answer."""
        return len(self._waiting) + len(self._busy) + len(self._opening)

    def send(self, request: Due) -> None:
        """Send, as soon as a connection is free."""
        if self._idle:
            connection = self._idle.pop()
            self._busy.add(connection)
            connection.begin(request)
        elif len(self._busy) + len(self._opening) < self.connections:
            task = asyncio.get_running_loop().create_task(self._open(request))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        else:
            self._waiting.append(request)

    def expire(self, now: float) -> None:
        """Give up requests whose answer is overdue."""
        for connection in [c for c in self._busy if now - c.began > ANSWER_SECONDS]:
            connection.fail("no answer in time")

    async def close(self) -> None:
        """Close all connections."""
        self._waiting.clear()
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in [*self._idle, *self._busy]:
            connection.close()

    def finished(self, connection: _Connection, request: Due, answer: SendResult, *, usable: bool) -> None:
        """A connection has done its work, and takes what waits."""
        self._busy.discard(connection)
        if usable and self._waiting:
            self._busy.add(connection)
            connection.begin(self._waiting.popleft())
        elif usable:
            self._idle.append(connection)
        elif self._waiting:
            self.send(self._waiting.popleft())
        self.done(request, answer)

    def gone(self, connection: _Connection) -> None:
        """A connection was closed while nothing was under way on it."""
        if connection in self._idle:
            self._idle.remove(connection)

    async def _open(self, request: Due) -> None:
        loop = asyncio.get_running_loop()
        try:
            opening = loop.create_connection(lambda: _Connection(self), self._host, self._port)
            _, connection = await asyncio.wait_for(opening, ANSWER_SECONDS)
        except (OSError, TimeoutError) as error:
            reason = (getattr(error, "strerror", None) or "no connection in time").lower()
            # What waits would meet the same; it is reported so now, since no connection may ever come free for it.
            for each in (request, *self._waiting):
                self.counts.failures[reason] = self.counts.failures.get(reason, 0) + 1
                self.done(each, SendResult(SendStatus.RETRY_LATER, reason))
            self._waiting.clear()
            return
        self._busy.add(connection)
        connection.begin(request)


class _Connection(asyncio.Protocol):
    """One kept connection: one request at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._request: Due | None = None
        self._received = b""
        self.began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def begin(self, request: Due) -> None:
        """Write a request."""
        assert self._transport is not None
        client, counts = self._client, self._client.counts
        body = request.body
        self._request, self.began = request, time.monotonic()
        counts.requests += 1
        counts.sent += request.ranks
        counts.bytes += len(body)
        lines = f"\r\n{semconv.JOB_HEADER}: {request.job}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(client.head + lines.encode() + body)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(_END)
        if end < 0 or self._request is None:
            return
        lines = self._received[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", 0))
        if len(self._received) < end + len(_END) + length:
            return
        body = self._received[end + len(_END) : end + len(_END) + length]
        _, status, *reason = lines[0].split(" ", 2)
        self._answered(interpret(int(status), "".join(reason), headers, body), int(status), headers)

    def _answered(self, answer: SendResult, status: int, headers: dict[str, str]) -> None:
        client, counts, request, now = self._client, self._client.counts, self._request, time.monotonic()
        assert request is not None
        self._request, self._received = None, b""
        counts.statuses[status] = counts.statuses.get(status, 0) + 1
        counts.answer_seconds.append(now - self.began)
        counts.due_seconds.append(now - request.due)
        if answer.status is SendStatus.DELIVERED:
            counts.accepted += request.ranks
            if answer.body and len(counts.rejected_points) < 10:
                counts.rejected_points.append(answer.body.decode(errors="replace"))
        usable = headers.get("connection", "").lower() != "close"
        if not usable:
            self.close()
        client.finished(self, request, answer, usable=usable)

    def fail(self, reason: str) -> None:
        """Give up what is under way, and the connection with it."""
        request, self._request = self._request, None
        self.close()
        if request is None:
            self._client.gone(self)
            return
        failures = self._client.counts.failures
        failures[reason] = failures.get(reason, 0) + 1
        self._client.finished(self, request, SendResult(SendStatus.RETRY_LATER, reason), usable=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail("the connection was closed" if exc is None else "the connection was reset")

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
