"""Progress of the wrapped function: what it reports, or before its first report, whether the main thread runs.

Reports are :func:`rankwatch.inprocess.ping`, a completed ``rankwatch.step()`` and ``rankwatch.heartbeat()``. Before the
first of these in an iteration, while modules are imported, weights loaded and kernels compiled, it counts as progress
that the main thread executes Python: a pending call of the interpreter runs between two bytecodes.
"""

from __future__ import annotations

import ctypes
import threading
import time

from rankwatch.recording import sections
from rankwatch.recording.shared_slots import BEATS, FINISHED, ITERATION, PROGRESS


class _MainThreadProbe:
    """Counts calls that the main thread executes. One per process, since a pending call cannot be withdrawn.

    The pending call is libc's ``sem_post``. In a Python function a pending interruption would be raised, and a callback
    cannot propagate it.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(64)  # sem_t has 32 bytes on 64-bit Linux
        libc.sem_init(self._semaphore, 0, 0)
        self._value = libc.sem_getvalue
        self._post = ctypes.cast(libc.sem_post, ctypes.c_void_p)
        self._add = ctypes.pythonapi.Py_AddPendingCall
        self._scheduled = 0

    @property
    def count(self) -> int:
        """Calls that the main thread has executed."""
        value = ctypes.c_int()
        self._value(self._semaphore, ctypes.byref(value))
        return value.value

    def schedule(self) -> None:
        """Schedule a call, unless one is pending."""
        if self._scheduled == self.count and self._add(self._post, self._semaphore) == 0:
            self._scheduled += 1


_probe = _MainThreadProbe()


class FunctionProgress:
    """Progress within one iteration, as the monitor thread observes it."""

    def __init__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        self.begin()

    def begin(self) -> None:
        """Begin an iteration, with no progress yet."""
        self._pings = 0
        self._reported = self._reports()
        self._probe_count = _probe.count
        self.since_ns = time.monotonic_ns()
        """Time of the last progress, of ``time.monotonic_ns()``."""
        self.steps = 0
        """Checks at which the function had reported progress."""

    def ping(self) -> None:
        """Report progress. Called by the function."""
        self._pings += 1

    def idle_seconds(self) -> float:
        """Return the seconds since the last progress; the more often it is called, the more exact."""
        now = time.monotonic_ns()
        reported = self._reports()
        if reported != self._reported:
            # Before the first step, whose duration is unknown, finished sections alone do not count.
            if self.steps or reported[:3] != self._reported[:3]:
                self.steps += 1
                self.since_ns = now
            self._reported = reported
        if not self.steps and (_probe.count != self._probe_count or not self._main):
            self._probe_count = _probe.count
            self.since_ns = now
        if self._main:
            _probe.schedule()
        return (now - self.since_ns) / 1e9

    def _reports(self) -> tuple[int, ...]:
        recorder = sections.attached()
        if recorder is None:
            return (self._pings, 0, 0, 0, 0)
        words = recorder.words
        return (self._pings, words[ITERATION], words[BEATS], words[FINISHED], words[PROGRESS])


def current_step() -> int | None:
    """Return the step that this rank is in, if ``rankwatch.step()`` is used."""
    recorder = sections.attached()
    return recorder.words[ITERATION] if recorder is not None and recorder.words[ITERATION] else None
