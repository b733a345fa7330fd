"""A screen of its own in the terminal, redrawn in place, which leaves the terminal as it was however it ends.

How this works
--------------
Full-screen programs have a second screen: the shell's stays untouched below and is back at the end. Meanwhile keys are
read one by one and not echoed, so that a ``q`` ends it and a stray key does not spoil the picture.

================================  ======================================================================================
what happens                      what is done
================================  ======================================================================================
``q``, Ctrl-D                     :meth:`LiveDisplay.wait` returns True
Ctrl-C, SIGTERM, SIGHUP           ``KeyboardInterrupt``, at once, also while a monitor does not answer
Ctrl-Z                            the shell's screen comes back, the program stops; ``fg`` brings the picture back
any exception                     the shell's screen is back before its words are printed
================================  ======================================================================================
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import time
import tty
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final, Self, TextIO

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The second screen, no cursor, no wrapping of what is too long."""
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_QUIT: Final = (b"q", b"Q", b"\x04", b"\x03")

Handler = Callable[[int, FrameType | None], Any] | int | None


class LiveDisplay:
    """The second screen of the terminal behind ``output``, while this is entered. For the main thread."""

    def __init__(self, output: TextIO, keys: TextIO) -> None:
        self._output, self._keys = output, keys
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Handler] = {}
        self._ended = False
        self._drawn: list[str] = []

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._end)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)  # an impatient second Ctrl-C must not leave half of it behind
        self._hide()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines instead of those before; each must fit the width."""
        self._drawn = list(lines)
        # Line by line over the old ones, not onto a cleared screen: nothing flickers.
        self._write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines[:-1]))
        self._write("".join(f"{line}\x1b[K" for line in lines[-1:]) + "\x1b[J")

    def wait(self, seconds: float) -> bool:
        """Wait for so long, or until somebody wants to leave: True then."""
        until = time.monotonic() + seconds
        while not self._ended and (left := until - time.monotonic()) > 0:
            if self._modes is None:
                time.sleep(min(left, 0.1))
                continue
            ready, _, _ = select.select([self._keys], [], [], min(left, 0.1))
            if ready:
                pressed = os.read(self._keys.fileno(), 1)
                if not pressed or pressed in _QUIT:  # nothing to be read: the terminal is gone
                    self._ended = True
        return self._ended

    def _show(self) -> None:
        try:
            self._modes = termios.tcgetattr(self._keys.fileno())
            tty.setcbreak(self._keys.fileno())
        except (termios.error, ValueError, OSError):
            self._modes = None  # keys come from somewhere else: only signals end it
        self._write(_ENTER)

    def _hide(self) -> None:
        self._write(_LEAVE)
        if self._modes is not None:
            with contextlib.suppress(termios.error, ValueError, OSError):  # the terminal may be gone, its modes with it
                termios.tcsetattr(self._keys.fileno(), termios.TCSADRAIN, self._modes)
            self._modes = None

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._ended = True
        raise KeyboardInterrupt

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        self._hide()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # stops here, until `fg`
        signal.signal(signal.SIGTSTP, self._suspend)
        self._show()
        self.draw(self._drawn)

    def _write(self, text: str) -> None:
        try:
            encoding = self._output.encoding or "utf-8"
            self._output.write(text.encode(encoding, "replace").decode(encoding))
            self._output.flush()
        except (OSError, ValueError):
            self._ended = True  # nobody looks any more
