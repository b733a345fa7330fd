"""Text of other processes, made safe for logs and terminals.

Control characters (C0, C1, DEL), escape sequences, line separators, bidirectional overrides, invisible characters and
lone surrogates are written as escapes: ``\\x1b[2J`` instead of a cleared screen.
"""

from __future__ import annotations

import json
import logging
import shlex
from typing import Any, Final

LONGEST: Final = 20_000
"""Characters of one text."""
CUT: Final = "..."
INDENT: Final = "    "
"""Begins every line of a log message but the first, so that a message cannot pose as several."""


def decoded(text: str | bytes) -> Any:
    """What a JSON text stands for.

    Raises:
        ValueError: it is none, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def one_line(text: str, longest: int = LONGEST) -> str:
    """``text`` without anything that a terminal would obey, line breaks included, and cut to ``longest`` characters."""
    if len(text) > longest:
        text = text[:longest] + CUT
    return text if text.isprintable() else "".join(map(_escaped, text))


def operands(*words: str) -> str:
    """Words as a shell takes them, for a command that a person copies: none is executed, and none is an option.

    ``ssh -oProxyCommand=...`` executes one.
    """
    behind = "-- " if any(word.startswith("-") for word in words) else ""
    return behind + " ".join(map(shlex.quote, words))


def lines(text: str, longest: int = LONGEST, indent: str = "") -> str:
    """The same of a text of several lines, whose line feeds stay; ``indent`` begins every line but the first."""
    if len(text) > longest:
        text = text[:longest] + CUT
    if text.isprintable():
        return text
    return f"\n{indent}".join(one_line(line, longest + len(CUT)) for line in text.replace("\t", INDENT).split("\n"))


class SafeFormatter(logging.Formatter):
    """A log formatter whose output holds nothing that a terminal would obey, and begins one line a message."""

    def format(self, record: logging.LogRecord) -> str:
        """The message, with its traceback if it has one."""
        return lines(super().format(record), indent=INDENT)


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
