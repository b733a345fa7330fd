"""Ends the ranks when their launcher dies without a word, by SIGKILL for example. A process of its own, stdlib only.

It reads lines from a pipe whose other end only the launcher holds. ``PID START`` names a rank (START being its start
time in ``/proc/PID/stat``, which tells it from a later process of the same number), ``forget`` drops all names. When
the pipe closes the named ranks and their process groups are killed and the launcher's folder is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


class Sweeper:
    """The launcher's handle on the process."""

    def __init__(self, folder: Path) -> None:
        # -I -S: no site packages, no user code; it starts in 10 ms and needs 8 MB.
        command = [sys.executable, "-I", "-S", __file__, str(folder)]
        # A session of its own, so that a Ctrl-C at the terminal does not end it before the ranks.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def forget(self) -> None:
        """The ranks that were named are gone."""
        self._tell("forget")

    def add(self, pid: int) -> None:
        """Name a rank that was just started."""
        self._tell(f"{pid} {start_time(pid)}")

    def _tell(self, line: str) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        # The sweeper is a second line of defence: without it the launcher still works.
        with contextlib.suppress(OSError):
            pipe.write(f"{line}\n".encode())
            pipe.flush()

    def dismiss(self) -> None:
        """The launcher has ended its ranks itself."""
        self.forget()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(5.0)


def start_time(pid: int) -> str:
    """The start time of a process in clock ticks since boot, empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def sweep(lines: Iterable[str], folder: str) -> None:
    """Remember the ranks that the lines name; when the lines end, kill them and remove the folder."""
    ranks: list[tuple[int, str]] = []
    for line in lines:
        if line.strip() == "forget":
            ranks.clear()
        elif len(words := line.split()) == 2:
            ranks.append((int(words[0]), words[1]))
    for pid, started in ranks:
        if start_time(pid) == started:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sweep(sys.stdin, sys.argv[1])
