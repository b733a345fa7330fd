"""``ft_state.json`` as an integration keeps it: read at the start, replaced in one piece, never waited for long.

The launcher keeps such a file too (``rankwatch run --ft-state``), and better: also when the run is killed. This one is
for those who name a folder in their script, as with nvidia-resiliency-ext.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rankwatch.contract import ft_state
from rankwatch.contract.files import replace_file
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.integrations.shared.with_timeout import aside

FILE_SECONDS: Final = 3.0
"""How long a run waits for the file, at its start and at its end: the file system may hang."""


class StateFile:
    """One file. Raises nothing: what cannot be read or written is said in ``log`` and costs only what is in it."""

    def __init__(self, path: Path, log: logging.Logger) -> None:
        self.path = path
        self._log = log
        self._newest: str | None = None
        """What is still to be written; what was to be before is out of date."""
        self._writing = self._kept = False
        self._changed = threading.Condition()

    def read(self) -> Mapping[str, Any] | None:
        """What is in it; None: nothing, or nothing that can be used."""
        try:
            found = json.loads(aside(self.path.read_text, FILE_SECONDS, "reading it"))
            if not isinstance(found, dict):
                raise ValueError(f"it holds {type(found).__name__}, not an object")
            ft_state.read(found)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._log.warning("%s cannot be used, timeouts are calculated anew: %s", self.path, error)
            return None
        return found

    def learned(self) -> LearnedTimeouts | None:
        """The limits that an earlier run calculated; None: none."""
        found = self.read()
        return (ft_state.read(found) or None) if found is not None else None

    def write(self, content: Mapping[str, Any], *, seconds: float = 0.0) -> bool:
        """Replace it, on a thread of its own; whether it stands within so many seconds."""
        body = json.dumps(content, indent=2, sort_keys=True) + "\n"
        with self._changed:
            self._newest = body
            if not self._writing:
                self._writing = True
                threading.Thread(target=self._write_all, name="rankwatch-ft-state", daemon=True).start()
            if not seconds:
                return False
            done = self._changed.wait_for(lambda: not self._writing, seconds)
        if not done:
            self._log.warning("writing calculated timeouts to %s takes longer than %g s", self.path, seconds)
        return done and self._kept

    def _write_all(self) -> None:
        while True:
            with self._changed:
                body, self._newest = self._newest, None
                if body is None:
                    self._writing = False
                    self._changed.notify_all()
                    return
            self._write(body)

    def _write(self, body: str) -> None:
        self._kept = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, body)
            self._kept = True
        except OSError as error:
            self._log.warning("calculated timeouts cannot be kept in %s: %s", self.path, error)


def as_policy(learned: LearnedTimeouts) -> dict[str, Any]:
    """The changes of the job's policy that put these limits in force."""
    limits = {
        "section_timeouts": dict(learned.sections) or None,
        "out_of_section_timeout": learned.out_of_section,
        "initial_heartbeat_timeout": learned.initial_heartbeat,
        "heartbeat_timeout": learned.heartbeat,
    }
    return {name: value for name, value in limits.items() if value is not None}


def mean(new: float, earlier: float | None) -> float:
    """The limit to keep: the mean of the new one and the one that an earlier run calculated, if it did. Seconds."""
    return new if earlier is None else round((new + earlier) / 2, 3)
