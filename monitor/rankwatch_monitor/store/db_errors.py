"""Classifies database errors and names their fixes.

Drivers report errors as SQLSTATE codes or phrases; :func:`classify` maps them to a :class:`Kind`, which decides whether
the monitor was misconfigured, the error is transient, or a single row is at fault.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from sqlalchemy import URL
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    ProgrammingError,
    SQLAlchemyError,
    StatementError,
)


class Kind(Enum):
    """The kind of a database error."""

    FULL = auto()
    LOCKED = auto()
    LOCKED_BY_SESSION = auto()
    """PostgreSQL: a transaction of another session holds rows or tables."""
    READ_ONLY = auto()
    CANNOT_OPEN = auto()
    IO_ERROR = auto()
    DAMAGED = auto()
    NOT_A_DATABASE = auto()
    SCHEMA_CHANGED = auto()
    ACCESS_DENIED = auto()
    MISSING = auto()
    TOO_MANY_CONNECTIONS = auto()
    UNREACHABLE = auto()
    OTHER = auto()


CONFIGURATION_ERRORS: Final = frozenset(
    {Kind.READ_ONLY, Kind.CANNOT_OPEN, Kind.NOT_A_DATABASE, Kind.ACCESS_DENIED, Kind.MISSING}
)
"""At the start these mean a wrong --database and end the monitor; later they are treated as transient."""

_STATES: Final = {
    "53100": Kind.FULL,
    "53300": Kind.TOO_MANY_CONNECTIONS,
    "55P03": Kind.LOCKED_BY_SESSION,
    "25006": Kind.READ_ONLY,
    "28P01": Kind.ACCESS_DENIED,
    "28000": Kind.ACCESS_DENIED,
    "42501": Kind.ACCESS_DENIED,
    "3D000": Kind.MISSING,
    "42P01": Kind.SCHEMA_CHANGED,
    "42703": Kind.SCHEMA_CHANGED,
    "57P01": Kind.UNREACHABLE,
    "57P02": Kind.UNREACHABLE,
    "57P03": Kind.UNREACHABLE,
    "XX001": Kind.DAMAGED,
    "XX002": Kind.DAMAGED,
}
"""By PostgreSQL's SQLSTATE, where the driver has it."""
_PHRASES: Final = (
    ("disk is full", Kind.FULL),
    ("no space left", Kind.FULL),
    ("is locked", Kind.LOCKED),
    ("readonly database", Kind.READ_ONLY),
    ("read-only", Kind.READ_ONLY),
    ("unable to open database file", Kind.CANNOT_OPEN),
    ("disk i/o error", Kind.IO_ERROR),
    ("malformed", Kind.DAMAGED),
    ("not a database", Kind.NOT_A_DATABASE),
    ("no such table", Kind.SCHEMA_CHANGED),
    ("no such column", Kind.SCHEMA_CHANGED),
    ("authentication failed", Kind.ACCESS_DENIED),
    ("no password supplied", Kind.ACCESS_DENIED),
    ("pg_hba.conf", Kind.ACCESS_DENIED),
    ("too many", Kind.TOO_MANY_CONNECTIONS),
    ("remaining connection slots", Kind.TOO_MANY_CONNECTIONS),
    ("does not exist", Kind.MISSING),
    ("connection", Kind.UNREACHABLE),
    ("starting up", Kind.UNREACHABLE),
    ("shutting down", Kind.UNREACHABLE),
    ("timeout", Kind.UNREACHABLE),
)
"""By a phrase of the message, first match; messages in other languages fall back to :attr:`Kind.OTHER`."""

_REMEDIES: Final = {
    Kind.FULL: "make room on the disk of {where}",
    Kind.LOCKED: "another process (an sqlite3 shell, a backup) has locked {where}: end it; `fuser` names it",
    Kind.LOCKED_BY_SESSION: "a transaction of another session has locked rows or tables of {where}: end it; "
    "`select pid, usename, state, query from pg_stat_activity` shows it",
    Kind.READ_ONLY: "let the monitor's user write to {where} and its folder",
    Kind.CANNOT_OPEN: "check that {where} is a file in an existing folder and that the monitor's user may write both",
    Kind.IO_ERROR: "check the kernel's log (dmesg) for the disk of {where}",
    Kind.DAMAGED: "the file is left unchanged: stop the monitor, keep a copy, save what can be read with "
    "`sqlite3 {where} .recover | sqlite3 NEW` and start with --database NEW, or start afresh with another --database",
    Kind.NOT_A_DATABASE: "name another file with --database; this one is left unchanged",
    Kind.SCHEMA_CHANGED: "the tables of {where} were changed by something else: restore them from a backup, or name "
    "another --database, and start the monitor again",
    Kind.ACCESS_DENIED: "check user and password in --database, and that the user may write to {where}",
    Kind.MISSING: "create the database and its user, or correct --database ({where})",
    Kind.TOO_MANY_CONNECTIONS: "the server of {where} has no free connections: raise max_connections or close some",
    Kind.UNREACHABLE: "check that the server of {where} runs and is reachable from here",
    Kind.OTHER: "check that {where} can be written to",
}


class DbError(NamedTuple):
    """A database error and its remedy."""

    kind: Kind
    message: str
    """The first line of the driver's message."""
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


def classify(error: Exception, url: URL) -> DbError:
    """Classify an exception of SQLAlchemy or a driver."""
    kind = _kind(error)
    return DbError(kind, driver_message(error), _REMEDIES[kind].format(where=database_name(url)))


def database_name(url: URL) -> str:
    """The path of a SQLite file, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.render_as_string(hide_password=True)


def driver_message(error: Exception) -> str:
    """The first line of the driver's message."""
    return (str(getattr(error, "orig", None) or error).splitlines() or [type(error).__name__])[0]


def is_row_error(error: Exception) -> bool:
    """Whether the row, and not the database, is at fault."""
    if not isinstance(error, DBAPIError):
        return not isinstance(error, SQLAlchemyError) or isinstance(error, StatementError)
    if error.connection_invalidated:
        return False
    if isinstance(error, (IntegrityError, DataError)):
        return True
    # A value that cannot be bound is rejected by the driver; a rejection by the server carries a SQLSTATE.
    if isinstance(error, InterfaceError):
        return type(error.orig).__module__ == "sqlite3"
    return isinstance(error, ProgrammingError) and getattr(error.orig, "sqlstate", None) is None


def _kind(error: Exception) -> Kind:
    original = getattr(error, "orig", None)
    if (state := getattr(original, "sqlstate", None)) in _STATES:
        return _STATES[state]
    message = str(original or error).lower()
    return next((kind for phrase, kind in _PHRASES if phrase in message), Kind.OTHER)
