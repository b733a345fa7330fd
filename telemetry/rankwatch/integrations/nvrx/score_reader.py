"""Reads the newest scores of this rank's job from the monitor, on a thread: nobody who trains waits for HTTP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from rankwatch import settings
from rankwatch.client import Client, MonitorError, path_of

TIMEOUT: Final = 10.0
"""Seconds that one question may take."""

_log = logging.getLogger("rankwatch")


class ScoreReader:
    """Asks every ``interval`` seconds, and at once when it is told to. ``start`` it, and ``stop`` it."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._newest: tuple[float, Mapping[str, Any]] | None = None
        self._asked, self._answers, self._stopped = 0, 0, False
        self._said = ""
        self._changed = threading.Condition()
        self._read = _reader()

    def start(self) -> None:
        """Begin to ask."""
        if self._read is None:
            _log.warning("no monitor is named (RANKWATCH_MONITOR), so there are no scores to report")
            return
        threading.Thread(target=self._run, name="rankwatch-scores", daemon=True).start()

    def stop(self) -> None:
        """Ask no more; does not wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def newest(self) -> tuple[float, Mapping[str, Any]] | None:
        """When the newest scores were computed (unix seconds) and the answer; None: none has come yet."""
        with self._changed:
            return self._newest

    def fetch(self, seconds: float) -> tuple[float, Mapping[str, Any]] | None:
        """Ask now and wait for the answer, for so many seconds at most; without one, the newest before."""
        with self._changed:
            if self._read is not None:
                self._asked += 1
                wanted = self._answers + 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._stopped or self._answers >= wanted, seconds)
            return self._newest

    def _run(self) -> None:
        assert self._read is not None
        while True:
            answer = self._ask(self._read)
            with self._changed:
                if answer is not None:
                    self._newest = answer
                self._answers += 1
                self._changed.notify_all()
                asked = self._asked
                self._changed.wait_for(lambda asked=asked: self._stopped or self._asked != asked, self._interval)  # type: ignore[misc]
                if self._stopped:
                    return

    def _ask(self, read: Callable[[], Any]) -> tuple[float, Mapping[str, Any]] | None:
        try:
            answer = read()
            at = answer["at"]
            self._said = ""
            return None if at is None else (float(at), answer)
        except MonitorError as error:
            words = str(error)
        except Exception as error:  # noqa: BLE001 - the thread's boundary: it asks again whatever came
            words = f"{type(error).__name__}: {error}"
        if words != self._said:  # once for each trouble, not once an interval
            self._said = words
            _log.warning("there are no new scores to report: %s", words)
        return None


def _reader() -> Callable[[], Any] | None:
    loaded, _ = settings.load()
    if loaded.monitor is None or loaded.job_id is None:
        return None
    client, path = Client(loaded.monitor, loaded.token, TIMEOUT), f"{path_of(loaded.job_id)}/scores"
    return lambda: client.read(path)
