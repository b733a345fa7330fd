"""The connection: offers each request to the fast lanes, and hands those that no lane takes to uvicorn.

Between two requests, ``data_received`` asks each lane to :meth:`~FastLane.begin`. If one does, the protocol buffers the
body, asks the lane to :meth:`~FastLane.respond` and writes the response; else the bytes go to uvicorn's h11 protocol,
which then owns the connection until its response is complete. Where more requests are complete than one turn of the
loop should serve, those of each lane wait in line (:mod:`rankwatch_monitor.ingest.work_queue`); so does what goes to
uvicorn, which begins a task for each request in the turn in which it arrives, with and without a token. Deadlines and
connection limits of :class:`~rankwatch_monitor.http.deadlines.BoundedProtocol` apply to both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import h11

from rankwatch_monitor.http.deadlines import BODY, BoundedProtocol
from rankwatch_monitor.http.fastlane.requests import Client, FallBackError, RefusedError, sender_of
from rankwatch_monitor.ingest.work_queue import WorkQueue

FAST_LANES: Final = "fast_lanes"
"""Key of the lanes in the state of the application."""
OTHERS: Final = "others"
"""Key of the line of all other requests there."""
MOST_PIPELINED: Final = 65_536
"""Bytes that may be received on a connection while a request on it waits for its response."""

RespondLater = Callable[[bytes | FallBackError], None]
"""Takes the response of a long poll."""


class PendingRequest(Protocol):
    """A request of a lane whose response is not written yet."""

    size: int
    """Bytes of its body received so far."""
    sender: str
    """Those of one sender wait behind each other: its token, or its job; empty: all do."""

    @property
    def complete(self) -> bool:
        """Whether the whole body was received."""

    def release(self) -> None:
        """Called when the request has ended, however it did."""


class FastLane(Protocol):
    """One kind of request."""

    @property
    def queue(self) -> WorkQueue:
        """Complete requests that wait to be taken."""

    def begin(self, data: bytes, client: Client) -> tuple[Any, bytes] | None:
        """Start a request from its first bytes; return it and the bytes after its head. None: not for this lane."""

    def add(self, request: Any, data: bytes) -> bytes:
        """Append received bytes to the body; return those after its end. Raises ``RefusedError``."""

    def respond(self, request: Any, later: RespondLater) -> bytes | None:
        """Take a complete request; return the HTTP response. Raises ``FallBackError``.

        None: the response is passed to ``later``, unless the request is released before.
        """


class FastLaneProtocol(BoundedProtocol):
    """HTTP/1.1 with fast lanes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._lanes: Sequence[FastLane] = self.app_state.get(FAST_LANES, ())
        self._others: WorkQueue = self.app_state.get(OTHERS) or WorkQueue()
        self._lane: FastLane | None = None
        self._request: PendingRequest | None = None
        self._waiting = self._polling = False
        """A complete request waits for its response, or received bytes wait for their turn; it is a long poll, which
        may take long."""
        self._reading = False
        """Received bytes are being processed: those behind a response need not be taken up again."""
        self._pipelined = b""
        """Bytes received while waiting."""
        self._in_turn = False
        """uvicorn may begin a request: it has been waited for in line."""
        self._host = ""
        """Of the sender whose request it is: one proxy has the connections of many."""

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if self._waiting:
            self._pipelined += data
            if len(self._pipelined) > MOST_PIPELINED:
                if self._polling:
                    self.transport.abort()
                else:
                    self.flow.pause_reading()
            return
        while data:
            if self._request is not None:
                data = self._receive(self._request, data)
                continue
            begun = self._begin(data)
            if begun is None:
                self._wait_in_line(data, len(data))
                return
            self._unset_keepalive_if_required()
            self._request, data = begun
            data = self._receive(self._request, data)
            if self._request is not None and not self._waiting:
                self._await(h11.SEND_BODY, BODY)

    def handle_events(self) -> None:
        """Process what uvicorn has received; the request behind one that was answered waits for its turn again."""
        held = len(self.conn.trailing_data[0])
        if self._in_turn or not held:
            super().handle_events()
        else:
            self._wait_in_line(b"", held)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._release()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self._request is None and super().idle

    def _begin(self, data: bytes) -> tuple[PendingRequest, bytes] | None:
        if not data.startswith((b"POST ", b"GET ")) or not self.idle or self.transport.is_closing():
            return None
        if self._refusal is not None:
            return None
        # Only uvicorn's protocol applies backpressure to a client that does not read its responses.
        if self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0] or self.flow.write_paused:
            return None
        for lane in self._lanes:
            if (begun := lane.begin(data, self.client)) is not None:
                self._lane = lane
                return begun
        return None

    def _receive(self, request: PendingRequest, data: bytes) -> bytes:
        """Process received bytes; return those after the request's end."""
        assert self._lane is not None
        try:
            rest = self._lane.add(request, data)
        except RefusedError as refused:
            self.transport.write(refused.response)
            self._release()
            self.transport.close()  # the rest of the body would be parsed as the next request
            return b""
        if request.complete:
            self._waiting, self._pipelined, rest = True, rest, b""
            self._cancel()
            self._reading = True
            try:
                self._lane.queue.submit(self._take, request.size, request.sender)
            finally:
                self._reading = False
            if not self._waiting:
                rest, self._pipelined = self._pipelined, b""
        return rest

    def _wait_in_line(self, data: bytes, size: int) -> None:
        """Give uvicorn these bytes, and what follows them, in their turn; it may hold some already."""
        self._unset_keepalive_if_required()
        self._waiting, self._pipelined = True, data
        if self._first_of_request():
            self._host = sender_of(data, self.client)
        self._others.submit(self._hand_over, size, self._host)

    def _first_of_request(self) -> bool:
        return self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]

    def _hand_over(self) -> None:
        """Give uvicorn what was received until now, unless the connection was closed meanwhile."""
        data, self._pipelined, self._waiting = self._pipelined, b"", False
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._give(data)

    def _give(self, data: bytes) -> None:
        self._in_turn = True
        try:
            if data:
                super().data_received(data)
            else:
                self.handle_events()
                self._update_deadline()
        finally:
            self._in_turn = False

    def _take(self) -> None:
        """Have the lane take the complete request, unless the connection was lost while it waited in line."""
        if self._request is None or self._lane is None:
            return
        response: bytes | FallBackError | None
        try:
            response = self._lane.respond(self._request, self._respond_later)
        except FallBackError as fall_back:
            response = fall_back
        except BaseException:
            self.transport.abort()
            raise
        if response is None:
            self._polling = True
        else:
            self._respond_later(response)

    def _respond_later(self, response: bytes | FallBackError) -> None:
        self._waiting = self._polling = False
        self._respond(response)
        if not self._reading:
            self.flow.resume_reading()
            pipelined, self._pipelined = self._pipelined, b""
            self.data_received(pipelined)

    def _respond(self, response: bytes | FallBackError) -> None:
        self._release()
        if isinstance(response, FallBackError):
            self._give(response.request)
        else:
            self.transport.write(response)
            self.waiting_since = self.loop.time()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _release(self) -> None:
        if self._request is not None:
            self._request.release()
            self._request = None
            self._cancel()
