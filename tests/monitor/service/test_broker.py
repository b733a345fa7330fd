"""Who waits for directives, and when each is answered: the handout by itself on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rankwatch.contract.enums import DirectiveKind
from rankwatch.contract.messages import Directive
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.errors import UnknownJobError
from rankwatch_monitor.ingest import work_queue
from rankwatch_monitor.service.broker import DirectiveBroker

FOR_EVER = 3600.0
"""Seconds that no test waits: an answer before it was not caused by the clock."""
MANY = 1_200

Reported = list[Directive] | None


class Stage:
    """One job, and what each of those that asked was answered, in the order in which they were."""

    def __init__(self) -> None:
        self.broker = DirectiveBroker()
        self.job = Job("job", 1000.0)
        self.answers: list[tuple[int, Reported]] = []

    def order(self) -> Directive:
        """Issue a directive; it is not visible yet."""
        return self.job.new_directive(DirectiveKind.RESTART, "it hangs")

    def ask(self, client: int = 0, after: int = 0, wait: float = FOR_EVER) -> Callable[[], object]:
        return self.broker.subscribe(self.job, after, wait, lambda reported: self.answers.append((client, reported)))

    def find(self) -> Job:
        return self.job

    @property
    def none_waiting(self) -> bool:
        return not self.broker._waiters

    async def until(self, number: int) -> None:
        """Let the loop turn until so many were answered."""
        async with asyncio.timeout(20):
            while len(self.answers) < number:
                await asyncio.sleep(0)


def on_a_loop(scene: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene(Stage()))


async def some_turns() -> None:
    """What was left for later turns of the loop has come."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_only_what_was_shown_is_ready_and_only_what_is_not_known() -> None:
    stage = Stage()
    first, second, third = (stage.order() for _ in range(3))
    assert stage.broker.available(stage.job, 0) == [], "nothing was committed"
    stage.broker.publish("job", second.id)
    assert stage.broker.available(stage.job, 0) == [first, second]
    assert stage.broker.available(stage.job, first.id) == [second]
    assert stage.broker.available(stage.job, second.id) == []
    stage.broker.publish("job", first.id)
    assert stage.broker.available(stage.job, 0) == [first, second], "what was shown once stays shown"
    stage.broker.publish("other", third.id)
    assert stage.broker.available(stage.job, second.id) == []


def test_a_request_is_answered_once_with_the_next_directive() -> None:
    async def scene(stage: Stage) -> None:
        stage.ask()
        first, second = stage.order(), stage.order()
        assert stage.answers == []
        stage.broker.publish("job", first.id)
        assert stage.answers == [(0, [first])], "it is reported at once, and nothing that is not committed"
        stage.broker.publish("job", second.id)
        stage.broker.end_long_polls()
        stage.broker.forget("job")
        await some_turns()
        assert stage.answers == [(0, [first])]
        assert stage.none_waiting

    on_a_loop(scene)


def test_a_withdrawn_request_gets_nothing_and_the_others_all() -> None:
    async def scene(stage: Stage) -> None:
        withdraw = [stage.ask(client) for client in range(3)]
        withdraw[1]()
        withdraw[1]()
        stage.broker.publish("job", stage.order().id)
        withdraw[0]()
        assert [client for client, _ in stage.answers] == [0, 2]
        stage.ask(3)()
        assert stage.none_waiting

    on_a_loop(scene)


def test_a_wait_that_runs_out_is_answered_with_nothing() -> None:
    async def scene(stage: Stage) -> None:
        stage.ask(0, wait=0.01)
        stage.ask(1)
        await stage.until(1)
        assert stage.answers == [(0, [])]
        directive = stage.order()
        stage.broker.publish("job", directive.id)
        assert stage.answers == [(0, []), (1, [directive])]
        assert await stage.broker.wait_for(stage.find, directive.id, 0.01) == []
        assert stage.none_waiting

    on_a_loop(scene)


def test_a_number_that_no_rank_is_behind_keeps_them_waiting_and_looks_at_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    ready = DirectiveBroker.available

    def counted(self: DirectiveBroker, job: Job, after: int) -> list[Directive]:
        nonlocal looks
        looks += 1
        return ready(self, job, after)

    async def scene(stage: Stage) -> None:
        known, news = stage.order(), stage.order()
        for client in range(MANY):
            stage.ask(client, after=known.id)
        stage.broker.publish("job", known.id)
        await some_turns()
        assert (len(stage.answers), looks) == (0, MANY), "they were looked at, and not again and again"
        stage.broker.publish("job", news.id)
        await stage.until(MANY)
        assert stage.answers == [(client, [news]) for client in range(MANY)]

    monkeypatch.setattr(DirectiveBroker, "available", counted)
    on_a_loop(scene)


def test_many_are_answered_in_several_turns_and_others_are_served_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "TURN_SECONDS", 0.0)

    async def scene(stage: Stage) -> None:
        for client in range(MANY):
            stage.ask(client)
        received: list[int] = []
        stage.broker.publish("job", stage.order().id)
        asyncio.get_running_loop().call_soon(lambda: received.append(len(stage.answers)))
        await stage.until(MANY)
        assert received[0] <= 2 * work_queue.TURN_LEAST, "what came in was received before all were answered"
        assert sorted(client for client, _ in stage.answers) == list(range(MANY)), "each of them once"
        assert stage.none_waiting

    on_a_loop(scene)


def test_a_client_that_leaves_between_two_turns_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "TURN_SECONDS", 0.0)

    async def scene(stage: Stage) -> None:
        withdraw = [stage.ask(client) for client in range(MANY)]
        stage.broker.publish("job", stage.order().id)
        withdraw[-1]()
        await stage.until(MANY - 1)
        await some_turns()
        assert MANY - 1 not in dict(stage.answers)

    on_a_loop(scene)


def test_a_job_that_is_forgotten_answers_none_and_a_question_of_another_job_stays() -> None:
    async def scene(stage: Stage) -> None:
        directive = stage.order()
        stage.broker.publish("job", directive.id)
        stage.ask(0, after=directive.id)
        other = Job("other", 1000.0)
        stage.broker.subscribe(other, 0, FOR_EVER, lambda reported: stage.answers.append((1, reported)))
        stage.broker.forget("job")
        assert stage.answers == [(0, None)]
        assert stage.broker.available(stage.job, 0) == [], "what is taken up again is shown again"
        stage.broker.end_long_polls()
        assert stage.answers == [(0, None), (1, [])]

    on_a_loop(scene)


def test_one_client_that_cannot_be_answered_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    def fails(reported: Reported) -> None:
        raise RuntimeError("this connection is broken")

    async def scene(stage: Stage) -> None:
        stage.ask(0)
        stage.broker.subscribe(stage.job, 0, FOR_EVER, fails)
        for client in range(1, MANY):
            stage.ask(client)
        stage.broker.publish("job", stage.order().id)
        await stage.until(MANY)
        assert stage.none_waiting

    on_a_loop(scene)
    assert caplog.text.count("could not be answered") == 1


def test_after_reports_a_job_that_is_gone_what_finding_it_raises() -> None:
    async def scene(stage: Stage) -> None:
        gone = False

        def find() -> Job:
            if gone:
                raise UnknownJobError("job")
            return stage.job

        waits = asyncio.ensure_future(stage.broker.wait_for(find, 0, FOR_EVER))
        await some_turns()
        assert not waits.done()
        gone = True
        stage.broker.forget("job")
        with pytest.raises(UnknownJobError):
            await waits
        with pytest.raises(UnknownJobError):
            await stage.broker.wait_for(find, 0, FOR_EVER)
        assert stage.none_waiting

    on_a_loop(scene)


def test_after_waits_for_the_next_one_and_not_when_there_is_one_or_no_time() -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.broker.wait_for(stage.find, 0, 0.0) == []
        waits = asyncio.ensure_future(stage.broker.wait_for(stage.find, 0, FOR_EVER))
        await some_turns()
        directive = stage.order()
        stage.broker.publish("job", directive.id)
        assert await waits == [directive]
        assert await stage.broker.wait_for(stage.find, 0, FOR_EVER) == [directive]

    on_a_loop(scene)


def test_a_client_that_gives_up_waiting_leaves_nothing() -> None:
    async def scene(stage: Stage) -> None:
        waits = asyncio.ensure_future(stage.broker.wait_for(stage.find, 0, FOR_EVER))
        await some_turns()
        assert not stage.none_waiting
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert stage.none_waiting
        stage.broker.publish("job", stage.order().id)

    on_a_loop(scene)


def test_at_the_end_all_are_answered_at_once_and_no_request_waits_any_more() -> None:
    async def scene(stage: Stage) -> None:
        for client in range(MANY):
            stage.ask(client)
        waits = asyncio.ensure_future(stage.broker.wait_for(stage.find, 0, FOR_EVER))
        await some_turns()
        stage.broker.end_long_polls()
        assert stage.answers == [(client, []) for client in range(MANY)], "there may be no other turn of the loop"
        assert await waits == []
        assert stage.broker.ending
        assert await stage.broker.wait_for(stage.find, 0, FOR_EVER) == []

    on_a_loop(scene)
