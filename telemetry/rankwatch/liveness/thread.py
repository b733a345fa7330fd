"""The liveness thread: proves that this process gets the GIL, and wakes the exporter when a limit is exceeded.

It needs neither the network nor the main thread: the age of its tick in the slots distinguishes a held GIL from a
network outage. Limits are checked by :class:`~rankwatch.contract.limits.RankLimits`.
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
"""Seconds between two ticks: a held GIL is distinguishable from a busy one after two seconds, with margin."""

MARGIN: Final = 0.005
"""Seconds after a limit at which the exporter is woken, so that the reported age is certainly beyond the limit."""


class LivenessThread:
    """Calls ``wake_exporter`` once for each exceeded limit, and ``on_settings`` for each new set of settings."""

    def __init__(
        self,
        recorder: Recorder,
        wake_exporter: Callable[[], None],
        on_settings: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._recorder = recorder
        self._wake_exporter = wake_exporter
        self._on_settings = on_settings
        self._stopped = threading.Event()
        self._limits = RankLimits()
        self._generation = 0
        self._exceeded: frozenset[str] = frozenset()
        self._stepped = False
        self._thread = threading.Thread(target=self._run, name="rankwatch-liveness", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread soon; does not wait."""
        self._stopped.set()

    def _run(self) -> None:
        wait = 0.0
        while not self._stopped.wait(wait):
            try:
                wait = self.tick()
            except Exception:  # noqa: BLE001 - thread boundary: it must keep ticking, whatever the settings are
                wait = INTERVAL
                self._recorder.drop("pulse_error")

    def tick(self) -> float:
        """Tick once, check settings and limits, and return the seconds until the next tick is due."""
        recorder = self._recorder
        recorder.words[LIVENESS_TICK] = time.monotonic_ns()
        self._take_settings()
        reading = read(recorder.slots)
        if reading is None:
            return INTERVAL
        exceeded_limits, until_next = self._limits.passed(reading.activity())
        exceeded = frozenset(exceeded_limits)
        stepped = reading.first_iteration is not None
        if exceeded - self._exceeded or stepped is not self._stepped:
            self._wake_exporter()
        self._exceeded, self._stepped = exceeded, stepped
        return min(INTERVAL, until_next + MARGIN)

    def _take_settings(self) -> None:
        written = self._recorder.slots.settings()
        if written is None or written[0] == self._generation:
            return
        self._generation, settings = written
        self._limits = RankLimits.from_settings(settings)
        self._on_settings(settings)
