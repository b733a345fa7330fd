"""Bounds how long one turn of the event loop computes, so that a new connection is served within a few short turns.

All callbacks that are ready in one turn run before the loop polls for I/O again, and a new connection needs several
turns from its acceptance to its response. Thousands of messages may be complete at once: they wait here in line, and
each turn serves the oldest of each kind for :data:`TURN_SECONDS`. Senders take turns, the oldest of each first: one
with many connections delays itself.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

TURN_SECONDS: Final = 0.01
"""Seconds of a turn that are spent on work in line; 20 reports of a node take as long."""
TURN_LEAST: Final = 8
"""Pieces of work of each turn at least. A turn costs about as much as one of them, and on a busy machine the seconds
are mostly other processes'."""
TURN_MOST: Final = 0.04
"""Seconds of CPU after which a turn is over all the same: a piece of work of a hostile sender takes 25 ms."""


class Waiting(NamedTuple):
    """Work in line."""

    since: float
    work: Callable[[], None]
    size: int


class WorkQueue:
    """Calls work at once while the current turn has time left for it, else in later turns and in order.

    Used on the event loop's thread only.
    """

    def __init__(self, most_bytes: float = math.inf, shares: int = 1) -> None:
        """Make an empty queue.

        Args:
            most_bytes: beyond so many in line, the oldest work is called for each that is submitted.
            shares: how many times :data:`TURN_SECONDS` and :data:`TURN_LEAST` it has of each turn.
        """
        self._most_bytes, self._shares = most_bytes, shares
        self._lines: dict[str, deque[Waiting]] = {}
        """By sender, the one whose turn it is first."""
        self._bytes = 0
        self._spent, self._cpu, self._done = 0.0, 0.0, 0
        """Seconds, those of CPU, and pieces of work in the current turn."""
        self._running: float | None = None
        """Since when the work that runs now has waited."""
        self._sender = ""
        """Whose it is."""
        self._scheduled = False

    def submit(self, work: Callable[[], None], size: int = 0, sender: str = "") -> None:
        """Call ``work``, which holds ``size`` bytes; its exceptions are raised here only if it is called at once."""
        waiting = Waiting(time.monotonic(), work, size)
        if not self._scheduled:
            self._schedule()
        if self._running is None and not self._lines and not self._turn_is_over:
            self._run(waiting, sender)
            return
        self._lines.setdefault(sender, deque()).append(waiting)
        self._bytes += size
        if self._running is None and self._bytes > self._most_bytes:
            self._run_oldest()

    def delay(self) -> float:
        """Seconds for which the work that runs now, else the next one, has waited; 0 without any."""
        since = self._running
        if since is None and self._lines:
            since = next(iter(self._lines.values()))[0].since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def alone(self) -> bool:
        """Whether work runs now, and its sender has no other in line."""
        return self._running is not None and self._sender not in self._lines

    @property
    def _turn_is_over(self) -> bool:
        usual = self._done >= self._shares * TURN_LEAST and self._spent >= self._shares * TURN_SECONDS
        return usual or self._cpu >= TURN_MOST

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._spent, self._cpu, self._done, self._scheduled = 0.0, 0.0, 0, False
        try:
            while self._lines and not self._turn_is_over:
                self._run_oldest()
        finally:
            if self._lines and not self._scheduled:
                self._schedule()

    def _run_oldest(self) -> None:
        sender = next(iter(self._lines))
        line = self._lines.pop(sender)
        oldest = line.popleft()
        if line:
            self._lines[sender] = line
        self._bytes -= oldest.size
        self._run(oldest, sender)

    def _run(self, waiting: Waiting, sender: str) -> None:
        self._running, self._sender, began, cpu = waiting.since, sender, time.monotonic(), time.thread_time()
        try:
            waiting.work()
        finally:
            self._running = None
            self._done += 1
            self._spent += time.monotonic() - began
            self._cpu += time.thread_time() - cpu
