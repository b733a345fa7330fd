"""The end of a rank's process: when it began, and that nothing from outside enters the interpreter from then on.

=============================  =====================================================================================
uncaught exception             the time goes into the slots (``LEAVING``) before the traceback is printed
end of the main thread         likewise, before threads that are not daemons are joined; Python calls this hook also
                               after ``sys.exit`` and after an uncaught exception
atexit                         likewise, after the last report; then wait until the launcher has left (``ENTERED``)
=============================  =====================================================================================

A thread that takes the GIL of an interpreter that is finalising is ended by force, which C++ code answers with an
abort, and a signal that faulthandler no longer handles would kill: the exit code would be lost. So the launcher asks
and signals a rank only between two stores to ``ENTERED``, and only if ``LEAVING`` is not set in between.

A process that records progress after ``LEAVING`` was set does not leave: another thread of it trains, or a framework
printed an exception by calling ``sys.excepthook``. ``os._exit`` and signals need none of this: they finalise nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, Final

from rankwatch.recording.shared_slots import ENTERED, LEAVING, newest_sign

LAUNCHER_LEAVES: Final = 1.5
"""Seconds in which a launcher leaves: it gives up a question after one. Waited for at most, should it be killed."""
_PAUSE: Final = 0.001

_words: memoryview[int] | None = None
_pid = 0
_hooked = False


def follow(words: memoryview[int]) -> None:
    """Record the end of this process in ``words``, which its launcher reads."""
    global _words, _pid, _hooked
    _words, _pid = words, os.getpid()
    if not _hooked:
        _hooked = True
        _hook_exceptions()
        with contextlib.suppress(AttributeError, RuntimeError):  # a private name, and the main thread may have ended
            threading._register_atexit(begin)  # type: ignore[attr-defined]


def begin() -> None:
    """Record that the process is about to end. Does nothing in a child, whose slots are its parent's."""
    if _words is not None and os.getpid() == _pid and _words[LEAVING] <= newest_sign(_words):
        _words[LEAVING] = time.monotonic_ns()


def finish() -> None:
    """Record it again, which outlives what other threads recorded meanwhile, and wait until the launcher has left."""
    begin()
    if _words is None or os.getpid() != _pid:
        return
    until = time.monotonic() + LAUNCHER_LEAVES
    # Read after the store above: a launcher that has entered by then is waited for, a later one sees the store.
    while _words[ENTERED] and time.monotonic() < until:
        time.sleep(_PAUSE)


def _hook_exceptions() -> None:
    plain = sys.excepthook

    @functools.wraps(plain)
    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        begin()
        return plain(kind, error, trace)

    sys.excepthook = excepthook
