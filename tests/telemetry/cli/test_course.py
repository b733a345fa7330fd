"""The last hour of a job as lines of text."""

from __future__ import annotations

from typing import Any

from rankwatch.cli.status.course import HOUR, course, course_lines
from rankwatch.cli.terminal import Terminal

AT = [1000.0 + 30.0 * i for i in range(121)]


def trends(**columns: Any) -> dict[str, Any]:
    return {"at": AT, "speed": [2.0] * 121, "logged": {}, "non_finite": {}} | columns


def test_each_part_of_the_hour_has_a_character_and_time_without_values_is_blank() -> None:
    begin = AT[-1] - HOUR
    assert course(AT, [float(i) for i in range(121)], begin, AT[-1], 8) == "▁▂▃▄▅▆▇█"
    assert course(AT, [None] * 60 + [1.0] * 61, begin, AT[-1], 8, floor=0.0) == "    ████"
    assert course(AT, [2.0] * 60 + [1.0] * 61, begin, AT[-1], 8, floor=0.0) == "████▅▅▅▅"
    assert course(AT, [None] * 121, begin, AT[-1], 8) == ""
    assert course([0.0, *AT], [9.0, *[1.0] * 121], begin, AT[-1], 4, floor=0.0) == "████", "older points have no place"


def test_speed_and_loss_with_the_last_value_and_the_extremes() -> None:
    falling = [4.0 - i / 60 for i in range(121)]
    lines = course_lines(
        trends(speed=[2.0] * 100 + [0.0] * 21, logged={"lr": [0.001] * 121, "train_loss": falling}), Terminal()
    )
    assert lines[0] == "LAST HOUR"
    assert lines[1].startswith("  speed             █")
    assert lines[1].endswith("▁  0 steps/s, 0 to 2.00 steps/s")
    assert lines[2].startswith("  train_loss        █")
    assert lines[2].endswith("  2, 2 to 4")
    assert lines[3].split() == ["lr", "▁" * 40, "0.001"]


def test_a_young_job_is_shown_since_its_first_point_without_blanks() -> None:
    young = {"at": [100.0, 115.0, 130.2, 145.1, 160.0, 175.3, 190.0], "speed": [0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]}
    lines = course_lines(young, Terminal())
    assert lines[0] == "LAST 90.0 s"
    assert lines[1].split()[1] == "▃████"
    assert course_lines({"at": [100.0], "speed": [2.0]}, Terminal())[1].split()[1:] == ["█", "2.00", "steps/s"]


def test_a_value_that_is_nan_stands_first_and_in_words_until_it_is_finite_again() -> None:
    bad: list[float | None] = [None] * 100 + [3.0] * 21
    finite: list[float | None] = [2.5] * 100 + [None] * 21
    logged = {"acc": [0.5] * 121, "train_loss": finite, "lr": [0.1] * 121, "z": [1.0] * 121}
    lines = course_lines(trends(logged=logged, non_finite={"train_loss": bad}), Terminal(80))
    assert lines[2] == "  train_loss        NaN or infinite: 63 values; last finite: 2.5"
    assert len(lines) == 5, "speed and three values"
    again = course_lines(
        trends(logged={"loss": [*finite[:-1], 2.0]}, non_finite={"loss": [*bad[:-1], None]}), Terminal()
    )
    assert again[2].endswith("2, 2 to 2.5")
    never = course_lines(trends(logged={"loss": [None] * 121}, non_finite={"loss": [1.0] * 121}), Terminal(80))
    assert never[2] == "  loss              NaN or infinite: 121 values, never finite in this time"


def test_it_fits_a_narrow_terminal_and_nothing_is_shown_of_nothing() -> None:
    wide = trends(
        speed=[0.5, 150.25] * 60 + [3.0],
        logged={"a_very_long_name_of_a_loss": [1.234567e-5, 9.87654e8] * 60 + [1.0], "\x1b[2J": [1.0] * 121},
    )
    for columns in (60, 80, 120):
        lines = course_lines(wide, Terminal(columns))
        assert len(lines) == 4
        assert max(map(len, lines)) <= columns
        assert "\x1b" not in "".join(lines)
    assert course_lines(None, Terminal()) == course_lines(trends(at=[]), Terminal()) == []
    assert course_lines(trends(speed=[None] * 121), Terminal()) == []
