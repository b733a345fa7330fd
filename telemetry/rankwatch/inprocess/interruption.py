"""Unwinds one thread from another: an asynchronous exception, and a signal that wakes what the thread sleeps in.

How this works
--------------
The interpreter raises an asynchronous exception between two bytecodes. A thread that waits in a system call does not
get there, so the main thread is sent a signal as well: its handler does nothing, but Python calls it, and calls
nothing again that then raises. What neither reaches is C code that blocks without the interpreter (a collective: its
connections are cut instead, see :mod:`rankwatch.inprocess.connections`) or with it (the watchdog process ends that).

It is only raised between :meth:`Interruption.arm` and :meth:`Interruption.disarm`; code that swallows it gets it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from typing import Any

from rankwatch.inprocess.state import RankShouldRestart


class Interruption:
    """Makes the thread that creates it interruptible, from :meth:`arm` to :meth:`disarm`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._armed = False
        self._number, self._before = _take_a_signal()
        self.atomic = threading.RLock()
        """Held by the thread while it must not be interrupted."""

    def arm(self) -> None:
        """From now on :meth:`strike` raises. By the thread itself."""
        with self._lock:
            self._armed = True

    def disarm(self) -> None:
        """From now on nothing is raised any more, what was on its way neither. By the thread itself, and nested in a
        handler of :class:`RankShouldRestart` where it may have been raised already."""
        while True:
            try:
                with self._lock:
                    self._armed = False
                    _raise_in(self._thread, None)
                return
            except RankShouldRestart:
                continue

    def strike(self) -> bool:
        """Raise in the thread, if it is armed and not within ``atomic``; from another thread. Say whether it was."""
        if not self.atomic.acquire(blocking=False):
            return True
        try:
            with self._lock:
                if not self._armed:
                    return False
                _raise_in(self._thread, RankShouldRestart)
        finally:
            self.atomic.release()
        if self._number:
            with contextlib.suppress(OSError):
                signal.pthread_kill(self._thread, self._number)
        return True

    def close(self) -> None:
        """Give the signal back. By the thread itself."""
        if self._number:
            signal.signal(self._number, self._before)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    exception = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)


def _take_a_signal() -> tuple[int, Any]:
    """A signal that nobody uses, with a handler that does nothing; 0 in other threads, which get no signals."""
    if threading.current_thread() is not threading.main_thread():
        return 0, None
    for number in range(signal.SIGRTMAX - 2, signal.SIGRTMIN, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            return number, signal.signal(number, lambda *_: None)
    return 0, None
