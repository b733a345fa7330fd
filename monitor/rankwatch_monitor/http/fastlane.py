"""The connection's side of the short ways (:mod:`..ingest.express`, :mod:`.launcher_lane`): who reads what comes in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import h11

from rankwatch_monitor.http.deadlines import BODY, BoundedProtocol
from rankwatch_monitor.ingest.fastpath.otlp_bypass import OrdinaryWayError, RefusedError

LANES = "express"
"""The key of the application's state under which the lanes stand."""
MOST_BEHIND: Final = 65_536
"""Bytes that may come in on a connection while a request on it waits for its answer."""


class Parcel(Protocol):
    """A request whose body comes in."""

    @property
    def whole(self) -> bool:
        """Whether all of the body is here."""

    def end(self) -> None:
        """Hold the body no more."""


class Lane(Protocol):
    """One short way."""

    def open(self, data: bytes, sender: str) -> tuple[Any, bytes] | None:
        """Begin with the first bytes of a request; None when it is to go another way."""

    def add(self, request: Any, part: bytes) -> bytes:
        """Take what belongs to a request's body; return what came behind it. Raises ``RefusedError``."""

    def answer(self, request: Any, later: Callable[[bytes | OrdinaryWayError], None]) -> bytes | None:
        """Take a request that is whole, and say what to answer. Raises ``OrdinaryWayError``.

        None when the answer comes by ``later``; it does not once the request has ended.
        """


class ExpressProtocol(BoundedProtocol):
    """Reads requests of the short way itself, between those that are uvicorn's."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._lanes: Sequence[Lane] = self.app_state.get(LANES, ())
        self._lane: Lane | None = None
        self._gathering: Parcel | None = None
        self._waits = False
        """The request is whole, and its answer comes later."""
        self._behind = b""
        """What came in meanwhile."""

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if self._waits:
            self._behind += data
            if len(self._behind) > MOST_BEHIND:
                self.transport.abort()
            return
        while data:
            if self._gathering is None:
                opened = self._open(data)
                if opened is None:
                    super().data_received(data)
                    return
                self._unset_keepalive_if_required()
                self._gathering, data = opened
                data = self._gather(self._gathering, data)
                if self._gathering is not None and not self._waits:
                    self._await(h11.SEND_BODY, BODY)
            else:
                data = self._gather(self._gathering, data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._done()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self._gathering is None and super().idle

    def _open(self, data: bytes) -> tuple[Parcel, bytes] | None:
        if not data.startswith((b"POST ", b"GET ")) or not self.idle or self.transport.is_closing():
            return None
        # Who does not read its answers goes the ordinary way, which stops reading until it does.
        if self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0] or self.flow.write_paused:
            return None
        for lane in self._lanes:
            if (opened := lane.open(data, self.client[0] if self.client else "")) is not None:
                self._lane = lane
                return opened
        return None

    def _gather(self, request: Parcel, data: bytes) -> bytes:
        assert self._lane is not None
        try:
            rest = self._lane.add(request, data)
        except RefusedError as refused:
            self.transport.write(refused.answer)
            self._done()
            self.transport.close()  # the rest of its body would be taken for the next request
            return b""
        if request.whole:
            try:
                answer = self._lane.answer(request, self._answer_late)
            except OrdinaryWayError as ordinary:
                self._end(ordinary)
            else:
                if answer is None:
                    self._waits, self._behind, rest = True, rest, b""
                    self._cancel()
                else:
                    self._end(answer)
        return rest

    def _answer_late(self, answer: bytes | OrdinaryWayError) -> None:
        self._waits = False
        self._end(answer)
        behind, self._behind = self._behind, b""
        self.data_received(behind)

    def _end(self, answer: bytes | OrdinaryWayError) -> None:
        self._done()
        if isinstance(answer, OrdinaryWayError):
            super().data_received(answer.whole)
        else:
            self.transport.write(answer)
            self._wait_for_the_next()

    def _done(self) -> None:
        if self._gathering is not None:
            self._gathering.end()
            self._gathering = None
            self._cancel()

    def _wait_for_the_next(self) -> None:
        self.waiting_since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
