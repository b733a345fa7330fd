"""What a launcher has printed on its console, read back: events with their words, lines joined."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from rankwatch_launcher.log import COLUMN, INDENT

_LINE: Final = re.compile(r"(?P<time>\d\d:\d\d:\d\d)  (?P<rest>.*)")
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")


class Shown(NamedTuple):
    """One event or line; ``word`` is empty for a line below an event, and for a message without one."""

    word: str
    text: str
    rows: tuple[str, ...]


def shown(output: str) -> list[Shown]:
    """All that the launcher printed, in order; what ranks print is left out."""
    found: list[list[str]] = []
    for line in _COLOURS.sub("", output).splitlines():
        if _LINE.match(line):
            found.append([line])
        elif found and line.startswith("          ") and line.strip():
            found[-1].append(line)
    return [_read(rows) for rows in found]


def said(output: str) -> str:
    """All that the launcher printed, a line for each event or message, however it was wrapped."""
    return "\n".join(each.text for each in shown(output))


def events(output: str, word: str) -> list[str]:
    """What the events of this word say."""
    return [each.text for each in shown(output) if each.word == word]


def restarts(output: str) -> list[str]:
    """What the lines say that announce a restart of all ranks."""
    return [each.text for each in shown(output) if each.text.startswith("restarting all ranks")]


def _read(rows: list[str]) -> Shown:
    rest = rows[0][10:]
    word = rest[:COLUMN].strip()
    has_word = bool(rest[:COLUMN].strip()) and rest[:COLUMN].strip().isupper() and rest[COLUMN - 1 : COLUMN] == " "
    text = rest[COLUMN:] if has_word or not word else rest
    return Shown(word if has_word else "", " ".join([text, *(row.strip() for row in rows[1:])]), tuple(rows))


assert INDENT == 10 + COLUMN
