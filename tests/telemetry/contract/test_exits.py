from __future__ import annotations

import signal

import pytest

from rankwatch.contract.exits import exit_phrase, is_consequence

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


@pytest.mark.parametrize(
    ("message", "follows"),
    [
        ("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:8579", True),
        (
            "DistBackendError: NCCL error: remote process exited or there was a network error",
            True,
        ),
        ("Connection reset by peer", True),
        ("connection failed: Connection reset by peer", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection'))", False),
        ("ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out after 10 s", False),
        ("BrokenPipeError: [Errno 32] Broken pipe", False),
        ("ValueError: bad batch\nRuntimeError: Connection closed by peer", False),
    ],
)
def test_only_an_exception_about_peers_follows_from_the_end_of_another_rank(message: str, *, follows: bool) -> None:
    assert is_consequence(message) is follows
