"""The log of the monitor that runs beside the launcher: kept with the job's record, its warnings shown."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

from rankwatch.contract.files import tail
from rankwatch_launcher.log import logger

LARGEST: Final = 8 << 20
"""Bytes of the log of earlier runs that a new run appends to; a larger one is begun anew."""
SHOWN: Final = 20
"""Different warnings that are shown in one run; the log has all of them."""
_CHUNK: Final = 1 << 16
_WARNING: Final = re.compile(r"\S+ \S+ \[rankwatch monitor\] (?:WARNING|ERROR|CRITICAL) (?P<text>.+)")
_OF_JOB: Final = re.compile(r"job \S+: ")
"""What the monitor finds in the job: the launcher shows that when it is decided on."""


class MonitorLog:
    """The log file of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin = self._read = 0
        self._shown: set[str] = set()
        with contextlib.suppress(OSError):
            if path.stat().st_size > LARGEST:
                path.unlink()
            else:
                self._begin = self._read = path.stat().st_size

    def show_warnings(self) -> None:
        """Log the warnings of the monitor itself that were written since the last call, each text once."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                content = file.read(_CHUNK)
        except OSError:
            return
        lines, _, rest = content.rpartition(b"\n")
        self._read += len(content) if len(rest) == _CHUNK else len(content) - len(rest)
        for line in lines.decode(errors="replace").splitlines():
            found = _WARNING.fullmatch(line)
            if found is None or _OF_JOB.match(found["text"]) or found["text"] in self._shown:
                continue
            if len(self._shown) < SHOWN:
                self._shown.add(found["text"])
                logger.warning("monitor: %s", found["text"])

    def last_line(self) -> str:
        """The last line of this run, shortened; empty if there is none."""
        lines = tail(self.path, _CHUNK, self._begin).strip().splitlines()
        return lines[-1][:300] if lines else ""
