"""Sections that are opened and closed by separate calls, instead of ``with``.

Opening a name twice, or closing one that is not open, is ignored, counted, and logged once. NVRx raises, which ends the
training, since its callers do not handle the error.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from rankwatch.contract.semconv import STEP_SECTION
from rankwatch.recording import sections
from rankwatch.recording.sections import Section

DROP_MISUSE: Final = "section_misuse"
MAX_WARNINGS: Final = 64
"""Different warnings that are logged; a script may use a new name at every step."""
MAX_OPEN: Final = 256
"""Sections open at once, which bounds memory if a script never closes them. The slots hold 32."""

_log = logging.getLogger("rankwatch")


class OpenSections:
    """The sections of one caller, by name. Thread-safe."""

    def __init__(self) -> None:
        self._open: dict[str, Section] = {}
        self._warned: set[str] = set()
        self._lock = threading.RLock()

    def __contains__(self, name: str) -> bool:
        return name in self._open

    def open(self, name: str, section: Section | None = None) -> bool:
        """Open a section: ``section``, else a step if that is its name, which counts an iteration."""
        with self._lock:
            if name in self._open:
                self._misused(f"section {name!r} is opened again before it was closed; the call is ignored")
                return False
            if len(self._open) >= MAX_OPEN:
                self._misused(f"{MAX_OPEN} sections are open at once; further ones are not opened")
                return False
            section = section or (sections.step() if name == STEP_SECTION else sections.section(name))
            self._open[name] = section.__enter__()
            return True

    def close(self, name: str) -> bool:
        """Close the section of that name."""
        with self._lock:
            section = self._open.pop(name, None)
            if section is None:
                self._misused(f"section {name!r} is closed but not open; the call is ignored")
                return False
            section.__exit__(None, None, None)
            return True

    def close_all(self, *, completed: bool = True) -> None:
        """Close all sections. Unless ``completed``, an open step is not counted."""
        with self._lock:
            while self._open:
                _, section = self._open.popitem()  # last in, first out
                section.__exit__(None if completed else InterruptedError, None, None)

    def _misused(self, message: str) -> None:
        if (recorder := sections.attached()) is not None:
            recorder.drop(DROP_MISUSE)
        if message not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(message)
            _log.warning("%s", message)
