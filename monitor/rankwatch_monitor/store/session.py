"""The single writing connection. It holds the lock on the database for its lifetime.

A connection that can write therefore holds the lock: when a PostgreSQL connection dies, the lock dies with it, and the
next connection must acquire it again before it writes. Opening also upgrades the schema.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, text

from rankwatch_monitor.store.engine import WRITES, file_of
from rankwatch_monitor.store.locks import FileLock, HeldError, acquire_session_lock
from rankwatch_monitor.store.upgrade import upgrade

CHECK_LIMIT: Final = 64 << 20
"""Bytes up to which a SQLite file is checked for damage at the start, which takes a tenth of a second."""


class DamagedError(Exception):
    """SQLite's integrity check failed."""


class WriteSession:
    """Opened by the repository, then used only on the writer's thread."""

    def __init__(self, engine: Engine, *, shared: bool) -> None:
        self.engine, self._shared = engine, shared
        self._connection: Connection | None = None
        self._driver: Any = None
        """The driver's connection; SQLAlchemy drops its reference when it considers the connection broken."""
        self._file = file_of(engine.url)
        self._lock = FileLock(self._file, shared=shared) if self._file is not None else None
        self._identity: tuple[int, int] | None = None
        """Device and inode of the file that is open."""

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def open(self, timeout: float = 0.0, *, check_file: bool = False) -> None:
        """Connect, lock the database and upgrade its schema, unless that was done.

        Args:
            timeout: seconds to wait for the lock of another monitor that is shutting down.
            check_file: check a small SQLite file for damage.

        Raises:
            ValueError: another monitor holds the lock, or the schema is not of this version of Rankwatch.
            DamagedError: the file is damaged.
            SQLAlchemyError: the database cannot be reached or used.
        """
        deadline = time.monotonic() + timeout
        while self._connection is None:
            try:
                self._connection = self._connect(check_file)
            except HeldError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A write transaction; opens the connection when there is none."""
        self.open()
        assert self._connection is not None
        self._check_place()
        with self._connection.begin():
            yield self._connection

    def check(self) -> None:
        """Verify that the PostgreSQL server still has the connection and its lock, or that the file is in its place."""
        self._check_place()
        if self._connection is not None and self._lock is None:
            with self._connection.begin():
                self._connection.execute(text("select 1"))

    def drop(self) -> None:
        """Discard a connection that may be broken; a SQLite file stays locked."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _discard(connection, self._driver)
            self._driver = None

    def close(self) -> None:
        """Close the connection and release the lock."""
        self.drop()
        if self._lock is not None:
            self._lock.release()

    def _connect(self, check_file: bool) -> Connection:
        connection = self.engine.connect().execution_options(**{WRITES: True})
        connection.detach()  # the pool must not reuse the connection: it holds the lock
        driver = connection.connection.dbapi_connection
        try:
            # Only after connecting: a file that is not a database must not get a lock file.
            if self._lock is not None:
                self._lock.acquire()
            else:
                with connection.begin():
                    acquire_session_lock(connection, shared=self._shared)
            if check_file and self._file is not None and self._file.stat().st_size <= CHECK_LIMIT:
                _check_integrity(connection)
            upgrade(connection)
        except BaseException:
            _discard(connection, driver)
            raise
        self._driver = driver
        self._identity = _identity(self._file) if self._file is not None else None
        return connection

    def _check_place(self) -> None:
        """Raise DamagedError if the file was moved or removed: SQLite would go on writing where nobody looks."""
        if self._file is not None and self._connection is not None and _identity(self._file) != self._identity:
            raise DamagedError(f"{self._file} was moved or removed while it was open")


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _discard(connection: Connection, driver: Any) -> None:
    """Close a detached connection without any request to the server."""
    with contextlib.suppress(Exception):
        if not connection.invalidated:
            connection.invalidate()
    with contextlib.suppress(Exception):
        driver.close()
    with contextlib.suppress(Exception):
        connection.close()


def _check_integrity(connection: Connection) -> None:
    plain = connection.execution_options(**{WRITES: False})
    found = plain.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    plain.rollback()
    connection.execution_options(**{WRITES: True})
    if found != "ok":
        raise DamagedError(f"the database's pages are malformed: {' '.join(str(found).split())}")
