"""Work beyond a turn's time waits in line: the order, what each turn takes, and what others wait for meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rankwatch_monitor.ingest import work_queue
from rankwatch_monitor.ingest.work_queue import TURN_SECONDS, WorkQueue

A_TURN = 4
"""Pieces of work for which a turn has time."""


class Stage:
    """A queue, a clock that only work moves, and what was called in which turn of the loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cpu = 0.0
        self.turn = 0
        self.called: list[tuple[int, int]] = []

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.cpu

    def work(self, number: int) -> Callable[[], None]:
        def work() -> None:
            self.now += TURN_SECONDS / A_TURN * 1.01
            self.called.append((number, self.turn))

        return work

    async def turns(self, queue: WorkQueue) -> None:
        """Count the turns until the line is empty."""
        async with asyncio.timeout(60):
            while queue._lines or queue._scheduled:
                self.turn += 1
                await asyncio.sleep(0)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    monkeypatch.setattr(work_queue, "time", made)
    monkeypatch.setattr(work_queue, "TURN_LEAST", 1)
    return made


def on_a_loop(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def test_a_turn_with_time_left_calls_at_once(stage: Stage) -> None:
    async def scene() -> None:
        queue = WorkQueue()
        for number in range(A_TURN):
            queue.submit(stage.work(number))
            assert len(stage.called) == number + 1
            assert queue.delay() == 0

    on_a_loop(scene)


@pytest.mark.parametrize("shares", [1, 2])
def test_the_rest_waits_in_order_and_each_turn_takes_its_share(stage: Stage, shares: int) -> None:
    async def scene() -> None:
        queue = WorkQueue(shares=shares)
        for number in range(20 * A_TURN):
            queue.submit(stage.work(number))
        assert len(stage.called) == shares * A_TURN
        await stage.turns(queue)
        assert [number for number, _ in stage.called] == list(range(20 * A_TURN))
        taken = [sum(turn == each for _, turn in stage.called) for each in range(stage.turn + 1)]
        assert max(taken) == shares * A_TURN
        assert queue.delay() == 0

    on_a_loop(scene)


@pytest.mark.parametrize("shares", [1, 2])
def test_a_turn_takes_a_few_however_long_they_last(stage: Stage, monkeypatch: pytest.MonkeyPatch, shares: int) -> None:
    least = 3 * A_TURN
    monkeypatch.setattr(work_queue, "TURN_LEAST", least)

    async def scene() -> None:
        queue = WorkQueue(shares=shares)
        for number in range(4 * shares * least):
            queue.submit(stage.work(number))
        assert len(stage.called) == shares * least
        await stage.turns(queue)
        assert {sum(turn == each for _, turn in stage.called) for each in range(4)} == {shares * least}

    on_a_loop(scene)


def test_the_delay_is_that_of_the_first_in_line_and_of_what_runs(stage: Stage) -> None:
    delays: list[float] = []

    async def scene() -> None:
        queue = WorkQueue()
        for number in range(A_TURN):
            queue.submit(stage.work(number))
        queue.submit(lambda: delays.append(queue.delay()))
        stage.now += 3
        queue.submit(lambda: delays.append(queue.delay()))
        assert queue.delay() == pytest.approx(3)
        stage.now += 2
        await stage.turns(queue)

    on_a_loop(scene)
    assert delays == pytest.approx([5, 2])


def test_beyond_its_bytes_the_oldest_is_called_for_each_that_comes(stage: Stage) -> None:
    async def scene() -> None:
        queue = WorkQueue(most_bytes=100)
        for number in range(A_TURN + 10):
            queue.submit(stage.work(number), size=10)
        assert len(stage.called) == A_TURN
        queue.submit(stage.work(A_TURN + 10), size=10)
        assert [number for number, _ in stage.called][A_TURN:] == [A_TURN], "the oldest"
        queue.submit(stage.work(A_TURN + 11), size=25)
        await stage.turns(queue)
        assert [number for number, _ in stage.called] == list(range(A_TURN + 12))
        assert queue._bytes == 0

    on_a_loop(scene)


def test_work_that_submits_more_does_not_call_it_within_itself(stage: Stage) -> None:
    async def scene() -> None:
        queue, order = WorkQueue(), []

        def outer() -> None:
            queue.submit(lambda: order.append("inner"))
            order.append("outer")

        queue.submit(outer)
        await stage.turns(queue)
        assert order == ["outer", "inner"]

    on_a_loop(scene)


def test_work_that_fails_keeps_no_other_from_its_turn(stage: Stage) -> None:
    failures: list[object] = []

    def fails() -> None:
        raise RuntimeError("a defect")

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
        queue = WorkQueue()
        with pytest.raises(RuntimeError):
            queue.submit(fails)
        for number in range(A_TURN):
            queue.submit(stage.work(number))
        queue.submit(fails)
        queue.submit(stage.work(A_TURN))
        await stage.turns(queue)
        assert [number for number, _ in stage.called] == list(range(A_TURN + 1))

    on_a_loop(scene)
    assert len(failures) == 1


def test_work_that_takes_much_cpu_ends_the_turn_however_few_pieces_there_were(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_queue, "TURN_LEAST", 8)

    def heavy(number: int) -> Callable[[], None]:
        def work() -> None:
            stage.cpu += 0.6 * work_queue.TURN_MOST
            stage.work(number)()

        return work

    async def scene() -> None:
        queue = WorkQueue(shares=2)
        for number in range(6):
            queue.submit(heavy(number))
        await stage.turns(queue)

    on_a_loop(scene)
    assert [sum(1 for _, turn in stage.called if turn == each) for each in range(3)] == [2, 2, 2]


def test_senders_take_turns_so_that_one_with_much_work_delays_itself(stage: Stage) -> None:
    async def scene() -> None:
        queue = WorkQueue()
        for number in range(40):
            queue.submit(stage.work(number), sender="flood")
        queue.submit(stage.work(100), sender="other")
        queue.submit(stage.work(101), sender="other")
        await stage.turns(queue)

    on_a_loop(scene)
    order = [number for number, _ in stage.called]
    assert order.index(100) == A_TURN + 1
    assert order.index(101) == A_TURN + 3
    assert [number for number in order if number < 100] == list(range(40)), "those of one sender stay in order"
