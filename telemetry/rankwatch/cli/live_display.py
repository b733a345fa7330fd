"""Full-screen display on the terminal's alternate screen, redrawn in place; the terminal is restored on every exit.

The shell's screen is preserved while the alternate screen is active. Keys are read unbuffered and not echoed.

================================  ======================================================================================
event                             action
================================  ======================================================================================
``q``, Ctrl-D                     :meth:`LiveDisplay.wait` returns True
arrows, PgUp, PgDn, Home, End     :meth:`LiveDisplay.wait` returns early; :meth:`LiveDisplay.scrolled` has the new line
Ctrl-C, SIGTERM, SIGHUP           ``KeyboardInterrupt``, at once, also during a request
Ctrl-Z                            the shell's screen is restored and the process stops; ``fg`` redraws the display
any exception                     the shell's screen is restored before the traceback
================================  ======================================================================================
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import termios
import time
import tty
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final, Self, TextIO

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Alternate screen on, cursor off, line wrapping off."""
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_QUIT: Final = (b"q", b"Q", b"\x04", b"\x03")
_KEY: Final = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_LINES: Final = {b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1, b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1}
_PAGES: Final = {b"\x1b[5~": -1, b"b": -1, b"\x1b[6~": 1, b" ": 1}
_TOP: Final = (b"\x1b[H", b"\x1bOH", b"\x1b[1~", b"g")
_BOTTOM: Final = (b"\x1b[F", b"\x1bOF", b"\x1b[4~", b"G")

Handler = Callable[[int, FrameType | None], Any] | int | None


class LiveDisplay:
    """Context manager for the alternate screen of ``output``. Main thread only, as it sets signal handlers."""

    def __init__(self, output: TextIO, keys: TextIO) -> None:
        self._output, self._keys = output, keys
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Handler] = {}
        self._ended = False
        self._drawn: list[str] = []
        self._scroll: list[bytes] = []

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._end)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the restore
        self._hide()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the displayed lines; each must fit the width."""
        self._drawn = list(lines)
        # Overwrites line by line instead of clearing the screen first, which would flicker. What is left of the line
        # before is erased first: after a line of the full width the cursor is still on its last character.
        self._write("\x1b[H" + "".join(f"\x1b[K{line}\r\n" for line in lines[:-1]) + "\x1b[J" + "".join(lines[-1:]))

    def wait(self, seconds: float) -> bool:
        """Wait; returns True if the user quits. A key that scrolls ends the wait early."""
        until = time.monotonic() + seconds
        while not self._ended and (left := until - time.monotonic()) > 0:
            if self._modes is None:
                time.sleep(min(left, 0.1))
                continue
            ready, _, _ = select.select([self._keys], [], [], min(left, 0.1))
            if ready:
                pressed = os.read(self._keys.fileno(), 64)
                keys = _KEY.findall(pressed)
                if not pressed or any(key in _QUIT for key in keys):  # end of file: the terminal is gone
                    self._ended = True
                self._scroll += [key for key in keys if key in (*_LINES, *_PAGES, *_TOP, *_BOTTOM)]
                if self._scroll:
                    break
        return self._ended

    def scrolled(self, top: int, page: int, lines: int) -> int:
        """The first of ``lines`` to show after the keys since the last call, of which ``page`` fit."""
        last = max(0, lines - page)
        top = min(top, last)
        for key in self._scroll:
            if key in _TOP or key in _BOTTOM:
                top = last if key in _BOTTOM else 0
            else:
                top += _LINES.get(key, 0) + max(1, page - 1) * _PAGES.get(key, 0)
            top = min(max(top, 0), last)
        self._scroll.clear()
        return top

    def _show(self) -> None:
        try:
            self._modes = termios.tcgetattr(self._keys.fileno())
            tty.setcbreak(self._keys.fileno())
        except (termios.error, ValueError, OSError):
            self._modes = None  # stdin is no terminal: only signals end the display
        self._write(_ENTER)

    def _hide(self) -> None:
        self._write(_LEAVE)
        if self._modes is not None:
            with contextlib.suppress(termios.error, ValueError, OSError):  # the terminal may be gone
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
            self._ended = True  # the terminal is gone
