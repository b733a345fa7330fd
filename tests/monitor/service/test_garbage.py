"""Full collections are rare, and what they alone find is found all the same."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rankwatch_monitor.service import garbage

BLOCK = 100_000
"""Bytes; glibc takes larger blocks than 128 KiB from the system one by one."""


def resident() -> int:
    """Bytes of memory in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Node:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@contextlib.asynccontextmanager
async def in_charge() -> AsyncIterator[None]:
    task = asyncio.create_task(garbage.collect_rarely())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_python_itself_starts_no_full_collection() -> None:
    kept: list[list[int]] = []

    async def allocate() -> int:
        async with in_charge():
            before = gc.get_stats()[2]["collections"]
            kept.extend([n] for n in range(500_000))  # several times as many as there are otherwise
            return int(gc.get_stats()[2]["collections"]) - before

    assert asyncio.run(allocate()) == 0


def test_young_cycles_are_collected_as_ever_and_old_ones_by_the_next_full_collection() -> None:
    async def leave_cycles() -> tuple[bool, bool, bool]:
        async with in_charge():
            old = Node()
            gc.collect(1)  # it survives into the oldest generation
            found, young = weakref.ref(old), weakref.ref(Node())
            del old
            gc.collect(1)
            before = young() is None, found() is None
            gc.collect()
            return (*before, found() is None)

    assert asyncio.run(leave_cycles()) == (True, False, True)


def test_full_collections_are_looked_for_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    ten, looked = asyncio.Event(), 0

    def look(_: garbage.FullCollections) -> bool:
        nonlocal looked
        looked += 1
        if looked == 10:
            ten.set()
        return False

    monkeypatch.setattr(garbage, "CHECK_INTERVAL", 0.001)
    monkeypatch.setattr(garbage.FullCollections, "collect_if_due", look)

    async def watch() -> None:
        async with in_charge():
            await asyncio.wait_for(ten.wait(), 60)

    asyncio.run(watch())


@pytest.mark.skipif(garbage._malloc_trim is None, reason="the C library is not glibc")
def test_memory_that_was_freed_between_what_remains_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "CHECK_INTERVAL", 0.01)
    blocks = [bytearray(b"x" * BLOCK) for _ in range(1000)]
    kept, held = blocks[-1], resident()  # the last one keeps glibc from returning it by itself
    del blocks

    async def free() -> None:
        async with in_charge(), asyncio.timeout(60):
            while resident() > held - 500 * BLOCK:
                await asyncio.sleep(0.01)

    asyncio.run(free())
    assert len(kept) == BLOCK


def test_a_full_collection_waits_until_its_share_of_the_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, collected = 0.0, []
    monkeypatch.setattr(garbage.time, "monotonic", lambda: now)
    monkeypatch.setattr(garbage.sys, "getallocatedblocks", lambda: 1_000_000)

    def collect() -> None:
        nonlocal now
        collected.append(now)
        now += 0.5

    full = garbage.FullCollections()
    monkeypatch.setattr(garbage.gc, "collect", collect)
    for moment in (60.0, 1_999.0, 2_001.0, 6_999.0, 7_002.0):  # expected: 0.2 s; then measured: 0.5 s
        now = moment
        full.collect_if_due()
    assert collected == [2_001.0, 7_002.0]


def test_the_end_restores_what_was_before() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()

    async def begin_and_end() -> tuple[int, int, int]:
        async with in_charge():
            assert gc.get_freeze_count() > frozen
            return gc.get_threshold()

    assert asyncio.run(begin_and_end()) == (garbage.YOUNG, garbage.MIDDLE, garbage.NEVER)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
