"""``rankwatch why``: the moments it understands, and lines that cannot steer a terminal."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rankwatch.cli.why import moment, text, why

NOW = datetime(2025, 10, 9, 14, 5, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("words", "ago"),
    [
        ("-10m", 600),
        ("-90s", 90),
        ("-1.5h", 5400),
        ("-2d", 172_800),
        ("14:03", 120),
        ("14:03:20", 100),
        ("9:05", 5 * 3600),
        ("14:06", 86_400 - 60),  # today's has not come yet
        ("2025-10-09T14:04:00", 60),
        ("2025-10-09 14:04", 60),
        ("2025-10-09T14:04:00Z", 60),
        ("2025-10-09T16:04:00+02:00", 60),
        (str(int(NOW) - 5), 5),
        (f"{NOW - 5.5}", 5.5),
        ("2025-10-09", 14 * 3600 + 300),
    ],
)
def test_moments(words: str, ago: float) -> None:
    assert NOW - moment(words, NOW) == pytest.approx(ago)


@pytest.mark.parametrize("words", ["yesterday", "25:00", "12:61", "-10", "10m", "", "1e300", "2025-13-01"])
def test_an_invalid_time_lists_the_accepted_forms(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        why(["job", "--at", words])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert "give unix seconds, ISO 8601" in printed


def test_a_monitor_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    assert why(["job", "--monitor", "http://127.0.0.1:9", "--at", "-10m"]) == 1
    assert capsys.readouterr().err.startswith("rankwatch why: no monitor answers at http://127.0.0.1:9")


def test_help_names_the_forms_of_a_moment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        why(["--help"])
    assert "HH:MM[:SS]" in capsys.readouterr().out


def test_only_the_sentence_when_nothing_changed() -> None:
    assert text({"sentence": "Nothing changed.", "parts": [], "contributors": []}) == "Nothing changed.\n"


def test_all_that_is_known_as_lines() -> None:
    answer = {
        "sentence": "Steps take 2.1 times as long.",
        "parts": [{"part": "data", "before": 0.04, "after": 0.45, "share": 0.83}],
        "contributors": [
            {"share": 0.8, "sentence": "kernel \x1b[2J 40 ms -> 0.45 s"},
            {"share": 0.0, "sentence": "section 'forward' 40 ms -> 0.45 s"},
        ],
        "circumstances": [{"sentence": "attempt 1 began"}],
    }
    assert text(answer).splitlines() == [
        "Steps take 2.1 times as long.",
        "",
        "What a step's time goes into",
        "  data            40.00 ms ->  0.450 s     83 %",
        "",
        "What takes another time",
        "    80 %  kernel \N{REPLACEMENT CHARACTER}[2J 40 ms -> 0.45 s",
        "",
        "Where the same time is seen too",
        "  section 'forward' 40 ms -> 0.45 s",
        "",
        "What else changed at that time",
        "  attempt 1 began",
    ]
