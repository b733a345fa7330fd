"""Leases on jobs, when several monitors share one database (docs/adr/0012-jobs-are-held-by-lease.md).

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
import itertools
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, case, delete, func, or_, select, tuple_, update
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
ORPHANS_INTERVAL: Final = 0.5
"""Seconds between two looks for leases that expired, at most."""
AGAIN: Final = 0.1
"""The same after a look that found some: each monitor requests a part, and parts overlap."""
MOST_AT_ONCE: Final = 64
"""Leases that are acquired in one transaction, whose jobs are loaded together."""
FEWEST_AT_ONCE: Final = 4
"""The same at first."""
BATCH_SECONDS: Final = 0.5
"""How long acquiring and loading them should take: meanwhile nothing is renewed."""
ORPHANED: Final = 3
"""Durations of a lease for which one that expired is looked for; a job that ended with its monitor then stays there."""
REQUEST_INTERVAL: Final = 0.5
"""Seconds between two requests for the same job."""
FIRST_AFTER: Final = 3
"""Times that one other monitor must be asked for a job to get it; it is looked at with every second renewal."""
AGAIN_AFTER: Final = 675
"""The same where the job has moved in this way since its monitor last failed: an hour, with leases of 8 s. Where no
proxy hashes, every monitor is asked first."""
MAX_HOLDERS: Final = 10_000
"""Maximum jobs of other monitors whose holder is cached."""

_leases = schema.leases.c


class Holder(NamedTuple):
    """The monitor that holds a job, as of the last query."""

    name: str
    url: str
    """Empty where that one was handed the job and has not taken it yet."""

    def __str__(self) -> str:
        return f"monitor {self.name} at {self.url}" if self.url else f"monitor {self.name}"


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
    asked: str = ""
    times: int = 0
    """The other monitor that was asked for it, and how often in a row: a proxy tries that one first."""


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
        self.on_results: Callable[[Mapping[str, LeaseResult]], None] = lambda _results: None
        """The results of requests by job, in the order of the requests; also for leases that were held already."""
        self.on_lost: Callable[[str, Holder | None], None] = lambda _job, _holder: None
        """A held lease was lost to another monitor."""
        self.on_contended: Callable[[str, str, bool], None] = lambda _job, _by, _first: None
        """Another monitor is contacted about a held job; called at each renewal until the job is handed over. The last
        argument: it is asked first again and again, and this monitor after its refusal, so that it is to have the job,
        as after a failover, or when monitors were added."""
        self.on_renewed: Callable[[], None] = lambda: None
        """The leases were just renewed."""
        self._engine, self._clock = engine, clock
        self._held: dict[str, _Lease] = {}
        self._holders: dict[str, Holder] = {}
        self._requested_at: dict[tuple[str, bool], float] = {}
        self._requests: dict[str, bool] = {}
        self._abandoned: dict[str, int] = {}
        """Leases of jobs that never appeared, whose rows are to be deleted, and their generations."""
        self._batch = FEWEST_AT_ONCE
        """Requests that are handled next at once, by how long the last ones took."""
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

    def requested(self) -> list[str]:
        """The jobs about which this monitor was contacted, and whose leases were not asked for yet."""
        with self._changed:
            return [job_id for job_id, contact in self._requests.items() if contact]

    def abandon(self, job_id: str) -> None:
        """Stop holding the lease of a job that never appeared. Its row is deleted after the next renewal."""
        if (lease := self._held.pop(job_id, None)) is not None:
            with self._changed:
                self._abandoned[job_id] = lease.generation

    def release(self, job_id: str, to: str = "") -> None:
        """Release a lease, on any thread, after all rows of the job were stored. Waits for the database.

        ``to`` a monitor, it waits for that one for the duration of a lease: no other may acquire it meanwhile. That one
        is its ``former`` too, by which it is known that it has moved in this way since its monitor last failed.
        """
        lease = self._held.pop(job_id, None)
        if lease is None:
            return
        mine = (_leases.job_id == job_id, _leases.owner == self.name, _leases.generation == lease.generation)
        try:
            with self._engine.begin() as connection:
                values: dict[str, Any] = {"ends_at": 0.0}
                if to:
                    ends = database_now(connection) + self.duration
                    values = {"owner": to, "url": "", "ends_at": ends, "asked_by": None, "former": to}
                connection.execute(update(schema.leases).where(*mine).values(**values))
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
                # Renewals come first, and few requests at a time: a job that is taken over may take long to load.
                renewal_due, look_due = self._clock() >= next_renewal, self._clock() >= next_look
                count = 0 if renewal_due or look_due else self._batch
                requests = {
                    job_id: self._requests.pop(job_id) for job_id in list(itertools.islice(self._requests, count))
                }
            if renewal_due:
                self._attempt(self._renew)
                # An unreachable database is retried soon, before the leases expire.
                pause = self.duration / RENEWALS if not self.db_error else min(1.0, self.duration / RENEWALS)
                next_renewal = self._clock() + pause
            elif look_due:
                # Where the database was away, other monitors may be about to renew their leases.
                due = self._clock() - self._reached_since >= self.duration
                found = due and self._attempt(self._request_orphans)
                next_look = self._clock() + min(AGAIN if found else ORPHANS_INTERVAL, self.duration / RENEWALS)
            elif requests:
                began = self._clock()
                asks = not all(map(self.holds, requests))
                self._attempt(functools.partial(self._acquire, requests), asks=asks)
                fitting = int(BATCH_SECONDS * len(requests) / max(self._clock() - began, 1e-3))
                # Few at first in each crowd, since its jobs may be larger than those of the last.
                growing = max(1, min(fitting, 4 * self._batch, MOST_AT_ONCE))
                self._batch = growing if self._requests else FEWEST_AT_ONCE

    def _attempt(self, action: Callable[[], bool | None], *, asks: bool = True) -> bool:
        """Whether the action succeeded and returned true. One that ``asks`` the database finds out that it is back."""
        result: bool | None = False
        try:
            result = action()
        except Exception as error:  # noqa: BLE001 - the thread must live on; drivers raise errors of their own
            if not self.db_error:
                log.error(
                    "the shared database does not answer (%s); this monitor acts for its jobs until the leases expire",
                    driver_message(error),
                )
            self._reached_since = math.inf
            self.db_error = driver_message(error)
        else:
            if not asks:
                return bool(result)
            if self.db_error:
                log.info("the shared database answers again")
                self._reached_since = self._clock()
            self.db_error = ""
        return bool(result)

    def _request_former(self) -> None:
        """Request again what this monitor held before a restart."""
        with self._engine.connect() as connection:
            now = database_now(connection)
            own = select(_leases.job_id).where(_leases.owner == self.name, _leases.ends_at > now - 10 * self.duration)
            job_ids = list(connection.execute(own).scalars())
        for job_id in job_ids:
            self.request(job_id, contact=False, again=True)

    def _request_orphans(self) -> bool:
        """Request this monitor's part of the leases that have expired: their monitor is gone. Whether there are any.

        Their ranks may report rarely, or be gone with it, which only a monitor can notice. Jobs that reported last come
        first: those that ended long ago have no hurry.
        """
        with self._engine.connect() as connection:
            now = database_now(connection)
            expired = (_leases.owner != self.name, _leases.ends_at < now, _leases.ends_at > 0.0)
            recent = _leases.ends_at > now - ORPHANED * self.duration
            asked = select(_leases.job_id).outerjoin(schema.jobs, schema.jobs.c.id == _leases.job_id)
            newest_first = schema.jobs.c.last_heard.desc().nulls_last()
            job_ids = list(connection.execute(asked.where(*expired, recent).order_by(newest_first)).scalars())
            if not job_ids:
                return False
            living = (_leases.owner != self.name, _leases.ends_at > now)
            others = connection.execute(select(func.count(_leases.owner.distinct())).where(*living)).scalar_one()
        part = math.ceil(len(job_ids) / (1 + int(others)))
        for place in sorted(random.sample(range(len(job_ids)), part)):
            self.request(job_ids[place], contact=False, again=True)
        return True

    def _acquire(self, requests: Mapping[str, bool]) -> None:
        """Acquire the leases of jobs that are free; ``requests`` holds for each whether it contacted this monitor."""
        wanted = {job_id: contact for job_id, contact in requests.items() if not self.holds(job_id)}
        generations: dict[str, int] = {}
        holders: dict[str, Holder] = {}
        if wanted:
            before = self._clock()
            with self._engine.begin() as connection:
                generations = self._take(connection, wanted)
                if others := [job_id for job_id in wanted if job_id not in generations]:
                    found = select(_leases.job_id, _leases.owner, _leases.url).where(_leases.job_id.in_(others))
                    holders = {job_id: Holder(owner, url) for job_id, owner, url in connection.execute(found)}
            for job_id, generation in generations.items():
                if (former := self._held.get(job_id)) is not None and generation != former.generation + 1:
                    self.on_lost(job_id, None)  # it expired unnoticed, and another monitor has held it since
                self._held[job_id] = _Lease(generation, before + self.duration * (1 - MARGIN))
                self._holders.pop(job_id, None)
            if len(self._holders) + len(holders) > MAX_HOLDERS:
                self._holders.clear()
            self._holders |= holders
        self.on_results(
            {
                job_id: LeaseResult(job_id in generations or job_id not in wanted, holders.get(job_id))
                for job_id in requests
            }
        )
        self._note_contact([job_id for job_id in holders if wanted[job_id]])

    def _take(self, connection: Connection, wanted: Mapping[str, bool]) -> dict[str, int]:
        """Take the leases that are free; returns their generations by job."""
        now = database_now(connection)
        ends = now + self.duration
        # An expiry later than any lease can have was written before the database's clock was set back.
        free = or_(_leases.owner == self.name, _leases.ends_at < now, _leases.ends_at > now + 2 * self.duration)
        values: dict[str, Any] = {"owner": self.name, "url": self.url, "ends_at": ends}
        # Monitors that acquire the same jobs must not wait for each other, which would be a deadlock.
        unlocked = select(_leases.job_id).where(_leases.job_id.in_(wanted), free).with_for_update(skip_locked=True)
        taken = (
            update(schema.leases)
            .where(_leases.job_id.in_(unlocked))
            .values(
                **values,
                generation=_leases.generation + 1,
                asked_by=None,
                former=case((_leases.owner == self.name, _leases.former), else_=_leases.owner),
            )
            .returning(_leases.job_id, _leases.generation)
        )
        generations = {job_id: int(generation) for job_id, generation in connection.execute(taken)}
        if absent := self._without_lease(connection, wanted, wanted.keys() - generations.keys()):
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            rows = [{"job_id": job_id, "generation": 1, **values} for job_id in absent]
            first = insert(schema.leases).values(rows).on_conflict_do_nothing()
            inserted = connection.execute(first.returning(_leases.job_id, _leases.generation))
            generations |= {job_id: int(generation) for job_id, generation in inserted}
        return generations

    def _without_lease(self, connection: Connection, wanted: Mapping[str, bool], job_ids: Collection[str]) -> list[str]:
        """Those of these jobs that never had a lease; without those unknown that only a reader asks about.

        Sorted: all monitors insert in one order, since one waits for the other's insertion of the same job. It would
        also wait for a row that is locked, so those that there are must not be inserted again.
        """
        if not job_ids:
            return []
        present = connection.execute(select(_leases.job_id).where(_leases.job_id.in_(job_ids))).scalars()
        absent = set(job_ids) - set(present)
        read = {job_id for job_id in absent if not wanted[job_id]}
        if read:
            stored = connection.execute(select(schema.jobs.c.id).where(schema.jobs.c.id.in_(read))).scalars()
            absent -= read - set(stored)
        return sorted(absent)

    def _note_contact(self, job_ids: Collection[str]) -> None:
        """Have the holders of jobs notified that this monitor was contacted about them."""
        if not job_ids:
            return
        others = (_leases.owner != self.name, _leases.asked_by.is_distinct_from(self.name))
        unlocked = select(_leases.job_id).where(_leases.job_id.in_(job_ids), *others).with_for_update(skip_locked=True)
        with self._engine.begin() as connection:
            note = update(schema.leases).where(_leases.job_id.in_(unlocked))
            connection.execute(note.values(asked_by=self.name))

    def _renew(self) -> None:
        mine = dict(self._held)
        before = self._clock()
        seen: dict[str, tuple[str, str, int, str | None, str | None]] = {}
        with self._engine.begin() as connection:
            if not mine:  # a connection of the pool shows only when used that the database is away
                database_now(connection)
            for some in _slices(sorted(mine)):
                # One that release() has just ended on another thread stays released.
                ours = (_leases.owner == self.name, _leases.job_id.in_(some), _leases.ends_at > 0.0)
                renewed = update(schema.leases).where(*ours)
                connection.execute(renewed.values(ends_at=database_now(connection) + self.duration, url=self.url))
                for row in connection.execute(select(schema.leases).where(_leases.job_id.in_(some))).mappings():
                    names = row["asked_by"], row["former"]
                    seen[row["job_id"]] = row["owner"], row["url"], row["generation"], *names
        contended: dict[str, tuple[str, bool]] = {}
        for job_id, lease in mine.items():
            owner, url, generation, asked_by, former = seen.get(job_id, ("", "", 0, None, None))
            if owner == self.name and generation == lease.generation:
                lease.until = before + self.duration * (1 - MARGIN)
                if asked_by and lease.contended:
                    lease.times = lease.times + 1 if asked_by == lease.asked else 1
                    lease.asked = asked_by
                    first = lease.times >= (AGAIN_AFTER if former == self.name else FIRST_AFTER)
                    contended[job_id] = asked_by, first
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
        self._delete_abandoned()
        self.on_renewed()

    def _delete_abandoned(self) -> None:
        if not self._abandoned:
            return
        with self._engine.begin() as connection:
            for some in _slices(sorted(abandoned := dict(self._abandoned))):
                rows = tuple_(_leases.job_id, _leases.generation).in_([(job_id, abandoned[job_id]) for job_id in some])
                empty = _leases.job_id.not_in(select(schema.jobs.c.id))
                connection.execute(delete(schema.leases).where(_leases.owner == self.name, rows, empty))
        with self._changed:
            self._abandoned = {each: at for each, at in self._abandoned.items() if abandoned.get(each) != at}

    def _report_contended(self, by: dict[str, tuple[str, bool]]) -> None:
        """Have each of these jobs considered once for the monitor that was asked for it."""
        if not by:
            return
        with self._engine.begin() as connection:
            for some in _slices(sorted(by)):
                asked = update(schema.leases).where(_leases.owner == self.name, _leases.job_id.in_(some))
                connection.execute(asked.values(asked_by=None))
        for job_id, (name, first) in by.items():
            self.on_contended(job_id, name, first)


def _slices(job_ids: list[str], size: int = 500) -> Iterable[list[str]]:
    return (job_ids[start : start + size] for start in range(0, len(job_ids), size))
