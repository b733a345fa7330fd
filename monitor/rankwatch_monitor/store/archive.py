"""Reads the SQLite file of another monitor, living or not, without changing it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sqlalchemy import create_engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.store import codec, schema

BUSY_SECONDS: Final = 5.0


def copy(record: Path, target: Path) -> None:
    """Copy a record, with what its write-ahead log holds, into a new file.

    Raises:
        ValueError: it is missing, unreadable, or no SQLite database.
    """
    if not record.is_file():
        raise ValueError(f"there is no record {record}")
    try:
        try:
            with (
                contextlib.closing(sqlite3.connect(_uri(record), uri=True, timeout=BUSY_SECONDS)) as source,
                contextlib.closing(sqlite3.connect(target)) as made,
            ):
                source.execute("select count(*) from sqlite_master").fetchone()
                source.backup(made)
        except sqlite3.OperationalError:
            # SQLite cannot make its -shm file there: the folder is read-only. Then no monitor writes to it either.
            shutil.copyfile(record, target)
            if (log := _log(record)).exists():
                shutil.copyfile(log, _log(target))
    except (sqlite3.Error, OSError) as error:
        raise ValueError(f"the record {record} cannot be read: {error}") from error


def jobs(record: Path) -> list[Job]:
    """The jobs of a record without their incidents, the most recently active first; silence counts from the last word.

    Raises:
        ValueError: it cannot be read, or another version of Rankwatch wrote it.
    """
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(_uri(record), uri=True, timeout=BUSY_SECONDS), poolclass=NullPool
    )
    try:
        with engine.connect() as connection:
            rows = connection.execute(select(schema.jobs).order_by(schema.jobs.c.last_heard.desc())).mappings().all()
        found = [codec.job_of(dict(row), time.time()) for row in rows]
    except (SQLAlchemyError, sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the record {record} cannot be read: {str(error).splitlines()[0]}") from error
    finally:
        engine.dispose()
    for job in found:
        job.silence_baseline, job.of_record = job.last_heard, True
    return found


def _uri(record: Path) -> str:
    # Without a log the file is not being written, and SQLite need not make the files of one.
    immutable = "" if _log(record).exists() else "&immutable=1"
    return f"file:{quote(os.path.abspath(record))}?mode=ro{immutable}"


def _log(record: Path) -> Path:
    return record.with_name(record.name + "-wal")
