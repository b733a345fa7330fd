"""``ft_state.json``, the file in which learned timeouts outlive a run: read at the start, written when there is news.

The monitor says what it is to hold (settings ``ft_state`` and ``ft_state_at_end``); the launcher that has rank 0 writes
it. It mostly lies beside the checkpoints, on a file system that may hang, so it is written on a thread of its own: a
write that fails or never ends costs nobody but the next run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from rankwatch.contract import env, ft_state
from rankwatch.contract.files import replace_file
from rankwatch_launcher.log import logger

NOW: Final = "ft_state"
"""Key of the settings: the whole content that the file is to have now."""
AT_END: Final = "ft_state_at_end"
"""Key of the settings: the content for a job that has come to its orderly end."""
MAX_BYTES: Final = 1 << 20
"""A larger file is no ft_state.json; one of 64 sections takes a few kilobytes."""
CLOSE_SECONDS: Final = 3.0
"""How long the end of the launcher waits for the last write."""


class FtState:
    """The file of one job as one launcher sees it; without a path it is never read nor written.

    Safe for several threads.
    """

    def __init__(self, path: str = "") -> None:
        self.loaded: Mapping[str, Any] = {}
        """What earlier runs have learned, in the layout of the file; empty: nothing."""
        self._path = path
        self._spoilt = False
        self._leads = False
        self._ended = False
        self._now: Mapping[str, Any] = {}
        self._at_end: Mapping[str, Any] = {}
        self._written: Mapping[str, Any] = {}
        self._shared: Path | None = None
        self._failed = False
        self._writer: threading.Thread | None = None
        self._lock = threading.Lock()

    def read(self) -> None:
        """Take in what earlier runs have left in the file. One that is missing is no news; what is wrong is said."""
        if not self._path:
            return
        target = self._target()
        try:
            learned = ft_state.read(_parse(target))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._spoilt = not isinstance(error, OSError)
            logger.warning("%s cannot be used, timeouts are learned anew: %s", target, _words(error))
            return
        if learned:
            # Only what counts: the rest of a foreign file might be refused, and the whole registration with it.
            self.loaded = ft_state.write(learned, {}, None)
            logger.info("learned timeouts of earlier runs were read from %s", target)

    def take(self, settings: Mapping[str, Any]) -> None:
        """The monitor has handed settings down: keep what is in them for the file."""
        with self._lock:
            self._now = _mapping(settings.get(NOW)) or self._now
            self._at_end = _mapping(settings.get(AT_END)) or self._at_end
        self._show()
        self._write_if_due()

    def share(self, folder: Path) -> None:
        """Let the ranks of an attempt, whose slots are in ``folder``, read what is known (``learned_timeouts()``)."""
        with self._lock:
            self._shared = folder
        self._show()

    def lead(self, leads: bool) -> None:
        """Whether this launcher has rank 0 now, and with it the file."""
        with self._lock:
            self._leads = leads
        self._write_if_due()

    def finish(self) -> None:
        """The job has come to its orderly end: what was learned of the whole of it counts."""
        with self._lock:
            self._ended = True
        self._write_if_due()

    def close(self) -> None:
        """Wait a little for a write that is under way."""
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join(CLOSE_SECONDS)

    def _show(self) -> None:
        with self._lock:
            folder, content = self._shared, {**self.loaded, **(self._at_end or self._now)}
        if folder is None or not content:
            return
        with contextlib.suppress(OSError):  # the attempt's folder is removed with the attempt
            replace_file(folder / env.LEARNED_FILE, json.dumps(content))

    def _due(self) -> Mapping[str, Any] | None:
        """What the file should hold and does not, if it is ours to write; the caller has the lock."""
        content = (self._at_end if self._ended else {}) or self._now
        return content if self._path and self._leads and content and content != self._written else None

    def _write_if_due(self) -> None:
        with self._lock:
            if self._due() is not None and self._writer is None:
                self._writer = threading.Thread(target=self._write, name="rankwatch-ft-state", daemon=True)
                self._writer.start()

    def _write(self) -> None:
        """Write until nothing newer is wanted; one thread at a time does."""
        while True:
            with self._lock:
                content = self._due()
                if content is None:
                    self._writer = None
                    return
            try:
                self._replace(content)
            except Exception as error:  # noqa: BLE001  # the thread's boundary: what is said next may be writable
                with self._lock:
                    said, self._failed, self._writer = self._failed, True, None
                if not said:
                    logger.warning("learned timeouts cannot be kept in %s: %s", self._target(), _words(error))
                return
            with self._lock:
                self._written = content

    def _replace(self, content: Mapping[str, Any]) -> None:
        """Write the file so that a reader finds the old content or the new one, whatever happens in between."""
        target = self._target()
        if self._spoilt:  # it may be something else that a person named by mistake
            os.replace(target, target.with_name(f"{target.name}.unreadable"))
            self._spoilt = False
        replace_file(target, json.dumps(content, indent=2, sort_keys=True) + "\n", sync=True)

    def _target(self) -> Path:
        """The file. Looked at each time: a folder of checkpoints may be made by the training script."""
        path = Path(self._path)
        return path / ft_state.FILE_NAME if self._path.endswith(os.sep) or os.path.isdir(path) else path


def _parse(path: Path) -> Mapping[str, Any]:
    """The object in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: there is no object in it.
    """
    with path.open("rb") as file:
        body = file.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    try:
        content = json.loads(body, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, Mapping):
        raise ValueError("it holds no JSON object")
    return content


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__
