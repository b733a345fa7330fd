"""The repository: jobs, incidents, directives and webhook messages, in SQLite or PostgreSQL.

``save`` queues a row and returns at once; one thread (:mod:`.writer`) writes everything queued in one transaction. A
caller that must know (a directive is committed before it is published) passes ``on_commit``. While the database
refuses, the monitor continues in memory and the rows wait.

``companions`` returns the rows that belong to a row: they are committed with it or not at all. An incident is therefore
never stored without its undelivered webhook messages.

A database that is unreachable at the start may become available later. Nothing is written before its jobs were loaded
(:meth:`Repository.take_pending`) and merged, so that no stored row is overwritten by one with less history.

A configuration error (a file that is not a database, one that another monitor has locked) ends the monitor at once. A
transient error or a damaged file must not leave jobs unwatched: the monitor starts, logs the error, and continues in
memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Integer, RowMapping, Table, and_, func, select
from sqlalchemy.exc import SQLAlchemyError

from rankwatch_monitor.core.job import KEPT_DIRECTIVES, KEPT_INCIDENTS, Job
from rankwatch_monitor.store import codec, performance_codec, schema
from rankwatch_monitor.store.db_errors import CONFIGURATION_ERRORS, DbError, Kind, classify, database_name
from rankwatch_monitor.store.engine import database_now, file_of, open_engine
from rankwatch_monitor.store.session import DamagedError, WriteSession
from rankwatch_monitor.store.writer import Companion, RowWrite, Writer

log = logging.getLogger("rankwatch.store")

LOCK_TIMEOUT: Final = 3.0
"""Seconds to wait for the lock of a monitor that is shutting down; one of a killed launcher notices within one."""
START_TIMEOUT: Final = 10.0
"""Seconds to wait at the start for a PostgreSQL server that is restarting."""
CLOSE_TIMEOUT: Final = 10.0
"""Seconds for which closing waits for the database."""

TOGETHER: Final = 64
"""Jobs whose rows are read together."""

Companions = Callable[[Table, Mapping[str, Any]], Sequence[Companion]]
"""The rows that belong to a row of a table; must return at once and never raise."""


class JobSummary(NamedTuple):
    """A job as a list shows it; times are unix seconds."""

    id: str
    name: str
    state: str
    """As of the newest transition; empty when there is none."""
    world_size: int
    attempt: int
    started_at: float
    last_heard: float
    holder: str | None
    """The monitor that holds the job's lease now."""


class Repository:
    """Stores and loads jobs. Methods return at once unless they document that they wait for the database."""

    def __init__(self, url: str, shared: bool = False) -> None:
        """Open and lock the database, and upgrade its schema.

        Args:
            url: a SQLAlchemy URL, or a path for SQLite.
            shared: several monitors use it, and hold jobs by lease.

        Raises:
            ValueError: a configuration error: it is not a database, another monitor has locked it, or its schema is
                newer; the message names it and how to resolve it.
        """
        self.engine = open_engine(url)
        self.shared = shared
        self.companions: Companions | None = None
        """Called at every :meth:`save`."""
        self.on_jobs_loaded: Callable[[Connection, Collection[str]], None] = lambda _connection, _jobs: None
        """Called for jobs that are loaded after the start by a monitor that did not have them before, on any thread,
        to read what else is stored of them."""
        session = WriteSession(self.engine, shared=shared)
        error = self._open(session)
        self._loaded: set[str] = set()
        self._room = (1_000, 1 << 30)
        self._pending: list[Job] | None = None
        self._pending_lock = threading.Lock()
        self._unloaded: set[str] = set()
        """Stored jobs that are not in memory."""
        self._recalled: list[tuple[str, Job | None]] = []
        self.writer = Writer(session)
        if error is not None:
            self.writer.db_error, self.writer.damaged = error, error.kind is Kind.DAMAGED
        self.writer.on_open, self.writer.on_recall = self._load_pending_jobs, self._load_recalled
        self.writer.start()

    # Health -----------------------------------------------------------------------------------------------------------

    @property
    def db_error(self) -> str:
        """What is wrong with the database and how to fix it; empty when it works."""
        if (error := self.writer.db_error) is not None:
            return str(error)
        if seconds := self.writer.stuck_for:
            return f"the database {database_name(self.engine.url)} has not answered for {seconds:.0f} s"
        return ""

    @property
    def load_pending(self) -> bool:
        """The stored jobs are not known yet: the database was unreachable at the start, or could not be read."""
        return self.writer.load_pending and not self.shared

    # Reading ----------------------------------------------------------------------------------------------------------

    def load(self, now: float, limit: int = 1_000, ranks: int = 1 << 30) -> list[Job]:
        """The ``limit`` most recently active jobs, with incidents and recent directives, for a monitor that starts now.

        Together they have ``ranks`` ranks at most. Waits for the database. An unreadable row (written by a newer
        version, for example) is skipped and logged. ``now`` is unix seconds.
        """
        self._room = limit, ranks
        if self.writer.db_error is not None:
            return []  # logged already; and a damaged file is not touched
        try:
            with self.engine.connect() as connection:
                jobs, error = _read_jobs(connection, now, limit, ranks)
                self._note_unloaded(connection, jobs)
        except SQLAlchemyError as refused:
            jobs, error = [], refused
        self._loaded.update(job.id for job in jobs)
        if error is not None:
            classified = classify(error, self.engine.url)
            log.error("not all stored jobs can be read (%s); the monitor continues in memory", classified)
            self.writer.report_read_error(classified)
        return jobs

    def take_pending(self) -> list[Job] | None:
        """The jobs of a database that became available after the start, once; then call :meth:`confirm_loaded`."""
        with self._pending_lock:
            jobs, self._pending = self._pending, None
            return jobs

    def confirm_loaded(self) -> None:
        """The pending jobs were merged: rows may be written over them from now on."""
        self.writer.confirm_loaded()

    def evicted(self, job_id: str) -> None:
        """Note that a stored job leaves memory."""
        self._unloaded.add(job_id)

    def recall(self, job_id: str) -> bool:
        """Have a job that is stored and not in memory read; False when it is not such.

        Its rows must not be written before :meth:`take_recalled` has returned it.
        """
        if self.shared or job_id not in self._unloaded:
            return False
        self._unloaded.discard(job_id)
        self.writer.recall(job_id)
        return True

    def take_recalled(self) -> list[tuple[str, Job | None]]:
        """The jobs read since the last call; None for one that is no longer stored, or unreadable."""
        with self._pending_lock:
            recalled, self._recalled = self._recalled, []
            return recalled

    def load_jobs(self, job_ids: Collection[str], now: float) -> dict[str, Job]:
        """Jobs as :meth:`load` returns them, without those that are not stored or unreadable. Waits for the database.

        Raises:
            SQLAlchemyError: the query failed.
        """
        if not job_ids:
            return {}
        with self.engine.connect() as connection:
            stored = select(schema.jobs).where(schema.jobs.c.id.in_(job_ids))
            rows = connection.execute(stored).mappings().all()
            jobs = {job.id: job for job in _jobs(connection, rows, now)}
            if self.shared and jobs:
                self.on_jobs_loaded(connection, jobs)
            return jobs

    def load_job(self, job_id: str, now: float) -> Job | None:
        """One job as :meth:`load_jobs` returns it; None when it is not stored or unreadable. Waits for the database.

        Raises:
            SQLAlchemyError: the query failed.
        """
        return self.load_jobs((job_id,), now).get(job_id)

    def summaries(self, limit: int) -> list[JobSummary]:
        """The ``limit`` most recently active jobs. Waits for the database.

        Raises:
            SQLAlchemyError: the query failed.
        """
        with self.engine.connect() as connection:
            return _read_summaries(connection, limit)

    # Writing ----------------------------------------------------------------------------------------------------------

    def save(
        self,
        table: Table,
        values: Mapping[str, Any],
        on_commit: Callable[[], None] | None = None,
        deferred: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Queue an upsert.

        Args:
            values: its columns.
            on_commit: called once it was committed, on any thread. While the database is unavailable it is called
                without a commit, unless the writer has a ``fence``.
            deferred: computes further columns on the writer's thread, for bodies that take long to encode.
        """
        companions = self.companions(table, values) if self.companions is not None else ()
        self.writer.put(RowWrite(table, values, on_commit, deferred, companions))

    def remove(self, table: Table, key: Mapping[str, Any]) -> None:
        """Queue the deletion of the row with this primary key; a missing row is no error."""
        self.writer.put(RowWrite(table, key, delete=True))

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything queued so far was committed or refused."""
        return self.writer.flush(timeout)

    def close(self) -> None:
        """Write the queue, as far as the database accepts it, and close the database."""
        self.writer.close(CLOSE_TIMEOUT)
        self.engine.dispose()

    # Opening ----------------------------------------------------------------------------------------------------------

    def _open(self, session: WriteSession) -> DbError | None:
        """Open the database; returns why it cannot be used now.

        Raises:
            ValueError: a configuration error.
        """
        deadline = time.monotonic() + (START_TIMEOUT if file_of(self.engine.url) is None else 0.0)
        while True:
            try:
                session.open(LOCK_TIMEOUT, check_file=True)
                return None
            except ValueError:
                session.close()
                raise
            except (SQLAlchemyError, DamagedError, OSError) as error:
                classified = classify(error, self.engine.url)
                if classified.kind in CONFIGURATION_ERRORS:
                    session.close()
                    raise ValueError(
                        f"cannot open the database {database_name(self.engine.url)}: {classified}"
                    ) from error
            if classified.kind is Kind.DAMAGED or time.monotonic() >= deadline:
                log.error("the database cannot be used (%s); the monitor continues in memory", classified)
                return classified
            time.sleep(0.5)

    def _load_pending_jobs(self) -> None:
        """Load the stored jobs on the writer's thread, when the database was opened there first.

        Raises:
            SQLAlchemyError: the query failed.
        """
        if self.shared:  # jobs are loaded one by one, as their leases are acquired
            self.writer.confirm_loaded()
            return
        with self.engine.connect() as connection:
            jobs, error = _read_jobs(connection, time.time(), *self._room)
            if error is not None:
                raise error
            self._note_unloaded(connection, jobs)
            self.on_jobs_loaded(connection, [job.id for job in jobs])
        with self._pending_lock:
            self._pending = [job for job in jobs if job.id not in self._loaded]

    def _load_recalled(self, job_id: str) -> None:
        job = self.load_job(job_id, time.time())
        with self._pending_lock:
            self._recalled.append((job_id, job))

    def _note_unloaded(self, connection: Connection, loaded: Iterable[Job]) -> None:
        if not self.shared:
            known = self._loaded | {job.id for job in loaded}
            # Jobs may have been evicted before the database was read, and are not stored yet.
            self._unloaded |= {job_id for (job_id,) in connection.execute(select(schema.jobs.c.id))} - known


# Queries --------------------------------------------------------------------------------------------------------------


def _read_jobs(connection: Connection, now: float, limit: int, ranks: int) -> tuple[list[Job], SQLAlchemyError | None]:
    """The readable jobs among the ``limit`` most recently active, and the error that ended the reading, if any.

    Skips jobs that would exceed ``ranks`` ranks together with more recently active ones.
    """
    jobs: list[Job] = []
    try:
        newest = select(schema.jobs).order_by(schema.jobs.c.last_heard.desc()).limit(limit)
        fitting: list[RowMapping] = []
        for row in connection.execute(newest).mappings().all():
            try:
                world = row["body"]["world_size"]
                if not codec.is_world(world):  # a negative one would make room for others
                    raise ValueError("it has more ranks than any job, or fewer than none")
            except codec.UNREADABLE as error:
                _skip(row, error)
                continue
            if world <= ranks:
                fitting.append(row)
                ranks -= world
        for start in range(0, len(fitting), TOGETHER):
            jobs += _jobs(connection, fitting[start : start + TOGETHER], now)
    except SQLAlchemyError as error:
        return jobs, error
    return jobs, None


def _read_summaries(connection: Connection, limit: int) -> list[JobSummary]:
    jobs, transitions, leases = schema.jobs.c, schema.transitions.c, schema.leases.c
    state = (
        select(transitions.state)
        .where(transitions.job_id == jobs.id)
        .order_by(transitions.at.desc(), transitions.number.desc())
        .limit(1)
        .scalar_subquery()
    )
    # The body of a large job is large, so the database extracts the fields.
    query = (
        select(
            jobs.id,
            jobs.body["name"].as_string().label("name"),
            func.coalesce(state, "").label("state"),
            jobs.body["world_size"].as_integer().cast(Integer).label("world_size"),
            jobs.body["attempt"].as_integer().cast(Integer).label("attempt"),
            jobs.created_at,
            jobs.last_heard,
            leases.owner,
        )
        .join_from(
            schema.jobs,
            schema.leases,
            and_(leases.job_id == jobs.id, leases.ends_at > database_now(connection)),
            isouter=True,
        )
        .order_by(jobs.last_heard.desc())
        .limit(limit)
    )
    return [JobSummary(*row) for row in connection.execute(query)]


def _jobs(connection: Connection, rows: Sequence[RowMapping], now: float) -> list[Job]:
    """The jobs of these rows with all that is stored of them; unreadable ones are skipped."""
    if not rows:
        return []
    job_ids = [row["id"] for row in rows]

    def stored(table: Table) -> list[dict[str, Any]]:
        found = connection.execute(select(table).where(table.c.job_id.in_(job_ids))).mappings()
        return [dict(row) for row in found]

    launchers = _by_job(stored(schema.launchers))
    performances = {row["job_id"]: row["body"] for row in stored(schema.performances)}
    trends = _by_job(stored(schema.trends))
    incidents = _by_job(_newest(connection, schema.incidents, job_ids))
    directives = _by_job(_newest(connection, schema.directives, job_ids))
    jobs = []
    for row in rows:
        try:
            nodes = [each["body"] for each in launchers[row["id"]]]
            job = codec.job_of(dict(row), now, nodes or None)
            job.incidents = [codec.incident_of(each) for each in incidents[job.id]]
            job.directives = [codec.directive_of(each) for each in directives[job.id]]
            # The job's own row may be older than its newest directive; a number must never be reused.
            job.last_directive = max([job.last_directive, *(directive.id for directive in job.directives)])
            if (performance := performances.get(job.id)) is not None:
                performance_codec.restore(job.performance, performance)
            job.trends.restore((each["slot"], each["body"]) for each in trends[job.id])
            job.logged.resume()
        except codec.UNREADABLE as error:
            _skip(row, error)
        else:
            jobs.append(job)
    return jobs


def _skip(row: RowMapping, error: Exception) -> None:
    log.warning("the stored job %s is unreadable and starts without its past: %r", row["id"], error)


def _by_job(rows: Iterable[dict[str, Any]]) -> defaultdict[str, list[dict[str, Any]]]:
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["job_id"]].append(row)
    return found


def _newest(connection: Connection, table: Table, job_ids: Collection[str]) -> list[dict[str, Any]]:
    """The newest incidents or directives of each job, oldest first."""
    order, limit = (table.c.opened_at, KEPT_INCIDENTS) if table is schema.incidents else (table.c.id, KEPT_DIRECTIVES)
    place = func.row_number().over(partition_by=table.c.job_id, order_by=order.desc()).label("place")
    numbered = select(table, place).where(table.c.job_id.in_(job_ids)).subquery()
    query = select(*(numbered.c[column.name] for column in table.c)).where(numbered.c.place <= limit)
    return [dict(row) for row in connection.execute(query.order_by(numbered.c.place.desc())).mappings()]
