"""One receiver, its messages, and the thread that delivers them: in order for each job, until taken or given up.

How this works
--------------
Messages of one job form a lane: its first message goes out, and only when it was taken, or given up, the next one does.
What an answer means:

========================================  ================================================================
answer                                    what follows
========================================  ================================================================
2xx                                       taken: it is removed
none, 429, 503                            the receiver is away or busy: all lanes wait, and it is tried again
408 and other 5xx                         this lane waits, the others go on: it may be about this message
3xx and other 4xx                         given up, with words: the same message would be refused again
========================================  ================================================================

A wait grows with every failure, or is what ``Retry-After`` asks for. Nobody but this thread waits for the receiver.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rankwatch_monitor.publish.http_post import Answer, backoff

log = logging.getLogger("rankwatch")

GIVE_UP: Final = 3 * 86_400.0
"""Seconds after which an undelivered message is given up."""
LIMIT: Final = 10_000
"""Messages that may wait for one receiver; beyond that the oldest is dropped."""


def expired(at: float) -> bool:
    """Whether a message of this time (unix seconds) is too old to be delivered."""
    return time.time() - at > GIVE_UP


class Message(NamedTuple):
    """One notice to one receiver."""

    key: str
    number: int
    job_id: str
    at: float
    """Unix seconds of what it is about."""
    body: dict[str, Any]


@dataclass(slots=True)
class _Pause:
    """Failures in a row, and until when (unix seconds) nothing is tried for them."""

    failures: int = 0
    until: float = 0.0

    def longer(self, asked: float | None, now: float) -> None:
        self.failures += 1
        self.until = now + (backoff(self.failures) if asked is None else max(asked, 0.05))

    def over(self) -> None:
        self.failures, self.until = 0, 0.0


@dataclass(slots=True)
class _Lane:
    messages: deque[Message] = field(default_factory=deque)
    pause: _Pause = field(default_factory=_Pause)


class Delivery:
    """Delivers to one receiver on a thread of its own.

    ``delivered``, ``given_up`` (refused or too old) and ``dropped`` (too many waited) count messages.
    """

    def __init__(self, name: str, send: Callable[[Message], Answer], removed: Callable[[Message], None]) -> None:
        """Begin.

        Args:
            name: of the receiver, as the log may show it.
            send: posts one message; called on the thread.
            removed: told of each message that needs no more delivery, on any thread.
        """
        self.name = name
        self.delivered = self.given_up = self.dropped = 0
        self._send, self._removed = send, removed
        self._lanes: dict[str, _Lane] = {}
        self._pause = _Pause()
        self._sending: Message | None = None
        self._closing = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="rankwatch-webhook", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Messages that are not delivered yet."""
        with self._news:
            return sum(len(lane.messages) for lane in self._lanes.values())

    def put(self, message: Message) -> None:
        """Take a message; returns at once. One with the key of a message that waits is that message."""
        gone = None
        with self._news:
            lane = self._lanes.setdefault(message.job_id, _Lane())
            if any(message.key == other.key for other in lane.messages):
                return
            lane.messages.append(message)
            if sum(len(each.messages) for each in self._lanes.values()) > LIMIT:
                gone = self._drop_oldest()
            self._news.notify()
        if gone is not None:
            self._removed(gone)

    def close(self, timeout: float) -> None:
        """Try what was not tried yet, and end within ``timeout`` seconds. What is left stays where it is kept."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join(timeout)

    def _drop_oldest(self) -> Message | None:
        lanes = [lane for lane in self._lanes.values() if lane.messages and lane.messages[0] is not self._sending]
        if not lanes:
            return None
        gone = min(lanes, key=lambda lane: lane.messages[0].number).messages.popleft()
        self.dropped += 1
        if self.dropped == 1 or self.dropped % 1000 == 0:
            log.warning(
                "webhook %s: more than %d messages wait, so the oldest are dropped; %d so far",
                *(self.name, LIMIT, self.dropped),
            )
        return gone

    # The thread -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (message := self._next()) is not None:
            if expired(message.at):
                self._give_up(message, f"could not be told within {GIVE_UP / 86_400:.0f} days")
                continue
            try:
                answer = self._send(message)
            except Exception as error:  # noqa: BLE001 - the thread's boundary: a message that cannot be made is given up
                answer = Answer(400, f"cannot be sent this message ({type(error).__name__})")
            self._settle(message, answer)

    def _next(self) -> Message | None:
        """The oldest message that is due, once there is one; None at the end."""
        with self._news:
            while True:
                now = time.time()
                lanes = [lane for lane in self._lanes.values() if lane.messages]
                due = [lane for lane in lanes if max(lane.pause.until, self._pause.until) <= now]
                if self._closing:  # a last try, but none for what has just failed
                    due = [lane for lane in due if not lane.pause.failures and not self._pause.failures]
                if due:
                    self._sending = min(due, key=lambda lane: lane.messages[0].number).messages[0]
                    return self._sending
                if self._closing:
                    return None
                until = min((max(lane.pause.until, self._pause.until) for lane in lanes), default=None)
                self._news.wait(None if until is None else max(0.01, until - now))

    def _settle(self, message: Message, answer: Answer) -> None:
        if answer.taken:
            self._taken(message)
        elif answer.status in (None, 429, 503):
            self._later(answer, self._pause)
        elif answer.status is not None and (answer.status == 408 or answer.status >= 500):
            self._later(answer, self._lanes[message.job_id].pause)
        else:
            self._give_up(message, f"is refused: the receiver {answer.problem}")

    def _later(self, answer: Answer, pause: _Pause) -> None:
        with self._news:
            self._sending = None
            first = not self._pause.failures and not any(lane.pause.failures for lane in self._lanes.values())
            pause.longer(answer.retry_after, time.time())
        if first:
            log.warning(
                "webhook %s %s; %d wait, and are tried again for up to %.0f days",
                *(self.name, answer.problem, self.waiting, GIVE_UP / 86_400),
            )

    def _taken(self, message: Message) -> None:
        with self._news:
            failed = self._pause.failures or any(lane.pause.failures for lane in self._lanes.values())
            self.delivered += 1
            self._pause.over()
            self._finish(message)
            mended = failed and not any(lane.pause.failures for lane in self._lanes.values())
        self._removed(message)
        if mended:
            log.info("webhook %s takes messages again", self.name)

    def _give_up(self, message: Message, why: str) -> None:
        with self._news:
            self.given_up += 1
            self._finish(message)
        self._removed(message)
        log.warning("webhook %s: a message of job %s is given up, it %s", self.name, message.job_id, why)

    def _finish(self, message: Message) -> None:
        self._sending = None
        lane = self._lanes[message.job_id]
        lane.pause.over()
        if lane.messages and lane.messages[0] is message:
            lane.messages.popleft()
        if not lane.messages:
            del self._lanes[message.job_id]
