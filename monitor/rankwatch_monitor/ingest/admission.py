"""Backpressure: decides whether there is room for one more request, before it is read and again before it is decoded.

The monitor does all its work on one event loop. Under overload the line of complete requests (:mod:`.work_queue`)
grows, or a turn of the loop, and delays responses. So a request that comes up later than :data:`LATE` after it was
complete, or that late in a turn (a timer notes when a turn begins), is refused with 503; the line then gets shorter
soon, since refusing costs a fraction of reading; one of whom nothing else is in line, later. Ranks keep what they
could not send and send it in larger requests, which cost less. Spans, which are samples, are refused first
(:data:`LATE_FOR_SPANS`).

Where several monitors share a database, the status is 429: on a 503 a proxy tries the other monitors, each of which
would receive all that this one is too busy for, and answer that the job is not theirs.

Bodies that are being received are held in memory for as long as slow senders take. Above :data:`HELD_BYTES` in total, a
sender that holds most of them gets 429, and all others 503. Announced lengths do not count, else a few idle connections
could keep all others out.

Only telemetry is refused. Launchers, operators and health checks are few, and are served in their turn; one that sends
much waits behind itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rankwatch_monitor.ingest.limits import MIB
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.work_queue import WorkQueue

LATE: Final = 0.5
"""Seconds in line, or into a turn of the loop. Hangs are to be detected within half a second of their limit."""
LATE_ALONE: Final = 1.5
"""The same for a sender of whom nothing else is in line: where another one's flood meets a machine without a free
processor, it would be refused for what it did not cause. Ranks wait for 2 s."""
LATE_FOR_SPANS: Final = 0.1
"""The same for spans: the targeted response time of metrics."""
HELD_BYTES: Final = 64 * MIB
"""Bytes of bodies being received; 100,000 ranks that all send at once need less."""
LINE_BYTES: Final = 48 * MIB
"""Bytes of complete requests in line, beyond which turns grow: three quarters of :data:`HELD_BYTES`, so that bodies
still find room while they are received. The stacks of 2,400 nodes."""
RETRY_AFTER: Final = (2, 6)
"""Seconds, at least and at most, so that senders refused together do not retry together."""
_BEAT: Final = 0.05
"""Seconds between two measurements of when a turn begins."""


class AboveShare(Refusal):
    """One sender asks for too much, which is no evidence about the others."""


class Admission:
    """The bytes in flight, and the delay of the event loop. Used on the loop only."""

    def __init__(self, *, shared: bool = False) -> None:
        """Without anything in flight; ``shared``: this is one of several monitors."""
        self._status = 429 if shared else 503
        self.held = 0
        """Bytes of bodies being received or decoded."""
        self.queue = WorkQueue(LINE_BYTES)
        """Complete requests of telemetry's fast lane."""
        self._held_by: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0
        self._used = False

    def late(self) -> float:
        """Seconds by which the line of requests or the current turn of the loop is late; 0 when the loop was idle."""
        loop = asyncio.get_running_loop()
        self._used = True
        if self._loop is not loop:
            self._loop = loop
            self._beat(loop)
        return max(0.0, loop.time() - self._due, self.queue.delay())

    def check(self, *, spans: bool = False) -> None:
        """Raise if a request cannot be served now.

        Raises:
            Refusal: 503 (429) with ``Retry-After``, the monitor is overloaded.
        """
        late = self.late()
        if late > (LATE_FOR_SPANS if spans else LATE_ALONE if self.queue.alone else LATE):
            raise _refusal(Refusal, self._status, f"the monitor is overloaded and {late:.1f} s behind")
        self.check_memory()

    def check_memory(self) -> None:
        """Raise if a request cannot be read now, however soon it would be served.

        Raises:
            Refusal: 503 (429) with ``Retry-After``, too many bodies are held.
        """
        if self.held > HELD_BYTES:
            raise _refusal(Refusal, self._status, f"the monitor is receiving {self.held} bytes of other requests")

    @contextmanager
    def body(self, sender: str) -> Iterator[Body]:
        """Count the body of a sender's request while it is held."""
        body = Body(self, sender)
        try:
            yield body
        finally:
            self.add(sender, -body.size)

    def add(self, sender: str, size: int) -> int:
        """Count bytes of a sender, a negative ``size`` as released; return the bytes it holds."""
        self.held += size
        of_sender = self._held_by.get(sender, 0) + size
        if of_sender:
            self._held_by[sender] = of_sender
        else:
            self._held_by.pop(sender, None)
        return of_sender

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._used:
            self._loop = None  # no requests: the next one restarts the timer
            return
        self._used = False
        self._due = loop.time() + _BEAT
        loop.call_later(_BEAT, self._beat, loop)


class Body:
    """One body that is being received."""

    __slots__ = ("_admission", "_sender", "size")

    def __init__(self, admission: Admission, sender: str) -> None:
        self._admission = admission
        self._sender = sender
        self.size = 0

    def grew(self, size: int) -> None:
        """Count ``size`` more bytes.

        Raises:
            AboveShare: 429 with ``Retry-After``, too much is in flight and most of it is this sender's.
        """
        admission = self._admission
        self.size += size
        of_sender = admission.add(self._sender, size)
        if admission.held > HELD_BYTES and 2 * of_sender > admission.held:
            message = f"{of_sender} bytes of {self._sender} are being received, more than of all others"
            raise _refusal(AboveShare, 429, message)


def _refusal(kind: type[Refusal], status: int, message: str) -> Refusal:
    delay = random.randint(*RETRY_AFTER)
    return kind(status, "unavailable", f"{message}: retry in {delay} s", retry_after=delay)
