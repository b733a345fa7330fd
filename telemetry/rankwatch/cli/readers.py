"""Read-only monitors that a command left running for an opened page: the next command of the user finds them here.

Each has one private file in the folder ``readers`` below that for temporary files, named after its record.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from rankwatch.contract import records
from rankwatch.contract.files import read_private, replace_file, temporary_folder
from rankwatch.contract.messages import read_text
from rankwatch.contract.processes import serves, start_time
from rankwatch.monitor_client import MonitorClient, MonitorError


@dataclass(frozen=True, slots=True)
class Reader:
    """How to reach a read-only monitor."""

    url: str
    token: str
    host: str
    written: float
    """Unix time of the record's last change when it was read: a job that goes on changes its record."""
    pid: int
    started: str
    """Start time of the process."""

    def __repr__(self) -> str:
        """Without the token: a representation may end up in a log."""
        return f"Reader({self.url!r})"


def publish(record: Path, url: str, token: str, written: float, pid: int) -> None:
    """Note the reader of a record; without the file the next command starts another one."""
    with contextlib.suppress(OSError):
        reader = Reader(url, token, socket.gethostname(), written, pid, start_time(pid) or "")
        replace_file(_file(record, create=True), json.dumps(asdict(reader)), mode=0o600)


def running(record: Path) -> MonitorClient | None:
    """A client of the reader of a record that answers and has read its last change; None: there is none."""
    with contextlib.suppress(OSError, ValueError, MonitorError):
        file = _file(record, create=False)
        reader = read_text(Reader, read_private(file))
        if reader.host != socket.gethostname() or not serves(file, reader.url, reader.pid, reader.started):
            return None
        if reader.written == written(record):
            client = MonitorClient(reader.url, reader.token)
            client.read("/jobs")
            return client
    return None


def written(record: Path) -> float:
    """Unix time of the last change of a record; 0: there is none."""
    found = records.at(record)
    return 0.0 if found is None else found.written


def _file(record: Path, *, create: bool) -> Path:
    name = hashlib.sha256(os.fsencode(record.resolve())).hexdigest()[:32]
    return temporary_folder("readers", create=create) / f"{name}.json"
