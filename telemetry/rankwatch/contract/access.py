"""Where a user's commands find the monitors that the user's launchers started, or the user, with their tokens.

Each such monitor has one file in a folder that only its user may enter: ``rankwatch/monitors`` in the folder for state,
which is the same in every session of the user, else a private folder below the one for temporary files.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rankwatch.contract.files import (
    check_own,
    private_folder,
    read_private,
    replace_file,
    state_folder,
    temporary_folder,
)
from rankwatch.contract.messages import read_text
from rankwatch.contract.processes import serves, start_time


@dataclass(frozen=True, slots=True)
class MonitorAccess:
    """How to reach a monitor that a launcher started."""

    url: str
    job_id: str
    """Empty: it was started by itself, for any job."""
    pid: int
    """Process id of its launcher, or its own."""
    token: str
    """Allows everything."""
    ingest_token: str
    """For sending telemetry only."""
    host: str = ""
    started: str = ""
    """Start time of that process, as :func:`publish` writes it."""

    def __repr__(self) -> str:
        """Without the tokens: a representation may end up in a log."""
        return f"MonitorAccess({self.url!r}, {self.job_id!r}, pid {self.pid})"


def publish(access: MonitorAccess) -> Path:
    """Write a monitor's file, which only this user can read, and return its path.

    Raises:
        OSError: it cannot be written, or another user has prepared the folder.
    """
    path = _folder_to_write() / f"{access.host}-{access.pid}.json"
    access = replace(access, started=start_time(access.pid) or "")
    replace_file(path, json.dumps(asdict(access)), mode=0o600)
    return path


def running() -> list[MonitorAccess]:
    """The monitors that launchers of this user run on this host; removes the files of ended launchers."""
    found: list[MonitorAccess] = []
    for place in (_state_folder, _temporary_folder):
        with contextlib.suppress(OSError):
            found += [access for file in sorted(place(create=False).glob("*.json")) for access in _read(file)]
    return found


def of(url: str) -> MonitorAccess | None:
    """The monitor of this user at an address; None if none is known there."""
    return next((each for each in running() if each.url == url.rstrip("/")), None)


def _folder_to_write() -> Path:
    try:
        return _state_folder(create=True)
    except OSError:
        return _temporary_folder(create=True)


def _state_folder(*, create: bool) -> Path:
    folder = state_folder(os.environ) / "rankwatch" / "monitors"
    check_own(folder)
    return private_folder(folder, create=create)


def _temporary_folder(*, create: bool) -> Path:
    return temporary_folder("monitors", create=create)


def _read(file: Path) -> Iterator[MonitorAccess]:
    with contextlib.suppress(OSError, ValueError):
        access = read_text(MonitorAccess, read_private(file))
        if access.host == socket.gethostname() and serves(file, access.url, access.pid, access.started):
            yield access
