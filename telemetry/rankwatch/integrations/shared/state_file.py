"""``ft_state.json`` of an integration: read at the start, replaced atomically, accessed with timeouts.

For scripts that name a folder, as with nvidia-resiliency-ext. The launcher's file (``rankwatch run --ft-state``) is
preferable, since it is also written if the run is killed.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rankwatch.contract import ft_state
from rankwatch.contract.files import read_file, replace_file
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.contract.text import decoded
from rankwatch.integrations.shared.with_timeout import with_timeout

FILE_SECONDS: Final = 3.0
"""Timeout of accesses to the file at the start and end of a run: a shared file system may hang."""


class StateFile:
    """One file. Never raises: errors are written to ``log``, and its content is then ignored or lost."""

    def __init__(self, path: Path, log: logging.Logger) -> None:
        self.path = path
        self._log = log
        self._newest: str | None = None
        """Content that is still to be written; replaces older pending content."""
        self._writing = self._written = False
        self._changed = threading.Condition()

    def read(self) -> Mapping[str, Any] | None:
        """Return its content; None if it is missing or invalid."""
        try:
            found = decoded(with_timeout(lambda: read_file(self.path), FILE_SECONDS, "reading it"))
            if not isinstance(found, dict):
                raise ValueError(f"it holds {type(found).__name__}, not an object")
            ft_state.read(found)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._log.warning("%s cannot be used, timeouts are calculated again: %s", self.path, error)
            return None
        return found

    def learned(self) -> LearnedTimeouts | None:
        """Return the limits that an earlier run calculated; None if there are none."""
        found = self.read()
        return (ft_state.read(found) or None) if found is not None else None

    def write(self, content: Mapping[str, Any], *, seconds: float = 0.0) -> bool:
        """Replace it on a background thread; return whether that is done within ``seconds``."""
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
        return done and self._written

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
        self._written = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, body)
            self._written = True
        except OSError as error:
            self._log.warning("calculated timeouts cannot be written to %s: %s", self.path, error)


def as_policy(learned: LearnedTimeouts) -> dict[str, Any]:
    """Return the policy changes that apply these limits."""
    limits = {
        "section_timeouts": dict(learned.sections) or None,
        "out_of_section_timeout": learned.out_of_section,
        "initial_heartbeat_timeout": learned.initial_heartbeat,
        "heartbeat_timeout": learned.heartbeat,
    }
    return {name: value for name, value in limits.items() if value is not None}


def mean_with_earlier(new: float, earlier: float | None) -> float:
    """Return the mean of a new limit and that of an earlier run, if there is one; in seconds."""
    return new if earlier is None else round((new + earlier) / 2, 3)
