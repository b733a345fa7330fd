"""Text of other processes is made safe before it reaches a log or a terminal."""

from __future__ import annotations

import logging

import pytest

from rankwatch.contract.text import INDENT, SafeFormatter, lines, one_line


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("größer 名 'x'", "größer 名 'x'"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\x7fb\x00", r"a\x7fb\x00"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("a\u2028b\u2029", r"a\u2028b\u2029"),
        ("\u202eabc\u2066\u200b", r"\u202eabc\u2066\u200b"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(given: str, shown: str) -> None:
    assert one_line(given) == shown
    assert one_line(given).isprintable()


def test_texts_are_cut_before_they_are_escaped() -> None:
    assert one_line("x" * 100, 10) == "x" * 10 + "..."
    assert lines("\x1b" * 100, 10) == r"\x1b" * 10 + "..."


def test_line_feeds_stay_where_lines_are_wanted() -> None:
    assert lines("a\n\tb\r\n\x1bc", indent="> ") == "a\n>     b\\r\n> \\x1bc"


def test_a_log_record_begins_one_line() -> None:
    formatter = SafeFormatter("12:00 [rankwatch] %(message)s")
    record = logging.LogRecord("rankwatch", logging.INFO, "", 0, "rank 1: %s", ("\x1b[2J\n12:00 [rankwatch] ok",), None)
    first, second = formatter.format(record).split("\n")
    assert first == r"12:00 [rankwatch] rank 1: \x1b[2J"
    assert second == f"{INDENT}12:00 [rankwatch] ok"
