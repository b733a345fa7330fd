"""One receiver: in order for each job, at least once, and what each answer means; over real HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import pytest

from rankwatch_monitor.publish import http_post
from rankwatch_monitor.publish.http_post import Target, shown
from rankwatch_monitor.publish.webhook import delivery as module
from rankwatch_monitor.publish.webhook.delivery import Delivery, Message
from support.http_receiver import Answers, HttpReceiver
from support.waiting import wait_for

Deliver = Callable[[], Delivery]


def message(number: int, job: str = "a", at: float | None = None) -> Message:
    return Message(f"key-{number}", number, job, time.time() if at is None else at, {"n": number})


@pytest.fixture
def removed() -> list[str]:
    return []


@pytest.fixture
def deliver(
    receiver: HttpReceiver, removed: list[str], fast_retries: None, caplog: pytest.LogCaptureFixture
) -> Iterator[Deliver]:
    caplog.set_level(logging.INFO)
    made: list[Delivery] = []

    def begin() -> Delivery:
        target = Target(f"{receiver.url}/secret")
        send = lambda m: target.post(f"{m.job_id}{m.number}".encode(), {"webhook-id": m.key})  # noqa: E731
        made.append(Delivery(shown(receiver.url), send, lambda m: removed.append(m.key)))
        return made[-1]

    yield begin
    receiver.released.set()
    for each in made:
        each.close(10)
        assert not each._thread.is_alive()
    assert "secret" not in caplog.text


def bodies(receiver: HttpReceiver) -> list[str]:
    return [each.body.decode() for each in receiver.taken]


def test_messages_arrive_in_order_and_are_removed(receiver: HttpReceiver, deliver: Deliver, removed: list[str]) -> None:
    delivery = deliver()
    for number in range(20):
        delivery.put(message(number))
    wait_for(lambda: delivery.delivered == 20, "all are delivered")
    assert bodies(receiver) == [f"a{n}" for n in range(20)]
    assert removed == [f"key-{n}" for n in range(20)]
    assert delivery.waiting == 0


def test_after_failures_each_arrives_once_and_in_order(
    receiver: HttpReceiver, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = Answers(first=[500, 503, 502, 408, 429])
    delivery = deliver()
    for number in range(3):
        delivery.put(message(number))
    wait_for(lambda: delivery.delivered == 3, "all are delivered")
    assert bodies(receiver) == ["a0", "a1", "a2"]
    tries = {each.headers["webhook-id"] for each in receiver.posted if each.status != 200}
    assert tries == {"key-0"}, "the first one is tried until it is taken, under the same key"
    printed = [record.getMessage() for record in caplog.records]
    assert sum("are retried for up to 3 days" in line for line in printed) == 1
    wait_for(lambda: any("accepts messages again" in r.getMessage() for r in caplog.records), "the end is said")


def test_a_job_whose_message_fails_does_not_hold_up_another(receiver: HttpReceiver, deliver: Deliver) -> None:
    receiver.answers = Answers(first=[500] * 3)
    delivery = deliver()
    delivery.put(message(1, "a"))
    wait_for(lambda: receiver.posted, "the first is refused")
    delivery.put(message(2, "b"))
    wait_for(lambda: delivery.delivered == 2, "both are delivered")


def test_teams_take_turns_so_that_one_with_many_messages_delays_itself(
    receiver: HttpReceiver, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.answers = Answers(first=[503])
    for name in ("FIRST", "LONGEST"):
        monkeypatch.setattr(http_post, name, 1.0)
    delivery = deliver()
    for number in range(8):  # of four jobs of one team
        delivery.put(message(number, f"a-{number % 4}"), "token a")
    wait_for(lambda: receiver.posted, "all wait for the receiver")
    for number in range(8, 11):
        delivery.put(message(number, "b"), "token b")
    delivery.put(message(11, "c"))
    wait_for(lambda: delivery.delivered == 12, "all are delivered")
    assert {"b8", "c11"} <= set(bodies(receiver)[:4])
    assert [each for each in bodies(receiver) if each[0] == "b"] == ["b8", "b9", "b10"]
    assert bodies(receiver).index("b10") < bodies(receiver).index("a-37")


def test_of_too_many_messages_those_of_the_team_with_the_most_are_dropped(
    receiver: HttpReceiver, deliver: Deliver, removed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT", 10)
    receiver.away()
    delivery = deliver()
    delivery.put(message(0, "b"), "token b")
    for number in range(1, 30):
        delivery.put(message(number, f"a-{number}"), "token a")
    assert "key-0" not in removed
    assert delivery.dropped >= 19
    receiver.back()
    wait_for(lambda: "b0" in bodies(receiver), "it is delivered")


def test_retry_after_is_honoured(receiver: HttpReceiver, deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.answers = Answers(first=[429], headers={"Retry-After": "1"})
    delivery, begun = deliver(), time.monotonic()
    delivery.put(message(1))
    delivery.put(message(2, "other job"))
    wait_for(lambda: delivery.delivered == 2, "both are delivered")
    assert time.monotonic() - begun >= 1.0, "its own waits are milliseconds here"
    assert [each.status for each in receiver.posted] == [429, 200, 200], "and nothing else was sent meanwhile"


@pytest.mark.parametrize("status", [400, 401, 404, 410, 301])
def test_what_is_refused_for_good_is_given_up_with_words(
    receiver: HttpReceiver, deliver: Deliver, removed: list[str], caplog: pytest.LogCaptureFixture, status: int
) -> None:
    receiver.answers = Answers(first=[status])
    delivery = deliver()
    delivery.put(message(1))
    delivery.put(message(2))
    wait_for(lambda: delivery.delivered == 1, "the second is delivered")
    assert (delivery.given_up, removed, bodies(receiver)) == (1, ["key-1", "key-2"], ["a2"])
    assert f"a message of job a is given up, it is refused: the receiver answers {status}" in caplog.text


def test_a_receiver_that_dies_gets_all_once_it_is_back(receiver: HttpReceiver, deliver: Deliver) -> None:
    delivery = deliver()
    delivery.put(message(1))
    wait_for(lambda: delivery.delivered == 1, "the first is delivered")
    receiver.away()
    for number in (2, 3):
        delivery.put(message(number))
    wait_for(lambda: delivery._pause.failures > 1, "it is tried in vain")
    assert delivery.waiting == 2
    receiver.back()
    wait_for(lambda: delivery.delivered == 3, "all are delivered")
    assert bodies(receiver) == ["a1", "a2", "a3"]


def test_a_receiver_that_hangs_holds_up_only_itself(
    receiver: HttpReceiver, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_post, "ANSWER_TIMEOUT", 3.0)
    receiver.answers = Answers(first=[None])
    delivery, begun = deliver(), time.monotonic()
    delivery.put(message(1))
    assert time.monotonic() - begun < 3.0, "a message is put without waiting for its answer"
    wait_for(lambda: delivery.delivered == 1, "it is tried again and delivered")
    assert [each.status for each in receiver.posted] == [None, 200]


def test_what_is_too_old_is_given_up(
    deliver: Deliver, receiver: HttpReceiver, removed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    delivery = deliver()
    delivery.put(message(1, at=time.time() - module.GIVE_UP - 1))
    delivery.put(message(2, at=time.time() - module.GIVE_UP + 60))
    wait_for(lambda: delivery.delivered == 1, "the younger one is delivered")
    assert (delivery.given_up, removed) == (1, ["key-1", "key-2"])
    assert "could not be delivered within 3 days" in caplog.text


def test_beyond_the_limit_the_oldest_are_dropped_counted_and_reported(
    receiver: HttpReceiver,
    deliver: Deliver,
    removed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "LIMIT", 5)
    receiver.answers = Answers(status=None)
    delivery = deliver()
    delivery.put(message(0))
    wait_for(lambda: receiver.posted, "one is on its way")
    for number in range(1, 10):
        delivery.put(message(number, f"job-{number}"))
    assert (delivery.waiting, delivery.dropped) == (5, 5)
    assert removed == [f"key-{n}" for n in range(1, 6)], "what is on its way stays"
    assert "so the oldest of who has most are dropped; 1 so far" in caplog.text


def test_the_same_message_is_taken_once(receiver: HttpReceiver, deliver: Deliver) -> None:
    receiver.answers = Answers(first=[500])
    delivery = deliver()
    delivery.put(message(1))
    delivery.put(message(1))
    assert delivery.waiting == 1


def test_at_the_end_what_was_not_tried_is_tried_and_the_rest_is_left(
    receiver: HttpReceiver, deliver: Deliver, removed: list[str]
) -> None:
    delivery = deliver()
    for number in range(50):
        delivery.put(message(number))
    delivery.close(10)
    assert len(removed) == 50
    receiver.away()
    delivery = deliver()
    delivery.put(message(99))
    begun = time.monotonic()
    delivery.close(10)
    assert time.monotonic() - begun < 9, "one that is away is not waited for"
    assert delivery.waiting == 1
    assert "key-99" not in removed


def test_a_clock_that_is_set_forward_gives_up_nothing(
    deliver: Deliver, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = time.time()
    monkeypatch.setattr(time, "time", lambda: at + 10 * module.GIVE_UP)
    receiver.answers = Answers(first=[503])
    delivery = deliver()
    delivery.put(message(1, at=at))
    wait_for(lambda: delivery.delivered == 1, "it is retried and delivered")
    assert delivery.given_up == 0
