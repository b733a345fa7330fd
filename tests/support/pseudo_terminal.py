"""A program on a real pseudo terminal: what it writes, keys for it, and whether it leaves the terminal as it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.waiting import wait_for

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""What switches a terminal to its second screen and back."""


class Seat:
    """Somebody in front of a terminal in which one program runs."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int, theirs: int) -> None:
        self.process = process
        self._ours, self._theirs = ours, theirs
        self._modes = termios.tcgetattr(theirs)
        self._seen = b""

    @property
    def seen(self) -> str:
        """All that was written so far."""
        while select.select([self._ours], [], [], 0)[0]:
            self._seen += os.read(self._ours, 65536)
        return self._seen.decode(errors="replace")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, words: str, seconds: float = 60.0) -> str:
        """Wait until the words are there; returns all that was written."""
        wait_for(lambda: words in self.seen, f"the terminal shows {words!r}; it shows {self.seen[-2000:]!r}", seconds)
        return self.seen

    def forget(self) -> None:
        """What was seen so far is not looked at again."""
        assert self.seen is not None
        self._seen = b""

    def ended(self, seconds: float = 60.0) -> int:
        """Wait for the program to end; returns its exit code."""
        wait_for(lambda: self.seen is not None and self.process.poll() is not None, "the program ends", seconds)
        assert self.process.returncode is not None
        return self.process.returncode

    @property
    def as_it_was(self) -> bool:
        """Whether the terminal's modes are those it had before."""
        return termios.tcgetattr(self._theirs) == self._modes


@contextlib.contextmanager
def seated(
    command: Sequence[str], settings: Mapping[str, str], columns: int = 100, lines: int = 40, **more: Any
) -> Iterator[Seat]:
    """Run a program on a terminal of this size; it is killed in the end whatever happens."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    # A session whose terminal this is: Ctrl-C then is a signal to it, and to nothing else.
    wrapped = [sys.executable, "-c", _CONTROLLING, *command]
    process = subprocess.Popen(
        wrapped, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(settings), start_new_session=True, **more
    )
    try:
        yield Seat(process, ours, theirs)
    finally:
        process.kill()
        process.wait(10)
        os.close(ours)
        os.close(theirs)


_CONTROLLING = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
