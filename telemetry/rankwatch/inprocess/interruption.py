"""Unwinds one thread from another, by an asynchronous exception and a signal that interrupts system calls.

The interpreter raises an asynchronous exception between two bytecodes. A thread blocked in a system call executes none,
so the main thread is also sent a signal, whose handler does nothing: the system call returns to the interpreter, which
then raises. Neither reaches C code that blocks with the GIL released (a collective: its connections are shut down, see
:mod:`rankwatch.inprocess.connections`) or held (the watchdog process kills the rank).

The exception is only raised between :meth:`Interruption.arm` and :meth:`Interruption.disarm`, and again if swallowed.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from typing import Any

from rankwatch.inprocess.state import RankShouldRestart


class Interruption:
    """Interrupts the thread that creates it, from :meth:`arm` to :meth:`disarm`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._armed = False
        self._signal, self._previous_handler = _claim_signal()
        self.atomic = threading.RLock()
        """Held by the thread while it must not be interrupted; reentrant."""

    def arm(self) -> None:
        """Allow interruptions. Called by the thread itself."""
        with self._lock:
            self._armed = True

    def disarm(self) -> None:
        """Forbid interruptions and discard a pending one. Called by the thread itself, inside a handler of
        :class:`RankShouldRestart` if one may have been raised already."""
        while True:
            try:
                with self._lock:
                    self._armed = False
                    _raise_in(self._thread, None)
                return
            except RankShouldRestart:
                continue

    def interrupt(self) -> bool:
        """Raise in the thread if it is armed and does not hold ``atomic``; called by another thread. Return whether it
        is armed."""
        if not self.atomic.acquire(blocking=False):
            return True
        try:
            with self._lock:
                if not self._armed:
                    return False
                _raise_in(self._thread, RankShouldRestart)
        finally:
            self.atomic.release()
        if self._signal:
            with contextlib.suppress(OSError):
                signal.pthread_kill(self._thread, self._signal)
        return True

    def close(self) -> None:
        """Restore the signal's handler. Called by the thread itself."""
        if self._signal:
            signal.signal(self._signal, self._previous_handler)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    exception = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)


def _claim_signal() -> tuple[int, Any]:
    """Return an unused real-time signal, now with a no-op handler; 0 outside the main thread, which handles signals."""
    if threading.current_thread() is not threading.main_thread():
        return 0, None
    for number in range(signal.SIGRTMAX - 2, signal.SIGRTMIN, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            return number, signal.signal(number, lambda *_: None)
    return 0, None
