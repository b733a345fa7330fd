"""The exporter thread: reports at each interval, at once when woken, and again when the receiver asked for it.

This module does not import OpenTelemetry; the thread does, when it builds the pipeline.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from rankwatch.contract.schema import timeout
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.shared_slots import REPORT_DUE

if TYPE_CHECKING:
    from rankwatch.export.pipeline import ExportPipeline

DROP_EXPORT_ERROR: Final = "export_error"
SHORTEST_INTERVAL: Final = 0.05
LATE_INTERVALS: Final = 2
LATE_SECONDS: Final = 1.0
"""A report is late so many intervals and seconds after the previous one; the launcher then reports for this rank."""
RETRY_SPREAD: Final = 0.5
"""Fraction of the receiver's Retry-After by which waits are longer, so that ranks refused together do not retry so."""
JITTER: Final = 0.1
"""Fraction of the interval by which waits vary, so that ranks that start together do not always report together."""

_log = logging.getLogger("rankwatch")


def backoff(retry_after: float, retries: int) -> float:
    """Seconds until a request is sent again for the ``retries``-th time: twice as long each time, with jitter."""
    return retry_after * 2.0 ** min(retries - 1, 16) * random.uniform(1, 1 + RETRY_SPREAD)


class Exporter:
    """Runs the pipeline. ``make`` builds it on the thread, since that imports OpenTelemetry."""

    def __init__(
        self, make: Callable[[], ExportPipeline], recorder: Recorder, interval: float, spread: float = 0.0
    ) -> None:
        """Woken ranks report within ``spread`` seconds, since many may be woken at the same time."""
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
        """Start the thread; the first report is made at once."""
        self._thread.start()

    def wake(self) -> None:
        """Report within the spread instead of at the next interval."""
        self._wake.set()

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Apply settings pushed by the launcher: ``export_interval``, in seconds."""
        if "export_interval" in settings:
            try:
                self._interval = max(SHORTEST_INTERVAL, timeout("export_interval", settings["export_interval"]))
            except ValueError as error:
                _log.warning("%s; it stays at %g", error, self._interval)
            self._wake.set()

    def stop(self, wait: float) -> None:
        """Send a last report and end. Returns after at most ``wait`` seconds, whether or not the receiver responds."""
        self._stopping = True
        self._wake.set()
        self._thread.join(wait)

    def settle(self, wait: float) -> None:
        """Wait until the thread has finished importing: a child forked meanwhile would inherit locked modules.

        All forks together wait ``wait`` seconds at most: where a driver hangs in the thread, only the first is delayed.
        """
        left = wait if self._fork_wait is None else self._fork_wait
        if left > 0 and self._thread.is_alive() and threading.current_thread() is not self._thread:
            begin = time.monotonic()
            self._made.wait(left)
            self._fork_wait = left - (time.monotonic() - begin)

    def _run(self) -> None:
        try:
            pipeline = self._make()
        except Exception as error:  # noqa: BLE001 - thread boundary; training continues without telemetry
            _log.warning("telemetry cannot be exported: %s: %s", type(error).__name__, error)
            self._recorder.drop(DROP_EXPORT_ERROR)
            return
        finally:
            self._made.set()
        due = time.monotonic()
        self._recorder.words[REPORT_DUE] = int((due + LATE_INTERVALS * self._interval + LATE_SECONDS) * 1e9)
        retry_at, retries = math.inf, 0
        while True:
            woken = self._await(min(due, retry_at))
            stopping = self._stopping
            action = pipeline.report
            if retry_at < due and not woken and not stopping:
                action = pipeline.resend
            else:
                due = time.monotonic() + self._interval * random.uniform(1 - JITTER, 1 + JITTER)
            self._guarded(lambda action=action: self._send(action))  # type: ignore[misc]
            if stopping:
                self._guarded(pipeline.close)
                return
            seconds = pipeline.retry_after
            retries = retries + 1 if seconds else 0
            retry_at = time.monotonic() + backoff(seconds, retries) if seconds else math.inf

    def _await(self, due: float) -> bool:
        """Wait until ``due``, or until the thread is woken and its part of the spread has passed; whether it was."""
        woken = False
        while not self._stopping and (left := due - time.monotonic()) > 0:
            if self._wake.wait(left) and not woken:
                woken, due = True, min(due, time.monotonic() + random.random() * self._spread)
            self._wake.clear()
        self._wake.clear()
        return woken

    def _send(self, action: Callable[[], bool]) -> None:
        if action():
            late = time.monotonic() + LATE_INTERVALS * self._interval + LATE_SECONDS
            self._recorder.words[REPORT_DUE] = int(late * 1e9)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - thread boundary: the next report may succeed
            if not self._recorder.dropped.get(DROP_EXPORT_ERROR):
                _log.warning("a report failed; further failures are only counted", exc_info=True)
            self._recorder.drop(DROP_EXPORT_ERROR)
