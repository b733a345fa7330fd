"""Which monitor holds which job, when several share one database (docs/adr/0012-jobs-are-held-by-lease.md).

How this works
--------------
A row of ``leases`` says who holds a job, until when by the database's clock, and in which generation: how often the job
has changed hands. One thread asks for leases, renews those that are held, three times in the length of one, and notices
those that are gone. What it finds is handed to the callbacks of :class:`Leases`, which are called on that thread.

Two safeguards, either of which is enough. The holder counts from before it asked, on its own monotonic clock, and stops
earlier than anybody else may begin. And whoever writes rows of a job first locks its lease and looks whether it is
still its own (:meth:`Leases.held`, asked by the repository in the same transaction).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from rankwatch_monitor.store import schema
from rankwatch_monitor.store.reading import database_now

log = logging.getLogger("rankwatch.leases")

RENEWALS: Final = 3
"""How often a lease is renewed in its length."""
MARGIN: Final = 0.1
"""Part of a lease that its holder leaves unused, since no two monotonic clocks run quite alike."""
ASK_AGAIN: Final = 0.5
"""Seconds after which one may be asked about the same job again."""
KNOWN_HOLDERS: Final = 10_000
"""Jobs of others that are remembered at most, to say who holds them."""

_leases = schema.leases.c


class Holder(NamedTuple):
    """Who holds a job, as the database last said."""

    name: str
    url: str


class Answer(NamedTuple):
    """What became of asking for a job: it is ours, or another's, or there is no such job (both None)."""

    ours: bool
    holder: Holder | None = None


@dataclass(slots=True)
class _Lease:
    generation: int
    until: float
    """Monotonic seconds at which it is not ours any more, for all we know."""


class Leases:
    """The leases of one monitor. No method waits for the database but those that say so."""

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
            name: this monitor's own among those that share it, the same after a restart.
            url: where this monitor is reached, for those who ask another one.
            duration: seconds that a lease lasts.
            clock: monotonic seconds.
        """
        self.name, self.url, self.duration = name, url, duration
        self.trouble = ""
        """Why the database cannot be asked now; empty while it can."""
        self.on_answer: Callable[[str, Answer], None] = lambda _job, _answer: None
        """What became of asking for a job, also of one that was ours already."""
        self.on_lost: Callable[[str, Holder | None], None] = lambda _job, _holder: None
        """A job that was ours until now."""
        self.on_wanted: Callable[[str, str], None] = lambda _job, _by: None
        """Another monitor is asked about a job of ours; called at each renewal while it stands."""
        self.on_round: Callable[[], None] = lambda: None
        """The leases were just renewed."""
        self._engine, self._clock = engine, clock
        self._held: dict[str, _Lease] = {}
        self._holders: dict[str, Holder] = {}
        self._asked: dict[tuple[str, bool], float] = {}
        self._wanted: dict[str, bool] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rankwatch-leases", daemon=True)

    def start(self) -> None:
        """Begin to ask and to renew."""
        self._thread.start()

    def holds(self, job_id: str) -> bool:
        """Whether this monitor may act for a job now."""
        lease = self._held.get(job_id)
        return lease is not None and self._clock() < lease.until

    def holder(self, job_id: str) -> Holder | None:
        """Who else holds a job, as far as is known."""
        return self._holders.get(job_id)

    def ask(self, job_id: str, *, contact: bool, again: bool = False) -> None:
        """Try to get a job.

        Args:
            job_id: which.
            contact: a rank or launcher of the job spoke to this monitor. Then a job that nobody has heard of becomes
                ours, and who holds it learns that it is we who are spoken to.
            again: also when it was asked for a moment ago, for somebody waits for the answer.
        """
        now = self._clock()
        with self._changed:
            if not again and now - self._asked.get((job_id, contact), -ASK_AGAIN) < ASK_AGAIN:
                return
            if len(self._asked) > KNOWN_HOLDERS:
                self._asked.clear()
            self._asked[job_id, contact] = now
            self._wanted[job_id] = self._wanted.get(job_id, False) or contact
            self._changed.notify()

    def let_go(self, job_id: str) -> None:
        """Give a job away; on any thread, once all that is to be stored of it was stored. Waits for the database."""
        lease = self._held.pop(job_id, None)
        if lease is None:
            return
        mine = (_leases.job_id == job_id, _leases.owner == self.name, _leases.generation == lease.generation)
        try:
            with self._engine.begin() as connection:
                connection.execute(update(schema.leases).where(*mine).values(ends_at=0.0))
        except SQLAlchemyError as error:
            log.warning("the lease of job %s ends by itself, as it cannot be given back: %s", job_id, _cause(error))

    def held(self, connection: Connection, job_ids: Collection[str]) -> set[str]:
        """Of these jobs those that are ours; they stay so until the transaction of ``connection`` ends."""
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
        """Let all jobs go and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        for job_id in list(self._held):
            self.let_go(job_id)

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._attempt(self._take_own)
        next_renewal = self._clock()
        while True:
            with self._changed:
                if not self._wanted and not self._closing:
                    self._changed.wait(max(0.0, next_renewal - self._clock()))
                if self._closing:
                    return
                wanted, self._wanted = self._wanted, {}
            for job_id, contact in wanted.items():
                self._attempt(lambda job_id=job_id, contact=contact: self._take(job_id, contact))  # type: ignore[misc]
            if self._clock() >= next_renewal:
                self._attempt(self._renew)
                # The database that is away is asked again soon: there is not much time left.
                pause = self.duration / RENEWALS if not self.trouble else min(1.0, self.duration / RENEWALS)
                next_renewal = self._clock() + pause

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the thread must live on; drivers raise errors of their own
            if not self.trouble:
                log.error(
                    "the shared database cannot be asked (%s); this monitor acts for its jobs until their leases end",
                    _cause(error),
                )
            self.trouble = _cause(error)
        else:
            if self.trouble:
                log.info("the shared database answers again")
            self.trouble = ""

    def _take_own(self) -> None:
        """Take what this monitor held before it was started anew, so that nobody else watches it meanwhile."""
        with self._engine.connect() as connection:
            now = database_now(connection)
            own = select(_leases.job_id).where(_leases.owner == self.name, _leases.ends_at > now - 10 * self.duration)
            job_ids = list(connection.execute(own).scalars())
        for job_id in job_ids:
            self._take(job_id, contact=False)

    def _take(self, job_id: str, contact: bool) -> None:
        if self.holds(job_id):
            self.on_answer(job_id, Answer(True))
            return
        before = self._clock()
        with self._engine.begin() as connection:
            generation = self._acquire(connection, job_id, contact)
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
                self.on_lost(job_id, None)  # it ended unnoticed, and others have had it since
            self._held[job_id] = _Lease(generation, before + self.duration * (1 - MARGIN))
            self._holders.pop(job_id, None)
        elif holder is not None:
            if len(self._holders) > KNOWN_HOLDERS:
                self._holders.clear()
            self._holders[job_id] = holder
        self.on_answer(job_id, Answer(generation is not None, holder))

    def _acquire(self, connection: Connection, job_id: str, contact: bool) -> int | None:
        now = database_now(connection)
        ends = now + self.duration
        # One that ends long after any lease could was given before the database's clock was set back.
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
                # One that let_go() has just ended on another thread stays ended.
                ours = (_leases.owner == self.name, _leases.job_id.in_(some), _leases.ends_at > 0.0)
                renewed = update(schema.leases).where(*ours)
                connection.execute(renewed.values(ends_at=database_now(connection) + self.duration, url=self.url))
                for row in connection.execute(select(schema.leases).where(_leases.job_id.in_(some))).mappings():
                    seen[row["job_id"]] = row["owner"], row["url"], row["generation"], row["asked_by"]
        for job_id, lease in mine.items():
            owner, url, generation, asked_by = seen.get(job_id, ("", "", 0, None))
            if owner == self.name and generation == lease.generation:
                lease.until = before + self.duration * (1 - MARGIN)
                if asked_by:
                    self.on_wanted(job_id, asked_by)
            elif self._held.get(job_id) is lease:
                del self._held[job_id]
                if owner == self.name:
                    log.error(
                        "job %s was taken by another monitor of the name %s: give each a name of its own (--shared-as)",
                        job_id,
                        owner,
                    )
                holder = Holder(owner, url) if owner and owner != self.name else None
                self.on_lost(job_id, holder)
        self.on_round()


def _slices(job_ids: list[str], size: int = 500) -> Iterable[list[str]]:
    return (job_ids[start : start + size] for start in range(0, len(job_ids), size))


def _cause(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
