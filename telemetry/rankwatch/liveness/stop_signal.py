"""Handles the scheduler's "save and stop" signal on a rank (``RANKWATCH_RANK_STOP_SIGNAL``).

================  =================================================================================================
init()            installs a handler, in the main thread and only where the signal has none
the signal        the handler writes the time into the slots, and nothing else; the launcher reads it, agrees with the
                  others on a step, and :func:`rankwatch.should_stop` is true after that step
shutdown()        restores the previous handler: the next such signal has its original effect
fork              the child has the previous handler; children of multiprocessing, such as data loaders, are sheltered
                  (:mod:`rankwatch.liveness.worker_signals`)
================  =================================================================================================

Without the variable this module is not imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

from rankwatch.contract.env import STOP_SIGNAL
from rankwatch.liveness import worker_signals
from rankwatch.recording.shared_slots import STOP_SIGNALLED

_log = logging.getLogger("rankwatch")


class StopSignal:
    """The handler of one signal, from :func:`take` to :meth:`release`."""

    def __init__(self, number: int, words: memoryview[int]) -> None:
        self._number = number
        self._words = words
        self._pid = os.getpid()
        self._released = False
        self._before = signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return  # a child, on its first instructions; the words are its parent's
        if not self._released:
            self._words[STOP_SIGNALLED] = time.monotonic_ns()
            return
        self.put_back()  # shutdown() ran in another thread, which may not set signals
        os.kill(self._pid, number)

    def release(self) -> None:
        """Restore the previous handler, and shelter no further children."""
        self._released = True
        worker_signals.shelter_no_more()
        self.put_back()

    def put_back(self) -> None:
        """Restore the previous handler, unless the script has set another one meanwhile."""
        if signal.getsignal(self._number) == self._handle:
            with contextlib.suppress(ValueError):  # not the main thread: the handler itself does it when it is called
                signal.signal(self._number, self._before)


def take(number: int, words: memoryview[int]) -> StopSignal | None:
    """Record signal ``number`` in ``words``; None, and a log line, where it cannot be handled."""
    if threading.current_thread() is not threading.main_thread():
        _log.info("init() does not run in the main thread: signal %d (%s) is left alone", number, STOP_SIGNAL)
        return None
    if signal.getsignal(number) is not signal.SIG_DFL or _caught(number):
        _log.info("the script handles signal %d (%s) itself: its handler is left alone", number, STOP_SIGNAL)
        return None
    try:
        taken = StopSignal(number, words)
    except (OSError, ValueError) as error:
        _log.warning("%s: signal %d cannot be handled: %s", STOP_SIGNAL, number, error)
        return None
    worker_signals.shelter_children(number)
    return taken


def _caught(number: int) -> bool:
    """Whether the process handles the signal in C code, which Python's signal module does not know."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
