"""The rank processes of one attempt: waited for, signalled, killed with their process groups, their exits recorded.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from torch.distributed.elastic.multiprocessing import PContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from rankwatch_launcher import procfs
from rankwatch_launcher.agent.rank_error import RankError, read_error, redirected
from rankwatch_launcher.node.attempt import RankProcess

UNKNOWN_EXIT: Final = -signal.SIGKILL
"""Reported for a process that was reaped elsewhere: its exit code is lost."""
_POLL_SECONDS: Final = 0.2
_UNNOTIFIED_SECONDS: Final = 0.05
"""Seconds between two looks at processes that have no descriptor."""
_SIGTERM: Final = signal.SIGTERM


class RankProcesses:
    """The processes of one attempt on this node."""

    def __init__(self, processes: Sequence[RankProcess]) -> None:
        self.all = tuple(processes)
        self._alive = {p.pid: p for p in self.all}
        self._fds = {p.pid: procfs.open_pidfd(p.pid) for p in self.all}
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

    def signal(self, number: int) -> None:
        """Send a signal to every live rank."""
        for process in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def kill(self, timeout: float) -> list[RankProcess]:
        """SIGKILL the process groups of all ranks; return the ranks still alive after ``timeout`` seconds.

        Ranks that have exited are included: their data loaders may still run.
        """
        for process in self.all:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        self.wait_all(timeout)
        return self.alive()

    def terminate(self, timeout: float, number: int = _SIGTERM, *, futile: Callable[[], bool] = lambda: False) -> None:
        """Signal all ranks and wait up to ``timeout`` seconds for them to exit, or until waiting is ``futile``."""
        self.signal(number)
        # A stopped process does not handle signals before it is continued.
        self.signal(signal.SIGCONT)
        until = time.monotonic() + timeout
        while self._alive and (left := until - time.monotonic()) > 0 and not futile():
            self.wait_all(min(left, _POLL_SECONDS))

    def wait_all(self, timeout: float) -> list[RankProcess]:
        """Wait up to ``timeout`` seconds for all ranks to exit; return those that exited meanwhile."""
        until = time.monotonic() + timeout
        exited = self.exited()
        while self._alive and (left := until - time.monotonic()) > 0:
            exited += self.wait(left)
        return exited

    def close(self) -> None:
        """Close the descriptors."""
        with self._lock:
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


# Exits ----------------------------------------------------------------------------------------------------------------

_SENTENCES: Final = 200
"""Characters of an explanation that a sentence can hold."""


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank exited."""

    rank: int
    local_rank: int
    pid: int
    code: int
    """The exit code, or minus the signal that killed it."""
    message: str = ""
    """The rank's last notice, or its exception."""
    had_finished: bool = False
    """The rank had called ``rankwatch.shutdown()``, or all its peers on the node exited with code 0."""
    expected: bool = False
    """The other ranks continue without it: a reserve rank takes its place."""
    error: RankError | None = None
    """The exception that ended it, as far as it is known."""

    @property
    def consequence(self) -> bool:
        """It likely follows from the end of another rank: of its connection, or an abort by a collective library."""
        if self.error is not None:
            return self.error.consequence
        return self.code == -signal.SIGABRT and not self.had_finished

    @property
    def signal(self) -> str | None:
        """Name of the signal that killed it."""
        if self.code >= 0:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def first_line(self) -> str:
        """The first line of the message: its whole sentences within 200 characters, else 400 characters at most.

        CUDA's "out of memory" goes on for 500 characters; the incident keeps all of them with the traceback.
        """
        lines = self.message.strip().splitlines()
        line = lines[0] if lines else ""
        if len(line) > _SENTENCES:
            line = line[: line.rfind(". ", 0, _SENTENCES) + 1] or line[:400]
        # A path in an error message may hold bytes that are not valid text.
        return line.encode("utf-8", "backslashreplace").decode()


class RankExits:
    """The exits of one attempt on this node."""

    def __init__(self, ranks: Sequence[RankProcess], had_shut_down: Callable[[int], bool]) -> None:
        self._ranks = ranks
        self._had_shut_down = had_shut_down
        self._all: list[RankExit] = []
        self.failures: dict[int, ProcessFailure] = {}
        """Ranks that exited with an error, as torch reports them."""

    def error(self, process: RankProcess, context: PContext | None) -> RankError | None:
        """The exception that a rank has written; it may not have exited yet."""
        if context is None:
            return None
        stderr = redirected(context.stderrs, process.local_rank) if (process.code or 0) > 0 else ""
        return read_error(context.error_files.get(process.local_rank, ""), stderr)

    def record(
        self, process: RankProcess, context: PContext | None, notice: str = "", *, expected: bool = False
    ) -> RankExit:
        """Record the exit of a rank.

        Args:
            process: the rank's.
            context: holds its error file.
            notice: the rank's own explanation.
            expected: the other ranks continue without it.
        """
        assert process.code is not None
        message, error = "", None
        if process.code != 0:
            error = self.error(process, context)
            # Only files of @record: torch's table would repeat the tracebacks of all ranks, which are on the terminal.
            recorded = error is not None and error.recorded
            self.failures[process.rank] = _failure(process, process.code, context if recorded else None)
            message = notice or (error.message if error is not None else "")
        others = [rank for rank in self._ranks if rank is not process]
        # A script that ends by an exception shuts Rankwatch down, too.
        finished = error is None and (
            self._had_shut_down(process.local_rank) or (bool(others) and all(r.code == 0 for r in others))
        )
        known = process.rank, process.local_rank, process.pid, process.code
        exit_ = RankExit(*known, message, finished, expected, error)
        self._all.append(exit_)
        return exit_

    def left(self) -> list[RankExit]:
        """Those with code 0; empty if they are the majority here, since then the others have not ended in time."""
        left = [exit_ for exit_ in self._all if exit_.code == 0]
        return left if 2 * len(left) <= len(self._ranks) else []

    def errors(self) -> list[RankExit]:
        """Unexpected exits with an error, in the order of detection."""
        return [exit_ for exit_ in self._all if exit_.code != 0 and not exit_.expected]


def _failure(process: RankProcess, code: int, context: PContext | None) -> ProcessFailure:
    files = context.error_files if context is not None else {}
    try:
        return ProcessFailure(process.local_rank, process.pid, code, files.get(process.local_rank, ""))
    except (ValueError, KeyError, TypeError):
        # The rank died while it wrote its error file.
        return ProcessFailure(process.local_rank, process.pid, code, "")
