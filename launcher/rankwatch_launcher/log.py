"""The launcher's console: lines of ``HH:MM:SS  WORD     what happened`` on stderr, at most two for one event.

:func:`event` logs what happened with a :class:`~rankwatch.contract.enums.ConsoleWord`; any other message has none. A
line has at most :data:`~rankwatch.cli.formatting.WIDTH` columns, fewer on a narrower terminal; the second one of an
event is indented. Of an event that comes in several lengths the longest that fits is shown. Words have a colour by
their meaning on a terminal, unless ``NO_COLOR`` is set.
"""

from __future__ import annotations

import logging
import sys
import textwrap
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from rankwatch.cli.formatting import WIDTH
from rankwatch.cli.terminal import NARROWEST, Terminal, is_terminal, terminal_of
from rankwatch.contract import text
from rankwatch.contract.enums import ConsoleWord

logger: Final = logging.getLogger("rankwatch")
TIME: Final = "%H:%M:%S"
COLUMN: Final = 8
"""Columns of a word with the gap after it."""
INDENT: Final = len("HH:MM:SS  ") + COLUMN
SEPARATOR: Final = " · "
_KEEP: Final = "\N{NO-BREAK SPACE}"
"""Keeps a command on one line while lines are wrapped, if it fits."""
MOST: Final = 2
"""Lines of an event."""

STYLES: Final = {
    **dict.fromkeys((ConsoleWord.HANG, ConsoleWord.CRASH, ConsoleWord.FAILED), "bad"),
    **dict.fromkeys((ConsoleWord.SUSPECT, ConsoleWord.SLOW, ConsoleWord.STOP, ConsoleWord.STOPPED), "warning"),
    **dict.fromkeys((ConsoleWord.RESTART, ConsoleWord.SAVE), "warning"),
    **dict.fromkeys((ConsoleWord.WENT_ON, ConsoleWord.BACK, ConsoleWord.DONE), "good"),
}
_CALM: Final = (ConsoleWord.WENT_ON, ConsoleWord.BACK, ConsoleWord.DONE)


def event(word: ConsoleWord, what: str | Sequence[str], *more: str, look: str = "") -> None:
    """Log an event.

    Args:
        word: what it is about.
        what: what happened in one sentence, or the same in several lengths, the longest first.
        more: what follows from it; what has no room is left out from the end.
        look: where to look, which is left out last.
    """
    whats = (what,) if isinstance(what, str) else tuple(what)
    whole = SEPARATOR.join(filter(None, (*whats[:1], *more, look)))
    level = logging.INFO if word in _CALM else logging.WARNING
    logger.log(level, "%s", whole, extra={"word": word, "whats": whats, "more": more, "look": look})


def note(what: str, *more: str) -> None:
    """Log a line that belongs to the event before it; arguments as of :func:`event`."""
    logger.warning("%s", SEPARATOR.join((what, *more)), extra={"word": "", "whats": (what,), "more": more})


def watching(job_id: str, url: str) -> None:
    """Log the link to a job at its monitor, whole whatever the width: it is there to be clicked."""
    logger.info("watching %s: %s/j/%s", text.one_line(job_id), url, quote(job_id, safe=""), extra={"whole": True})


def to_stderr() -> None:
    """Send the launcher's log lines to stderr. Idempotent."""
    if any(getattr(handler, "rankwatch", False) for handler in logger.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Console(terminal_of(sys.stderr), wraps=is_terminal(sys.stderr)))
    handler.rankwatch = True  # type: ignore[attr-defined]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class Console(logging.Formatter):
    """Formats records as lines of the console; nothing in them is obeyed by a terminal."""

    def __init__(self, terminal: Terminal, *, wraps: bool = True) -> None:
        """``wraps``: lines without a word, which a file keeps whole, so that they can be searched and copied."""
        super().__init__(datefmt=TIME)
        self._wraps = wraps
        self._terminal = terminal
        self._width = max(NARROWEST, min(WIDTH, terminal.width))

    def format(self, record: logging.LogRecord) -> str:
        """The record in lines of the console's width."""
        word = getattr(record, "word", None)
        time = self.formatTime(record, self.datefmt)
        if word is None:
            return self._plain(time, record)
        room = self._width - INDENT
        whats, more = (tuple(map(text.one_line, record.__dict__[name])) for name in ("whats", "more"))
        rows = fitted(whats, more, room, text.one_line(record.__dict__.get("look", "")))
        painted = self._terminal.paint(f"{word:<{COLUMN}}", STYLES[word]) if word else " " * COLUMN
        return f"\n{' ' * INDENT}".join([f"{time}  {painted}{rows[0]}", *rows[1:]])

    def _plain(self, time: str, record: logging.LogRecord) -> str:
        message = text.lines(record.getMessage())
        indent = len(time) + 2
        if getattr(record, "whole", False):
            return f"{time}  {message}"
        lines = message.split("\n")
        rows = [row for line in lines for row in wrapped(line, self._width - indent)] if self._wraps else lines
        if record.exc_info:
            rows += text.lines(self.formatException(record.exc_info)).split("\n")
        return f"\n{' ' * indent}".join([f"{time}  {rows[0]}", *rows[1:]])


def fitted(whats: Sequence[str], more: Sequence[str], room: int, look: str = "") -> list[str]:
    """At most :data:`MOST` lines of ``room`` columns: the longest of ``whats``, and as much of what follows as fits."""
    for kept in range(len(more), -1, -1):
        for what in whats or ("",):
            rows = _laid_out(what, (*more[:kept], look) if look else more[:kept], room)
            if len(rows) <= MOST:
                return rows
    if look:
        return fitted(whats, more, room)
    rows = wrapped(whats[-1], room)
    return [rows[0], rows[1][: room - 1].rstrip(" .:,;(") + "…"]


def _laid_out(what: str, more: Sequence[str], room: int) -> list[str]:
    """On one line if it fits; else what follows a sentence begins a line of its own, where that makes no more lines."""
    kept = (each.replace(" ", _KEEP) if len(each) <= room else each for each in more)
    rows = wrapped(SEPARATOR.join(filter(None, (what, *kept))), room)
    rows = [row.replace(_KEEP, " ").removesuffix(SEPARATOR.rstrip()).removeprefix(SEPARATOR.lstrip()) for row in rows]
    if more and room / 2 < len(what) <= room < len(what) + len(SEPARATOR.join(("", *more))):
        apart = [what, *wrapped(SEPARATOR.join(more), room)]
        return apart if len(apart) <= MOST else rows
    return rows


def wrapped(line: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns; a word is broken only if it has more."""
    return textwrap.wrap(line, width, break_on_hyphens=False) or [""]
