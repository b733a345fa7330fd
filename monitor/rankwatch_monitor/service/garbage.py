"""Keeps the collector of reference cycles from pausing the event loop.

Python's full collection visits every object of the process: 0.7 s in a monitor of 100,000 ranks, in which time it
answers nothing, and it runs whenever the number of objects has grown by a quarter. Hot paths leave no cycles behind, so
here only young objects are collected as usual, and full collections together take at most a ten-thousandth of the time.

Objects that exist at the start (imported modules, stored jobs) are never visited again.

What was freed is returned to the system at the same intervals: glibc does so by itself only at the end of its heap, and
after an incident the room is between what remains. The loop's allocations wait meanwhile: 0.7 ms for 10 MiB of a
monitor of 16,384 ranks, 13 ms for 70 MiB of a process of 700 MiB (CPU time), 0.1 ms where nothing is to be returned.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import time
from typing import Final

YOUNG: Final = 2_000
"""Objects, more allocated than freed, after which young ones are collected."""
MIDDLE: Final = 10
"""Collections of young objects after which those that survived one are visited too: some 10 ms."""
NEVER: Final = 1_000_000_000
"""Collections of the middle generation before Python itself starts a full one."""
CHECK_INTERVAL: Final = 60.0
"""Seconds between two looks whether a full collection is due."""
SHARE: Final = 1e-4
"""Share of the time that full collections may take."""
SECONDS_PER_BLOCK: Final = 2e-7
"""Duration of a full collection for each allocated block of memory, until one was measured."""
_malloc_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Of glibc; other C libraries have none."""


class FullCollections:
    """When to collect all generations."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._cost = SECONDS_PER_BLOCK

    def collect_if_due(self) -> bool:
        """Collect unless it would take more than its share of the time since the last; return whether it was done."""
        began, blocks = time.monotonic(), sys.getallocatedblocks()
        if blocks * self._cost > SHARE * (began - self._last):
            return False
        gc.collect()
        self._last = time.monotonic()
        self._cost = (self._last - began) / blocks
        return True


def trim() -> None:
    """Return free memory to the system; only glibc needs to be asked."""
    if _malloc_trim is not None:
        _malloc_trim(0)


async def collect_rarely() -> None:
    """Take over from Python's own schedule of full collections, and return free memory, until cancelled."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)
    full = FullCollections()
    try:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            full.collect_if_due()
            await asyncio.to_thread(trim)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
