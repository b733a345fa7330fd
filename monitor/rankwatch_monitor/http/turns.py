"""Bounds how much of the loop the application's requests take, however many there are, and whoever sends them.

The fast lanes have their lines (:mod:`rankwatch_monitor.ingest.work_queue`). What FastAPI serves computes when its task
is resumed: the tasks of all requests that are complete would run in one turn of the loop. Here one begins in a turn,
and after one that computed for long the next begins only after the same time again, so that half of the loop is left
for the rest. Senders take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

SHORT: Final = 0.005
"""Seconds of CPU after which no pause is needed."""
LONGEST_PAUSE: Final = 1.0
LONGEST_HELD: Final = 1.0
"""Seconds after which a request that has not been answered no longer keeps others from beginning: it may wait for the
database."""
READS: Final = 2
"""Requests that read and are computed at the same time, on threads in part: each of these delays the loop by 5 ms
whenever it waits for the interpreter's lock."""


class Turns:
    """The requests that wait to begin, by sender. Used on the event loop only."""

    def __init__(self, most: float = math.inf) -> None:
        """``most``: how many may be held at the same time."""
        self._most = most
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        """By sender, the one whose turn it is first."""
        self._held = 0
        self._scheduled = False
        self._began: float | None = None
        """CPU time at which the last one began; None: it has been accounted for."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def turn(self, sender: str) -> None:
        """Wait for the turn of a sender."""
        async with self.held(sender):
            pass

    @contextlib.asynccontextmanager
    async def held(self, sender: str) -> AsyncIterator[Callable[[], None]]:
        """Wait for the turn of a sender, and hold it until the context ends or what it gives is called."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # what was left for the next turn of another loop never runs
            self._loop, self._held, self._scheduled, self._began = loop, 0, False, None
            self._lines.clear()
        waiting: asyncio.Future[None] = loop.create_future()
        self._lines.setdefault(sender, deque()).append(waiting)
        if not self._scheduled:
            self._next()
        holds = True

        def release() -> None:
            nonlocal holds
            if holds and loop is self._loop and waiting.done() and not waiting.cancelled():
                holds = False
                self._held -= 1
                if not self._scheduled:
                    self._next()

        over: asyncio.TimerHandle | None = None
        try:
            await waiting
            over = loop.call_later(LONGEST_HELD, release)
            yield release
        finally:
            if over is not None:
                over.cancel()
            release()

    def _next(self) -> None:
        loop, began, self._began = asyncio.get_running_loop(), self._began, None
        self._scheduled = True
        if began is not None and (spent := time.thread_time() - began) > SHORT:
            loop.call_later(min(spent, LONGEST_PAUSE), self._next)
            return
        while self._lines and self._held < self._most:
            sender = next(iter(self._lines))
            line = self._lines.pop(sender)
            waiting = line.popleft()
            if line:
                self._lines[sender] = line
            if not waiting.done():  # else its client is gone
                waiting.set_result(None)
                self._held += 1
                self._began = time.thread_time()
                loop.call_soon(self._next)  # behind the task that is resumed
                return
        self._scheduled = False
