"""The launcher's log lines on the terminal."""

from __future__ import annotations

import logging
import re

import pytest

from rankwatch.cli.terminal import Terminal
from rankwatch.contract.enums import ConsoleWord
from rankwatch_launcher import log


def test_a_line_has_the_time_and_appears_once(capsys: pytest.CaptureFixture[str]) -> None:
    log.to_stderr()
    log.to_stderr()
    log.logger.info("rank %d hangs", 3)
    assert re.fullmatch(r"\d\d:\d\d:\d\d  rank 3 hangs\n", capsys.readouterr().err)
    assert not log.logger.propagate, "a handler of the root logger would print it again"


def test_a_level_that_was_chosen_survives_a_second_call(capsys: pytest.CaptureFixture[str]) -> None:
    log.to_stderr()
    log.logger.setLevel(logging.DEBUG)
    log.to_stderr()
    log.logger.debug("details")
    assert "details" in capsys.readouterr().err


def test_what_a_rank_has_written_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log.to_stderr()
    log.logger.info("%s", "oops\x1b[2J\x07")
    written = capsys.readouterr().err
    assert "oops" in written
    assert not {"\x1b", "\x07"} & {*written}


LENGTHS = ("Rank 2 on host-0 " + "waits " * 24 + "in vain", "Rank 2 on host-0 waits in reward()", "Rank 2 waits")


def printed(width: int, what: str | tuple[str, ...], *more: str, colours: bool = False, look: str = "") -> list[str]:
    """The rows of one event on a terminal of this width."""
    extra = {"word": ConsoleWord.HANG, "whats": (what,) if isinstance(what, str) else what, "more": more, "look": look}
    record = logging.LogRecord("rankwatch", logging.WARNING, "", 0, "", (), None)
    record.__dict__.update(extra)
    return log.Console(Terminal(width, colours=colours)).format(record).split("\n")


@pytest.mark.parametrize("width", [60, 80, 100, 250])
@pytest.mark.parametrize(
    "more", [(), ("nothing is stopped",), ("restart at 14:07:20 unless the ranks go on", "x " * 99)]
)
@pytest.mark.parametrize("what", ["short", LENGTHS, "x" * 400, "words " * 90])
def test_an_event_has_two_lines_at_most_whatever_is_told(width: int, more: tuple[str, ...], what: str) -> None:
    rows = printed(width, what, *more)
    assert len(rows) <= 2
    assert max(map(len, rows)) <= min(width, 100)
    assert [row[:18].strip() for row in rows[1:]] == [""] * (len(rows) - 1)
    assert rows[0][10:18] == "HANG    "


def test_the_longest_that_fits_is_shown_and_what_follows_has_a_line_of_its_own() -> None:
    rows = printed(100, LENGTHS, "nothing is stopped")
    assert rows[0].endswith("Rank 2 on host-0 waits in reward() · nothing is stopped") or len(rows) == 2
    assert printed(60, LENGTHS[1:], "restarting all ranks (1 of 3)")[1].strip() == "restarting all ranks (1 of 3)"


@pytest.mark.parametrize("width", [80, 100])
def test_where_to_look_is_left_out_last(width: int) -> None:
    facts = ("step 80", "goodput 9 %", "31 steps unsaved", "50.1 s", "2 restarts")
    what, command = "3 attempts in a row ended so at step 80: a restart", "rankwatch report train-9e33d3f0"
    rows = printed(width, what, *facts, look=command)
    assert rows[-1].endswith(command)
    assert "step 80 ·" in "".join(rows)
    assert not any(row.strip().startswith("·") for row in printed(100, "by Ctrl-C", *facts, "x" * 12, look=command))
    assert len(rows) <= 2
    assert command not in "".join(printed(60, "words " * 30, look=command))


def test_colours_are_those_of_a_terminal_and_of_the_words_meaning() -> None:
    assert "\x1b[" not in printed(100, "short")[0]
    assert "\x1b[1;31mHANG" in printed(100, "short", colours=True)[0]


def test_the_link_is_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    log.to_stderr()
    log.watching("job 1", "http://" + "h" * 120)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("/j/job%201")


def test_what_follows_is_broken_between_words_where_it_is_longer_than_a_line() -> None:
    rows = log.fitted(("preempted: the launcher on vm got SIGTERM",), (" ".join(["word"] * 14),), 62)
    assert rows == [
        "preempted: the launcher on vm got SIGTERM · word word word",
        "word word word word word word word word word word word",
    ]
