"""The exporter's thread: reports at each interval, and at once when woken. It imports OpenTelemetry, this does not."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from rankwatch.contract.policy import timeout
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.shared_slots import REPORT_DUE

DROP_EXPORT_ERROR: Final = "export_error"
SHORTEST_INTERVAL: Final = 0.05
LATE_INTERVALS: Final = 2
LATE_SECONDS: Final = 1.0
"""A report is late so many intervals and seconds after the one before it; the launcher then speaks for this rank."""
JITTER: Final = 0.1
"""Each wait differs by up to this part of the interval: ranks that start together must not report together for ever."""

_log = logging.getLogger("rankwatch")


class Reports(Protocol):
    """What the thread drives: :class:`rankwatch.export.pipeline.Export`."""

    def report(self) -> bool:
        """Take a report and send it; say whether it was delivered."""

    def close(self) -> None:
        """Close the connections."""


class Exporter:
    """The thread. ``make`` builds what it drives; it runs on the thread, since it imports OpenTelemetry."""

    def __init__(self, make: Callable[[], Reports], recorder: Recorder, interval: float, spread: float = 0.0) -> None:
        """Prepare; news is told within ``spread`` seconds, since many ranks may have the same."""
        self._make = make
        self._recorder = recorder
        self._interval, self._spread = interval, spread
        self._wake = threading.Event()
        self._stopping = False
        self._made = threading.Event()
        self._fork_wait: float | None = None
        """Seconds that forks may still wait for the imports, once one has waited."""
        self._thread = threading.Thread(target=self._run, name="rankwatch-exporter", daemon=True)

    def start(self) -> None:
        """Begin to report, the first time at once."""
        self._thread.start()

    def wake(self) -> None:
        """There is news: report within the spread, not at the next interval."""
        self._wake.set()

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Take the interval from settings that the launcher handed down: ``export_interval``, in seconds."""
        if "export_interval" in settings:
            try:
                self._interval = max(SHORTEST_INTERVAL, timeout("export_interval", settings["export_interval"]))
            except ValueError as error:
                _log.warning("%s; it stays at %g", error, self._interval)
            self._wake.set()

    def stop(self, wait: float) -> None:
        """Report once more, then end. Returns after at most ``wait`` seconds, whether or not the receiver answered."""
        self._stopping = True
        self._wake.set()
        self._thread.join(wait)

    def settle(self, wait: float) -> None:
        """Wait until the thread imports nothing any more: a child forked meanwhile would inherit locked modules.

        All forks together wait ``wait`` seconds at most: where a driver hangs in the thread, only the first is delayed.
        """
        left = wait if self._fork_wait is None else self._fork_wait
        if left > 0 and self._thread.is_alive() and threading.current_thread() is not self._thread:
            begin = time.monotonic()
            self._made.wait(left)
            self._fork_wait = left - (time.monotonic() - begin)

    def _run(self) -> None:
        try:
            reports = self._make()
        except Exception as error:  # noqa: BLE001 - the thread's boundary; training goes on unwatched
            _log.warning("telemetry cannot be exported: %s: %s", type(error).__name__, error)
            self._recorder.drop(DROP_EXPORT_ERROR)
            return
        finally:
            self._made.set()
        due = time.monotonic()
        self._recorder.words[REPORT_DUE] = int((due + LATE_INTERVALS * self._interval + LATE_SECONDS) * 1e9)
        while True:
            self._await(due)
            stopping = self._stopping
            due = time.monotonic() + self._interval * random.uniform(1 - JITTER, 1 + JITTER)
            self._guarded(lambda: self._report(reports))
            if stopping:
                self._guarded(reports.close)
                return

    def _await(self, due: float) -> None:
        """Wait until a report is due, or until there was news and it is this rank's turn to tell it."""
        woken = False
        while not self._stopping and (left := due - time.monotonic()) > 0:
            if self._wake.wait(left) and not woken:
                woken, due = True, min(due, time.monotonic() + random.random() * self._spread)
            self._wake.clear()
        self._wake.clear()

    def _report(self, reports: Reports) -> None:
        if reports.report():
            late = time.monotonic() + LATE_INTERVALS * self._interval + LATE_SECONDS
            self._recorder.words[REPORT_DUE] = int(late * 1e9)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - the thread's boundary: the next report may succeed
            if not self._recorder.dropped.get(DROP_EXPORT_ERROR):
                _log.warning("a report could not be made; further ones are only counted", exc_info=True)
            self._recorder.drop(DROP_EXPORT_ERROR)
