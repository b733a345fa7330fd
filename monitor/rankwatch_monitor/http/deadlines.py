"""Connections with an end: what a client may take its time for, and how many there may be.

How this works: uvicorn closes a connection that is idle after an answer, and nothing else; a client that never sends
its request, sends one byte a second, or never reads its answer would hold a file descriptor for good. This protocol
adds a deadline to each of these states, and makes room for a newcomer when there are as many connections as descriptors
allow: the ones that have waited longest without a request go. Long polls and live streams are requests under way; they
stay.

=================  ==============================================  =============
state              ends with                                       after
=================  ==============================================  =============
no request yet     a whole head                                    ``HEAD`` s
head came          the whole body                                  ``BODY`` s
answer under way   the client reads (what is unread is 64 KiB)     ``UNREAD`` s
=================  ==============================================  =============
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

log = logging.getLogger("rankwatch")

HEAD: Final = 10.0
"""Seconds for a whole request head, from the connection's or the head's first byte; a head is one packet."""
BODY: Final = 60.0
"""Seconds for a whole body: 4 MiB at 70 kB/s."""
UNREAD: Final = 30.0
"""Seconds in which a client may read nothing of an answer that waits for it."""
KEEP_ALIVE: Final = 30
"""Seconds between two requests of a connection; senders come every 1 to 15 s and should find theirs still open."""
RESERVED: Final = 256
"""File descriptors for everything else: database, log, what is forwarded, files of the page."""
QUIET: Final = 60.0
"""Seconds between two equal warnings about what strangers send or run us out of."""

_LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 41\r\n\r\n"
    b"the request did not come whole in time.\r\n"
)


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with deadlines and a bound on connections."""

    most: int = 1024 - RESERVED
    """Connections at the same time; see :func:`make_room`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited: object = None
        self._unread: asyncio.TimerHandle | None = None
        self.waiting_since = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # noqa: D102
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._make_room()
        self._await(h11.IDLE, HEAD)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if self._awaited is None and self.conn.their_state is h11.IDLE:
            self._await(h11.IDLE, HEAD)
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:  # noqa: D102
        super().on_response_complete()
        self.waiting_since = time.monotonic()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._cancel()
        self.resume_writing()
        # uvicorn leaves this timer running after a connection that broke; it would hold all of it for as long.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def pause_writing(self) -> None:  # noqa: D102
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(UNREAD, self.transport.abort)

    def resume_writing(self) -> None:  # noqa: D102
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: D102
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self._answering:
            super().send_400_response(msg)
        else:
            # An answer has begun: nothing that could still be said would be understood.
            self.transport.abort()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    def _look(self) -> None:
        """Set the deadline of the state that the connection is in; one that goes on keeps its own."""
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
            self._await(state, BODY)  # it is us who do not read
            return
        if state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.abort()
            return
        if not self._answering:
            self.transport.write(_LATE)
        self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _make_room(self) -> None:
        """Let those go that have waited longest without a request, one in a hundred; this one, if all are at work."""
        idle = [
            each for each in self.connections if isinstance(each, BoundedProtocol) and each.idle and each is not self
        ]
        # Many at once, since looking for them among 20,000 takes as long as answering a request.
        for gone in heapq.nsmallest(1 + self.most // 100, idle, key=lambda each: each.waiting_since) or [self]:
            self.connections.discard(gone)
            gone.transport.abort()
        _warn(_CROWDED, self.most)


def make_room(reserved: int = RESERVED) -> int:
    """Raise this process's limit of file descriptors as far as it goes; return how many connections that allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            log.debug("the limit of open files stays at %d", soft)
    BoundedProtocol.most = max(16, soft - reserved)
    return BoundedProtocol.most


class Seldom(logging.Filter):
    """Lets a warning through once in a while: what any stranger can cause must not fill a disk. Errors always pass."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: D102
        if record.levelno != logging.WARNING:
            return True
        now = time.monotonic()
        if now - self._said.get(record.msg, -QUIET) < QUIET:
            return False
        if len(self._said) > 1_000:
            self._said.clear()
        self._said[record.msg] = now
        return True


_seldom: Final = Seldom()
logging.getLogger("uvicorn.error").addFilter(_seldom)


def out_of_descriptors(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """An event loop's exception handler that says in words, and seldom, that nothing more can be accepted."""
    if "out of system resource" in str(context.get("message")):
        _warn(_NO_MORE, context.get("exception"))
        return
    loop.default_exception_handler(dict(context))


def _warn(words: str, about: object) -> None:
    record = log.makeRecord(log.name, logging.WARNING, __file__, 0, words, (about,), None)
    if _seldom.filter(record):
        log.handle(record)


_CROWDED: Final = "as many connections as there may be (%d): the longest idle ones are closed; raise ulimit -n"
_NO_MORE: Final = (
    "no new connection can be accepted (%s): the system has no file descriptors or memory left; raise the limit of "
    "open files (ulimit -n, LimitNOFILE=) or find out who holds so many"
)
