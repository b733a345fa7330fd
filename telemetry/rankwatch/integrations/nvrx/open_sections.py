"""Sections that are opened and closed by two calls. The SDK itself has only ``with``, which cannot be misused.

A name opened twice, or closed while it is not open, is a mistake of the caller: it is counted, said once, and changes
nothing. NVRx raises there, which ends the training, though nobody who uses it handles that error.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from rankwatch.contract.semconv import STEP_SECTION
from rankwatch.recording import sections
from rankwatch.recording.sections import Section

DROP_MISUSE: Final = "section_misuse"
MOST_SAID: Final = 64
"""Mistakes that are said; a script may make up a new name at every step."""
MOST_OPEN: Final = 256
"""Sections open at once: a script that makes up names and closes none must not fill the memory. 32 are seen."""

_log = logging.getLogger("rankwatch")


class OpenSections:
    """The sections of one caller, by name. Safe for several threads."""

    def __init__(self) -> None:
        self._open: dict[str, Section] = {}
        self._said: set[str] = set()
        self._lock = threading.RLock()

    def __contains__(self, name: str) -> bool:
        return name in self._open

    def open(self, name: str, made: Section | None = None) -> bool:
        """Open a section; ``made`` is what to enter, else a step if it is called so, which counts an iteration."""
        with self._lock:
            if name in self._open:
                self._misused(f"section {name!r} is opened again before it was closed; its first opening counts")
                return False
            if len(self._open) >= MOST_OPEN:
                self._misused(f"{MOST_OPEN} sections are open at once; further ones are not opened")
                return False
            section = made or (sections.step() if name == STEP_SECTION else sections.section(name))
            self._open[name] = section.__enter__()
            return True

    def close(self, name: str) -> bool:
        """Close the section of that name."""
        with self._lock:
            section = self._open.pop(name, None)
            if section is None:
                self._misused(f"section {name!r} is closed and is not open; nothing is done")
                return False
            section.__exit__(None, None, None)
            return True

    def close_all(self, *, completed: bool = True) -> None:
        """Close what is open. Unless ``completed``, a step is not counted as one that was done."""
        with self._lock:
            while self._open:
                _, section = self._open.popitem()  # the last one first
                section.__exit__(None if completed else InterruptedError, None, None)

    def _misused(self, words: str) -> None:
        if (recorder := sections.attached()) is not None:
            recorder.drop(DROP_MISUSE)
        if words not in self._said and len(self._said) < MOST_SAID:
            self._said.add(words)
            _log.warning("%s", words)
