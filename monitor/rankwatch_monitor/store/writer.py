"""Writes rows on one thread, a transaction for everything queued meanwhile, so that the event loop never waits.

A :class:`RowWrite` is a row with its companions, which are committed with it or not at all. The :class:`Backlog` keeps
one write for each primary key, the newest; callbacks and companions of a replaced write move over to the newer one, so
an outage of hours costs the memory of one row for each key. Writes stay in the backlog until they are committed and
are retried every second while the database refuses. A row that is itself at fault is dropped and logged.

``on_commit`` callbacks run on this thread. A monitor that uses the database alone does not wait for an unavailable one,
since a hang must be ended even when the disk is full: the callback runs once the database has refused the row, or has
not answered for :data:`STUCK` seconds. A monitor that shares the database (``fence`` is set) may not act without it:
the callback runs after a commit or never, and rows of jobs that it does not own are not written.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Table, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from rankwatch_monitor.store import schema
from rankwatch_monitor.store.db_errors import DbError, Kind, classify, is_row_error
from rankwatch_monitor.store.leases import Leases
from rankwatch_monitor.store.locks import HeldError
from rankwatch_monitor.store.retention import RetentionTask
from rankwatch_monitor.store.session import DamagedError, WriteSession

log = logging.getLogger("rankwatch.store")

QUEUE_LIMIT: Final = 100_000
"""Rows in the queue or the backlog; beyond that the oldest are dropped."""
BATCH: Final = 1_000
"""Rows of one transaction."""
RETRY: Final = 1.0
"""Seconds between two attempts while the database refuses."""
CHECK: Final = 3.0
"""Seconds after which an idle connection is verified."""
STUCK: Final = 6.0
"""Seconds without an answer after which callbacks run anyway; SQLite itself waits 5 s for a lock."""

Companion = tuple[Table, Mapping[str, Any], Callable[[], None]]
"""A table, a row for it, and the callback for its commit."""
Key = tuple[object, ...]
_numbers = itertools.count()


# Rows -----------------------------------------------------------------------------------------------------------------


class RowWrite:
    """One row to upsert or delete, with its companions."""

    __slots__ = ("companions", "deferred", "delete", "key", "number", "on_commit", "refused", "table", "values")

    def __init__(
        self,
        table: Table,
        values: Mapping[str, Any],
        on_commit: Callable[[], None] | None = None,
        deferred: Callable[[], Mapping[str, Any]] | None = None,
        companions: Sequence[Companion] = (),
        *,
        delete: bool = False,
    ) -> None:
        """Describe a row.

        Args:
            values: its columns; for a deletion its primary key.
            on_commit: called after the commit.
            deferred: computes further columns on the writer's thread.
            companions: rows that are committed with it.
        """
        self.companions = [RowWrite(*companion) for companion in companions]
        self.number = next(_numbers)
        self.table, self.values, self.deferred, self.delete = table, values, deferred, delete
        self.on_commit: list[tuple[int, Callable[[], None]]] = [] if on_commit is None else [(self.number, on_commit)]
        key = tuple(values.get(column.name) for column in table.primary_key)
        self.key: Key = (table.name, *(key if None not in key else (self.number,)))
        self.refused = False
        """Counted in :attr:`Writer.errors`."""

    @property
    def job_id(self) -> str | None:
        """The job of the row; None when it has none."""
        return self.values.get("id" if self.table is schema.jobs else "job_id")

    def complete(self) -> None:
        """Compute the deferred columns."""
        if self.deferred is not None:
            self.values, self.deferred = {**self.values, **self.deferred()}, None

    def supersede(self, older: RowWrite) -> None:
        """Take over the companions and callbacks of an older write of the same row."""
        self.companions[:0], self.on_commit[:0] = older.companions, older.on_commit

    def flat(self) -> Iterator[RowWrite]:
        """Its companions and itself."""
        yield from self.companions
        yield self


class Backlog:
    """Uncommitted writes, oldest first, one for each primary key."""

    def __init__(self) -> None:
        self._writes: dict[Key, RowWrite] = {}

    def __len__(self) -> int:
        return len(self._writes)

    def __iter__(self) -> Iterator[RowWrite]:
        return iter(self._writes.values())

    def add(self, write: RowWrite) -> None:
        """Append a write, or put it in the place of the older write of the same row."""
        # It keeps that place: a companion of the older write must not follow its own deletion.
        if (older := self._writes.get(write.key)) is not None:
            write.supersede(older)
        self._writes[write.key] = write

    def first(self, count: int) -> list[RowWrite]:
        """The oldest writes."""
        return list(itertools.islice(self._writes.values(), count))

    def remove(self, writes: Iterable[RowWrite]) -> None:
        """Remove writes."""
        for write in writes:
            self._writes.pop(write.key, None)

    def shrink(self, limit: int) -> list[RowWrite]:
        """Remove and return the oldest writes above ``limit``."""
        dropped = self.first(max(0, len(self._writes) - limit))
        self.remove(dropped)
        return dropped


def execute(connection: Connection, writes: Iterable[RowWrite]) -> None:
    """Execute writes with their companions, the newest for each row, within the connection's transaction."""
    newest: dict[Key, RowWrite] = {}
    for row in sorted((row for write in writes for row in write.flat()), key=lambda row: row.number):
        newest[row.key] = row
    groups: dict[tuple[str, bool, tuple[str, ...]], list[RowWrite]] = {}
    for write in newest.values():
        write.complete()
        groups.setdefault((write.table.name, write.delete, tuple(write.values)), []).append(write)
    for (_, delete, _), group in groups.items():
        if delete:
            _delete(connection, group)
        else:
            _upsert(connection, group)


def _upsert(connection: Connection, writes: Sequence[RowWrite]) -> None:
    table, names = writes[0].table, tuple(writes[0].values)
    keys = [column.name for column in table.primary_key]
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
    if set(keys) <= set(names):
        rest = {name: insert.excluded[name] for name in names if name not in keys}
        insert = insert.on_conflict_do_update(index_elements=keys, set_=rest)
    connection.execute(insert, [dict(write.values) for write in writes])


def _delete(connection: Connection, writes: Sequence[RowWrite]) -> None:
    columns = list(writes[0].table.primary_key)
    keys = [tuple(write.values[column.name] for column in columns) for write in writes]
    connection.execute(writes[0].table.delete().where(tuple_(*columns).in_(keys)))


# The thread -----------------------------------------------------------------------------------------------------------


class Writer:
    """Owns the write session. Methods may be called on any thread and return at once unless documented otherwise."""

    def __init__(self, session: WriteSession) -> None:
        self.errors = 0
        """Rows that were refused since the database last worked."""
        self.lost = 0
        """Rows dropped since the start: the queue was full, or the row was at fault."""
        self.fenced = 0
        """Rows not written since another monitor owns their job."""
        self.db_error: DbError | None = None
        self.fence: Leases | None = None
        """Which jobs this monitor owns in a shared database: rows of others are not written."""
        self.load_pending = not session.is_open
        """The stored jobs are not loaded yet, so nothing is written over them."""
        self.damaged = False
        self.on_open: Callable[[], None] = lambda: None
        """Called on the thread when the database was opened there for the first time."""
        self.on_recall: Callable[[str], None] = lambda _job: None
        """Called on the thread for each job of :meth:`recall`; may raise what the database raises."""
        self._recalls: dict[str, None] = {}
        self._readable: list[str] = []
        self._session = session
        self._opened = session.is_open
        self._backlog = Backlog()
        self._inbox: deque[RowWrite] = deque()
        self._forgotten: set[str] = set()
        self._flushes: list[threading.Event] = []
        self._changed = threading.Condition()
        self._closing = False
        self._retry_at = 0.0
        self._check_at = 0.0
        self._busy_since: float | None = None
        self._in_flight: list[RowWrite] = []
        self._retention: RetentionTask | None = None
        self._thread = threading.Thread(target=self._run, name="rankwatch-store", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Rows that are not committed yet."""
        return len(self._inbox) + len(self._backlog)

    @property
    def stuck_for(self) -> float:
        """Seconds since an unanswered request, once above :data:`STUCK`; else 0."""
        since = self._busy_since
        elapsed = time.monotonic() - since if since is not None else 0.0
        return elapsed if elapsed > STUCK else 0.0

    def put(self, write: RowWrite) -> None:
        """Queue a write; when the queue is full it is dropped and counted."""
        with self._changed:
            accepted = len(self._inbox) < QUEUE_LIMIT and not self._closing
            if accepted:
                self._inbox.append(write)
                self._changed.notify()
            else:
                self.errors += 1
                self.lost += 1
        if not accepted:
            self._stop_waiting([write])
        elif self.stuck_for:
            self._stop_waiting([*self._in_flight, *list(self._inbox)])

    def report_read_error(self, error: DbError) -> None:
        """Note that reading failed: the writer reopens the database, and the stored jobs must be read again first."""
        self.db_error, self._opened, self.load_pending = error, False, True
        self.damaged = self.damaged or error.kind is Kind.DAMAGED

    def confirm_loaded(self) -> None:
        """The stored jobs were loaded: rows may be written over them from now on."""
        with self._changed:
            self.load_pending, self._retry_at = False, 0.0
            self._changed.notify()

    def recall(self, job_id: str) -> None:
        """Have :attr:`on_recall` read a job, once everything that is queued was written."""
        with self._changed:
            self._recalls[job_id] = None
            self._changed.notify()

    def forget(self, job_id: str) -> None:
        """Drop the uncommitted writes of a job: another monitor has owned it since and wrote newer rows."""
        with self._changed:
            self._inbox = deque(write for write in self._inbox if write.job_id != job_id)
            self._forgotten.add(job_id)
            self._changed.notify()

    def retain(self, older_than: float, in_memory: Collection[str] = ()) -> None:
        """Start to delete all jobs without telemetry since ``older_than`` (unix seconds), in small transactions.

        Jobs ``in_memory`` are kept, and so are jobs under a lease.
        """
        with self._changed:
            self._retention = RetentionTask(older_than, frozenset(in_memory))
            self._changed.notify()

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued so far was committed or refused; False after ``timeout`` seconds."""
        done = threading.Event()
        with self._changed:
            self._flushes.append(done)
            self._changed.notify()
        return done.wait(timeout)

    def close(self, timeout: float) -> None:
        """Write what is queued, for ``timeout`` seconds at most, and stop the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        if left := self.waiting:
            log.error("%d rows could not be written before the end: %s", left, self.db_error or "no answer")

    # On the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            closing, flushes = self._gather()
            try:
                self._round(must=bool(flushes) or closing)
            except Exception:
                # The thread must survive whatever a driver raises for a broken disk.
                self.errors += 1
                self._retry_at = time.monotonic() + RETRY
                log.exception("unexpected error on the store's thread")
            for done in flushes:
                done.set()
            if closing:
                self._session.close()
                return

    def _gather(self) -> tuple[bool, list[threading.Event]]:
        """Wait until there is something to do, and move the queue into the backlog."""
        with self._changed:
            if not (self._inbox or self._recalls or self._flushes or self._closing):
                self._changed.wait(self._pause())
            if self._forgotten:  # before the queue is moved: writes queued after forget() are kept
                self._backlog.remove([write for write in self._backlog if write.job_id in self._forgotten])
                self._forgotten.clear()
            for _ in range(len(self._inbox)):
                self._backlog.add(self._inbox.popleft())
            self._readable = list(self._recalls)  # what was queued of them before is written first
            flushes, self._flushes = self._flushes, []
            closing = self._closing
        if dropped := self._backlog.shrink(QUEUE_LIMIT):
            self.lost += len(dropped)
            self._stop_waiting(dropped)
        return closing, flushes

    def _pause(self) -> float:
        now = time.monotonic()
        if self._retention is not None and self.db_error is None:
            return 0.01
        waiting = len(self._backlog) or self._recalls or self.db_error is not None
        due = self._retry_at if waiting else self._check_at
        return min(max(due - now, 0.01), CHECK)

    def _round(self, *, must: bool) -> None:
        if self.damaged:
            self._refuse(list(self._backlog))
            self.lost += len(self._backlog)
            self._backlog = Backlog()
            return
        if self.db_error is not None and not must and time.monotonic() < self._retry_at:
            self._refuse(list(self._backlog))
            return
        if self.load_pending:
            self._attempt([])
            self._retry_at = time.monotonic() + RETRY
            if self.load_pending:
                self._refuse(list(self._backlog))
                return
        if len(self._backlog) or self.db_error is not None:
            while self._attempt(self._backlog.first(BATCH)):
                if not len(self._backlog):
                    break
        elif time.monotonic() >= self._check_at:
            self._attempt([])
        if self._readable and self.db_error is None:
            self._read_recalled()
        if self._retention is not None and self.db_error is None and not self._inbox:
            self._delete_expired()

    def _read_recalled(self) -> None:
        """Read the recalled jobs, after everything that was queued of them before."""
        for job_id in self._readable:
            try:
                self._session.open()
                self.on_recall(job_id)
            except Exception as error:  # noqa: BLE001 - as below
                self._fail(error)
                return
            with self._changed:
                self._recalls.pop(job_id, None)

    def _attempt(self, writes: list[RowWrite]) -> bool:
        """Commit writes, or verify the connection when there are none; False when the database refuses."""
        self._check_at = time.monotonic() + CHECK
        try:
            self._in_flight, self._busy_since = writes, time.monotonic()
            try:
                written = self._write(writes)
            finally:
                self._in_flight, self._busy_since = [], None
        except Exception as error:  # noqa: BLE001 - the writer's thread must live on; drivers raise errors of their own
            if self._session.is_open and writes and is_row_error(error):
                if len(writes) > 1:
                    # One bad row must not cost the others of its batch.
                    return all(self._attempt([write]) for write in writes)
                self._drop_bad_row(writes[0], error)
                return True
            self._fail(error)
            return False
        self._backlog.remove(writes)
        self._succeed()
        self._run_callbacks(written)
        return True

    def _write(self, writes: list[RowWrite]) -> list[RowWrite]:
        self._session.open()
        if not self._opened:
            self.on_open()
            self._opened = True
        if not writes:
            self._session.check()
            return []
        with self._session.transaction() as connection:
            written = writes
            if self.fence is not None:
                jobs = {write.job_id for write in writes if write.job_id is not None}
                owned = self.fence.owned(connection, jobs) if jobs else set()
                written = [write for write in writes if write.job_id is None or write.job_id in owned]
            execute(connection, written)
        if self.fence is not None:
            self.fenced += sum(1 for w in writes for _ in w.flat()) - sum(1 for w in written for _ in w.flat())
        return written

    def _succeed(self) -> None:
        if len(self._backlog) or self.load_pending:
            return
        if self.db_error is not None:
            lost = f"; {self.lost} rows were lost since the start" if self.lost else ""
            log.info("the database works again, and the backlog was written%s", lost)
            self.db_error = None
        self.errors = 0

    def _fail(self, error: Exception) -> None:
        if isinstance(error, HeldError):
            db_error = DbError(Kind.LOCKED, str(error), "until then this monitor continues in memory")
        else:
            db_error = classify(error, self._session.engine.url)
            if isinstance(error, (ValueError, DamagedError)):
                db_error = db_error._replace(kind=Kind.DAMAGED if isinstance(error, DamagedError) else Kind.OTHER)
        self._session.drop()
        self._retry_at = time.monotonic() + RETRY
        if self.db_error is None or self.db_error.kind is not db_error.kind:
            log.error("the database refuses (%s); the monitor continues in memory", db_error)
        self.db_error = db_error
        self.damaged = db_error.kind is Kind.DAMAGED
        self._refuse(list(self._backlog))

    def _refuse(self, writes: Iterable[RowWrite]) -> None:
        for write in writes:
            if not write.refused:
                write.refused = True
                self.errors += sum(1 for _ in write.flat())
                self._stop_waiting([write])

    def _drop_bad_row(self, write: RowWrite, error: Exception) -> None:
        self._backlog.remove([write])
        self.errors += 1
        self.lost += 1
        log.error("a row of %s cannot be stored and is dropped: %s", write.table.name, error)
        self._stop_waiting([write])

    def _delete_expired(self) -> None:
        task = self._retention
        assert task is not None
        try:
            with self._session.transaction() as connection:
                done = task.delete_chunk(connection)
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("expired jobs are not deleted for now: %s", classify(error, self._session.engine.url))
            self._session.drop()
            done = True
        with self._changed:
            if done and self._retention is task:
                self._retention = None
                if task.jobs:
                    log.info("%d expired jobs were deleted", task.jobs)

    def _stop_waiting(self, writes: Iterable[RowWrite]) -> None:
        """Run the callbacks of writes that are not committed, unless the database is shared."""
        if self.fence is None:
            self._run_callbacks(writes)

    def _run_callbacks(self, writes: Iterable[RowWrite]) -> None:
        """Run the callbacks of writes, each once, in the order in which they were queued."""
        callbacks: list[tuple[int, Callable[[], None]]] = []
        with self._changed:
            for row in (row for write in writes for row in write.flat()):
                callbacks += row.on_commit
                row.on_commit = []
        for _, callback in sorted(callbacks, key=itemgetter(0)):
            try:
                callback()
            except Exception:
                self.errors += 1
                log.exception("a commit callback failed")
