"""Colours only on a terminal, tables that fit, text that cannot steer it, progress on a real pseudo terminal."""

from __future__ import annotations

import io
import os
import pty
import re
from collections.abc import Iterator
from typing import TextIO

import pytest

from rankwatch.cli import terminal as module
from rankwatch.cli.live_display import LiveDisplay
from rankwatch.cli.terminal import Cell, Column, Progress, Terminal, cell_width, cut, cut_front, terminal_of

COLUMNS = (Column("NAME", least=6), Column("STEP", right=True, drop=1), Column("STATE"))
ROWS = [
    [Cell("a-job-with-a-long-name"), Cell("12"), Cell("running", "good")],
    [Cell("b"), Cell("1300"), Cell("hung", "bad")],
]


@pytest.fixture
def seen() -> Iterator[tuple[TextIO, int]]:
    """A terminal to write to, and the file descriptor at which its other side is read."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        yield stream, ours
    os.close(ours)


def test_a_file_gets_no_colours_and_the_width_of_columns() -> None:
    assert terminal_of(io.StringIO(), {"TERM": "xterm"}) == Terminal(module.WIDTH, 0, False)
    assert terminal_of(io.StringIO(), {"COLUMNS": "72"}).width == 72
    assert terminal_of(io.StringIO(), {"COLUMNS": "1"}).width == module.NARROWEST


@pytest.mark.parametrize(
    ("variables", "colours"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({}, False)],
)
def test_a_terminal_gets_colours_unless_it_refuses_them(
    seen: tuple[TextIO, int], variables: dict[str, str], colours: bool
) -> None:
    assert terminal_of(seen[0], variables).colours is colours


def test_a_closed_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    stream.close()
    assert not module.is_terminal(stream)


def test_a_table_stands_in_columns() -> None:
    assert Terminal(80).table(COLUMNS, ROWS) == [
        "NAME                    STEP  STATE",
        "a-job-with-a-long-name    12  running",
        "b                       1300  hung",
    ]


def test_a_narrow_table_drops_a_column_and_then_cuts_another() -> None:
    lines = Terminal(40).table(COLUMNS, [[Cell("x" * 60), *ROWS[0][1:]]])
    assert lines[0].split() == ["NAME", "STATE"]
    assert lines[1].endswith("…  running")
    assert all(cell_width(line) <= 40 for line in lines)


def test_an_empty_column_is_left_out() -> None:
    assert Terminal(80).table(COLUMNS, [[Cell("a"), Cell(""), Cell("hung")]])[0].split() == ["NAME", "STATE"]


def test_colours_do_not_move_columns() -> None:
    plain, painted = Terminal(80).table(COLUMNS, ROWS), Terminal(80, 24, True).table(COLUMNS, ROWS)
    assert painted != plain
    for style in module.STYLES.values():
        painted = [line.replace(f"\x1b[{style}m", "").replace("\x1b[0m", "") for line in painted]
    assert painted == plain


def test_a_name_cannot_steer_the_terminal() -> None:
    printed = Terminal(80, 24, True).table(COLUMNS, [[Cell("\x1b[2J\x07"), Cell("1"), Cell("x\ny")]])
    printed += Terminal(80).wrapped("a\x1b[2Jb")
    assert all("\x1b[2J" not in line and "\x07" not in line and "\n" not in line for line in printed)


def test_wrapped_lines_fit_and_state_that_some_are_missing() -> None:
    lines = Terminal(40).wrapped("word " * 60, "  ", most=2)
    assert len(lines) == 2
    assert all(len(line) <= 40 for line in lines)
    assert lines[1].endswith("…")
    assert Terminal(40).wrapped("short", "  ", most=2) == ["  short"]


@pytest.mark.parametrize(
    ("text", "width", "shown"), [("abcdef", 6, "abcdef"), ("abcdef", 4, "abc…"), ("東京都", 5, "東京…")]
)
def test_cut(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown
    assert cell_width(shown) <= width


def test_cut_front_keeps_the_end() -> None:
    assert cut_front("/a/long/path/train.py:30", 12) == "…train.py:30"
    assert cut_front("train.py:30", 12) == "train.py:30"


def test_progress_prints_nothing_without_a_terminal() -> None:
    stream = io.StringIO()
    with Progress("reading", 10, stream) as progress:
        progress.now("still reading")
        progress.at(5)
    assert stream.getvalue() == ""


def test_progress_on_a_terminal_leaves_no_trace(seen: tuple[TextIO, int]) -> None:
    stream, other_side = seen
    with Progress("reading", 10, stream) as progress:
        progress.now("reading")
    printed = ""
    # The kernel passes on each write by itself; the test ends at its timeout if the last one never comes.
    while not printed.endswith("\r\x1b[K"):
        printed += os.read(other_side, 1000).decode()
    assert "reading [" in printed


def test_progress_names_the_part_and_the_time_that_is_left() -> None:
    line = Progress("reading", 200, io.StringIO()).line(50, "12 events", 10.0)
    assert line == "reading [######..................]  25 %, 30.0 s left; 12 events"
    assert Progress("x", stream=io.StringIO()).line(3, "3 events", 2.0) == "x: 3 events, 2.0 s"


def test_a_line_of_the_full_width_keeps_its_last_character() -> None:
    drawn = io.StringIO()
    LiveDisplay(drawn, io.StringIO()).draw(["a" * 80, "b" * 80])
    assert re.search(r"[ab]\x1b", drawn.getvalue()) is None, "after it the cursor is still on its last character"
