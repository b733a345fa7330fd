"""Intervals by the size of the job."""

from __future__ import annotations

from rankwatch.contract.intervals import histogram_seconds, window_seconds, window_spread


def test_a_very_large_job_reports_windows_and_durations_less_often() -> None:
    assert [window_seconds(ranks) for ranks in (1, 16_000, 32_000, 100_000)] == [10.0, 10.0, 20.0, 62.5]
    assert [window_spread(ranks) for ranks in (1, 16_000, 32_000, 100_000)] == [0.0, 0.0, 10.0, 52.5]
    assert [histogram_seconds(ranks) for ranks in (1, 4_096, 8_192, 100_000)] == [0.0, 0.0, 60.0, 62.5]
