"""The connection's side of :mod:`..ingest.express`: whose turn it is to read the bytes that come in."""

from __future__ import annotations

from typing import Any

import h11

from rankwatch_monitor.api.connections import BODY, BoundedProtocol
from rankwatch_monitor.ingest.express import BEGINS, Gathering, Lane
from rankwatch_monitor.ingest.refusal import Refusal

LANE = "express"
"""The key of the application's state under which the lane stands."""


class ExpressProtocol(BoundedProtocol):
    """Reads requests of the short way itself, between those that are uvicorn's."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._lane: Lane | None = self.app_state.get(LANE)
        self._gathering: Gathering | None = None

    def data_received(self, data: bytes) -> None:  # noqa: D102
        while data:
            if self._gathering is None:
                opened = self._open(data)
                if opened is None:
                    super().data_received(data)
                    return
                self._unset_keepalive_if_required()
                self._gathering, data = opened
                self._await(h11.SEND_BODY, BODY)
            data = self._gather(self._gathering, data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._done()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self._gathering is None and super().idle

    def _open(self, data: bytes) -> tuple[Gathering, bytes] | None:
        if self._lane is None or not data.startswith(BEGINS) or not self.idle or self.transport.is_closing():
            return None
        if self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]:
            return None
        return self._lane.open(data, self.client[0] if self.client else "")

    def _gather(self, request: Gathering, data: bytes) -> bytes:
        assert self._lane is not None
        try:
            rest = request.add(data)
        except Refusal as refusal:
            self.transport.write(self._lane.refuse(refusal))
            self._done()
            self.transport.close()  # the rest of its body would be taken for the next request
            return b""
        if request.whole:
            self.transport.write(self._lane.answer(request))
            self._done()
            self._wait_for_the_next()
        return rest

    def _done(self) -> None:
        if self._gathering is not None:
            self._gathering.end()
            self._gathering = None
            self._cancel()

    def _wait_for_the_next(self) -> None:
        self.waiting_since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
