from __future__ import annotations

import signal

import pytest

from rankwatch.contract.exits import exit_phrase

ASSERTION = "AcceleratorError: CUDA error: device-side assert triggered"


@pytest.mark.parametrize(
    ("code", "message", "phrase"),
    [
        (1, "", "exited with code 1"),
        (1, "ValueError: no data", "exited with code 1: ValueError: no data"),
        (-signal.SIGKILL, "saved at step 40", "was killed by SIGKILL"),
        (-signal.SIGABRT, "", "was killed by SIGABRT"),
        (-signal.SIGABRT, ASSERTION, f"was killed by SIGABRT after {ASSERTION}"),
    ],
)
def test_an_exit_is_described_with_the_exception_that_led_to_it(code: int, message: str, phrase: str) -> None:
    assert exit_phrase(code, message, signal.Signals(-code).name if code < 0 else "") == phrase
