"""Watches and ends the processes of one attempt, without reaping them.

torch keeps the ``Popen`` objects and reaps them when an attempt is closed. Until then an ended rank stays a zombie,
so its pid, which is also its process group's id, cannot be taken by a stranger and the whole group can be killed
safely.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

_TERMINATE: Final = signal.SIGTERM
_LOOK_SECONDS: Final = 0.2
GONE: Final = -signal.SIGKILL
"""What is reported of a process that somebody else reaped: its exit code cannot be known any more."""


@dataclass
class RankProcess:
    """One rank's process; ``code`` is its exit code, or minus the signal, once it has ended."""

    rank: int
    local_rank: int
    pid: int
    code: int | None = None


class RankProcesses:
    """The processes of one attempt on this node."""

    def __init__(self, processes: Sequence[RankProcess]) -> None:
        self.all = tuple(processes)
        self._fds = {os.pidfd_open(p.pid): p for p in self.all}
        self._poll = select.poll()
        for fd in self._fds:
            self._poll.register(fd, select.POLLIN)

    def wait(self, timeout: float, wake: int | None = None) -> list[RankProcess]:
        """Wait until a rank ends, ``wake`` becomes readable or ``timeout`` seconds have passed; return who ended."""
        if wake is not None:
            self._poll.register(wake, select.POLLIN)
        self._poll.poll(max(0.0, timeout) * 1000)
        if wake is not None:
            self._poll.unregister(wake)
        return self.ended()

    def ended(self) -> list[RankProcess]:
        """Return the ranks that ended since the last call."""
        new = []
        for fd, process in list(self._fds.items()):
            code = exit_code(process.pid)
            if code is not None:
                process.code = code
                self._poll.unregister(fd)
                os.close(fd)
                del self._fds[fd]
                new.append(process)
        return new

    def alive(self) -> list[RankProcess]:
        """The ranks that have not ended, as far as :meth:`ended` has seen."""
        return list(self._fds.values())

    def signal(self, number: int) -> None:
        """Send a signal to every living rank."""
        for process in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def kill(self, timeout: float) -> list[RankProcess]:
        """SIGKILL all ranks and whatever they started in their process groups; return those that are not gone in time.

        A rank that ended by itself is included: its data loaders may have outlived it.
        """
        for process in self.all:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        self.wait_all(timeout)
        return self.alive()

    def terminate(
        self, timeout: float, number: int = _TERMINATE, *, futile: Callable[[], bool] = lambda: False
    ) -> None:
        """Signal all ranks to end and give them ``timeout`` seconds, less when it is ``futile`` to wait."""
        self.signal(number)
        # A stopped process cannot act on SIGTERM before it is continued.
        self.signal(signal.SIGCONT)
        until = time.monotonic() + timeout
        while self._fds and (left := until - time.monotonic()) > 0 and not futile():
            self.wait_all(min(left, _LOOK_SECONDS))

    def wait_all(self, timeout: float) -> list[RankProcess]:
        """Wait until all ranks have ended, at most ``timeout`` seconds; return those that ended meanwhile."""
        until = time.monotonic() + timeout
        ended = self.ended()
        while self._fds and (left := until - time.monotonic()) > 0:
            ended += self.wait(left)
        return ended

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


def exit_code(pid: int) -> int | None:
    """The exit code of a child (minus the signal that ended it), None while it runs. It is not reaped."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return GONE
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
