"""Waits that grow, with chance in them, and what receivers ask for."""

from __future__ import annotations

import pytest

from rankwatch_monitor.publish.webhook import retry

NOW = 1_700_000_000.0


def test_waits_double_up_to_the_longest_and_are_never_alike() -> None:
    for failures in range(1, 40):
        whole = min(retry.LONGEST, retry.FIRST * 2 ** (failures - 1))
        waits = {retry.wait(failures) for _ in range(50)}
        assert len(waits) > 40, "senders that failed together do not come again together"
        assert all(whole / 2 <= seconds <= whole for seconds in waits)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 120 ", 120.0),
        ("0", 0.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        ("99999999999999999999", retry.MOST_ASKED),
        ("Tue, 14 Nov 2090 22:13:00 GMT", retry.MOST_ASKED),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry.retry_after(header, NOW) == seconds
