"""The rank's handle on its watchdog process: starts it, and moves the deadline in the memory that both share."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import time
from pathlib import Path

from rankwatch.contract.interpreter import own_python
from rankwatch.inprocess import watchdog_process

CLOSE_TIMEOUT = 5.0
"""Seconds for the watchdog to end once its pipe is closed; normally it ends at once."""


class Watchdog:
    """A process that kills this one when a deadline passes. Initially there is no deadline."""

    def __init__(self, interval: float, grace: float) -> None:
        """Start the process, which checks every ``interval`` and kills ``grace`` seconds after SIGTERM.

        Raises:
            OSError: the process or the shared memory cannot be created.
        """
        fd = os.memfd_create("rankwatch-deadline")
        try:
            os.ftruncate(fd, watchdog_process.SIZE)
            self._page = mmap.mmap(fd, watchdog_process.SIZE)
            self._words = memoryview(self._page).cast("q")
            script = str(Path(watchdog_process.__file__))
            arguments = [str(fd), str(os.getpid()), str(interval), str(grace)]
            self._process = subprocess.Popen(
                own_python("-I", "-S", script, *arguments), stdin=subprocess.PIPE, pass_fds=(fd,)
            )
        finally:
            os.close(fd)

    def set_timeout(self, seconds: float | None) -> None:
        """Move the deadline to ``seconds`` from now; None removes it."""
        self._words[watchdog_process.DEADLINE] = 0 if seconds is None else time.monotonic_ns() + int(seconds * 1e9)

    def set_deadline(self, at_ns: int) -> None:
        """Move the deadline to a time of ``time.monotonic_ns()``."""
        self._words[watchdog_process.DEADLINE] = at_ns

    def close(self) -> None:
        """End the watchdog process."""
        self.set_timeout(None)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:  # a forked child holds the pipe open
            self._process.kill()
            self._process.wait()
