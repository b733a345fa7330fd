"""The store: jobs, incidents and what was decided, in SQLite or PostgreSQL.

``save`` queues a row and returns at once; one thread (:mod:`.writer`) writes whatever has queued up in one transaction.
A caller that must know (a directive is committed before it is handed out) passes ``then``, called after the commit.
While the database refuses, the monitor goes on in memory and what it would have written waits.

``beside`` says which rows belong to a row: they are committed with it or not at all. So an incident is never stored
without the messages about it that wait to be delivered.

A database that is not there at the start may come later. Then nothing is written before the monitor has taken up what
was stored earlier (:meth:`Repository.came_late`), so that no older record is written over by one that knows less.

What is a mistake of whoever starts the monitor (a file that is no database, one that another monitor has) is refused at
once. What may pass, and a damaged file, must not leave jobs unwatched: then it starts, says so, and keeps in memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Table
from sqlalchemy.exc import SQLAlchemyError

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.store import reading
from rankwatch_monitor.store.db_errors import MISTAKES, Kind, Trouble, place, trouble_of
from rankwatch_monitor.store.engine import file_of, open_engine
from rankwatch_monitor.store.fence import Fence
from rankwatch_monitor.store.reading import Summary
from rankwatch_monitor.store.rows import Companion, Unit
from rankwatch_monitor.store.session import DamagedError, Session
from rankwatch_monitor.store.writer import Writer

__all__ = ["Companion", "Fence", "Repository", "Summary"]

log = logging.getLogger("rankwatch.store")

LOCK_PATIENCE: Final = 3.0
"""Seconds to wait for the lock of a monitor that is just ending; one of a killed launcher notices within one."""
START_PATIENCE: Final = 10.0
"""Seconds to wait at the start for a PostgreSQL that is just being restarted."""
END_PATIENCE: Final = 10.0
"""Seconds that the end waits for the database."""

Beside = Callable[[Table, Mapping[str, Any]], Sequence[Companion]]
"""Rows that belong to a row of a table; must return at once and never raises."""


class Repository:
    """Rows in, rows out. Every method may be called from the loop; none waits for the disk but those that say so."""

    def __init__(self, url: str, shared: bool = False) -> None:
        """Open the database, take it for this monitor, and bring its tables to this version.

        Args:
            url: a SQLAlchemy URL, or a path for SQLite.
            shared: several monitors use it, which hold jobs by lease.

        Raises:
            ValueError: the database cannot be meant: it is something else, another monitor's, or of a newer version;
                the text says which and what to do.
        """
        self.engine = open_engine(url)
        self.shared = shared
        self.beside: Beside | None = None
        """Asked at every :meth:`save`."""
        session = Session(self.engine, shared=shared)
        trouble = self._open(session)
        self._taken_up: set[str] = set()
        self._room = (1_000, 1 << 30)
        self._late: list[Job] | None = None
        self._late_lock = threading.Lock()
        self._writer = Writer(session)
        if trouble is not None:
            self._writer.trouble, self._writer.damaged = trouble, trouble.kind is Kind.DAMAGED
        self._writer.on_open = self._read_late
        self._writer.start()

    # How it fares -----------------------------------------------------------------------------------------------------

    @property
    def errors(self) -> int:
        """Rows that the database has refused since it last worked."""
        return self._writer.errors

    @property
    def lost(self) -> int:
        """Rows since the start that will never be written."""
        return self._writer.lost

    @property
    def fenced(self) -> int:
        """Rows since the start that were not written, since their job had become another monitor's."""
        return self._writer.fenced

    @property
    def waiting(self) -> int:
        """Rows that are not written yet."""
        return self._writer.waiting

    @property
    def fence(self) -> Fence | None:
        """Says which jobs are ours, when the database is shared: of others nothing is written."""
        return self._writer.fence

    @fence.setter
    def fence(self, fence: Fence | None) -> None:
        self._writer.fence = fence

    @property
    def trouble(self) -> str:
        """What is wrong with the database and what to do, in a sentence; empty when all is well."""
        if (trouble := self._writer.trouble) is not None:
            return str(trouble)
        if silent := self._writer.silent_for:
            return f"the database {place(self.engine.url)} has not answered for {silent:.0f} s"
        return ""

    @property
    def late(self) -> bool:
        """What was stored before is not known yet: the database was not there, or could not be read."""
        return self._writer.late and not self.shared

    # Out --------------------------------------------------------------------------------------------------------------

    def load(self, now: float, most: int = 1_000, ranks: int = 1 << 30) -> list[Job]:
        """The ``most`` jobs heard last, with incidents and recent directives, as a monitor takes them up at ``now``.

        Together they have no more than so many ``ranks``. Waits for the database. A row that cannot be read (a newer
        version wrote it, say) is left out and said.
        """
        self._room = most, ranks
        if self._writer.trouble is not None:
            return []  # said already; and a damaged file is left alone
        try:
            with self.engine.connect() as connection:
                jobs, error = reading.read_jobs(connection, now, most, ranks)
        except SQLAlchemyError as refused:
            jobs, error = [], refused
        self._taken_up.update(job.id for job in jobs)
        if error is not None:
            trouble = trouble_of(error, self.engine.url)
            log.error("not all that is stored can be read (%s); the monitor goes on in memory", trouble)
            self._writer.doubt(trouble)
        return jobs

    def came_late(self) -> list[Job] | None:
        """Once a database that came late was read: the jobs stored in it, which :meth:`taken_up` then confirms."""
        with self._late_lock:
            jobs, self._late = self._late, None
            return jobs

    def taken_up(self) -> None:
        """What was stored before is known now: from here on rows may be written over."""
        self._writer.go_on()

    def load_job(self, job_id: str, now: float) -> Job | None:
        """One job as :meth:`load` takes it up; None when there is no such one. Waits for the database.

        Raises:
            SQLAlchemyError: the database cannot be asked.
        """
        with self.engine.connect() as connection:
            return reading.read_job(connection, job_id, now)

    def summaries(self, limit: int) -> list[Summary]:
        """The ``limit`` jobs heard last, as a list shows them. Waits for the database.

        Raises:
            SQLAlchemyError: the database cannot be asked.
        """
        with self.engine.connect() as connection:
            return reading.read_summaries(connection, limit)

    # In ---------------------------------------------------------------------------------------------------------------

    def save(
        self,
        table: Table,
        values: Mapping[str, Any],
        then: Callable[[], None] | None = None,
        late: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Queue one row to be written; a row with the same primary key is replaced.

        Args:
            table: where it belongs.
            values: its columns.
            then: called once it was committed, on any thread. While the database is away it is called all the same,
                unless a :attr:`fence` is set.
            late: makes further columns on the writer's thread: what takes long to encode must not hold up the loop.
        """
        beside = self.beside(table, values) if self.beside is not None else ()
        self._writer.put(Unit(table, values, then, late, beside))

    def remove(self, table: Table, key: Mapping[str, Any]) -> None:
        """Queue the removal of the row with this primary key; one that is not there is no error."""
        self._writer.put(Unit(table, key, gone=True))

    def forget(self, job_id: str) -> None:
        """Never write what still waits of a job: another monitor has had it since."""
        self._writer.forget(job_id)

    def retain(self, older_than: float, held: Collection[str] = ()) -> None:
        """Have all jobs removed, bit by bit on the writer's thread, that were last heard before a time.

        Args:
            older_than: unix seconds.
            held: jobs that are in memory, which stay; as do those that another monitor holds by a lease.
        """
        self._writer.retain(older_than, held)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything queued so far is written or was refused; for shutting down and for tests."""
        return self._writer.flush(timeout)

    def close(self) -> None:
        """Write what is queued, as far as the database takes it, and let the database go."""
        self._writer.close(END_PATIENCE)
        self.engine.dispose()

    def _open(self, session: Session) -> Trouble | None:
        """Open the database; return why it cannot be used now.

        Raises:
            ValueError: it cannot be meant.
        """
        deadline = time.monotonic() + (START_PATIENCE if file_of(self.engine.url) is None else 0.0)
        while True:
            try:
                session.open(LOCK_PATIENCE, look_through=True)
                return None
            except ValueError:
                session.close()
                raise
            except (SQLAlchemyError, DamagedError, OSError) as error:
                trouble = trouble_of(error, self.engine.url)
                if trouble.kind in MISTAKES:
                    session.close()
                    raise ValueError(f"cannot open the database {place(self.engine.url)}: {trouble}") from error
            if trouble.kind is Kind.DAMAGED or time.monotonic() >= deadline:
                log.error("the database cannot be used (%s); the monitor goes on in memory", trouble)
                return trouble
            time.sleep(0.5)

    def _read_late(self) -> None:
        """Read what was stored before; on the writer's thread, when the database was opened there first.

        Raises:
            SQLAlchemyError: it cannot be asked.
        """
        if self.shared:  # jobs are read one by one, as they become ours
            self._writer.go_on()
            return
        with self.engine.connect() as connection:
            jobs, error = reading.read_jobs(connection, time.time(), *self._room)
        if error is not None:
            raise error
        with self._late_lock:
            self._late = [job for job in jobs if job.id not in self._taken_up]
