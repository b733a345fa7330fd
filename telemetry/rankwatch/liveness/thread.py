"""The pulse thread: shows that this process gets its GIL, and wakes the exporter when a limit is passed.

It needs neither the network nor the main thread. Its own beat in the slots is what tells a held GIL from a cut network.
What is past a limit is decided by :class:`~rankwatch.contract.limits.RankLimits`; the thread only looks and wakes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from rankwatch.contract.limits import RankLimits
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.shared_slots import LIVENESS_TICK, read

INTERVAL: Final = 0.25
"""Seconds between two beats: a held GIL can be told from a busy one after two seconds, with margin."""

MARGIN: Final = 0.005
"""Seconds past a limit at which the exporter is woken, so that the age it reports is surely beyond the limit."""


class LivenessThread:
    """The thread. ``on_news`` is called once for each limit passed, ``on_settings`` for each new set of settings."""

    def __init__(
        self,
        recorder: Recorder,
        on_news: Callable[[], None],
        on_settings: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._recorder = recorder
        self._on_news = on_news
        self._on_settings = on_settings
        self._stopped = threading.Event()
        self._limits = RankLimits()
        self._generation = 0
        self._passed: frozenset[str] = frozenset()
        self._stepped = False
        self._thread = threading.Thread(target=self._run, name="rankwatch-pulse", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating, soon; does not wait."""
        self._stopped.set()

    def _run(self) -> None:
        wait = 0.0
        while not self._stopped.wait(wait):
            try:
                wait = self.beat()
            except Exception:  # noqa: BLE001 - the thread's boundary: it must beat on, whatever was handed down
                wait = INTERVAL
                self._recorder.drop("pulse_error")

    def beat(self) -> float:
        """Beat once, look at limits and settings, and return the seconds until the next beat is due."""
        recorder = self._recorder
        recorder.words[LIVENESS_TICK] = time.monotonic_ns()
        self._take_settings()
        reading = read(recorder.slots)
        if reading is None:
            return INTERVAL
        standing, ahead = self._limits.passed(reading.activity())
        passed = frozenset(standing)
        stepped = reading.first_iteration is not None
        if passed - self._passed or stepped is not self._stepped:
            self._on_news()
        self._passed, self._stepped = passed, stepped
        return min(INTERVAL, ahead + MARGIN)

    def _take_settings(self) -> None:
        handed = self._recorder.slots.settings()
        if handed is None or handed[0] == self._generation:
            return
        self._generation, settings = handed
        self._limits = RankLimits.from_settings(settings)
        self._on_settings(settings)
