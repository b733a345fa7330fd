"""The store: one thread owns the database, so that the loop never waits for a disk.

``save`` queues a row and returns at once; whatever has queued up is written in one transaction. A caller that must
know (a directive is committed before it is handed out) passes ``then``, called on the writer's thread after the commit.
When the database refuses a row, that row is lost, which is said once and counted; the monitor goes on in memory, and
the next state of the same job or incident is tried again.

``beside`` says which rows belong to a row: they are committed with it or not at all. So an incident is never stored
without the messages about it that wait to be delivered.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, make_url, select
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from rankwatch_monitor.core.state import KEPT_DIRECTIVES, KEPT_INCIDENTS, Job
from rankwatch_monitor.store import codec, performances, schema

log = logging.getLogger("rankwatch.store")

QUEUE_LIMIT = 100_000
"""Rows that may wait for the disk; beyond that the oldest state of a row is not worth its memory."""


Companion = tuple[Table, Mapping[str, Any], Callable[[], None]]
"""A table, a row for it, and what is called once it was written, as by :meth:`Repository.save`."""
Beside = Callable[[Table, Mapping[str, Any]], Sequence[Companion]]
"""Rows that belong to a row of a table; must return at once and never raises."""


class _Row:
    __slots__ = ("beside", "gone", "late", "table", "then", "values")

    def __init__(
        self,
        table: Table,
        values: Mapping[str, Any],
        then: Callable[[], None] | None,
        late: Callable[[], Mapping[str, Any]] | None,
        beside: Sequence[Companion] = (),
        gone: bool = False,
    ) -> None:
        self.table, self.values, self.then, self.late, self.gone = table, values, then, late, gone
        self.beside = [_Row(*companion, None) for companion in beside]

    def complete(self) -> None:
        """Make what was left to be made on the writer's thread."""
        if self.late is not None:
            self.values, self.late = {**self.values, **self.late()}, None


class Repository:
    """Rows in, rows out. Every method may be called from the loop; none of them waits for the disk but :meth:`load`."""

    def __init__(self, url: str) -> None:
        """Open the database at a SQLAlchemy URL, or at a path for SQLite; make the tables when they are not there.

        Raises:
            ValueError: the database cannot be opened; the text says which and why.
        """
        self.engine = _engine(url)
        try:
            schema.metadata.create_all(self.engine)
        except SQLAlchemyError as error:
            raise ValueError(f"cannot open the database {self.engine.url}: {_cause(error)}") from error
        self.errors = 0
        self.beside: Beside | None = None
        """Asked at every :meth:`save`."""
        self._queue: queue.Queue[_Row | threading.Event | None] = queue.Queue(QUEUE_LIMIT)
        self._thread = threading.Thread(target=self._write_all, name="rankwatch-store", daemon=True)
        self._thread.start()

    def load(self, now: float, most: int = 1_000) -> list[Job]:
        """The ``most`` jobs heard last, with incidents and recent directives, as a monitor takes them up at ``now``.

        A row that cannot be read (a newer version wrote it, say) is left out and said.
        """
        jobs = []
        with self.engine.connect() as connection:
            newest = select(schema.jobs).order_by(schema.jobs.c.last_heard.desc()).limit(most)
            for row in connection.execute(newest).mappings().all():
                try:
                    job = codec.job_of(dict(row), now)
                    job.incidents = [codec.incident_of(r) for r in _newest(connection, schema.incidents, job.id)]
                    job.directives = [codec.directive_of(r) for r in _newest(connection, schema.directives, job.id)]
                    query = select(schema.performances).where(schema.performances.c.job_id == job.id)
                    if (stored := connection.execute(query).mappings().first()) is not None:
                        performances.restore(job.performance, stored["body"])
                except (ValueError, KeyError, TypeError) as error:
                    log.warning("the stored job %s is left out, as it cannot be read: %r", row["id"], error)
                else:
                    jobs.append(job)
        return jobs

    def save(
        self,
        table: Table,
        values: Mapping[str, Any],
        then: Callable[[], None] | None = None,
        late: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Queue one row to be written; a row with the same primary key is replaced.

        ``late`` makes further values on the writer's thread: what takes long to encode must not hold up the loop.
        """
        beside = self.beside(table, values) if self.beside is not None else ()
        self._put(_Row(table, values, then, late, beside))

    def remove(self, table: Table, key: Mapping[str, Any]) -> None:
        """Queue the removal of the row with this primary key; one that is not there is no error."""
        self._put(_Row(table, key, None, None, gone=True))

    def _put(self, row: _Row) -> None:
        try:
            self._queue.put_nowait(row)
        except queue.Full:
            self.errors += 1
            for lost in (*row.beside, row):
                self._tell(lost)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything queued so far is written; for shutting down and for tests."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout)

    def close(self) -> None:
        """Write what is queued and let the database go."""
        self._queue.put(None)
        self._thread.join(timeout=10.0)
        self.engine.dispose()

    def _write_all(self) -> None:
        while True:
            batch = [self._queue.get()]
            while not self._queue.empty() and len(batch) < 1000:
                batch.append(self._queue.get())
            rows = list(_rows(batch))
            if rows:
                self._write(rows)
            for item in batch:
                if isinstance(item, threading.Event):
                    item.set()
            if None in batch:
                return

    def _write(self, rows: list[_Row]) -> None:
        try:
            with self.engine.begin() as connection:
                for row in _last_of_each(rows):
                    row.complete()
                    _replace(connection, row)
        except Exception as error:  # noqa: BLE001 - the writer's thread must live on; drivers raise errors of their own
            if len(rows) > 1 and not isinstance(error, OperationalError):
                # One row that cannot be written must not cost the others of its batch.
                for row in rows:
                    self._write([row])
                return
            self.errors += len(rows)
            if self.errors == len(rows):
                log.error("the database refuses (%s); the monitor goes on in memory", _cause(error))
        else:
            if self.errors:
                log.info("the database works again; %d rows were not written", self.errors)
            self.errors = 0
        for row in rows:
            self._tell(row)

    def _tell(self, row: _Row) -> None:
        if row.then is None:
            return
        try:
            row.then()
        except Exception:
            self.errors += 1
            log.exception("what waited for a row of %s failed", row.table.name)


def _rows(batch: Iterable[object]) -> Iterator[_Row]:
    for item in batch:
        if isinstance(item, _Row):
            yield from item.beside
            yield item


def _last_of_each(rows: Iterable[_Row]) -> list[_Row]:
    """The newest state of each row: a job that changed fifty times within a batch is written once."""
    newest: dict[object, _Row] = {}
    for number, row in enumerate(rows):
        key = tuple(row.values.get(c.name) for c in row.table.primary_key)
        newest[(row.table.name, key if None not in key else number)] = row
    return list(newest.values())


def _replace(connection: Connection, row: _Row) -> None:
    keys = [c for c in row.table.primary_key if c.name in row.values]
    if row.gone:
        connection.execute(row.table.delete().where(*(c == row.values[c.name] for c in keys)))
        return
    if keys:
        match = [c == row.values[c.name] for c in keys]
        if connection.execute(row.table.update().where(*match).values(**row.values)).rowcount:
            return
    connection.execute(row.table.insert().values(**row.values))


def _newest(connection: Connection, table: Table, job_id: str) -> list[dict[str, Any]]:
    order, limit = (table.c.opened_at, KEPT_INCIDENTS) if table is schema.incidents else (table.c.id, KEPT_DIRECTIVES)
    query = select(table).where(table.c.job_id == job_id).order_by(order.desc()).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()][::-1]


def _engine(url: str) -> Engine:
    if "://" not in url:
        path = Path(url).expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot make the folder of the database {path}: {error}") from error
        url = f"sqlite:///{path}"
    try:
        engine = create_engine(url)
    except (SQLAlchemyError, ImportError) as error:
        raise ValueError(f"cannot use the database {_shown(url)!r}: {_cause(error)}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _use_wal)
    return engine


def _use_wal(connection: Any, record: object) -> None:
    del record
    # WAL lets readers read while the writer writes; NORMAL loses the last commits of a power cut, never the file.
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=5000"):
        connection.execute(f"PRAGMA {pragma}")


def _shown(url: str) -> str:
    """A database's URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url.split("://", 1)[0] + "://…"


def _cause(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
