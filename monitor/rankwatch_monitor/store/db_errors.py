"""What is wrong with a database, in words that say what to do about it.

Drivers tell by numbers and phrases; here these become a :class:`Kind`, on which the others decide: is it a mistake of
whoever started the monitor, a state that passes, or one row's own fault?
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
    """What kind of trouble it is."""

    FULL = auto()
    LOCKED = auto()
    READ_ONLY = auto()
    CANNOT_OPEN = auto()
    DISK = auto()
    DAMAGED = auto()
    FOREIGN = auto()
    CHANGED = auto()
    NO_ADMITTANCE = auto()
    NO_SUCH = auto()
    BUSY = auto()
    AWAY = auto()
    OTHER = auto()


MISTAKES: Final = frozenset({Kind.READ_ONLY, Kind.CANNOT_OPEN, Kind.FOREIGN, Kind.NO_ADMITTANCE, Kind.NO_SUCH})
"""Those that, at the start, mean that another database was meant. Later they are troubles that may pass."""

_STATES: Final = {
    "53100": Kind.FULL,
    "53300": Kind.BUSY,
    "55P03": Kind.LOCKED,
    "25006": Kind.READ_ONLY,
    "28P01": Kind.NO_ADMITTANCE,
    "28000": Kind.NO_ADMITTANCE,
    "42501": Kind.NO_ADMITTANCE,
    "3D000": Kind.NO_SUCH,
    "42P01": Kind.CHANGED,
    "42703": Kind.CHANGED,
    "57P01": Kind.AWAY,
    "57P02": Kind.AWAY,
    "57P03": Kind.AWAY,
    "XX001": Kind.DAMAGED,
    "XX002": Kind.DAMAGED,
}
"""PostgreSQL's SQLSTATE, where the driver has it."""
_PHRASES: Final = (
    ("disk is full", Kind.FULL),
    ("no space left", Kind.FULL),
    ("is locked", Kind.LOCKED),
    ("readonly database", Kind.READ_ONLY),
    ("read-only", Kind.READ_ONLY),
    ("unable to open database file", Kind.CANNOT_OPEN),
    ("disk i/o error", Kind.DISK),
    ("malformed", Kind.DAMAGED),
    ("not a database", Kind.FOREIGN),
    ("no such table", Kind.CHANGED),
    ("no such column", Kind.CHANGED),
    ("authentication failed", Kind.NO_ADMITTANCE),
    ("no password supplied", Kind.NO_ADMITTANCE),
    ("pg_hba.conf", Kind.NO_ADMITTANCE),
    ("too many", Kind.BUSY),
    ("remaining connection slots", Kind.BUSY),
    ("does not exist", Kind.NO_SUCH),
    ("connection", Kind.AWAY),
    ("starting up", Kind.AWAY),
    ("shutting down", Kind.AWAY),
    ("timeout", Kind.AWAY),
)
"""What the messages of both say, the first that fits; a server that speaks another language gets a general word."""

_TODO: Final = {
    Kind.FULL: "make room on the disk of {where}",
    Kind.LOCKED: "another process holds {where} (an sqlite3 shell, a backup): end it, `fuser` names it",
    Kind.READ_ONLY: "let the monitor's user write to {where} and its folder",
    Kind.CANNOT_OPEN: "see that {where} is a file and its folder there, and that the monitor's user may write to both",
    Kind.DISK: "look at the kernel's log (dmesg) for the disk of {where}",
    Kind.DAMAGED: "the file is left as it is: stop the monitor, keep a copy, save what can be read with "
    "`sqlite3 {where} .recover | sqlite3 NEW` and start with --database NEW, or start afresh with another --database",
    Kind.FOREIGN: "name another file with --database; this one is left as it is",
    Kind.CHANGED: "something else has changed the tables of {where}: put them back from a backup, or name another "
    "--database, and start the monitor again",
    Kind.NO_ADMITTANCE: "see that user and password in --database are right and that the user may write to {where}",
    Kind.NO_SUCH: "create the database and its user, or correct --database ({where})",
    Kind.BUSY: "the server of {where} has no connection left: raise its max_connections, or end who holds them",
    Kind.AWAY: "see that the server of {where} runs and can be reached from here",
    Kind.OTHER: "see that {where} can be written to",
}


class Trouble(NamedTuple):
    """What is wrong, as the database says it, and what to do."""

    kind: Kind
    said: str
    todo: str

    def __str__(self) -> str:
        return f"{self.said}; {self.todo}"


def trouble_of(error: Exception, url: URL) -> Trouble:
    """The trouble behind an error that a database raised."""
    kind = _kind(error)
    return Trouble(kind, cause(error), _TODO[kind].format(where=place(url)))


def place(url: URL) -> str:
    """The database in words: a file's path, or a URL without its password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.render_as_string(hide_password=True)


def cause(error: Exception) -> str:
    """The first line of what the driver said."""
    return (str(getattr(error, "orig", None) or error).splitlines() or [type(error).__name__])[0]


def is_own_fault(error: Exception) -> bool:
    """Whether a row is to blame for not being written, and not the database."""
    if not isinstance(error, DBAPIError):
        return not isinstance(error, SQLAlchemyError) or isinstance(error, StatementError)
    if error.connection_invalidated:
        return False
    if isinstance(error, (IntegrityError, DataError)):
        return True
    # Values that cannot be bound are the driver's own refusal; one by a server carries its SQLSTATE.
    if isinstance(error, InterfaceError):
        return type(error.orig).__module__ == "sqlite3"
    return isinstance(error, ProgrammingError) and getattr(error.orig, "sqlstate", None) is None


def _kind(error: Exception) -> Kind:
    original = getattr(error, "orig", None)
    if (state := getattr(original, "sqlstate", None)) in _STATES:
        return _STATES[state]
    said = str(original or error).lower()
    return next((kind for phrase, kind in _PHRASES if phrase in said), Kind.OTHER)
