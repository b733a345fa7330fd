from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rankwatch.integrations.shared.with_timeout import with_timeout


def test_what_it_returns_and_raises_is_handed_on() -> None:
    assert with_timeout(lambda: 3, 5.0, "it") == 3
    assert with_timeout(lambda: None, 5.0, "it") is None
    with pytest.raises(FileNotFoundError):
        with_timeout(Path("/no such file").read_text, 5.0, "it")


def test_what_hangs_is_not_waited_for() -> None:
    over = threading.Event()
    try:
        with pytest.raises(TimeoutError, match="reading it takes longer than"):
            with_timeout(over.wait, 0.01, "reading it")
    finally:
        over.set()
