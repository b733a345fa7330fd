"""The one connection that writes. It holds the lock on the database for as long as it lives.

So whoever can write holds the lock: a connection to PostgreSQL that dies takes both along, and the next one gets
nothing before it has the lock again. Opening it also brings the schema to this version.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Engine, text

from rankwatch_monitor.store.engine import WRITES, file_of
from rankwatch_monitor.store.locks import FileLock, HeldError, take_session_lock
from rankwatch_monitor.store.upgrade import upgrade

log = logging.getLogger("rankwatch.store")

CHECKED_UP_TO: Final = 64 << 20
"""Bytes of a SQLite file that are looked through at the start, about a tenth of a second's work."""


class DamagedError(Exception):
    """The file is a SQLite database whose pages do not fit together."""


class Session:
    """Opened by the repository, then used by the writer's thread alone."""

    def __init__(self, engine: Engine, *, shared: bool) -> None:
        self.engine, self._shared = engine, shared
        self._connection: Connection | None = None
        self._driver: Any = None
        """What the connection is to the driver; SQLAlchemy forgets it when it thinks the connection broken."""
        self._file = file_of(engine.url)
        self._lock = FileLock(self._file, shared=shared) if self._file is not None else None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None

    def open(self, patience: float = 0.0, *, look_through: bool = False) -> None:
        """Connect, take the lock and bring the schema to this version, if that was not done.

        Args:
            patience: seconds to wait for another monitor that is just ending.
            look_through: look for damage in a small SQLite file.

        Raises:
            ValueError: another monitor has the database, or it is not one for this version of Rankwatch.
            DamagedError: damage was found.
            SQLAlchemyError: the database cannot be reached or used.
        """
        deadline = time.monotonic() + patience
        while self._connection is None:
            try:
                self._connection = self._connect(look_through)
            except HeldError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that may write from its beginning; opens the connection when there is none."""
        self.open()
        assert self._connection is not None
        with self._connection.begin():
            yield self._connection

    def check(self) -> None:
        """Ask the server whether it still has our connection, and so our lock; SQLite needs no asking."""
        if self._connection is not None and self._lock is None:
            with self._connection.begin():
                self._connection.execute(text("select 1"))

    def drop(self) -> None:
        """Give a connection up that may be broken; a SQLite file stays locked."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _discard(connection, self._driver)
            self._driver = None

    def close(self) -> None:
        """Let the database go."""
        self.drop()
        if self._lock is not None:
            self._lock.release()

    def _connect(self, look_through: bool) -> Connection:
        connection = self.engine.connect().execution_options(**{WRITES: True})
        connection.detach()  # never handed to anybody else by the pool: the lock is on it
        driver = connection.connection.dbapi_connection
        try:
            # Only now: what is no database shall not get a lock file beside it.
            if self._lock is not None:
                self._lock.take()
            else:
                with connection.begin():
                    take_session_lock(connection, shared=self._shared)
            if look_through and self._file is not None and self._file.stat().st_size <= CHECKED_UP_TO:
                _look_through(connection)
            upgrade(connection)
        except BaseException:
            _discard(connection, driver)
            raise
        self._driver = driver
        return connection


def _discard(connection: Connection, driver: Any) -> None:
    """Close a connection without asking the database for anything; one that is detached is nobody else's to close."""
    with contextlib.suppress(Exception):
        if not connection.invalidated:
            connection.invalidate()
    with contextlib.suppress(Exception):
        driver.close()
    with contextlib.suppress(Exception):
        connection.close()


def _look_through(connection: Connection) -> None:
    plain = connection.execution_options(**{WRITES: False})
    found = plain.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    plain.rollback()
    connection.execution_options(**{WRITES: True})
    if found != "ok":
        raise DamagedError(f"the database's pages are malformed: {' '.join(str(found).split())}")
