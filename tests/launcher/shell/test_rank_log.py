"""The end of a failed rank's log: which file, which ranks, and its bounds."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.contract.intervals import FEW_LAUNCHERS
from rankwatch.contract.messages import LOG_LINE, LOG_LINES, LOGS_UNSENT
from rankwatch_launcher.core.exits import RankExit
from rankwatch_launcher.node.session import MAX_FACT
from rankwatch_launcher.shell.rank_error import RankError
from rankwatch_launcher.shell.rank_log import MAX_READ, RANKS, file_behind, last_lines, log_facts, logs_of

LOST = "RuntimeError: Connection closed by peer"


def context(folder: Path, ranks: int = 16, text: str = "one\ntwo\n") -> Any:
    for rank in range(ranks):
        (folder / f"{rank}.err").write_text(text)
    return SimpleNamespace(
        stderrs={rank: str(folder / f"{rank}.err") for rank in range(ranks)},
        stdouts=dict.fromkeys(range(ranks), os.devnull),
    )


def crash(rank: int, message: str = "ValueError: x") -> RankExit:
    return RankExit(rank, rank, 90 + rank, 1, message, error=RankError(message))


def test_the_first_ranks_of_a_node_send_theirs_and_one_in_a_large_job(tmp_path: Path) -> None:
    crashed, files = [crash(rank) for rank in range(16)], context(tmp_path)
    assert [log.rank for log in logs_of(crashed, files, "h")] == list(range(RANKS))
    large = logs_of(crashed, files, "h", FEW_LAUNCHERS + 1)
    assert [(log.rank, log.lines, log.shared) for log in large] == [(0, ("one", "two"), False)]


def test_ranks_of_a_large_job_that_only_lost_their_connection_send_none(tmp_path: Path) -> None:
    lost = [crash(rank, LOST) for rank in range(16)]
    assert len(logs_of(lost, context(tmp_path), "h")) == RANKS
    assert logs_of(lost, context(tmp_path), "h", FEW_LAUNCHERS + 1) == ()


def test_ranks_that_were_not_started_have_none() -> None:
    assert logs_of([crash(0)], None, "h") == ()


def test_a_log_is_bounded_however_it_was_written(tmp_path: Path) -> None:
    files = context(tmp_path, 1, "\U000e0001" * (4 * MAX_READ) + "\n" + 3 * MAX_READ * "\x00" + "\n" + "ü" * MAX_READ)
    (log,) = logs_of([crash(0)], files, "h")
    assert len(log.lines) <= LOG_LINES
    assert all(len(line) <= LOG_LINE + 3 and line.isprintable() for line in log.lines)
    assert log.bounded() == log, "the monitor cuts nothing more"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ()),
        ("\n\n  \n", ()),
        ("a\n\nb", ("a", "b")),
        ("  1 %\r 50 %\r100 %\r\nnext\n", ("100 %", "next")),
        ("\x1b[31mERROR\x1b[0m\tbad\n", ("ERROR    bad",)),
        ("".join(f"{n}\n" for n in range(100)), tuple(map(str, range(80, 100)))),
    ],
    ids=["empty", "blank", "no line end", "progress bar", "colours", "the last ones"],
)
def test_lines_are_those_that_a_terminal_would_show(tmp_path: Path, text: str, lines: tuple[str, ...]) -> None:
    (tmp_path / "log").write_text(text, newline="")
    assert last_lines(str(tmp_path / "log")) == lines


def test_the_first_line_of_what_was_read_is_left_out_since_it_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x" * MAX_READ + "\nwhole\n")
    assert last_lines(str(tmp_path / "log")) == ("whole",)
    assert last_lines(str(tmp_path / "none")) == ()


def test_only_a_regular_file_is_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as file:
        assert file_behind(file.fileno()) == str(path)
        path.unlink()
        assert file_behind(file.fileno()) == ""
    read, write = os.pipe()
    assert file_behind(write) == ""
    os.close(read)
    os.close(write)
    assert file_behind(write) == ""


def test_a_path_that_a_monitor_would_refuse_is_left_out_of_the_registration() -> None:
    assert log_facts("/logs") == {"rank_logs": "/logs"}
    assert log_facts("/logs", "/logs/gpt_x7k2") == {"rank_logs": "/logs", "run_logs": "/logs/gpt_x7k2"}
    assert log_facts("/" + "x" * MAX_FACT) == {}
    assert log_facts("/a\nb") == {}


def test_a_launcher_that_sends_no_logs_registers_it() -> None:
    assert log_facts("/logs", sent=False) == {"rank_logs": "/logs", LOGS_UNSENT: "true"}
