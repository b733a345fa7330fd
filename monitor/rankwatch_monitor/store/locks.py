"""Locks a database for one monitor, or for all that share it (docs/adr/0012-jobs-are-held-by-lease.md).

SQLite: ``flock`` on the file DATABASE.lock, which contains the holder's PID; the kernel releases it with the process.
The file is never removed, since two processes could then lock two files of the same name.
PostgreSQL: a session-level advisory lock on the writing connection, which the server releases with the connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text

log = logging.getLogger("rankwatch.store")

LOCK: Final = 0x72616E6B77617463
"""Advisory lock key of a database in use (the bytes of "rankwatc")."""
UPGRADE: Final = LOCK + 1
"""Advisory lock key of a schema upgrade."""
_REMEDY: Final = "stop that monitor, use another --database, or start both with --shared-as NAME to share the database"


class HeldError(ValueError):
    """Another monitor has locked the database; the message names it and how to resolve it."""


class FileLock:
    """The lock on a SQLite database."""

    def __init__(self, database: Path, *, shared: bool) -> None:
        self._database, self._shared = database, shared
        self._path = database.with_name(database.name + ".lock")
        self._file: int | None = None

    def acquire(self) -> None:
        """Acquire the lock unless it is held already.

        On a file system without locks, or one that is full or read-only, a warning is logged and no lock is taken.

        Raises:
            HeldError: another monitor holds it.
        """
        if self._file is not None:
            return
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.warning("%s cannot be locked against a second monitor: %s", self._database, error)
            return
        # Whoever can open a file can lock it. Earlier versions left both open to others.
        for each in (file, self._database):
            with contextlib.suppress(OSError):
                os.chmod(each, 0o600)
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder(file)
            os.close(file)
            raise HeldError(f"the database {self._database} is held by another monitor{holder}: {_REMEDY}") from None
        except OSError as error:
            log.warning("%s cannot be locked against a second monitor: %s", self._database, error)
        self._file = file
        self._sign(file)

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _sign(self, file: int) -> None:
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()} {'shared' if self._shared else 'alone'}\n".encode(), 0)
        except OSError:
            pass  # the disk is full: the error of a second monitor lacks the PID

    def _holder(self, file: int) -> str:
        pid, _, how = os.pread(file, 100, 0).decode(errors="replace").strip().partition(" ")
        if not pid.isdigit():
            return ""
        return f" (one of those that share it is process {pid})" if how == "shared" else f" (process {pid})"


def acquire_session_lock(connection: Connection, *, shared: bool) -> None:
    """Lock a PostgreSQL database for the lifetime of this connection; call once for each connection.

    Raises:
        HeldError: another monitor holds the lock.
    """
    kind = "_shared" if shared else ""
    if connection.execute(text(f"select pg_try_advisory_lock{kind}(:key)"), {"key": LOCK}).scalar_one():
        return
    holders = text(
        "select a.application_name, a.client_addr, a.backend_start from pg_locks l "
        "join pg_stat_activity a on a.pid = l.pid "
        "where l.locktype = 'advisory' and l.granted and l.objsubid = 1 and l.pid <> pg_backend_pid() "
        "and l.classid::bigint = (:key >> 32) and l.objid::bigint = (:key & 4294967295) "
        "and l.database = (select oid from pg_database where datname = current_database()) limit 1"
    )
    found = connection.execute(holders, {"key": LOCK}).first()
    holder = "another monitor"
    if found is not None:
        name, address, since = found
        at = f" at {address}" if address is not None else ""
        holder = f"{name or 'another monitor'}{at}, connected since {since:%Y-%m-%d %H:%M:%S %Z}"
    where = connection.engine.url.render_as_string(hide_password=True)
    raise HeldError(f"the database {where} is held by {holder}: {_REMEDY}")


def acquire_upgrade_lock(connection: Connection) -> None:
    """Serialise schema upgrades; SQLite's write transactions are serialised anyway."""
    if connection.dialect.name == "postgresql":
        # Another monitor's upgrade of a large table may take longer than the usual statement timeout.
        connection.execute(text("set local statement_timeout = '10min'"))
        connection.execute(text("set local lock_timeout = '10min'"))
        connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": UPGRADE})
