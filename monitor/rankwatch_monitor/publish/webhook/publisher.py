"""Webhooks: announces changes of jobs to receivers such as Slack, at least once, in order per job.

``notices`` decides what is news; each notice becomes one message per receiver. Messages are stored in the database in
the same transaction as the rows of the change (:meth:`Webhooks.rows_about` is called for each such write), and removed
once delivered, so a restarted monitor continues where it stopped. ``delivery`` has a thread per receiver.

All but :meth:`Webhooks.close` and :meth:`Webhooks.release` runs on the event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.publish.http_post import Answer, Target, checked, fingerprint, shown
from rankwatch_monitor.publish.prometheus import names as names
from rankwatch_monitor.publish.prometheus.names import Sample
from rankwatch_monitor.publish.webhook.bodies import FORMATS, headers, is_for, render
from rankwatch_monitor.publish.webhook.delivery import Delivery, Message, expired
from rankwatch_monitor.publish.webhook.notices import Announced, Event, Notice, announced_so_far, new_notices

log = logging.getLogger("rankwatch")

OBSERVE_INTERVAL: Final = 1.0
"""Minimum seconds between two checks of a job without a write; a write checks it anyway."""


class Receiver(NamedTuple):
    """Where to post, in which format, and the key to sign with."""

    url: str
    form: str
    secret: bytes | None = None


Kept = tuple[Mapping[str, Any], Callable[[], None]]
"""A row, and the callback that starts its delivery once it is stored, or cannot be."""


class Outbox(Protocol):
    """Stores messages over a restart; rows have the columns queue, key, number, job_id, at and body."""

    def load(self) -> list[dict[str, Any]]:
        """All rows, in order."""

    def take_loaded(self, job_id: str) -> list[dict[str, Any]]:
        """The rows that were read with a job when it was loaded after the start, in order, once; returns at once."""

    def keep(self, rows: Iterable[Kept]) -> None:
        """Store rows; returns at once."""

    def remove(self, queue: str, key: str) -> None:
        """Delete a row; returns at once. Thread-safe."""


class Webhooks:
    """All receivers of a monitor."""

    def __init__(
        self,
        receivers: Sequence[Receiver],
        jobs: Mapping[str, Job],
        clock: Callable[[], float],
        *,
        outbox: Outbox | None = None,
        events: Collection[Event] = tuple(Event),
        external_url: str | None = None,
        team_of: Callable[[str], str] = lambda job_id: job_id,
    ) -> None:
        """Load undelivered messages and start delivery.

        Args:
            receivers: of the messages.
            jobs: by id, those of the monitor; their current state is not news.
            clock: returns unix seconds.
            outbox: stores messages; without it they are lost with the process.
            events: that are announced.
            external_url: of the monitor, for links.
            team_of: who has a job, by its id; teams take turns at each receiver.
        """
        self.errors = 0
        self._jobs, self._clock, self._outbox, self._events = jobs, clock, outbox, frozenset(events)
        self._external_url, self._team_of = external_url, team_of
        self._activity = HostActivity(jobs)
        self._announced: WeakKeyDictionary[Job, Announced] = WeakKeyDictionary()
        self._looked: WeakKeyDictionary[Job, float] = WeakKeyDictionary()
        for job in jobs.values():
            self._announced[job] = announced_so_far(job, clock())
        rows = outbox.load() if outbox is not None else []
        self._number = max((row["number"] for row in rows), default=0)
        self._forms = {fingerprint(to.url): to.form for to in receivers}
        self.deliveries = {fingerprint(to.url): self._delivery(to) for to in dict.fromkeys(receivers)}
        self._load(rows)

    def samples(self) -> list[Sample]:
        """Messages by outcome and messages waiting, summed over the receivers, for ``/metrics``."""
        all_of_them = self.deliveries.values()
        outcomes = {
            "delivered": sum(each.delivered for each in all_of_them),
            "given_up": sum(each.given_up for each in all_of_them),
            "dropped": sum(each.dropped for each in all_of_them),
        }
        waiting = sum(each.waiting for each in all_of_them)
        samples: list[Sample] = [(names.WEBHOOK_MESSAGES, number, (outcome,)) for outcome, number in outcomes.items()]
        return [*samples, (names.WEBHOOK_WAITING, waiting, ())]

    def observe(self, job: Job, now: float) -> None:
        """Announce changes of a job up to ``now`` (unix seconds); most calls cost one comparison."""
        if now - self._looked.get(job, 0.0) < OBSERVE_INTERVAL:
            return
        self._looked[job] = now
        rows = self._new_rows(job, now)
        if self._outbox is not None:
            self._outbox.keep(rows)
        else:
            for _, deliver in rows:
                deliver()

    def adopt(self, job: Job, now: float) -> None:
        """Take over a job loaded at ``now`` (unix seconds) from another monitor: its current state is not news.

        Messages that the other monitor could not deliver are delivered from here, before any new one of the job.
        """
        self._announced[job] = announced_so_far(job, now)
        if self._outbox is not None:
            rows = self._outbox.take_loaded(job.id)
            self._number = max([self._number, *(row["number"] for row in rows)])
            self._load(rows)

    def merge(self, job: Job, past: Job, now: float) -> None:
        """Note that ``past``, as it was stored, is merged into ``job`` next: what it holds was announced."""
        before, announced = announced_so_far(past, now), self._announced.setdefault(job, Announced())
        announced.opened |= before.opened
        announced.closed |= before.closed
        announced.stragglers = before.stragglers | announced.stragglers

    def release(self, job_id: str) -> None:
        """Leave a job's undelivered messages, which are stored, to the monitor that has the job from now on."""
        for delivery in self.deliveries.values():
            delivery.forget(job_id)

    def rows_about(self, job_id: str) -> list[Kept]:
        """Rows to store in the same transaction as a write about a job."""
        job = self._jobs.get(job_id)
        return self._new_rows(job, self._clock()) if job is not None else []

    def close(self, timeout: float) -> None:
        """Try each waiting message once; ends within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for delivery in self.deliveries.values():
            delivery.close(max(0.0, deadline - time.monotonic()))
        left = sum(delivery.waiting for delivery in self.deliveries.values())
        if left:
            where = "are kept in the database for the next start" if self._outbox is not None else "are lost"
            log.warning("%d webhook messages were not delivered and %s", left, where)

    def _new_rows(self, job: Job, now: float) -> list[Kept]:
        try:
            found = new_notices(job, self._announced.setdefault(job, Announced()), now, self._activity)
        except Exception:
            self.errors += 1
            if self.errors == 1:
                log.exception("changes of job %s cannot be announced to webhooks; its evaluation continues", job.id)
            return []
        return [row for notice in found if notice.body["event"] in self._events for row in self._rows(notice)]

    def _rows(self, notice: Notice) -> Iterable[Kept]:
        for queue, delivery in self.deliveries.items():
            if not is_for(self._forms[queue], notice.body, self._events):
                continue
            self._number += 1
            message = Message(notice.key, self._number, notice.job_id, notice.at, notice.body)
            yield {"queue": queue, **message._asdict()}, partial(delivery.put, message, self._team_of(notice.job_id))

    def _load(self, rows: Iterable[Mapping[str, Any]]) -> None:
        taken = 0
        for row in rows:
            delivery = self.deliveries.get(row["queue"])
            if delivery is not None:
                message = Message(row["key"], row["number"], row["job_id"], row["at"], row["body"])
                delivery.put(message, self._team_of(message.job_id))
                taken += 1
            elif self._outbox is not None and expired(row["at"]):
                self._outbox.remove(row["queue"], row["key"])  # of a receiver that is not configured any more
        if taken:
            log.info("%d undelivered webhook messages were loaded from the database", taken)

    def _delivery(self, to: Receiver) -> Delivery:
        target, queue, outbox = Target(to.url), fingerprint(to.url), self._outbox

        def send(message: Message) -> Answer:
            body = render(to.form, message.body, self._external_url)
            return target.post(body, headers(message.key, body, time.time(), to.secret))

        def removed(message: Message) -> None:
            if outbox is not None:
                outbox.remove(queue, message.key)

        return Delivery(shown(to.url), send, removed, target.close)


def receivers(urls: Iterable[str], form: str, secret: bytes | None = None) -> list[Receiver]:
    """The receivers that ``--webhook [FORMAT=]URL`` names; ``form`` is that of those that name none.

    Raises:
        ValueError: one is invalid; the text names the fix and holds no URL.
    """
    if form not in FORMATS:
        raise ValueError(f"--webhook-format must be {' or '.join(FORMATS)}, not {form!r}")
    made = []
    for url in urls:
        own, mark, rest = url.partition("=")
        named = bool(mark) and own in FORMATS
        made.append(Receiver(checked(rest if named else url, "--webhook"), own if named else form, secret))
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
                f"--webhook-events: {name!r} is not an event; use {', '.join(Event)}, incident, straggler or job "
                "for all of a kind, or all"
            )
        chosen |= matching
    if not chosen:
        raise ValueError("--webhook-events is empty: name some events, or omit it for all")
    return frozenset(chosen)
