"""Webhooks: what happens to jobs is posted to receivers such as Slack, at least once, in order for each job.

How this works
--------------
``notices`` says what is news; here each notice becomes one message for each receiver. Messages are kept in the database
together with the row of what they are about (:meth:`Webhooks.rows_about` is asked at every such row), and removed once
delivered, so a monitor that is killed goes on where it was. ``delivery`` has a thread for each receiver.

All but :meth:`Webhooks.close` runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.publish.http_post import Answer, Target, checked, fingerprint, shown
from rankwatch_monitor.publish.prometheus import names as names
from rankwatch_monitor.publish.prometheus.names import Sample
from rankwatch_monitor.publish.webhook.bodies import FORMATS, headers, render
from rankwatch_monitor.publish.webhook.delivery import Delivery, Message, expired
from rankwatch_monitor.publish.webhook.notices import Event, Notice, Told, already, news

log = logging.getLogger("rankwatch")

LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks at a job of which nothing is stored: what is stored is looked at then."""


class Receiver(NamedTuple):
    """Where to post, and in which format."""

    url: str
    form: str


Kept = tuple[Mapping[str, Any], Callable[[], None]]
"""A row, and what is to be called once it is kept (or cannot be): its delivery begins."""


class Shelf(Protocol):
    """Keeps messages over a restart; rows have the columns queue, key, number, job_id, at and body."""

    def load(self) -> list[dict[str, Any]]:
        """All rows, in their order."""

    def load_of(self, job_id: str) -> list[dict[str, Any]]:
        """Those about one job, in their order."""

    def keep(self, rows: Iterable[Kept]) -> None:
        """Keep some; returns at once."""

    def remove(self, queue: str, key: str) -> None:
        """Let one go; returns at once, on any thread."""


class Webhooks:
    """All receivers of a monitor."""

    def __init__(
        self,
        receivers: Sequence[Receiver],
        jobs: Mapping[str, Job],
        clock: Callable[[], float],
        *,
        shelf: Shelf | None = None,
        events: Collection[Event] = tuple(Event),
        secret: bytes | None = None,
        external_url: str | None = None,
    ) -> None:
        """Take up what was left to deliver, and begin.

        Args:
            receivers: to whom.
            jobs: by id, those the monitor holds; what they are now is no news.
            clock: gives the loop's unix seconds.
            shelf: keeps messages; without it they are lost with the process.
            events: what is told.
            secret: key to sign with.
            external_url: where people reach the monitor.
        """
        self.errors = 0
        self._jobs, self._clock, self._shelf, self._events = jobs, clock, shelf, frozenset(events)
        self._secret, self._external_url = secret, external_url
        self._told: WeakKeyDictionary[Job, Told] = WeakKeyDictionary()
        self._looked: WeakKeyDictionary[Job, float] = WeakKeyDictionary()
        for job in jobs.values():
            self._told[job] = already(job, clock())
        rows = shelf.load() if shelf is not None else []
        self._number = max((row["number"] for row in rows), default=0)
        self.deliveries = {fingerprint(to.url): self._delivery(to) for to in dict.fromkeys(receivers)}
        self._take_up(rows)

    def samples(self) -> list[Sample]:
        """What ``/metrics`` says: messages by outcome, and how many wait, of all receivers together."""
        all_of_them = self.deliveries.values()
        outcomes = {
            "delivered": sum(each.delivered for each in all_of_them),
            "given_up": sum(each.given_up for each in all_of_them),
            "dropped": sum(each.dropped for each in all_of_them),
        }
        waiting = sum(each.waiting for each in all_of_them)
        told: list[Sample] = [(names.WEBHOOK_MESSAGES, number, (outcome,)) for outcome, number in outcomes.items()]
        return [*told, (names.WEBHOOK_WAITING, waiting, ())]

    def look(self, job: Job, now: float) -> None:
        """Tell what happened to a job by ``now`` (unix seconds); most looks in a second cost one comparison."""
        if now - self._looked.get(job, 0.0) < LOOK_INTERVAL:
            return
        self._looked[job] = now
        rows = self._news(job, now)
        if self._shelf is not None:
            self._shelf.keep(rows)
        else:
            for _, deliver in rows:
                deliver()

    def adopt(self, job: Job, now: float) -> None:
        """Take a job that was loaded at ``now`` (unix seconds), from another monitor: what is so by now is no news.

        What that one could not deliver is delivered from here. On an event loop, which does not wait for it.
        """
        self._told[job] = already(job, now)
        if self._shelf is not None:
            loaded = asyncio.get_running_loop().run_in_executor(None, self._shelf.load_of, job.id)
            loaded.add_done_callback(partial(self._adopted, job.id))

    def _adopted(self, job_id: str, loaded: asyncio.Future[list[dict[str, Any]]]) -> None:
        if loaded.cancelled():
            return
        if (error := loaded.exception()) is not None:
            self.errors += 1
            log.error("messages to webhooks about job %s that wait in the database cannot be read: %s", job_id, error)
            return
        rows = loaded.result()
        self._number = max([self._number, *(row["number"] for row in rows)])
        self._take_up(rows)

    def rows_about(self, job_id: str) -> list[Kept]:
        """Rows to keep beside what is about to be stored of a job."""
        job = self._jobs.get(job_id)
        return self._news(job, self._clock()) if job is not None else []

    def close(self, timeout: float) -> None:
        """Try what was not tried yet, and end within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for delivery in self.deliveries.values():
            delivery.close(max(0.0, deadline - time.monotonic()))
        left = sum(delivery.waiting for delivery in self.deliveries.values())
        if left:
            where = "lie in the database for the next start" if self._shelf is not None else "are lost"
            log.warning("%d messages to webhooks were not delivered and %s", left, where)

    def _news(self, job: Job, now: float) -> list[Kept]:
        try:
            found = news(job, self._told.setdefault(job, Told()), now)
        except Exception:
            self.errors += 1
            if self.errors == 1:
                log.exception("what happened to job %s cannot be told to webhooks; its judgement goes on", job.id)
            return []
        return [row for notice in found if notice.body["event"] in self._events for row in self._rows(notice)]

    def _rows(self, notice: Notice) -> Iterable[Kept]:
        for queue, delivery in self.deliveries.items():
            self._number += 1
            message = Message(notice.key, self._number, notice.job_id, notice.at, notice.body)
            yield {"queue": queue, **message._asdict()}, partial(delivery.put, message)

    def _take_up(self, rows: Iterable[Mapping[str, Any]]) -> None:
        taken = 0
        for row in rows:
            delivery = self.deliveries.get(row["queue"])
            if delivery is not None:
                delivery.put(Message(row["key"], row["number"], row["job_id"], row["at"], row["body"]))
                taken += 1
            elif self._shelf is not None and expired(row["at"]):
                self._shelf.remove(row["queue"], row["key"])  # of a receiver that is not there any more
        if taken:
            log.info("%d messages to webhooks had waited in the database", taken)

    def _delivery(self, to: Receiver) -> Delivery:
        target, queue, shelf = Target(to.url), fingerprint(to.url), self._shelf

        def send(message: Message) -> Answer:
            body = render(to.form, message.body, self._external_url)
            return target.post(body, headers(message.key, body, time.time(), self._secret))

        def removed(message: Message) -> None:
            if shelf is not None:
                shelf.remove(queue, message.key)

        return Delivery(shown(to.url), send, removed)


def receivers(urls: Iterable[str], form: str) -> list[Receiver]:
    """The receivers that ``--webhook [FORMAT=]URL`` names; ``form`` is that of those that name none.

    Raises:
        ValueError: one makes no sense; the text says what to do and holds no URL.
    """
    if form not in FORMATS:
        raise ValueError(f"--webhook-format must be {' or '.join(FORMATS)}, not {form!r}")
    made = []
    for url in urls:
        own, mark, rest = url.partition("=")
        named = bool(mark) and own in FORMATS
        made.append(Receiver(checked(rest if named else url, "--webhook"), own if named else form))
    return made


def events(names: str) -> frozenset[Event]:
    """The events that ``--webhook-events`` names: words of :class:`Event` or their beginnings, with commas between.

    Raises:
        ValueError: one is unknown; the text lists those that there are.
    """
    chosen: set[Event] = set()
    for name in filter(None, (each.strip() for each in names.split(","))):
        matching = {event for event in Event if name in ("all", event, event.partition("_")[0])}
        if not matching:
            raise ValueError(
                f"--webhook-events: {name!r} is no event; there are {', '.join(Event)}, incident, straggler and job "
                "for all of a kind, and all"
            )
        chosen |= matching
    if not chosen:
        raise ValueError("--webhook-events names no event: name some, or leave it away to be told of all")
    return frozenset(chosen)
