"""Leases on jobs, when several monitors share one database (docs/adr/0012-jobs-are-held-by-lease.md).

How this works
--------------
A row of ``leases`` names the holder of a job, the expiry by the database's clock, and the generation: how often the job
has changed hands. One thread acquires requested leases, renews the held ones three times within the duration of a
lease, takes its part of those that have just expired, and detects lost ones. It reports to the callbacks of
:class:`Leases`, which are called on that thread.

Two safeguards, each sufficient. The holder measures from before its request, on its own monotonic clock, and stops
before any other monitor may acquire the lease. And each transaction that writes rows of a job first locks the job's
lease and verifies owner and generation (:meth:`Leases.owned`, a fencing token).
"""

from __future__ import annotations

import functools
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from rankwatch_monitor.store import schema
from rankwatch_monitor.store.db_errors import driver_message
from rankwatch_monitor.store.engine import database_now

log = logging.getLogger("rankwatch.leases")

RENEWALS: Final = 3
"""Renewals within the duration of a lease."""
MARGIN: Final = 0.1
"""Fraction of a lease that its holder leaves unused, since monotonic clocks drift apart."""
ORPHANS_INTERVAL: Final = 1.0
"""Seconds between two looks for leases that expired, at most."""
ORPHANED: Final = 3
"""Durations of a lease for which one that expired is looked for; a job that ended with its monitor then stays there."""
REQUEST_INTERVAL: Final = 0.5
"""Seconds between two requests for the same job."""
MAX_HOLDERS: Final = 10_000
"""Maximum jobs of other monitors whose holder is cached."""

_leases = schema.leases.c


class Holder(NamedTuple):
    """The monitor that holds a job, as of the last query."""

    name: str
    url: str


class LeaseResult(NamedTuple):
    """The result of a request: acquired, held by another monitor, or no such job (False and None)."""

    acquired: bool
    holder: Holder | None = None


@dataclass(slots=True)
class _Lease:
    generation: int
    until: float
    """Monotonic seconds at which this monitor stops acting for the job unless the lease is renewed."""
    contended: bool = False
    """Another monitor had been asked for the job at the last renewal. A proxy asks one after the other, so a report may
    arrive here just afterwards: only the next renewal decides."""


class Leases:
    """The leases of one monitor. Methods return immediately unless they document that they wait for the database."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        url: str,
        duration: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; :meth:`start` begins.

        Args:
            engine: the shared database.
            name: unique among the monitors that share the database, and the same after a restart.
            url: where clients of other monitors reach this one.
            duration: seconds of a lease.
            clock: monotonic seconds.
        """
        self.name, self.url, self.duration = name, url, duration
        self.db_error = ""
        """Why the last query failed; empty while the database answers."""
        self.on_result: Callable[[str, LeaseResult], None] = lambda _job, _result: None
        """The result of a request, also for a lease that was held already."""
        self.on_lost: Callable[[str, Holder | None], None] = lambda _job, _holder: None
        """A held lease was lost to another monitor."""
        self.on_contended: Callable[[str, str], None] = lambda _job, _by: None
        """Another monitor is contacted about a held job; called at each renewal until the job is handed over."""
        self.on_renewed: Callable[[], None] = lambda: None
        """The leases were just renewed."""
        self._engine, self._clock = engine, clock
        self._held: dict[str, _Lease] = {}
        self._holders: dict[str, Holder] = {}
        self._requested_at: dict[tuple[str, bool], float] = {}
        self._requests: dict[str, bool] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._reached_since = clock()
        """Since when the database has answered without a failure."""
        self._thread = threading.Thread(target=self._run, name="rankwatch-leases", daemon=True)

    def start(self) -> None:
        """Start to acquire and renew."""
        self._thread.start()

    def holds(self, job_id: str) -> bool:
        """Whether this monitor may act for a job now."""
        lease = self._held.get(job_id)
        return lease is not None and self._clock() < lease.until

    def holder(self, job_id: str) -> Holder | None:
        """The other monitor that holds a job, if known."""
        return self._holders.get(job_id)

    def request(self, job_id: str, *, contact: bool, again: bool = False) -> None:
        """Request the lease of a job.

        Args:
            job_id: which.
            contact: a rank or launcher of the job contacted this monitor. Then a new job is acquired, and the holder
                of another one is notified.
            again: also when it was requested a moment ago, since a client waits for the result.
        """
        now = self._clock()
        with self._changed:
            if not again and now - self._requested_at.get((job_id, contact), -REQUEST_INTERVAL) < REQUEST_INTERVAL:
                return
            if len(self._requested_at) > MAX_HOLDERS:
                self._requested_at.clear()
            self._requested_at[job_id, contact] = now
            self._requests[job_id] = self._requests.get(job_id, False) or contact
            self._changed.notify()

    def release(self, job_id: str) -> None:
        """Release a lease, on any thread, after all rows of the job were stored. Waits for the database."""
        lease = self._held.pop(job_id, None)
        if lease is None:
            return
        mine = (_leases.job_id == job_id, _leases.owner == self.name, _leases.generation == lease.generation)
        try:
            with self._engine.begin() as connection:
                connection.execute(update(schema.leases).where(*mine).values(ends_at=0.0))
        except SQLAlchemyError as error:
            log.warning("job %s: the lease could not be released and will expire: %s", job_id, driver_message(error))

    def owned(self, connection: Connection, job_ids: Collection[str]) -> set[str]:
        """Those of these jobs that this monitor owns; they stay locked until the transaction of ``connection`` ends."""
        known = {job_id: self._held.get(job_id) for job_id in job_ids}
        # An update and not a select: it locks the rows on any database, and on SQLite takes the right to write.
        locked = (
            update(schema.leases)
            .where(_leases.owner == self.name, _leases.job_id.in_(known))
            .values(owner=_leases.owner)
            .returning(_leases.job_id, _leases.generation)
        )
        ours = set()
        for job_id, generation in connection.execute(locked):
            lease = known[job_id]
            if lease is not None and lease.generation == generation:
                ours.add(job_id)
        return ours

    def close(self) -> None:
        """Stop the thread and release all leases."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        for job_id in list(self._held):
            self.release(job_id)

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._attempt(self._request_former)
        next_renewal = self._clock()
        next_look = next_renewal + self.duration
        while True:
            with self._changed:
                if not self._requests and not self._closing:
                    self._changed.wait(max(0.0, min(next_renewal, next_look) - self._clock()))
                if self._closing:
                    return
                # Renewals come first, and one request at a time: a job that is taken over may take long to load.
                renewal_due, look_due = self._clock() >= next_renewal, self._clock() >= next_look
                job_id = None if renewal_due or look_due else next(iter(self._requests), None)
                contact = job_id is not None and self._requests.pop(job_id)
            if renewal_due:
                self._attempt(self._renew)
                # An unreachable database is retried soon, before the leases expire.
                pause = self.duration / RENEWALS if not self.db_error else min(1.0, self.duration / RENEWALS)
                next_renewal = self._clock() + pause
            elif look_due:
                self._attempt(self._request_orphans)
                next_look = self._clock() + min(ORPHANS_INTERVAL, self.duration / RENEWALS)
            elif job_id is not None:
                self._attempt(functools.partial(self._acquire, job_id, contact))

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the thread must live on; drivers raise errors of their own
            if not self.db_error:
                log.error(
                    "the shared database does not answer (%s); this monitor acts for its jobs until the leases expire",
                    driver_message(error),
                )
            self._reached_since = math.inf
            self.db_error = driver_message(error)
        else:
            if self.db_error:
                log.info("the shared database answers again")
                self._reached_since = self._clock()
            self.db_error = ""

    def _request_former(self) -> None:
        """Request again what this monitor held before a restart."""
        with self._engine.connect() as connection:
            now = database_now(connection)
            own = select(_leases.job_id).where(_leases.owner == self.name, _leases.ends_at > now - 10 * self.duration)
            job_ids = list(connection.execute(own).scalars())
        for job_id in job_ids:
            self.request(job_id, contact=False, again=True)

    def _request_orphans(self) -> None:
        """Request this monitor's part of the leases that have expired: their monitor is gone.

        Their ranks may report rarely, or be gone with it, which only a monitor can notice. Jobs that reported last come
        first: those that ended long ago have no hurry.
        """
        if self._clock() - self._reached_since < self.duration:
            return  # where the database was away, their monitors may be about to renew them
        with self._engine.connect() as connection:
            now = database_now(connection)
            expired = (_leases.owner != self.name, _leases.ends_at < now, _leases.ends_at > 0.0)
            recent = _leases.ends_at > now - ORPHANED * self.duration
            asked = select(_leases.job_id).outerjoin(schema.jobs, schema.jobs.c.id == _leases.job_id)
            newest_first = schema.jobs.c.last_heard.desc().nulls_last()
            job_ids = list(connection.execute(asked.where(*expired, recent).order_by(newest_first)).scalars())
            if not job_ids:
                return
            living = (_leases.owner != self.name, _leases.ends_at > now)
            others = connection.execute(select(func.count(_leases.owner.distinct())).where(*living)).scalar_one()
        part = math.ceil(len(job_ids) / (1 + int(others)))
        for place in sorted(random.sample(range(len(job_ids)), part)):
            self.request(job_ids[place], contact=False, again=True)

    def _acquire(self, job_id: str, contact: bool) -> None:
        if self.holds(job_id):
            self.on_result(job_id, LeaseResult(True))
            return
        before = self._clock()
        with self._engine.begin() as connection:
            generation = self._take(connection, job_id, contact)
            holder = None
            if generation is None:
                found = connection.execute(
                    select(_leases.owner, _leases.url).where(_leases.job_id == job_id)
                ).one_or_none()
                holder = Holder(*found) if found is not None else None
                if holder is not None and contact:
                    note = update(schema.leases).where(_leases.job_id == job_id, _leases.owner != self.name)
                    connection.execute(note.values(asked_by=self.name))
        if generation is not None:
            if (former := self._held.get(job_id)) is not None and generation != former.generation + 1:
                self.on_lost(job_id, None)  # it expired unnoticed, and another monitor has held it since
            self._held[job_id] = _Lease(generation, before + self.duration * (1 - MARGIN))
            self._holders.pop(job_id, None)
        elif holder is not None:
            if len(self._holders) > MAX_HOLDERS:
                self._holders.clear()
            self._holders[job_id] = holder
        self.on_result(job_id, LeaseResult(generation is not None, holder))

    def _take(self, connection: Connection, job_id: str, contact: bool) -> int | None:
        """Take a lease that is free; returns its generation, or None."""
        now = database_now(connection)
        ends = now + self.duration
        # An expiry later than any lease can have was written before the database's clock was set back.
        free = or_(_leases.owner == self.name, _leases.ends_at < now, _leases.ends_at > now + 2 * self.duration)
        values: dict[str, Any] = {"owner": self.name, "url": self.url, "ends_at": ends}
        taken = (
            update(schema.leases)
            .where(_leases.job_id == job_id, free)
            .values(**values, generation=_leases.generation + 1, asked_by=None)
            .returning(_leases.generation)
        )
        generation = connection.execute(taken).scalar_one_or_none()
        if generation is not None:
            return int(generation)
        if not contact:
            known = select(schema.jobs.c.id).where(schema.jobs.c.id == job_id)
            if connection.execute(known).first() is None:
                return None
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        first = insert(schema.leases).values(job_id=job_id, generation=1, **values).on_conflict_do_nothing()
        found = connection.execute(first.returning(_leases.generation)).scalar_one_or_none()
        return None if found is None else int(found)

    def _renew(self) -> None:
        mine = dict(self._held)
        before = self._clock()
        seen: dict[str, tuple[str, str, int, str | None]] = {}
        with self._engine.begin() as connection:
            for some in _slices(sorted(mine)):
                # One that release() has just ended on another thread stays released.
                ours = (_leases.owner == self.name, _leases.job_id.in_(some), _leases.ends_at > 0.0)
                renewed = update(schema.leases).where(*ours)
                connection.execute(renewed.values(ends_at=database_now(connection) + self.duration, url=self.url))
                for row in connection.execute(select(schema.leases).where(_leases.job_id.in_(some))).mappings():
                    seen[row["job_id"]] = row["owner"], row["url"], row["generation"], row["asked_by"]
        contended: dict[str, str] = {}
        for job_id, lease in mine.items():
            owner, url, generation, asked_by = seen.get(job_id, ("", "", 0, None))
            if owner == self.name and generation == lease.generation:
                lease.until = before + self.duration * (1 - MARGIN)
                if asked_by and lease.contended:
                    contended[job_id] = asked_by
                lease.contended = bool(asked_by) and not lease.contended
            elif self._held.get(job_id) is lease:
                del self._held[job_id]
                if owner == self.name:
                    log.error(
                        "job %s was acquired by another monitor named %s: give each a unique name (--shared-as)",
                        job_id,
                        owner,
                    )
                holder = Holder(owner, url) if owner and owner != self.name else None
                self.on_lost(job_id, holder)
        self._report_contended(contended)
        self.on_renewed()

    def _report_contended(self, by: dict[str, str]) -> None:
        """Have each of these jobs considered once for the monitor that was asked for it."""
        if not by:
            return
        with self._engine.begin() as connection:
            for some in _slices(sorted(by)):
                asked = update(schema.leases).where(_leases.owner == self.name, _leases.job_id.in_(some))
                connection.execute(asked.values(asked_by=None))
        for job_id, name in by.items():
            self.on_contended(job_id, name)


def _slices(job_ids: list[str], size: int = 500) -> Iterable[list[str]]:
    return (job_ids[start : start + size] for start in range(0, len(job_ids), size))
