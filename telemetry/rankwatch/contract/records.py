"""Where the records of jobs are: the databases that monitors keep which a launcher started, one file for each job.

The folder is ``rankwatch/jobs`` in the user's folder for state. SQLite's write-ahead log does not work on a network
file system, so a folder on one is replaced by a private one in ``/var/tmp``, else by one for temporary files. Beside
``ID.db`` stand ``ID.log``, the monitor's log, and the files of SQLite and of its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rankwatch.contract.files import check_own, make_folders, private_folder, state_folder, temporary_folder

SUFFIX: Final = ".db"
MIB: Final = 1 << 20
LONGEST_NAME: Final = 200
"""Bytes of a file's name without its suffix: names may have 255, and SQLite and the log append to it."""
RECENT_SECONDS: Final = 60.0
"""A record that was written within this time is never removed, whatever the limits are."""
_PARTS: Final = ("", "-wal", "-shm", "-journal", ".lock")
_NETWORK: Final = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "fuse.ceph"),
        *("fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs"),
        *("nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"),
    }
)
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, and why it is not the usual one; ``moved`` is empty when it is."""

    folder: Path
    moved: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """The database of one job."""

    path: Path
    written: float
    """Unix time of its last change."""
    size: int
    """Bytes, with those of the files beside it."""


def file_name(job_id: str) -> str:
    """The file of a job's record: no two ids share one."""
    name = quote(job_id, safe="@=+:,", errors="surrogatepass")
    name = "%2E" + name[1:] if name.startswith(".") else name
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(job_id.encode(errors="surrogatepass")).hexdigest()[:16]
        name = f"{name[: LONGEST_NAME - 17]}~{digest}"
    return name + SUFFIX


def log_of(record: Path) -> Path:
    """The log of the monitor that wrote a record."""
    return record.with_suffix(".log")


# Where ----------------------------------------------------------------------------------------------------------------


def state_place(env: Mapping[str, str], mounts: str | None = None) -> Place:
    """The folder ``rankwatch`` for databases: that of the user's state, unless it is on a network file system.

    Nothing is created. ``mounts`` is the content of ``/proc/self/mountinfo``.
    """
    usual = state_folder(env) / "rankwatch"
    if (kind := network_file_system(usual, mounts)) is None:
        return Place(usual)
    local = Path("/var/tmp") / f"rankwatch.{os.geteuid()}"
    if network_file_system(local, mounts) is not None:
        local = Path(tempfile.gettempdir()) / f"rankwatch.{os.geteuid()}"
    return Place(local, f"{usual} is on a network file system ({kind}), on which SQLite cannot be used safely")


def folders(env: Mapping[str, str]) -> list[Path]:
    """Every folder that may hold records of this user, the usual one first."""
    found = [state_place(env).folder / "jobs", state_folder(env) / "rankwatch" / "jobs"]
    with contextlib.suppress(OSError):
        found.append(temporary_folder("jobs", create=False))
    return list(dict.fromkeys(found))


def create(place: Place) -> Path:
    """Create the folder of records in a place, private to this user, and return it.

    Raises:
        OSError: it cannot be created, or another user may have prepared it.
    """
    folder = place.folder / "jobs"
    if place.moved:  # a folder that every user may write to: no other user may have prepared ours
        private_folder(place.folder)
        return private_folder(folder)
    check_own(folder)
    make_folders(folder)
    if folder.stat().st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to root")
    folder.chmod(0o700)
    return folder


def network_file_system(path: Path, mounts: str | None = None) -> str | None:
    """The kind of network file system that holds a path, which need not exist; None: it is local, or unknown."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return None
    target = os.path.realpath(path)
    longest, kind = "", ""
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _ESCAPE.sub(lambda code: chr(int(code[1], 8)), fields[4])
        below = target == point or target.startswith(point.rstrip("/") + "/")
        if below and len(point) >= len(longest):  # of several on one point the last is the visible one
            longest, kind = point, after.split(" ")[0]
    return kind if kind in _NETWORK else None


# What -----------------------------------------------------------------------------------------------------------------


def found(env: Mapping[str, str]) -> list[Record]:
    """The records of this user on this host, the most recently written first."""
    records = []
    for folder in folders(env):
        with contextlib.suppress(OSError):
            records += [record for path in folder.glob("*" + SUFFIX) if (record := at(path)) is not None]
    return sorted(records, key=lambda record: record.written, reverse=True)


def of_job(job_id: str, env: Mapping[str, str]) -> Record | None:
    """The record of a job; None if there is none."""
    records = [at(folder / file_name(job_id)) for folder in folders(env)]
    return max((record for record in records if record is not None), key=lambda record: record.written, default=None)


def holder(record: Path) -> int | None:
    """The process that has the record open, which is a living monitor; 0: it is not known which, None: no process."""
    try:
        file = os.open(record.with_name(record.name + ".lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(file, 100, 0).decode(errors="replace").partition(" ")[0]
        return int(pid) if pid.isdigit() else 0
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def prune(folder: Path, *, days: float, mib: int, now: float | None = None) -> list[Path]:
    """Remove records older than ``days``, then the oldest until all take ``mib`` at most; 0 is no limit.

    Records in use, and those written within :data:`RECENT_SECONDS`, stay. Returns the removed ones.
    """
    now = time.time() if now is None else now
    records = sorted(_in(folder), key=lambda record: record.written)
    total, removed = sum(record.size for record in records), []
    for record in records:
        too_old = days > 0 and now - record.written > days * 86_400.0
        too_large = 0 < mib * MIB < total
        recent = now - record.written < RECENT_SECONDS
        if (too_old or too_large) and not recent and holder(record.path) is None and _remove(record.path):
            total -= record.size
            removed.append(record.path)
    for log in folder.glob("*.log"):  # of monitors whose database is elsewhere
        with contextlib.suppress(OSError):
            if days > 0 and now - log.stat().st_mtime > days * 86_400.0 and not log.with_suffix(SUFFIX).exists():
                log.unlink()
    return removed


def _in(folder: Path) -> Iterator[Record]:
    for path in folder.glob("*" + SUFFIX):
        if (record := at(path)) is not None:
            yield record


def at(path: Path) -> Record | None:
    """The record in a file; None: there is none."""
    try:
        written, size = path.stat().st_mtime, 0
    except OSError:
        return None
    for part in (*_beside(path), log_of(path)):
        with contextlib.suppress(OSError):
            facts = part.stat()
            size += facts.st_size
            if facts.st_size and part.name.endswith("-wal"):  # a reader may leave an empty one
                written = max(written, facts.st_mtime)
    return Record(path, written, size)


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + part) for part in _PARTS]


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    for part in (*_beside(path)[1:], log_of(path)):
        with contextlib.suppress(OSError):
            part.unlink()
    return True
