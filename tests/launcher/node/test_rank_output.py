"""What a launcher answers to a question for the logs of its ranks: which file, which part, never more than asked."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from rankwatch.contract.rank_output import LEAST_BYTES, LONGEST_LINE, MOST_BYTES, LogGap, LogRequest, key
from rankwatch_launcher.node.rank_output import ATTEMPTS, Log, RankOutput, read_part
from support.opens import never_opened


def log_of(folder: Path, content: bytes, rank: int = 0, stream: str = "output") -> Log:
    path = folder / f"rank_{rank}.{stream}.log"
    path.write_bytes(content)
    return Log(rank, stream, str(path))


def asked(*ranks: int, attempt: int = 1, most: int = 4096, whole: bool = False, **after: int) -> LogRequest:
    return LogRequest("q", attempt, ranks, most, after, whole)


def test_the_end_of_a_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    log = log_of(tmp_path, b"".join(b"line %d\n" % n for n in range(1000)))
    part = read_part(log, None, 64, whole=False)
    assert part.lines == tuple(f"line {n}" for n in range(993, 1000))
    assert (part.begin, part.end) == (part.size - 7 * len("line 999\n"), part.size)


def test_reading_goes_on_where_it_ended_until_nothing_is_left(tmp_path: Path) -> None:
    lines = [f"line {n} {'ü' * (n % 50)}." for n in range(500)]
    log = log_of(tmp_path, "".join(f"{line}\n" for line in lines).encode())
    seen, at = [], 0
    while (part := read_part(log, at, 512, whole=True)).end > at:
        assert part.begin == at
        seen, at = [*seen, *part.lines], part.end
    assert seen == lines
    assert at == part.size


def test_a_line_that_is_not_complete_is_left_for_the_next_time_if_asked_so(tmp_path: Path) -> None:
    log = log_of(tmp_path, b"whole\n 30 %")
    assert read_part(log, None, 4096, whole=False).lines == ("whole", " 30 %")
    part = read_part(log, None, 4096, whole=True)
    assert (part.lines, part.end) == (("whole",), 6)
    assert read_part(log, 6, 4096, whole=True).end == 6
    Path(log.path).write_bytes(b"whole\n 30 %\r100 %\n")
    assert read_part(log, 6, 4096, whole=True).lines == ("100 %",)


def test_a_huge_line_is_passed_in_pieces_and_cut(tmp_path: Path) -> None:
    log = log_of(tmp_path, b"x" * 100_000 + b"\nend\n")
    at, lines = 0, []
    for _ in range(40):
        part = read_part(log, at, 4096, whole=True)
        lines, at = [*lines, *part.lines], part.end
    assert lines[-1] == "end"
    assert all(len(line) <= LONGEST_LINE + 3 for line in lines)
    (cut,) = read_part(log_of(tmp_path, b"y" * 20_000), None, 65_536, whole=False).lines
    assert len(cut) == LONGEST_LINE + 3


def test_binary_output_is_escaped_and_stays_within_its_bounds(tmp_path: Path) -> None:
    log = log_of(tmp_path, bytes(range(256)) * 1000)
    part = read_part(log, None, 8192, whole=False)
    assert all(line.isprintable() for line in part.lines)
    assert sum(len(line.encode()) for line in part.lines) <= 4 * 8192


def test_what_is_no_longer_kept_is_not_read(tmp_path: Path) -> None:
    log = log_of(tmp_path, b"\0" * 8192 + b"kept\n")
    log.first = 8192
    part = read_part(log, 0, 65_536, whole=False)
    assert (part.lines, part.first, part.begin) == (("kept",), 8192, 8192)
    later = log_of(tmp_path, b"kept\n")
    later.first = later.base = 8192
    assert read_part(later, 0, 65_536, whole=False) == part
    assert read_part(later, 99_999, 65_536, whole=False).lines == ()


def test_only_ranks_of_that_attempt_are_answered_by_their_own_lines(tmp_path: Path) -> None:
    output = RankOutput("n1")
    output.begin(1, [log_of(tmp_path, b"old\n", 0)])
    second = tmp_path / "2"
    second.mkdir()
    output.begin(
        2, [log_of(second, b"zero\n", 0), log_of(second, b"out\n", 1, "stdout"), log_of(second, b"err\n", 1, "stderr")]
    )
    answer = output.answer(asked(0, 1, 7, attempt=2))
    assert [(part.rank, part.stream, part.lines) for part in answer.parts] == [
        (0, "output", ("zero",)),
        (1, "stdout", ("out",)),
        (1, "stderr", ("err",)),
    ]
    assert answer.gaps == {"7": LogGap.NOT_HERE}
    assert output.answer(asked(0)).parts[0].lines == ("old",)
    for attempt in range(3, 3 + ATTEMPTS):
        output.begin(attempt, [])
    assert output.answer(asked(0)).gaps == {"0": LogGap.NOT_HERE}


def test_a_question_without_bounds_gets_no_more_than_there_may_be(tmp_path: Path) -> None:
    output = RankOutput("n1")
    output.begin(1, [log_of(tmp_path, b"0123456789abcde\n" * 100_000, rank) for rank in range(20)])
    answer = output.answer(asked(*range(20), most=1 << 40))
    assert len(answer.parts) == 16
    assert sum(len(line) + 1 for part in answer.parts for line in part.lines) <= MOST_BYTES
    assert output.answer(asked(0, most=-5)).parts[0].end <= 1_600_000
    assert sum(len(line) + 1 for line in output.answer(asked(0, most=-5)).parts[0].lines) <= LEAST_BYTES


def test_positions_are_those_of_the_reader(tmp_path: Path) -> None:
    output = RankOutput("n1")
    output.begin(1, [log_of(tmp_path, b"a\nb\nc\n"), log_of(tmp_path, b"d\n", 1)])
    request = LogRequest("q", 1, (0, 1), 4096, {key(0, "output"): 2})
    assert [part.lines for part in output.answer(request).parts] == [("b", "c"), ("d",)]


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "gone"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rank_0.log"
    if kind == "fifo":
        os.mkfifo(path)  # a reader would wait for a writer for ever
    elif kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "folder":
        path.mkdir()
    output = RankOutput("n1")
    output.begin(1, [Log(0, "output", str(path))])
    with contextlib.nullcontext() if kind == "gone" else never_opened(path):
        answer = output.answer(asked(0))
    assert (answer.parts, answer.gaps, answer.paths) == ((), {"0": LogGap.UNREADABLE}, {"0": str(path)})


def test_output_that_goes_nowhere_and_output_that_may_not_be_sent(tmp_path: Path) -> None:
    output = RankOutput("n1")
    output.begin(1, [Log(0, "stdout", os.devnull), Log(0, "stderr", "")])
    assert output.answer(asked(0)).gaps == {"0": LogGap.NO_FILE}
    secret = RankOutput("n1", sent=False)
    secret.begin(1, [log_of(tmp_path, b"secret\n")])
    answer = secret.answer(asked(0))
    assert (answer.parts, answer.gaps) == ((), {"0": LogGap.UNSENT})
