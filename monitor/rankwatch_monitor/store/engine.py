"""Creates SQLAlchemy engines with the connection options of SQLite and PostgreSQL.

Only SQLite itself may open the database file in this process: closing any descriptor of a file releases all POSIX locks
of the process on it, including SQLite's, and another process would then delete the write-ahead log still in use.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, Float, create_engine, event, func, literal_column, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.sql import ColumnElement

from rankwatch_monitor.store.db_errors import database_name, driver_message

WRITES: Final = "rankwatch_writes"
"""Execution option of a connection whose transactions take SQLite's write lock when they begin."""
_POSTGRESQL: Final = {
    # Dead connections are detected within seconds, by the client with these and by the server with the options below.
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8_000,
    "options": "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 "
    "-c lock_timeout=5s -c statement_timeout=30s -c idle_in_transaction_session_timeout=5s",
}


def open_engine(url: str) -> Engine:
    """An engine for a SQLAlchemy URL, or for the path of a SQLite file, whose folder is created.

    Raises:
        ValueError: the URL cannot be used; the message gives the reason and the fix.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ValueError(f"cannot use the database {url!r}: it would be empty at each start; use --database none")
    if (file := file_of(parsed)) is not None:
        _check_owner(Path(str(parsed.database).removeprefix("file:")))  # a link too
        _check_owner(file)
    try:
        if parsed.get_backend_name() != "postgresql":
            engine = create_engine(parsed, json_deserializer=read_json)
        else:
            arguments = _postgresql_arguments(parsed)
            engine = create_engine(parsed, json_deserializer=read_json, pool_pre_ping=True, connect_args=arguments)
    except ImportError as error:
        how = "; install the driver with `pip install 'rankwatch[postgresql]'`" if "psycopg" in str(error) else ""
        raise ValueError(f"cannot use the database {redacted(url)!r}: {error}{how}") from error
    except SQLAlchemyError as error:
        raise ValueError(f"cannot use the database {redacted(url)!r}: {driver_message(error)}") from error
    if engine.dialect.name not in ("sqlite", "postgresql"):
        raise ValueError(f"cannot use the database {redacted(url)!r}: it must be SQLite or PostgreSQL")
    if engine.dialect.name == "postgresql":
        # First of all: SQLAlchemy's own queries fail on what such a database returns.
        event.listen(engine, "connect", functools.partial(_check_encoding, database_name(parsed)), insert=True)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
    return engine


def _check_owner(database: Path) -> None:
    """Check that no other user made a SQLite database, or what SQLite applies to it: tokens are in it.

    Raises:
        ValueError: another user did.
    """
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = database.with_name(database.name + suffix)
        with contextlib.suppress(FileNotFoundError):
            if (owner := file.lstat().st_uid) not in (0, os.geteuid()):
                raise ValueError(
                    f"cannot use the database {database}: {file.name} belongs to another user (uid {owner}); use a "
                    "folder that only you can write to, or chown the file if you trust it"
                )


def read_json(text: str) -> Any:
    """Decode a column.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("a row of the database is nested too deeply") from None


def file_of(url: URL) -> Path | None:
    """The file of a SQLite database; None for a database of another kind."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database.removeprefix("file:")).resolve()


def redacted(url: str) -> str:
    """A database's URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url.split("://", 1)[0] + "://…"


def database_now(connection: Connection) -> ColumnElement[float]:
    """Unix seconds by the database's clock."""
    if connection.dialect.name == "postgresql":
        return func.extract("epoch", func.clock_timestamp()).cast(Float)
    return literal_column("((julianday('now') - 2440587.5) * 86400.0)", Float)


def _parsed(url: str) -> URL:
    if "://" not in url:
        path = Path(url).expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot create the folder of the database {path}: {error}") from error
        return URL.create("sqlite", database=str(path))
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ValueError(f"cannot use the database {redacted(url)!r}: it is not a SQLAlchemy URL") from error
    # Both spellings are common; the driver is the one of the extra, whatever SQLAlchemy's default is.
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername in ("postgresql", "postgres") else parsed


def _postgresql_arguments(url: URL) -> dict[str, Any]:
    own = {"application_name": f"rankwatch monitor {socket.gethostname()} pid {os.getpid()}"[:63]}
    return {name: value for name, value in {**_POSTGRESQL, **own}.items() if name not in url.query}


def _check_encoding(name: str, connection: Any, record: object) -> None:
    """Refuse a PostgreSQL database without an encoding, whose texts are returned as bytes."""
    del record
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        connection.close()
        raise ValueError(
            f"cannot use the database {name}: its encoding is SQL_ASCII, which holds bytes and no text; create another "
            "one with CREATE DATABASE rankwatch ENCODING 'UTF8' TEMPLATE template0"
        )


def _prepare(connection: Any, record: object) -> None:
    del record
    connection.isolation_level = None  # transactions begin explicitly and include DDL
    # WAL: readers do not block the writer. NORMAL: a power cut may lose the last commits but never corrupts the file.
    for pragma in ("busy_timeout=5000", "journal_mode=WAL", "synchronous=NORMAL", "journal_size_limit=67108864"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A transaction that reads and then writes may fail when another has written in between, so writers lock first.
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
