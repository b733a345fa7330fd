"""Full collections are rare, and what they alone find is found all the same."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from rankwatch_monitor.service import garbage


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
            garbage.full_collection()
            return (*before, found() is None)

    assert asyncio.run(leave_cycles()) == (True, False, True)


def test_full_collections_come_at_intervals_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[None] = []
    ten = asyncio.Event()

    def collect() -> float:
        began.append(None)
        if len(began) == 10:
            ten.set()
        return 0.0

    monkeypatch.setattr(garbage, "SHORTEST_INTERVAL", 0.001)
    monkeypatch.setattr(garbage, "full_collection", collect)

    async def watch() -> None:
        async with in_charge():
            await asyncio.wait_for(ten.wait(), 60)

    asyncio.run(watch())


def test_the_end_restores_what_was_before() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()

    async def begin_and_end() -> tuple[int, int, int]:
        async with in_charge():
            assert gc.get_freeze_count() > frozen
            return gc.get_threshold()

    assert asyncio.run(begin_and_end()) == (garbage.YOUNG, garbage.MIDDLE, garbage.NEVER)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_long_collection_is_followed_by_a_long_interval() -> None:
    assert garbage.interval_after(0.001) == garbage.SHORTEST_INTERVAL
    assert garbage.interval_after(0.7) == pytest.approx(7000.0)
