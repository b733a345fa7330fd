"""Requests that the application serves begin one in a turn of the loop, by sender, and leave time for the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest

from rankwatch_monitor.http import turns as turns_module
from rankwatch_monitor.http.turns import Turns


class Processor:
    """CPU time, which a request in its turn uses up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(turns_module.time, "thread_time", lambda: self.now)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    return Processor(monkeypatch)


def run(scene: Coroutine[Any, Any, None]) -> None:
    async def with_limit() -> None:
        await asyncio.wait_for(scene, 60)

    asyncio.run(with_limit())


def test_senders_take_turns_and_one_begins_in_a_turn_of_the_loop(processor: Processor) -> None:
    order: list[str] = []

    async def ask(turns: Turns, sender: str) -> None:
        await turns.turn(sender)
        order.append(sender)

    async def scene() -> None:
        turns = Turns()
        tasks = [asyncio.create_task(ask(turns, "flood")) for _ in range(20)]
        tasks.append(asyncio.create_task(ask(turns, "other")))
        before = -1
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            assert len(order) - max(before, 0) <= 1
            before = len(order)
        assert order.index("other") < 3

    run(scene())


def test_after_one_that_computes_for_long_the_next_waits_as_long(processor: Processor) -> None:
    async def ask(turns: Turns) -> float:
        await turns.turn("reader")
        processor.now += 0.2
        return asyncio.get_running_loop().time()

    async def scene() -> None:
        turns = Turns()
        first, second, third = await asyncio.gather(*(ask(turns) for _ in range(3)))
        assert second - first >= 0.19
        assert third - second >= 0.19

    run(scene())


def test_so_many_are_held_until_they_are_answered_or_for_a_time(
    processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        turns, begun = Turns(2), []

        async def hold(name: str, answered: asyncio.Event, over: asyncio.Event) -> None:
            async with turns.held("reader") as release:
                begun.append(name)
                await answered.wait()
                release()
                await over.wait()

        answered, over, never = asyncio.Event(), asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(hold("first", answered, over)), asyncio.create_task(hold("stuck", never, over))]
        tasks.append(asyncio.create_task(hold("third", never, over)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert begun == ["first", "stuck"]
        answered.set()
        while "third" not in begun:
            await asyncio.sleep(0)
        tasks.append(asyncio.create_task(hold("fourth", never, over)))
        while "fourth" not in begun:  # those that wait for something give way
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await turns.turn("reader")
        assert turns._held == 0

    monkeypatch.setattr(turns_module, "LONGEST_HELD", 0.1)
    run(scene())


def test_of_clients_that_leave_nothing_is_held(processor: Processor) -> None:
    async def scene() -> None:
        turns = Turns(1)
        async with turns.held("reader"):
            waiting = [asyncio.create_task(turns.turn("reader")) for _ in range(5)]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        await turns.turn("reader")
        assert (turns._held, turns._lines) == (0, {})

    run(scene())


def test_what_another_loop_left_for_its_next_turn_is_not_waited_for(processor: Processor) -> None:
    turns = Turns(most=1)

    async def ask() -> None:
        async with turns.held("one"):
            processor.now += 0.2  # a pause is due, in which this loop ends

    for _ in range(3):
        run(ask())
