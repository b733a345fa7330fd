"""``ft_state.json``: learned timeouts that persist between runs, read at the start and written when they change.

The monitor provides the content (settings ``ft_state`` and ``ft_state_at_end``); the launcher of rank 0 writes it. The
file usually lies beside the checkpoints, on a file system that may hang, so it is written on a separate thread: a write
that fails or never returns does not affect this run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from rankwatch.contract import env, ft_state, text
from rankwatch.contract.files import read_file, replace_file
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch_launcher.log import logger

CALCULATED: Final = ("section_timeouts", "out_of_section_timeout", "initial_heartbeat_timeout", "heartbeat_timeout")
"""Settings that may be calculated."""
NOW: Final = "ft_state"
"""Setting: the whole content of the file now."""
AT_END: Final = "ft_state_at_end"
"""Setting: the content for a job that has finished."""
MAX_BYTES: Final = 1 << 20
"""Limit on the size of the file; 64 sections take a few kilobytes."""
CLOSE_SECONDS: Final = 3.0
"""How long the launcher's shutdown waits for the last write."""


class LearnedLimitsFile:
    """The file of one job, from one launcher; without a path it is neither read nor written. Thread-safe."""

    def __init__(self, path: str = "") -> None:
        self.loaded: Mapping[str, Any] = {}
        """What earlier runs learned, in the layout of the file; empty: nothing."""
        self.path = self._path = path
        self._unreadable = False
        self._has_rank_0 = False
        self._job_finished = False
        self._now: Mapping[str, Any] = {}
        self._at_end: Mapping[str, Any] = {}
        self._written: Mapping[str, Any] = {}
        self._shared: Path | None = None
        self._failed = False
        self._writer: threading.Thread | None = None
        self._lock = threading.Lock()

    def read(self) -> None:
        """Load what earlier runs learned. A missing file is normal; an invalid one is logged and ignored."""
        if not self._path:
            return
        target = self._target()
        try:
            learned = ft_state.read(_parse(target))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._unreadable = not isinstance(error, OSError)
            logger.warning("%s is invalid, timeouts are learned from scratch: %s", target, _message(error))
            return
        if learned:
            # Known fields only: the monitor might reject the registration for the others.
            self.loaded = ft_state.write(learned, {}, None)
            logger.info("learned timeouts of earlier runs loaded from %s", target)

    def adopt(self, policy: Mapping[str, Any]) -> dict[str, Any]:
        """Take the limits that a rank has calculated, or loaded by itself; return the other changes of the policy."""
        known = ft_state.read(self.loaded)
        learned = LearnedTimeouts(
            {**known.sections, **(policy.get("section_timeouts") or {})},
            policy.get("out_of_section_timeout", known.out_of_section),
            policy.get("initial_heartbeat_timeout", known.initial_heartbeat),
            policy.get("heartbeat_timeout", known.heartbeat),
        )
        if learned != known:
            self.loaded = ft_state.write(learned, {}, None)
        return {name: value for name, value in policy.items() if name not in CALCULATED}

    def take(self, settings: Mapping[str, Any]) -> None:
        """Take the file's content from the monitor's settings."""
        with self._lock:
            self._now = _mapping(settings.get(NOW)) or self._now
            self._at_end = _mapping(settings.get(AT_END)) or self._at_end
        self._write_for_ranks()
        self._write_if_due()

    def share(self, folder: Path) -> None:
        """Write the content for an attempt's ranks (``rankwatch.learned_timeouts()``); ``folder`` has their slots."""
        with self._lock:
            self._shared = folder
        self._write_for_ranks()

    def set_writer(self, has_rank_0: bool) -> None:
        """Make this launcher the writer of the file, or not."""
        with self._lock:
            self._has_rank_0 = has_rank_0
        self._write_if_due()

    def finish(self) -> None:
        """The job has finished: write the content for the end of a job."""
        with self._lock:
            self._job_finished = True
        self._write_if_due()

    def close(self) -> None:
        """Wait briefly for a write in progress."""
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join(CLOSE_SECONDS)

    def _write_for_ranks(self) -> None:
        with self._lock:
            folder, content = self._shared, {**self.loaded, **(self._at_end or self._now)}
        if folder is None or not content:
            return
        with contextlib.suppress(OSError):  # the attempt may have ended, and its folder with it
            replace_file(folder / env.LEARNED_FILE, json.dumps(content))

    def _due(self) -> Mapping[str, Any] | None:
        """Content that this launcher has yet to write. Call it with the lock held."""
        content = (self._at_end if self._job_finished else {}) or self._now
        return content if self._path and self._has_rank_0 and content and content != self._written else None

    def _write_if_due(self) -> None:
        with self._lock:
            if self._due() is not None and self._writer is None:
                self._writer = threading.Thread(target=self._write, name="rankwatch-ft-state", daemon=True)
                self._writer.start()

    def _write(self) -> None:
        """Write until nothing newer is due. Runs on one thread at a time."""
        while True:
            with self._lock:
                content = self._due()
                if content is None:
                    self._writer = None
                    return
            try:
                self._replace(content)
            except Exception as error:  # noqa: BLE001  # thread boundary
                with self._lock:
                    logged, self._failed, self._writer = self._failed, True, None
                if not logged:
                    logger.warning("learned timeouts cannot be written to %s: %s", self._target(), _message(error))
                return
            with self._lock:
                self._written = content

    def _replace(self, content: Mapping[str, Any]) -> None:
        """Replace the file atomically."""
        target = self._target()
        if self._unreadable:  # it may be another file, named by mistake
            os.replace(target, target.with_name(f"{target.name}.unreadable"))
            self._unreadable = False
        replace_file(target, json.dumps(content, indent=2, sort_keys=True) + "\n", sync=True)

    def _target(self) -> Path:
        """The file. Resolved each time: the training script may create the folder of checkpoints."""
        path = Path(self._path)
        return path / ft_state.FILE_NAME if self._path.endswith(os.sep) or os.path.isdir(path) else path


def _parse(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds no JSON object.
    """
    body = read_file(path, MAX_BYTES)
    try:
        content = json.loads(body, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise ValueError(text.not_json(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, Mapping):
        raise ValueError("not a JSON object")
    return content


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _message(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__
