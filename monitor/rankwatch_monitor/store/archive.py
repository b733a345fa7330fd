"""Reads the SQLite file of another monitor, living or not, without changing it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import create_engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.rank_runs import MOST_RANKS
from rankwatch_monitor.store import codec, schema
from rankwatch_monitor.store.engine import read_json

BUSY_SECONDS: Final = 5.0
LONGEST_VALUE: Final = 64 << 20
"""Bytes of one value: a job with 20,000 launchers has a tenth of it."""


def copy(record: Path, target: Path) -> None:
    """Copy a record, with what its write-ahead log holds, into a new file.

    Raises:
        ValueError: it is missing, unreadable, or no SQLite database.
    """
    if not record.is_file():
        raise ValueError(f"there is no record {record}")
    log = _log(record)
    _check_log(record)
    try:
        size = sum(part.stat().st_size for part in (record, log) if part.exists())
        if 2 * size > shutil.disk_usage(target.parent).free:  # a sparse file takes none where it is
            raise ValueError(f"the record {record} cannot be read: a copy of it would fill {target.parent}")
        try:
            with (
                contextlib.closing(_opened(record)) as source,
                contextlib.closing(sqlite3.connect(target)) as made,
            ):
                source.execute("select count(*) from sqlite_master").fetchone()
                source.backup(made)
                _check_schema(made)
        except sqlite3.OperationalError:
            # SQLite cannot make its -shm file there: the folder is read-only. Then no monitor writes to it either.
            shutil.copyfile(record, target)
            if log.exists():
                shutil.copyfile(log, _log(target))
            with contextlib.closing(sqlite3.connect(target)) as made:
                _check_schema(made)
    except (sqlite3.Error, OSError) as error:
        raise ValueError(f"the record {record} cannot be read: {error}") from error


def jobs(record: Path) -> list[Job]:
    """The jobs of a record without their incidents, the most recently active first; silence counts from the last word.

    Raises:
        ValueError: it cannot be read, or another version of Rankwatch wrote it.
    """
    _check_log(record)
    engine = create_engine(
        "sqlite://",
        json_deserializer=read_json,
        creator=lambda: _opened(record),
        poolclass=NullPool,
    )
    try:
        with engine.connect() as connection:
            _check_schema(connection.connection.driver_connection)
            rows = connection.execute(select(schema.jobs).order_by(schema.jobs.c.last_heard.desc())).mappings().all()
        fitting, room = [], MOST_RANKS  # together: a row of a few bytes claims the memory of all its ranks
        for row in rows:
            if codec.is_world(world := row["body"]["world_size"]) and world <= room:
                fitting.append(row)
                room -= world
        found = [codec.job_of(dict(row), time.time()) for row in fitting]
    except (SQLAlchemyError, sqlite3.Error, OSError, *codec.UNREADABLE) as error:
        raise ValueError(f"the record {record} cannot be read: {str(error).splitlines()[0]}") from error
    finally:
        engine.dispose()
    for job in found:
        job.silence_baseline, job.of_record = job.last_heard, True
    return found


def _check_schema(connection: Any) -> None:
    """Check that reading takes no more than the file is large: a view may have no end, a trigger acts, and a column
    that is generated, or has a default, holds what is not in the file.

    Raises:
        ValueError: it holds something else than tables and their indexes.
    """
    # By the text, which is what SQLite goes by; an index without one belongs to a primary key.
    query = (
        "select name from sqlite_master where not (type = 'table' and sql like 'create table%' or type = 'index' and "
        "(sql is null or sql like 'create index%' or sql like 'create unique index%'))"
    )
    if (found := connection.execute(query).fetchone()) is not None:
        raise ValueError(f"it holds {str(found[0])[:80]!r}, which is no table of Rankwatch")
    query = (
        "select m.name from sqlite_master m, pragma_table_xinfo(m.name) c where m.type = 'table' "
        "and (c.hidden <> 0 or c.dflt_value is not null)"
    )
    if (found := connection.execute(query).fetchone()) is not None:
        raise ValueError(f"{str(found[0])[:80]!r} has columns that Rankwatch's has not")


def _opened(record: Path) -> sqlite3.Connection:
    made = sqlite3.connect(_uri(record), uri=True, timeout=BUSY_SECONDS)
    made.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    return made


def _check_log(record: Path) -> None:
    """Check that the write-ahead log beside a record is its own: SQLite reads what it holds in place of the record.

    Raises:
        ValueError: it is none, or another user's.
    """
    log = _log(record)
    if not log.exists():
        return
    if not log.is_file():  # a device has no end
        raise ValueError(f"the record {record} cannot be read: its log is no file")
    if log.stat().st_uid not in (0, os.geteuid(), record.stat().st_uid):
        raise ValueError(f"the record {record} cannot be read: its log {log.name} belongs to another user")


def _uri(record: Path) -> str:
    # Without a log the file is not being written, and SQLite need not make the files of one.
    immutable = "" if _log(record).exists() else "&immutable=1"
    return f"file:{quote(os.path.abspath(record))}?mode=ro{immutable}"


def _log(record: Path) -> Path:
    return record.with_name(record.name + "-wal")
