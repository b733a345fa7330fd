"""Whether there is room for one more request, decided before any of it is read, and again before it is decoded.

How this works
--------------
The monitor does all of its work on one event loop. When more comes in than it can take, each turn of that loop grows:
whoever came last waits for all before him, and so does the judging of jobs. So a timer notes when each turn begins, and
what comes in later than :data:`LATE` in a turn is told to come again; such a turn ends soon, since to refuse takes a
small part of what it takes to read. Ranks keep what they could not send, and send it in larger requests, which cost
less. Spans, which are samples, go first (:data:`LATE_FOR_SPANS`).

Bodies that are still being read are held in memory, as long as slow senders take. Above :data:`HELD_BYTES` of them a
sender that holds most of it is told 429, and everybody else 503. Nobody is refused for what he only announces: a few
idle connections would then keep all others out.

Only telemetry is refused. Launchers, people and health checks are few, and are served in the next turn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rankwatch_monitor.ingest.limits import MIB
from rankwatch_monitor.ingest.rejection import Refusal

LATE: Final = 0.5
"""Seconds into a turn of the loop: it delays judging, and hangs are to be found within half a second of their limit."""
LATE_FOR_SPANS: Final = 0.1
"""The same for spans: the time within which metrics are to be answered."""
HELD_BYTES: Final = 64 * MIB
"""Bytes of bodies that are being read; 100,000 ranks that all send at once come to less."""
RETRY_AFTER: Final = (2, 6)
"""Seconds, at least and most: senders that were refused together are not to come back together."""
_BEAT: Final = 0.05
"""Seconds between two looks at when a turn begins."""


class Admission:
    """What is in flight, and how late the loop is. Used on the event loop only."""

    def __init__(self) -> None:
        self.held = 0
        """Bytes of bodies that are being read or decoded."""
        self._held_by: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0
        self._asked = False

    def late(self) -> float:
        """Seconds by which the loop is behind, 0 when nothing was asked of it lately."""
        loop = asyncio.get_running_loop()
        self._asked = True
        if self._loop is not loop:
            self._loop = loop
            self._beat(loop)
        return max(0.0, loop.time() - self._due)

    def check(self, *, spans: bool = False) -> None:
        """Let a request in.

        Raises:
            Refusal: 503 with ``Retry-After``, the monitor is behind with its work.
        """
        late = self.late()
        if late > (LATE_FOR_SPANS if spans else LATE):
            raise _refusal(503, f"the monitor is {late:.1f} s behind with its work")
        if self.held > HELD_BYTES:
            raise _refusal(503, f"the monitor is reading {self.held} bytes of other requests")

    @contextmanager
    def body(self, sender: str) -> Iterator[Body]:
        """Count the body of a sender's request for as long as it is held."""
        body = Body(self, sender)
        try:
            yield body
        finally:
            self.add(sender, -body.size)

    def add(self, sender: str, size: int) -> int:
        """Count bytes of a sender, fewer where ``size`` is negative; return how many of him are held."""
        self.held += size
        of_sender = self._held_by.get(sender, 0) + size
        if of_sender:
            self._held_by[sender] = of_sender
        else:
            self._held_by.pop(sender, None)
        return of_sender

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._asked:
            self._loop = None  # nobody asks any more: whoever asks next begins anew
            return
        self._asked = False
        self._due = loop.time() + _BEAT
        loop.call_later(_BEAT, self._beat, loop)


class Body:
    """One body as it comes in."""

    __slots__ = ("_admission", "_sender", "size")

    def __init__(self, admission: Admission, sender: str) -> None:
        self._admission = admission
        self._sender = sender
        self.size = 0

    def grew(self, size: int) -> None:
        """Count ``size`` more bytes.

        Raises:
            Refusal: 429 with ``Retry-After``, there is too much in flight and this sender has most of it.
        """
        admission = self._admission
        self.size += size
        of_sender = admission.add(self._sender, size)
        if admission.held > HELD_BYTES and 2 * of_sender > admission.held:
            words = f"{of_sender} bytes of requests from {self._sender} are being read, more than from all others"
            raise _refusal(429, words)


def _refusal(status: int, words: str) -> Refusal:
    again = random.randint(*RETRY_AFTER)
    return Refusal(status, "unavailable", f"{words}: send this again in {again} s", retry_after=again)
