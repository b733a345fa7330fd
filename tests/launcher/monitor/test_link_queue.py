"""What the launcher queues for the monitor: together, in order, later, and only what was refused is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.conftest import FakeMonitor, wait_for
from rankwatch.contract.messages import NodeRegistration
from rankwatch_launcher.monitor.link import EVENTS, MAX_BATCH, QUEUE_LIMIT, MonitorLink

NEVER = 3600.0
"""Seconds after which no test still runs."""


class Strict(FakeMonitor):
    """Answers 422 to a whole request in which an event is bad, as the monitor does: it takes all of it or nothing."""

    def __init__(self) -> None:
        self.refused: list[dict[str, Any]] = []
        super().__init__()

    def _take(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        if self.known and any(event.get("bad") for event in body.get("events", ())):
            self.refused.append(body)
            return 422, {"title": "Unprocessable", "detail": "this event cannot be"}
        return super()._take(path, body)


class Slow(FakeMonitor):
    """Takes its time over the first events, until the test states."""

    def __init__(self) -> None:
        self.asked, self.goes_on = threading.Event(), threading.Event()
        super().__init__()

    def _take(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        if path == EVENTS:
            self.asked.set()
            assert self.goes_on.wait(60.0)
        return super()._take(path, body)


@pytest.fixture
def control() -> Iterator[MonitorLink]:
    made = MonitorLink("a/job", lambda: NodeRegistration("n", "h", 1, 2))
    yield made
    made.close(5.0)
    for thread in made._threads:
        if thread.name == "rankwatch-send":  # the other one's long poll ends with its monitor
            thread.join(60.0)
            assert not thread.is_alive()


@pytest.fixture
def strict() -> Iterator[Strict]:
    made = Strict()
    yield made
    made.close()


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.goes_on.set()
    made.close()


def event(number: int, **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"events": [{"kind": "started", "n": number, **more}]}


def numbers(monitor: FakeMonitor) -> list[int]:
    return [each["n"] for each in monitor.events()]


def sizes(monitor: FakeMonitor) -> list[int]:
    """How many events each request had."""
    return [len(body["events"]) for body in monitor.of(EVENTS)]


# Together -------------------------------------------------------------------------------------------------------------


def test_events_that_waited_arrive_in_one_request_and_in_order(control: MonitorLink, monitor: FakeMonitor) -> None:
    for number in range(MAX_BATCH + 20):
        control.post(EVENTS, event(number))
    control.connect(monitor.url)
    monitor.until(lambda: len(monitor.events()) == MAX_BATCH + 20)
    assert numbers(monitor) == list(range(MAX_BATCH + 20))
    assert sizes(monitor) == [MAX_BATCH, 20]


def test_events_of_the_time_without_a_monitor_arrive_in_one_request(control: MonitorLink) -> None:
    first = FakeMonitor()
    try:
        control.connect(first.url)
        control.post(EVENTS, event(0))
        first.until(lambda: first.events())
    finally:
        first.close()
    control.post(EVENTS, event(1))
    wait_for(lambda: control._unreachable)
    for number in range(2, 40):
        control.post(EVENTS, event(number))
    back = FakeMonitor(first.port)
    try:
        back.until(lambda: len(back.events()) == 39)
        assert numbers(back) == list(range(1, 40))
        assert len(sizes(back)) <= 2, "the one that was under way, and all that came behind it"
    finally:
        back.close()


def test_what_lies_between_events_keeps_its_place_and_goes_alone(control: MonitorLink, monitor: FakeMonitor) -> None:
    for number in range(2):
        control.post(EVENTS, event(number))
    for number in range(2):
        control.post("observations", lambda n=number: {"n": n})  # type: ignore[misc]
    for number in range(2, 5):
        control.post(EVENTS, event(number))
    control.connect(monitor.url)
    monitor.until(lambda: len(monitor.events()) == 5)
    order = [(path, len(body.get("events", ()))) for path, body in monitor.posts if path != "nodes"]
    assert order == [(EVENTS, 2), ("observations", 0), ("observations", 0), (EVENTS, 3)]
    assert [body["n"] for body in monitor.of("observations")] == [0, 1]


def test_a_body_is_made_when_it_is_sent_however_long_it_waited(control: MonitorLink, monitor: FakeMonitor) -> None:
    aged = 0
    control.post(EVENTS, lambda: {"events": [{"kind": "started", "n": aged}]})
    control.post(EVENTS, event(1))
    aged = 7
    control.connect(monitor.url)
    monitor.until(lambda: len(monitor.events()) == 2)
    assert numbers(monitor) == [7, 1]


def test_a_full_queue_drops_the_oldest_and_sends_each_of_the_others_once(
    control: MonitorLink, monitor: FakeMonitor
) -> None:
    for number in range(QUEUE_LIMIT + 7):
        control.post(EVENTS, event(number))
    control.connect(monitor.url)
    monitor.until(lambda: len(monitor.events()) >= QUEUE_LIMIT)
    control.close(10.0)
    assert numbers(monitor) == list(range(7, QUEUE_LIMIT + 7))


def test_a_queue_that_runs_full_behind_a_request_under_way_loses_nothing_but_its_oldest(
    control: MonitorLink, slow: Slow
) -> None:
    control.connect(slow.url)
    control.post(EVENTS, event(0))
    assert slow.asked.wait(60.0)
    for number in range(1, QUEUE_LIMIT + 3):
        control.post(EVENTS, event(number))
    slow.goes_on.set()
    slow.until(lambda: len(slow.events()) >= QUEUE_LIMIT + 1)
    assert numbers(slow) == [0, *range(3, QUEUE_LIMIT + 3)]


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, 3, 9])
def test_of_a_batch_with_a_refused_event_only_that_one_is_lost(
    control: MonitorLink, strict: Strict, bad: int, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10):
        control.post(EVENTS, event(number, bad=number == bad))
    with caplog.at_level(logging.WARNING, "rankwatch"):
        control.connect(strict.url)
        strict.until(lambda: len(strict.events()) == 9)
        wait_for(lambda: not control._queue)
    assert numbers(strict) == [number for number in range(10) if number != bad]
    assert [len(body["events"]) for body in strict.refused] == [10, 1], "once in the batch, once alone"
    assert strict.refused[1]["events"][0]["n"] == bad
    assert "rejected process-events: 422" in caplog.text
    assert "this event cannot be" in caplog.text


def test_after_the_batch_with_a_refused_event_events_go_together_again(control: MonitorLink, strict: Strict) -> None:
    for number in range(3):
        control.post(EVENTS, event(number, bad=number == 1))
    for number in range(3, 3 + MAX_BATCH):
        control.post(EVENTS, event(number))
    control.connect(strict.url)
    strict.until(lambda: len(strict.events()) == MAX_BATCH + 2)
    assert numbers(strict) == [0, *range(2, MAX_BATCH + 3)]
    single = next(at for at, size in enumerate(sizes(strict)) if size > 1)
    assert single <= MAX_BATCH, "one by one no longer than the refused batch was"
    assert sum(sizes(strict)[single:]) == MAX_BATCH + 2 - single


# Later ----------------------------------------------------------------------------------------------------------------


def test_a_post_with_a_delay_goes_out_later_by_itself(control: MonitorLink, monitor: FakeMonitor) -> None:
    control.connect(monitor.url)
    monitor.until(lambda: monitor.of("nodes"))
    began = time.monotonic()
    control.post("evidence", lambda: {"early": time.monotonic() - began < 0.3}, delay=0.3)
    monitor.until(lambda: monitor.of("evidence"))
    assert monitor.of("evidence") == [{"early": False}]


def test_closing_sends_what_was_put_off_at_once(control: MonitorLink, monitor: FakeMonitor) -> None:
    control.connect(monitor.url)
    control.post("evidence", lambda: {"n": 0}, delay=NEVER)
    control.post(EVENTS, event(1))
    monitor.until(lambda: monitor.events())
    assert monitor.of("evidence") == []
    control.close(10.0)
    assert [body["n"] for body in monitor.of("evidence")] == [0]


def test_at_the_end_what_was_put_off_comes_before_how_it_ended(control: MonitorLink, slow: Slow) -> None:
    control.connect(slow.url)
    control.post(EVENTS, event(0))
    assert slow.asked.wait(60.0)
    for number, delay in enumerate((NEVER + 1.0, NEVER)):
        control.post(f"evidence/{number}", dict, delay=delay)
    control.post(EVENTS, lambda: {"events": [{"kind": "finished", "n": 1}]})
    closing = threading.Thread(target=control.close, args=(60.0,))
    closing.start()
    wait_for(lambda: not control._delayed)
    slow.goes_on.set()
    closing.join()
    sent = [path for path, _ in slow.posts if path != "nodes"]
    assert sent == [EVENTS, "evidence/1", "evidence/0", EVENTS]
    assert numbers(slow) == [0, 1]


def test_what_was_put_off_is_sent_in_the_order_of_its_moments(control: MonitorLink, monitor: FakeMonitor) -> None:
    for number, delay in enumerate((NEVER + 2.0, NEVER, NEVER + 1.0)):
        control.post(f"evidence/{number}", dict, delay=delay)
    control.post("now", dict)
    control.connect(monitor.url)
    monitor.until(lambda: monitor.of("now"))
    control.close(10.0)
    assert [path for path, _ in monitor.posts if path != "nodes"] == ["now", "evidence/1", "evidence/2", "evidence/0"]


def test_posts_without_a_delay_keep_their_order_whatever_is_put_off(control: MonitorLink, monitor: FakeMonitor) -> None:
    control.connect(monitor.url)
    for number in range(60):
        if number % 3 == 0:
            control.post("evidence", dict, delay=NEVER)
        control.post(EVENTS, event(number))
    monitor.until(lambda: len(monitor.events()) == 60)
    assert numbers(monitor) == list(range(60))
    assert monitor.of("evidence") == []
    control.close(10.0)
    assert len(monitor.of("evidence")) == 20


def test_after_it_was_closed_nothing_is_taken(control: MonitorLink, monitor: FakeMonitor) -> None:
    control.connect(monitor.url)
    monitor.until(lambda: monitor.of("nodes"))
    control.close(10.0)
    control.post("evidence", dict)
    control.post("evidence", dict, delay=0.01)
    assert not control._queue
    assert not control._delayed


# The connection -------------------------------------------------------------------------------------------------------


def test_its_connection_is_closed_once_all_is_sent_and_another_one_opened_for_more(
    control: MonitorLink, monitor: FakeMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    connection = control.connection

    def watched() -> Any:
        made = connection()
        close = made.close
        monkeypatch.setattr(made, "close", lambda: (closed.append(len(monitor.events())), close()))
        return made

    monkeypatch.setattr(control, "connection", watched)
    for number in range(MAX_BATCH + 1):
        control.post(EVENTS, event(number))
    control.connect(monitor.url)
    wait_for(lambda: closed)
    assert closed == [MAX_BATCH + 1], "not between two requests that follow each other"
    control.post(EVENTS, event(MAX_BATCH + 1))
    wait_for(lambda: len(closed) == 2)
    assert numbers(monitor) == list(range(MAX_BATCH + 2))


def test_a_monitor_that_was_never_there_does_not_delay_closing(control: MonitorLink) -> None:
    control.connect("http://127.0.0.1:9")
    control.post("evidence", dict, delay=NEVER)
    wait_for(lambda: control._unreachable)
    control.close(NEVER)
