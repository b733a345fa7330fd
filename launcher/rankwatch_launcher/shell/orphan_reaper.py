"""Kills the ranks when their launcher dies without cleaning up, by SIGKILL for example. Its own process; stdlib only.

It reads lines from a pipe that only the launcher holds open. ``PID START`` adds a rank (START is its start time in
``/proc/PID/stat``, which tells it from a later process with the same pid), ``forget`` drops all. When the pipe closes,
the listed ranks are killed with their process groups and the launcher's folder is removed.
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


class OrphanReaper:
    """The launcher's handle on the process."""

    def __init__(self, folder: Path) -> None:
        # -I -S: no site packages, no user code; it starts in 10 ms and needs 8 MB.
        command = [sys.executable, "-I", "-S", __file__, str(folder)]
        # In its own session, so that Ctrl-C at the terminal does not end it before the ranks.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def forget(self) -> None:
        """Drop all ranks."""
        self._send("forget")

    def add(self, pid: int) -> None:
        """Add a rank that was just started."""
        self._send(f"{pid} {start_time(pid)}")

    def dismiss(self) -> None:
        """End the process without killing: the launcher has ended its ranks itself."""
        self.forget()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(5.0)

    def _send(self, line: str) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        # The reaper is a fallback: without it the launcher still works.
        with contextlib.suppress(OSError):
            pipe.write(f"{line}\n".encode())
            pipe.flush()


def start_time(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty when it does not exist."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def reap(lines: Iterable[str], folder: str) -> None:
    """Collect the ranks in ``lines``; when these end, kill them and remove the folder."""
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
    reap(sys.stdin, sys.argv[1])
