"""The rank's side of the watchdog: starts the process and moves the deadline in the page that both see."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

from rankwatch.inprocess import watchdog

ENDS_WITHIN = 5.0
"""Seconds for the watchdog to end once its pipe is closed; it ends at once."""


class Guard:
    """A watchdog process for this process. Without a deadline it only waits."""

    def __init__(self, interval: float, grace: float) -> None:
        """Start it; both arguments in seconds.

        Raises:
            OSError: no process or no memory could be had.
        """
        fd = os.memfd_create("rankwatch-deadline")
        try:
            os.ftruncate(fd, watchdog.SIZE)
            self._page = mmap.mmap(fd, watchdog.SIZE)
            self._words = memoryview(self._page).cast("q")
            script = str(Path(watchdog.__file__))
            arguments = [str(fd), str(os.getpid()), str(interval), str(grace)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", script, *arguments], stdin=subprocess.PIPE, pass_fds=(fd,)
            )
        finally:
            os.close(fd)

    @property
    def pid(self) -> int:
        """Of the watchdog."""
        return self._process.pid

    def give(self, seconds: float | None) -> None:
        """From now on this process must say more within so many seconds, or is ended; None: it may take its time."""
        self._words[watchdog.DEADLINE] = 0 if seconds is None else time.monotonic_ns() + int(seconds * 1e9)

    def until(self, at_ns: int) -> None:
        """Like :meth:`give`, by a time of ``time.monotonic_ns()``."""
        self._words[watchdog.DEADLINE] = at_ns

    def close(self) -> None:
        """End the watchdog."""
        self.give(None)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:  # a forked child holds the pipe open
            self._process.kill()
            self._process.wait()
