"""The rank processes of one attempt: waited for, signalled, killed with their process groups.

torch keeps the ``Popen`` objects and reaps them when an attempt is closed. Until then an exited rank stays a zombie, so
its pid, which is also its process group's id, is not reused and the whole group can be killed safely.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from typing import Final

from rankwatch_launcher import procfs
from rankwatch_launcher.node.attempt import RankProcess

UNKNOWN_EXIT: Final = -signal.SIGKILL
"""Reported for a process that was reaped elsewhere: its exit code is lost."""
_UNNOTIFIED_SECONDS: Final = 0.05
"""Seconds between two looks at processes that have no descriptor."""


class RankProcesses:
    """The processes of one attempt on this node."""

    def __init__(self, processes: Sequence[RankProcess]) -> None:
        self._all = tuple(processes)
        self._alive = {p.pid: p for p in processes}
        self._fds = {p.pid: procfs.open_pidfd(p.pid) for p in processes}
        self._lock = threading.Lock()

    def wait(self, timeout: float, wake: int | None = None) -> list[RankProcess]:
        """Wait for an exit, for ``wake`` to become readable, or for ``timeout`` seconds; return the exited ranks."""
        poll = select.poll()  # a new one: the object of one thread must not be used by another
        if wake is not None:
            poll.register(wake, select.POLLIN)
        fds = list(self._fds.values())
        for fd in fds:
            if fd is not None:
                poll.register(fd, select.POLLIN)
        until = time.monotonic() + timeout
        if None not in fds:
            poll.poll(max(0.0, timeout) * 1000)
            return self.exited()
        while True:  # without descriptors, exits must be looked for
            left = until - time.monotonic()
            if poll.poll(min(max(0.0, left), _UNNOTIFIED_SECONDS) * 1000) or left <= 0:
                return self.exited()
            if exited := self.exited():
                return exited

    def exited(self) -> list[RankProcess]:
        """The ranks that exited since the last call."""
        new = []
        with self._lock:
            for process in list(self._alive.values()):
                code = exit_code(process.pid)
                if code is not None:
                    process.code = code
                    del self._alive[process.pid]
                    self._close(process.pid)
                    new.append(process)
        return new

    def alive(self) -> list[RankProcess]:
        """The ranks whose exit :meth:`exited` has not returned."""
        return list(self._alive.values())

    def signal(self, number: int, *, ending: bool = False) -> None:
        """Send a signal to every live rank; ``ending``: it is to end them."""
        # A stopped process does not handle signals before it is continued.
        for each in (number, signal.SIGCONT) if ending else (number,):
            for process in self.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, each)

    def kill(self) -> None:
        """SIGKILL the process groups of all ranks, also of those that have exited: their data loaders may still run."""
        with self._lock:
            for process in self._all:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

    def wait_all(self, timeout: float) -> list[RankProcess]:
        """Wait up to ``timeout`` seconds for all ranks to exit; return those that exited meanwhile."""
        until = time.monotonic() + timeout
        exited = self.exited()
        while self._alive and (left := until - time.monotonic()) > 0:
            exited += self.wait(left)
        return exited

    def close(self) -> None:
        """Close the descriptors, and kill nothing from now on: torch reaps the ranks next, and pids are reused."""
        with self._lock:
            self._all = ()
            for pid in list(self._fds):
                self._close(pid)
            self._alive.clear()

    def _close(self, pid: int) -> None:
        if (fd := self._fds.pop(pid, None)) is not None:
            os.close(fd)


def exit_code(pid: int) -> int | None:
    """Exit code of a child, or minus the signal that killed it; None while it runs. It is not reaped."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return UNKNOWN_EXIT
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
