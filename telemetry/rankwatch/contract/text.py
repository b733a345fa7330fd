"""Text of other processes, made safe for logs and terminals.

Control characters (C0, C1, DEL), escape sequences, line separators, bidirectional overrides, invisible characters and
lone surrogates are written as escapes: ``\\x1b[2J`` instead of a cleared screen.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable
from typing import Any, Final

LONGEST: Final = 20_000
"""Characters of one text."""
CUT: Final = "..."
INDENT: Final = "    "
"""Begins every line of a log message but the first, so that a message cannot pose as several."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'step'?`` for a word that is close to a known one; else empty."""
    import difflib  # not needed by ranks

    close = difflib.get_close_matches(word, list(map(str, known)), 1, 0.65)
    return f"; did you mean {close[0]!r}?" if close else ""


def decoded(text: str | bytes) -> Any:
    """What a JSON text stands for.

    Raises:
        ValueError: it is none, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(not_json(error)) from None


def values(document: str | bytes) -> int:
    """About how many values a JSON document has, counted before it is decoded: brackets and commas.

    A kilobyte that unpacks to 256 MiB of empty lists would take 13 GiB.
    """
    if isinstance(document, str):
        return sum(map(document.count, "[{,"))
    return sum(map(document.count, b"[{,"))


def not_json(error: json.JSONDecodeError) -> str:
    """What is wrong with a text that is no JSON, for a message that names its file."""
    where = f"line {error.lineno}, column {error.colno}" if error.doc.strip() else "it is empty"
    return f"it is not JSON: {where}"


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
