"""Terminal output: colours, width, tables that fit, and a progress line.

:func:`terminal_of` inspects a stream: without a terminal, with ``NO_COLOR`` or with ``TERM=dumb`` there are no colours;
without a terminal the width is ``COLUMNS``, by default :data:`WIDTH`. Text is made printable and fitted *before* it is
painted, so that measured text contains no escape sequences. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TextIO, TypeVar

from rankwatch.cli.formatting import WIDTH, duration, printable

NARROWEST: Final = 40
"""Minimum columns used, even if a terminal reports fewer."""

STYLES: Final[Mapping[str, str]] = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "busy": "36",
    "warning": "33",
    "bad": "1;31",
}
STATE_STYLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("running", "finished", "healthy"), "good"),
    **dict.fromkeys(("starting", "unseen", "ended"), "busy"),
    **dict.fromkeys(("restarting", "stopping", "waiting", "stopped", "suspected"), "warning"),
    **dict.fromkeys(("hung", "failed", "lost", "silent", "dead"), "bad"),
}
"""Style by state or verdict; anything else is a warning."""

_GAP: Final = 2
_REDRAW_SECONDS: Final = 0.1
_BAR: Final = 24
T = TypeVar("T")


class Cell(NamedTuple):
    """Text with a style of :data:`STYLES`, or an empty one for none."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    If the terminal is too narrow, columns with ``drop`` above 0 are omitted, the highest number first; then those with
    ``least`` above 0 are truncated to that width at most.
    """

    title: str
    right: bool = False
    drop: int = 0
    least: int = 0
    middle: bool = False
    """Truncate in the middle: ids and hosts differ at both ends."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """Size of the output, and whether it supports colours."""

    width: int = WIDTH
    height: int = 0
    """Lines; 0 if unlimited (not a terminal)."""
    colours: bool = False

    def paint(self, text: str, style: str) -> str:
        """The text in a style of :data:`STYLES`; unchanged if colours are off."""
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and text and self.colours else text

    def wrapped(self, text: str, indent: str = "", style: str = "", most: int = 0) -> list[str]:
        """A sentence as lines that fit; continuation lines are indented by two more columns.

        ``most`` above 0 limits the number of lines; truncation is marked with an ellipsis.
        """
        lines = textwrap.wrap(
            printable(text),
            max(self.width, NARROWEST),
            initial_indent=indent,
            subsequent_indent=indent + "  ",
            break_on_hyphens=False,
        )
        if 0 < most < len(lines):
            lines = [*lines[: most - 1], cut(f"{lines[most - 1]} …", self.width)]
            if not lines[-1].endswith("…"):
                lines[-1] = cut(lines[-1] + " " * self.width, self.width)
        return [self.paint(line, style) for line in lines]

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], indent: str = "") -> list[str]:
        """Rows below their titles, fitted to the width; columns that are empty in every row are omitted."""
        cells = [[Cell(printable(text), style) for text, style in row] for row in rows]
        shown = [i for i in range(len(columns)) if any(row[i].text for row in cells)]
        widths = {i: max(cell_width(columns[i].title), *(cell_width(row[i].text) for row in cells)) for i in shown}
        room = max(self.width, NARROWEST) - len(indent)
        for i in sorted((i for i in shown if columns[i].drop), key=lambda i: -columns[i].drop):
            if _needed(widths) <= room:
                break
            del widths[i]
        _squeeze(widths, columns, room)
        lines = [indent + self._line([(Cell(columns[i].title, "dim"), columns[i], w) for i, w in widths.items()])]
        lines += [indent + self._line([(row[i], columns[i], w) for i, w in widths.items()]) for row in cells]
        return lines

    def _line(self, parts: Sequence[tuple[Cell, Column, int]]) -> str:
        made = []
        for position, (cell, column, width) in enumerate(parts):
            text = cut_middle(cell.text, width) if column.middle else cut(cell.text, width)
            space = " " * (width - cell_width(text))
            last = position == len(parts) - 1
            painted = self.paint(text, cell.style)
            made.append(space + painted if column.right else painted + ("" if last else space))
        return (" " * _GAP).join(made)


def terminal_of(stream: TextIO, variables: Mapping[str, str] = os.environ) -> Terminal:
    """Size and colour support of the terminal behind a stream, or the defaults for other output."""
    if not is_terminal(stream):
        columns = variables.get("COLUMNS", "")
        return Terminal(max(int(columns), NARROWEST) if columns.isdecimal() else WIDTH)
    try:
        width, height = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        width, height = 0, 0
    if not (width and height):  # unknown, for example on a serial line
        width, height = shutil.get_terminal_size((80, 24))
    plain = bool(variables.get("NO_COLOR")) or variables.get("TERM", "") in ("", "dumb")
    return Terminal(max(width, NARROWEST), height, not plain)


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal; False if it is closed."""
    try:
        return stream.isatty()
    except (ValueError, AttributeError):
        return False


def cell_width(text: str) -> int:
    """Columns that a text occupies: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int) -> str:
    """The text truncated to ``width`` columns, with an ellipsis at the end."""
    if cell_width(text) <= width:
        return text
    kept = text[:width]
    while kept and cell_width(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def cut_middle(text: str, width: int) -> str:
    """The text truncated to ``width`` columns in its middle."""
    if cell_width(text) <= width:
        return text
    end = (width - 1) // 2
    return cut(text, width - end) + (text[-end:] if end else "")


def cut_front(text: str, width: int) -> str:
    """The text truncated to ``width`` columns at its beginning, as for a path."""
    return text if cell_width(text) <= width else f"…{cut(text[::-1], width)[-2::-1]}"


def _needed(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + _GAP * max(0, len(widths) - 1)


def _squeeze(widths: dict[int, int], columns: Sequence[Column], room: int) -> None:
    """Shrink the widest columns that may be truncated until the table fits."""
    while _needed(widths) > room:
        soft = [i for i, width in widths.items() if 0 < columns[i].least < width]
        if not soft:
            return
        widths[max(soft, key=lambda i: widths[i])] -= 1


class Progress:
    """A progress line on stderr. Prints nothing if stderr is no terminal.

    >>> with Progress("reading", total=size) as progress:
    ...     progress.at(done, "12,000 events")
    """

    def __init__(self, doing: str, total: float | None = None, stream: TextIO | None = None) -> None:
        self._doing, self._total = doing, total
        self._stream = sys.stderr if stream is None else stream
        self._shown = is_terminal(self._stream)
        self._began = self._drawn = time.monotonic()
        self._on_screen = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def at(self, done: float, words: str = "") -> None:
        """Set the amount done; redraws at most ten times a second, and not in the first tenth."""
        now = time.monotonic()
        if not self._shown or now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = now
        self._write(
            "\r" + cut(self.line(done, words, now - self._began), terminal_of(self._stream).width - 1) + "\x1b[K"
        )
        self._on_screen = True

    def now(self, doing: str) -> None:
        """Set the current activity; redraws at once."""
        self._doing, self._drawn = doing, 0.0
        self.at(0)

    def line(self, done: float, words: str, passed: float) -> str:
        """The line shown after ``passed`` seconds."""
        text = f"{self._doing}: {words}" if words else self._doing
        if not self._total:
            return f"{text}, {duration(passed)}" if passed >= 1.0 else f"{text} …"
        part = min(max(done / self._total, 0.0), 1.0)
        filled = round(part * _BAR)
        left = f", {duration(passed / part - passed)} left" if part > 0.02 and passed > 1.0 else ""
        return f"{self._doing} [{'#' * filled}{'.' * (_BAR - filled)}] {100 * part:3.0f} %{left}" + (
            f"; {words}" if words else ""
        )

    def clear(self) -> None:
        """Erase the line, before other output and at the end."""
        if self._on_screen:
            self._write("\r\x1b[K")
            self._on_screen = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._shown = False  # the terminal is gone; the work continues
