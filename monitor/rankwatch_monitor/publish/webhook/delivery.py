"""Delivers the messages of one receiver on a thread: in order per job, teams in turn, until accepted or given up.

The messages of one job form a queue: the next one is sent only when the first was accepted or given up. Teams take
turns: of what is due, that of the team goes first which has waited longest, so that one with thousands delays itself.

========================================  ================================================================
response                                  what follows
========================================  ================================================================
2xx                                       accepted: the message is removed
none, 429, 503                            the receiver is unreachable or busy: all queues wait, then retry
408 and other 5xx                         this queue waits, others go on: the message may be the cause
3xx and other 4xx                         given up and logged: the same message would be refused again
========================================  ================================================================

The wait grows with every failure, or is that of ``Retry-After``. Only this thread ever waits for the receiver.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rankwatch_monitor.publish.http_post import Answer, backoff

log = logging.getLogger("rankwatch")

GIVE_UP: Final = 3 * 86_400.0
"""Seconds after which an undelivered message is given up."""
LIMIT: Final = 10_000
"""Messages that may wait for one receiver; beyond it the oldest of the team with the most is dropped."""


_OFFSET: Final = time.time() - time.monotonic()


def now() -> float:
    """Unix seconds that a later step of the system's clock does not change."""
    return time.monotonic() + _OFFSET


def expired(at: float) -> bool:
    """Whether a message of this time (unix seconds) is too old to be delivered."""
    return now() - at > GIVE_UP


class Message(NamedTuple):
    """One notice to one receiver."""

    key: str
    number: int
    job_id: str
    at: float
    """When the change happened, in unix seconds."""
    body: dict[str, Any]


@dataclass(slots=True)
class _Pause:
    """Consecutive failures, and until when (unix seconds) not to retry."""

    failures: int = 0
    until: float = 0.0

    def longer(self, asked: float | None, now: float) -> None:
        self.failures += 1
        self.until = now + (backoff(self.failures) if asked is None else max(asked, 0.05))

    def over(self) -> None:
        self.failures, self.until = 0, 0.0


@dataclass(slots=True)
class _JobQueue:
    team: str
    messages: deque[Message] = field(default_factory=deque)
    pause: _Pause = field(default_factory=_Pause)


class Delivery:
    """Delivers to one receiver on a thread of its own.

    ``delivered``, ``given_up`` (refused or too old) and ``dropped`` (too many waited) count messages.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Message], Answer],
        removed: Callable[[Message], None],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread.

        Args:
            name: of the receiver, for the log.
            send: posts one message; called on the thread.
            removed: called, on any thread, with each message that needs no more delivery.
            ended: called on the thread at its end.
        """
        self.name = name
        self.delivered = self.given_up = self.dropped = 0
        self._send, self._removed, self._ended = send, removed, ended
        self._queues: dict[str, _JobQueue] = {}
        self._served: dict[str, int] = {}
        """The number of the turn that each team with messages had last."""
        self._turns = 0
        self._pause = _Pause()
        self._sending: Message | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="rankwatch-webhook", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Messages that are not delivered yet."""
        with self._changed:
            return sum(len(queue.messages) for queue in self._queues.values())

    def put(self, message: Message, team: str = "") -> None:
        """Queue a message of a team, by default of its job; returns at once.

        One with the key of a waiting one is ignored.
        """
        gone = None
        with self._changed:
            queue = self._queues.setdefault(message.job_id, _JobQueue(team or message.job_id))
            if any(message.key == other.key for other in queue.messages):
                return
            queue.messages.append(message)
            if sum(len(each.messages) for each in self._queues.values()) > LIMIT:
                gone = self._drop_oldest()
            self._changed.notify()
        if gone is not None:
            self._removed(gone)

    def forget(self, job_id: str) -> None:
        """Drop the messages of a job, except for one that is being sent, without calling ``removed``."""
        with self._changed:
            self._queues.pop(job_id, None)

    def close(self, timeout: float) -> None:
        """Try each waiting message once; ends within ``timeout`` seconds. What is left stays in the outbox."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def _drop_oldest(self) -> Message | None:
        queues = [queue for queue in self._queues.values() if queue.messages and queue.messages[0] is not self._sending]
        if not queues:
            return None
        waiting: Counter[str] = Counter()
        for queue in queues:
            waiting[queue.team] += len(queue.messages)
        first = min(queues, key=lambda queue: (-waiting[queue.team], queue.messages[0].number))
        gone = first.messages.popleft()
        self.dropped += 1
        if self.dropped == 1 or self.dropped % 1000 == 0:
            log.warning(
                "webhook %s: more than %d messages wait, so the oldest of who has most are dropped; %d so far",
                *(self.name, LIMIT, self.dropped),
            )
        return gone

    # The thread -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (message := self._next()) is not None:
            if expired(message.at):
                self._give_up(message, f"could not be delivered within {GIVE_UP / 86_400:.0f} days")
                continue
            try:
                answer = self._send(message)
            except Exception as error:  # noqa: BLE001 - the thread boundary; a message that cannot be rendered is given up
                answer = Answer(400, f"cannot be sent this message ({type(error).__name__})")
            self._settle(message, answer)
        self._ended()

    def _next(self) -> Message | None:
        """Wait for the message that is due next; None at the end."""
        with self._changed:
            while True:
                at = now()
                queues = [queue for queue in self._queues.values() if queue.messages]
                due = [queue for queue in queues if max(queue.pause.until, self._pause.until) <= at]
                if self._closing:  # one last try, except for what has just failed
                    due = [queue for queue in due if not queue.pause.failures and not self._pause.failures]
                if due:
                    teams = {queue.team for queue in queues}
                    self._served = {team: turn for team, turn in self._served.items() if team in teams}
                    first = min(due, key=lambda queue: (self._served.get(queue.team, 0), queue.messages[0].number))
                    self._turns += 1
                    self._served[first.team] = self._turns
                    self._sending = first.messages[0]
                    return self._sending
                if self._closing:
                    return None
                until = min((max(queue.pause.until, self._pause.until) for queue in queues), default=None)
                self._changed.wait(None if until is None else max(0.01, until - at))

    def _settle(self, message: Message, answer: Answer) -> None:
        if answer.taken:
            self._taken(message)
        elif answer.status in (None, 429, 503):
            self._later(answer, self._pause)
        elif answer.status is not None and (answer.status == 408 or answer.status >= 500):
            queue = self._queues.get(message.job_id)
            self._later(answer, queue.pause if queue is not None else _Pause())
        else:
            self._give_up(message, f"is refused: the receiver {answer.problem}")

    def _later(self, answer: Answer, pause: _Pause) -> None:
        with self._changed:
            self._sending = None
            first = not self._pause.failures and not any(queue.pause.failures for queue in self._queues.values())
            pause.longer(answer.retry_after, now())
        if first:
            log.warning(
                "webhook %s %s; %d messages wait and are retried for up to %.0f days",
                *(self.name, answer.problem, self.waiting, GIVE_UP / 86_400),
            )

    def _taken(self, message: Message) -> None:
        with self._changed:
            failed = self._pause.failures or any(queue.pause.failures for queue in self._queues.values())
            self.delivered += 1
            self._pause.over()
            self._finish(message)
            recovered = failed and not any(queue.pause.failures for queue in self._queues.values())
        self._removed(message)
        if recovered:
            log.info("webhook %s accepts messages again", self.name)

    def _give_up(self, message: Message, why: str) -> None:
        with self._changed:
            self.given_up += 1
            self._finish(message)
        self._removed(message)
        log.warning("webhook %s: a message of job %s is given up, it %s", self.name, message.job_id, why)

    def _finish(self, message: Message) -> None:
        self._sending = None
        queue = self._queues.get(message.job_id)
        if queue is None:
            return
        queue.pause.over()
        if queue.messages and queue.messages[0] is message:
            queue.messages.popleft()
        if not queue.messages:
            del self._queues[message.job_id]
