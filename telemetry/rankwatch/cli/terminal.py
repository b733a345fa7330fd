"""What a terminal needs and a file does not: colours, its width, tables that fit, a line that shows progress.

How this works
--------------
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TextIO, TypeVar

from rankwatch.cli.formatting import duration, printable

WIDTH: Final = 100
"""Columns of what is not written to a terminal."""
NARROWEST: Final = 40
"""Columns that are used even when a terminal claims to have fewer."""

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
    **dict.fromkeys(("starting", "unseen"), "busy"),
    **dict.fromkeys(("recovering", "waiting", "stopped"), "warning"),
    **dict.fromkeys(("hung", "failed", "lost", "silent", "dead"), "bad"),
}
"""How the word for a state is painted; a verdict that is not in here is a warning."""

_GAP: Final = 2
_REDRAW_SECONDS: Final = 0.1
_BAR: Final = 24
T = TypeVar("T")


class Cell(NamedTuple):
    """Text with a style of :data:`STYLES`; an empty one is none."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    When the terminal is too narrow, columns with ``drop`` above 0 are left out, the highest number first; then those
    with ``least`` above 0 are cut to no less than that.
    """

    title: str
    right: bool = False
    drop: int = 0
    least: int = 0


@dataclass(frozen=True, slots=True)
class Terminal:
    """How wide the output is, and whether it may be painted."""

    width: int = WIDTH
    height: int = 0
    """Lines; 0: not a terminal, so as many as one likes."""
    colours: bool = False

    def paint(self, text: str, style: str) -> str:
        """The text in a style of :data:`STYLES`, where colours are wanted."""
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and text and self.colours else text

    def wrapped(self, text: str, indent: str = "", style: str = "", most: int = 0) -> list[str]:
        """A sentence as lines that fit; those after the first stand two columns further in.

        ``most`` above 0 keeps so many lines and marks what was cut off.
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
        """Rows under their titles, fitted to the width; a column that is empty in every row is left out."""
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
            text = cut(cell.text, width)
            space = " " * (width - cell_width(text))
            last = position == len(parts) - 1
            painted = self.paint(text, cell.style)
            made.append(space + painted if column.right else painted + ("" if last else space))
        return (" " * _GAP).join(made)


def terminal_of(stream: TextIO, variables: Mapping[str, str] = os.environ) -> Terminal:
    """What is known of the terminal behind a stream, if there is one."""
    if not is_terminal(stream):
        columns = variables.get("COLUMNS", "")
        return Terminal(max(int(columns), NARROWEST) if columns.isdecimal() else WIDTH)
    try:
        width, height = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        width, height = 0, 0
    if not (width and height):  # a serial line, for one, does not know
        width, height = shutil.get_terminal_size((80, 24))
    plain = bool(variables.get("NO_COLOR")) or variables.get("TERM", "") in ("", "dumb")
    return Terminal(max(width, NARROWEST), height, not plain)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at it; False for a stream that is closed."""
    try:
        return stream.isatty()
    except (ValueError, AttributeError):
        return False


def cell_width(text: str) -> int:
    """Columns that a text takes: Chinese, Japanese and Korean signs take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int) -> str:
    """The text in no more than ``width`` columns, with a mark where something is missing."""
    if cell_width(text) <= width:
        return text
    kept = text[:width]
    while kept and cell_width(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def cut_front(text: str, width: int) -> str:
    """The same for what matters most at its end, as in a path."""
    return text if cell_width(text) <= width else f"…{cut(text[::-1], width)[-2::-1]}"


def _needed(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + _GAP * max(0, len(widths) - 1)


def _squeeze(widths: dict[int, int], columns: Sequence[Column], room: int) -> None:
    """Take what is too much from the widest of the columns that may be cut, one column of signs after the other."""
    while _needed(widths) > room:
        soft = [i for i, width in widths.items() if 0 < columns[i].least < width]
        if not soft:
            return
        widths[max(soft, key=lambda i: widths[i])] -= 1


class Progress:
    """One line on stderr that says how far long work has come. Nothing at all where stderr is no terminal.

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
        """So much of the total is done; drawn ten times a second at most, and not in the first tenth."""
        now = time.monotonic()
        if not self._shown or now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = now
        self._write(
            "\r" + cut(self.line(done, words, now - self._began), terminal_of(self._stream).width - 1) + "\x1b[K"
        )
        self._on_screen = True

    def now(self, doing: str) -> None:
        """Something else is done from here on; drawn at once."""
        self._doing, self._drawn = doing, 0.0
        self.at(0)

    def line(self, done: float, words: str, passed: float) -> str:
        """What is shown after ``passed`` seconds."""
        told = f"{self._doing}: {words}" if words else self._doing
        if not self._total:
            return f"{told}, {duration(passed)}" if passed >= 1.0 else f"{told} …"
        part = min(max(done / self._total, 0.0), 1.0)
        filled = round(part * _BAR)
        left = f", {duration(passed / part - passed)} left" if part > 0.02 and passed > 1.0 else ""
        return f"{self._doing} [{'#' * filled}{'.' * (_BAR - filled)}] {100 * part:3.0f} %{left}" + (
            f"; {words}" if words else ""
        )

    def clear(self) -> None:
        """Take the line away, before something else is written or at the end."""
        if self._on_screen:
            self._write("\r\x1b[K")
            self._on_screen = False

    def over(self, items: Iterable[T], unit: str) -> Iterator[T]:
        """The same items, counted while they are used."""
        for number, item in enumerate(items, 1):
            yield item
            if not number & 0xFF:  # the clock is not asked for every one of a million
                self.at(number, f"{number:,} {unit}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._shown = False  # whoever looked is gone; the work goes on
