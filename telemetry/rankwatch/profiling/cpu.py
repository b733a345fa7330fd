"""CPU time of the training thread and its waiting for a CPU: distinguishes a busy host from slow Python.

The kernel counts for every thread the nanoseconds that it ran, and the nanoseconds that it was ready to run without a
CPU; both are in ``/proc/self/task/<tid>/schedstat``. The file is opened once and read in place (about 2 µs) by any
thread of the process. Waiting includes the time in which a container's CPU quota is used up.

No privileges are needed. What cannot be read (no Linux, a sandbox without the file) is ``None``, never an error.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import NamedTuple


class CpuClock:
    """CPU time of one thread, given by its native id, since the last reading; by default of the main thread.

    For one reader: it keeps the last reading.
    """

    def __init__(self, thread: int | None = None) -> None:
        native = threading.main_thread().native_id if thread is None else thread
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(f"/proc/self/task/{native}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._last = self._read()

    def per_step(self, steps: int) -> tuple[float, float] | None:
        """Seconds on a CPU and seconds waiting for one, both divided by ``steps``.

        ``None`` where the kernel has no counters, when the thread has ended, and when ``steps`` is 0; in the last case
        the time counts towards the next call.
        """
        now = self._read()
        if now is None or self._last is None or steps < 1:
            return None
        before, self._last = self._last, now
        return (now.used - before.used) * 1e-9 / steps, (now.waited - before.waited) * 1e-9 / steps

    def _read(self) -> _Counts | None:
        if self._file is None:
            return None
        try:
            fields = os.pread(self._file, 128, 0).split()
            counts = _Counts(int(fields[0]), int(fields[1]))
        except (OSError, ValueError, IndexError):  # the thread has ended, or the kernel's format is another
            return None
        return counts if counts.used else None  # a kernel built without these counters writes zeros


class _Counts(NamedTuple):
    """Nanoseconds since the thread began."""

    used: int
    waited: int
