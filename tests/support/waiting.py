"""Waiting for a condition, with a deadline that fails in words. Nothing in the tests sleeps for luck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LOOK_AGAIN = 0.02
"""Seconds between two looks at a condition, at first."""
SELDOM = 0.05
"""The same after a second: what takes long is not found earlier by more looks, which cost others their processor."""


def wait_for(condition: Callable[[], T], saying: str, seconds: float = 60.0) -> T:
    """The first true value of ``condition``; an ``AssertionError`` with the last value when there is none in time."""
    begin = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - begin
        assert waited < seconds, f"waited {seconds:g} s in vain: {saying}; the last look showed {found!r}"
        time.sleep(LOOK_AGAIN if waited < 1.0 else SELDOM)
    return found
