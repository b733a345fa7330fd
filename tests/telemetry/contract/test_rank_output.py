"""Positions in logs as text, and the bounds of what a launcher may answer."""

from __future__ import annotations

import pytest

from rankwatch.contract.rank_output import LONGEST_LINE, MOST_RANKS, LogPart, cursor, key, read_cursor


def test_a_cursor_is_read_back() -> None:
    after = {key(3, "output"): 12, key(11, "stderr"): 0}
    assert read_cursor(cursor(after)) == after
    assert read_cursor("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "../etc.output.1", "1.output", "1.2.3.4", "1.passwd.3", "-1.output.3", "1.output.-3", "1.output.1e9",
        "\N{SUPERSCRIPT TWO}.output.1", "1.output." + "9" * 30, "9" * 12 + ".output.1",
        ",".join(f"{rank}.stderr.1" for rank in range(3 * MOST_RANKS + 1)),
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"RANK.STREAM.BYTES|too large|limit"):
        read_cursor(text)


def test_a_part_holds_nothing_that_a_terminal_obeys_and_no_more_than_is_allowed() -> None:
    lines = ("\x1b[2J\x07gone", "a" * (3 * LONGEST_LINE), "last\u202e")
    part = LogPart(0, "passwd", "/a\nb", lines, -5, -3, -1, -2).bounded(2 * LONGEST_LINE)
    assert (part.stream, part.first, part.begin, part.end, part.size) == ("output", 0, 0, 0, 0)
    assert all(line.isprintable() and len(line) <= LONGEST_LINE + 3 for line in (*part.lines, part.path))
    assert LogPart(0, "output", "/p", tuple(map(str, range(100)))).bounded(9).lines == ("97", "98", "99")
