"""How far the wrapped function has come: by its own word where it gives one, else by whether the main thread runs.

How this works
--------------
Its own word is :func:`rankwatch.inprocess.ping`, a completed ``rankwatch.step()`` or a ``rankwatch.heartbeat()``.
Before the first of these in an iteration, while everything is imported, loaded and compiled, it is enough that the
main thread executes Python: the interpreter is asked to call a function there, and it does so between two bytecodes.
"""

from __future__ import annotations

import ctypes
import threading
import time

from rankwatch.recording import sections
from rankwatch.recording.shared_slots import BEATS, FINISHED, ITERATION, PROGRESS


class _SignOfLife:
    """Asks the main thread to run a function; there is one, since a call that is on its way cannot be taken back.

    The function is libc's ``sem_post``. One in Python would be where an interruption that is on its way is raised, and
    from a callback nothing can be raised.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(64)  # sem_t has 32 bytes on 64-bit Linux
        libc.sem_init(self._semaphore, 0, 0)
        self._value = libc.sem_getvalue
        self._post = ctypes.cast(libc.sem_post, ctypes.c_void_p)
        self._add = ctypes.pythonapi.Py_AddPendingCall
        self._asked = 0

    @property
    def count(self) -> int:
        """How often it has answered."""
        value = ctypes.c_int()
        self._value(self._semaphore, ctypes.byref(value))
        return value.value

    def ask(self) -> None:
        """Ask, unless it was asked already and has not answered."""
        if self._asked == self.count and self._add(self._post, self._semaphore) == 0:
            self._asked += 1


_life = _SignOfLife()


class Progress:
    """Seen by the watching thread; counts what the function did in one iteration."""

    def __init__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        self.begin()

    def begin(self) -> None:
        """A new iteration begins, with no progress yet."""
        self._pings = 0
        self._own = self._own_words()
        self._life = _life.count
        self.since_ns = time.monotonic_ns()
        """When it last came further."""
        self.steps = 0
        """How often it came further by its own word, as far as was looked."""

    def ping(self) -> None:
        """The function came further; from the function."""
        self._pings += 1

    def look(self) -> float:
        """Return the seconds since it last came further; call it often."""
        now = time.monotonic_ns()
        own = self._own_words()
        if own != self._own:
            # Sections alone are progress once there were steps: before the first one it takes what it takes.
            if self.steps or own[:3] != self._own[:3]:
                self.steps += 1
                self.since_ns = now
            self._own = own
        if not self.steps and (_life.count != self._life or not self._main):
            self._life = _life.count
            self.since_ns = now
        if self._main:
            _life.ask()
        return (now - self.since_ns) / 1e9

    def _own_words(self) -> tuple[int, ...]:
        recorder = sections.attached()
        if recorder is None:
            return (self._pings, 0, 0, 0, 0)
        words = recorder.words
        return (self._pings, words[ITERATION], words[BEATS], words[FINISHED], words[PROGRESS])


def iteration_of_rankwatch() -> int | None:
    """The step that this rank is in, where ``rankwatch.step()`` is used."""
    recorder = sections.attached()
    return recorder.words[ITERATION] if recorder is not None and recorder.words[ITERATION] else None
