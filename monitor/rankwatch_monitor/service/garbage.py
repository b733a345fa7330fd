"""Keeps the collector of reference cycles from pausing the event loop.

Python's full collection visits every object of the process: 0.7 s in a monitor of 100,000 ranks, in which time it
answers nothing, and it runs whenever the number of objects has grown by a quarter. Hot paths leave no cycles behind, so
here only young objects are collected as usual, and full collections together take at most a ten-thousandth of the time.

Objects that exist at the start (imported modules, stored jobs) are never visited again.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

YOUNG: Final = 5_000
"""Objects, more allocated than freed, after which young ones are collected: a collection takes about a millisecond."""
MIDDLE: Final = 10
"""Collections of young objects after which those that survived one are visited too: 10 ms."""
NEVER: Final = 1_000_000_000
"""Collections of the middle generation before Python itself starts a full one."""
SHORTEST_INTERVAL: Final = 60.0
"""Seconds between two full collections, at least."""
SHARE: Final = 1e-4
"""Share of the time that full collections may take."""


async def collect_rarely() -> None:
    """Take over from Python's own schedule of full collections, until cancelled."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)
    try:
        pause = SHORTEST_INTERVAL
        while True:
            await asyncio.sleep(pause)
            pause = interval_after(full_collection())
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def full_collection() -> float:
    """Collect all generations; return the seconds that it took."""
    began = time.perf_counter()
    gc.collect()
    return time.perf_counter() - began


def interval_after(seconds: float) -> float:
    """Seconds until the next full collection, after one that took ``seconds``."""
    return max(SHORTEST_INTERVAL, seconds / SHARE)
