"""Deadlines and a limit on connections.

Uvicorn closes connections that are idle after a response, and nothing else: a client that never sends its request, or
one byte a second, or never reads its response would hold a file descriptor forever. This protocol adds a deadline to
each of these states. When there are as many connections as file descriptors allow, those that have been idle longest
are closed in favour of new ones. Long polls and live streams are requests in progress and are not closed.

======================  ==========================================  =============
state                   ends with                                   deadline
======================  ==========================================  =============
no request yet          a complete head                             ``HEAD`` s
head received           the complete body                           ``BODY`` s
response being written  the client reads (64 KiB are buffered)      ``UNREAD`` s
======================  ==========================================  =============
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import resource
import time
from collections.abc import Mapping
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rankwatch_monitor.http.grpc_refusal import PREFACE, GrpcRefusal

log = logging.getLogger("rankwatch")

HEAD: Final = 10.0
"""Seconds for a complete request head, from the start of the connection or of the head; a head is one packet."""
BODY: Final = 60.0
"""Seconds for a complete body: 4 MiB at 70 kB/s."""
UNREAD: Final = 30.0
"""Seconds in which a client may read nothing of a buffered response."""
LINGER: Final = 0.5
"""Seconds until a refused connection is closed: unread bytes at a close would reset it, and the answer be lost."""
KEEP_ALIVE: Final = 30
"""Idle seconds between two requests of a connection; senders report every 1 to 15 s."""
RESERVED: Final = 256
"""File descriptors for everything else: database, log, publishers, files of the page."""
QUIET: Final = 60.0
"""Seconds between two equal warnings about causes that any client can trigger."""

_LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 47\r\n\r\n"
    b"the request was not received completely in time"
)


class BoundedProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 protocol with deadlines and a limit on connections."""

    most: int = 1024 - RESERVED
    """Simultaneous connections; see :func:`raise_descriptor_limit`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited: object = None
        self._unread: asyncio.TimerHandle | None = None
        self.waiting_since = time.monotonic()
        self._refusal: GrpcRefusal | None = None
        self._socket_transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # noqa: D102
        super().connection_made(transport)
        self._socket_transport = _socket_transport(transport)
        if len(self.connections) > self.most:
            self._make_room()
        self._await(h11.IDLE, HEAD)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if self._refusal is not None or (self.conn.their_state is h11.IDLE and data.startswith(PREFACE[:4])):
            self._refuse_grpc(data)
            return
        if self._awaited is None and self.conn.their_state is h11.IDLE:
            self._await(h11.IDLE, HEAD)
        super().data_received(data)
        self._update_deadline()

    def on_response_complete(self) -> None:  # noqa: D102
        super().on_response_complete()
        self.waiting_since = time.monotonic()
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._cancel()
        self.resume_writing()
        # uvicorn leaves this timer running after a broken connection, and the protocol in memory until then.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        _unlink(self._socket_transport)

    def pause_writing(self) -> None:  # noqa: D102
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(UNREAD, self.transport.abort)

    def resume_writing(self) -> None:  # noqa: D102
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: D102
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self._responding:
            super().send_400_response(msg)
        else:
            # A response has begun, so an error response would be read as part of it.
            self.transport.abort()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    @property
    def idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _responding(self) -> bool:
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    def _update_deadline(self) -> None:
        """Set the deadline of the connection's state; an unchanged state keeps its deadline."""
        state = self.conn.their_state
        if state is self._awaited:
            return
        self._cancel()
        if state is h11.SEND_BODY:
            self._await(state, BODY)
        elif state is h11.IDLE and self.conn.trailing_data[0]:
            self._await(state, HEAD)

    def _await(self, state: object, seconds: float) -> None:
        self._cancel()
        self._awaited = state
        self._deadline = self.loop.call_later(seconds, self._late)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._awaited = None

    def _late(self) -> None:
        state, self._awaited = self._awaited, None
        if state is h11.SEND_BODY and self.flow.read_paused:
            self._await(state, BODY)  # the monitor itself paused reading
            return
        if state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.abort()
            return
        if not self._responding:
            self.transport.write(_LATE)
        self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _refuse_grpc(self, data: bytes) -> None:
        """Answer a gRPC client, for which the deadline of a request's head holds."""
        if self._refusal is None:
            self._refusal = GrpcRefusal()
            _warn(_GRPC, self.client[0] if self.client else "a client")
        self.transport.write(self._refusal.receive(data))
        if self._refusal.done:
            self.loop.call_later(LINGER, self.transport.close)

    def _make_room(self) -> None:
        """Close the longest idle connections, one in a hundred; this one if none is idle."""
        idle = [
            each for each in self.connections if isinstance(each, BoundedProtocol) and each.idle and each is not self
        ]
        # Many at once, since finding them among 20,000 takes as long as a request.
        for oldest in heapq.nsmallest(1 + self.most // 100, idle, key=lambda each: each.waiting_since) or [self]:
            self.connections.discard(oldest)
            oldest.transport.abort()
        _warn(_LIMIT_REACHED, self.most)


def _socket_transport(transport: asyncio.BaseTransport) -> asyncio.BaseTransport:
    """The transport that owns the socket: under TLS not that of the protocol, which loses it when it is closed."""
    inner: asyncio.BaseTransport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)
    return inner


def _unlink(transport: asyncio.BaseTransport | None) -> None:
    """Break the reference cycles of a closed transport, which only a full collection of garbage would find.

    asyncio's own transport keeps bound methods of itself: one in Python 3.11, both in 3.12; later versions drop them.
    """
    if transport is None:
        return
    for name in vars(transport).keys() & {"_read_ready_cb", "_write_ready"}:
        setattr(transport, name, None)


def raise_descriptor_limit(reserved: int = RESERVED) -> int:
    """Raise the limit of file descriptors to its maximum; return the number of connections that allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            log.debug("the limit of open files stays at %d", soft)
    BoundedProtocol.most = max(16, soft - reserved)
    return BoundedProtocol.most


class WarningThrottle(logging.Filter):
    """Passes equal warnings once per interval, since clients can cause any number of them. Errors always pass."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: D102
        if record.levelno != logging.WARNING:
            return True
        now = time.monotonic()
        if now - self._logged_at.get(record.msg, -QUIET) < QUIET:
            return False
        if len(self._logged_at) > 1_000:
            self._logged_at.clear()
        self._logged_at[record.msg] = now
        return True


_throttle: Final = WarningThrottle()
logging.getLogger("uvicorn.error").addFilter(_throttle)


def out_of_descriptors(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """An event loop's exception handler that logs, at a limited rate, that no connection can be accepted."""
    if "out of system resource" in str(context.get("message")):
        _warn(_EXHAUSTED, context.get("exception"))
        return
    loop.default_exception_handler(dict(context))


def _warn(message: str, argument: object) -> None:
    record = log.makeRecord(log.name, logging.WARNING, __file__, 0, message, (argument,), None)
    if _throttle.filter(record):
        log.handle(record)


_LIMIT_REACHED: Final = "the limit of %d connections is reached, so the longest idle ones are closed; raise ulimit -n"
_GRPC: Final = (
    "%s sends OTLP over gRPC, which is refused: this port takes OTLP over HTTP. Set OTEL_EXPORTER_OTLP_PROTOCOL="
    "http/protobuf there, or put an OpenTelemetry Collector between"
)
_EXHAUSTED: Final = (
    "no new connection can be accepted (%s): no file descriptors or memory left; raise the limit of open files "
    "(ulimit -n, LimitNOFILE=) or find out which clients hold so many"
)
