"""Who may have the database: one monitor alone, or all that share it (docs/adr/0012-jobs-are-held-by-lease.md).

SQLite: ``flock`` on the file DATABASE.lock, which holds the pid of whoever has it. The kernel lets it go with the
process, however that ends. The file stays, since removing it would let two hold locks on two files of one name.
PostgreSQL: an advisory lock of the session that writes, which the server lets go with the connection.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text

log = logging.getLogger("rankwatch.store")

LOCK: Final = 0x72616E6B77617463
"""Of the database's use, unlikely to be anybody else's."""
UPGRADE: Final = LOCK + 1
"""Of its upgrade."""
_WHAT_TO_DO: Final = (
    "end that one, or give this one another --database, or give both a --shared-as NAME to share the database"
)


class HeldError(ValueError):
    """Another monitor has the database; the text says which and what to do."""


class FileLock:
    """The lock on a SQLite database."""

    def __init__(self, database: Path, *, shared: bool) -> None:
        self._database, self._shared = database, shared
        self._path = database.with_name(database.name + ".lock")
        self._file: int | None = None

    def take(self) -> None:
        """Take it, if it is not held already.

        A file system without locks, or one that is full or read-only, is said and gets along without.

        Raises:
            HeldError: another monitor has it.
        """
        if self._file is not None:
            return
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            log.warning("%s cannot be locked against a second monitor: %s", self._database, error)
            return
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder(file)
            os.close(file)
            raise HeldError(
                f"the database {self._database} is held by another monitor{holder}: {_WHAT_TO_DO}"
            ) from None
        except OSError as error:
            log.warning("%s cannot be locked against a second monitor: %s", self._database, error)
        self._file = file
        self._sign(file)

    def release(self) -> None:
        """Let it go."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _sign(self, file: int) -> None:
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()} {'shared' if self._shared else 'alone'}\n".encode(), 0)
        except OSError:
            pass  # a full disk: who is refused does not learn by whom

    def _holder(self, file: int) -> str:
        pid, _, how = os.pread(file, 100, 0).decode(errors="replace").strip().partition(" ")
        if not pid.isdigit():
            return ""
        return f" (one of those that share it is process {pid})" if how == "shared" else f" (process {pid})"


def take_session_lock(connection: Connection, *, shared: bool) -> None:
    """Take the lock on a PostgreSQL database for as long as this connection lives; once for each connection.

    Raises:
        HeldError: another monitor has it.
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
    who = "another monitor"
    if found is not None:
        name, address, since = found
        at = f" at {address}" if address is not None else ""
        who = f"{name or 'another monitor'}{at}, connected since {since:%Y-%m-%d %H:%M:%S %Z}"
    where = connection.engine.url.render_as_string(hide_password=True)
    raise HeldError(f"the database {where} is held by {who}: {_WHAT_TO_DO}")


def take_upgrade_lock(connection: Connection) -> None:
    """Wait until nobody else upgrades this database; SQLite's transactions exclude each other by themselves."""
    if connection.dialect.name == "postgresql":
        # Others may take long over a large table; the server's patience with statements ends before that.
        connection.execute(text("set local statement_timeout = '10min'"))
        connection.execute(text("set local lock_timeout = '10min'"))
        connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": UPGRADE})
