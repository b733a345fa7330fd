"""Forwarding over real HTTP: bytes unchanged, retries, partial success, bounded queues, and no sender waits."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from monitor.publish.scored import scored
from rankwatch_monitor.publish.forward import forwarder as module
from rankwatch_monitor.publish.forward.forwarder import Backend, Forwarding, backends
from rankwatch_monitor.publish.snapshot import snapshot
from support.http_receiver import Answers, HttpReceiver, http_receiver
from support.waiting import wait_for

LIMIT = 16 * 1024 * 1024
PROTOBUF = {"content-type": "application/x-protobuf"}

Begin = Callable[..., Forwarding]


@pytest.fixture
def begin(receiver: HttpReceiver, fast_retries: None, caplog: pytest.LogCaptureFixture) -> Iterator[Begin]:
    made: list[Forwarding] = []

    def forwarding(*to: Backend, limit: int = LIMIT) -> Forwarding:
        made.append(Forwarding(to or (Backend(f"{receiver.url}/otlp/secret", {}),), limit))
        return made[-1]

    yield forwarding
    receiver.released.set()
    for each in made:
        each.close(10)
    assert "secret" not in caplog.text


def take(forwarding: Forwarding, number: int, sender: object = "one", **headers: str) -> None:
    given = PROTOBUF | {name.replace("_", "-"): value for name, value in headers.items()}
    forwarding.take("/v1/metrics", given, sender, b"request %d" % number)


def numbers(receiver: HttpReceiver) -> list[int]:
    return [int(each.body.split()[1]) for each in receiver.taken]


def test_bytes_type_encoding_and_path_are_unchanged(receiver: HttpReceiver, begin: Begin) -> None:
    forwarding = begin(Backend(f"{receiver.url}/base/", {"Authorization": "Bearer own", "X-Tenant": "t"}))
    packed = gzip.compress(b"anything")
    headers = {
        "content-type": "application/json; charset=utf-8",
        "content-encoding": "gzip",
        "authorization": "Bearer x",
    }
    forwarding.take("/v1/traces", headers, "s", packed)
    (posted,) = wait_for(lambda: receiver.taken, "it is forwarded")
    assert (posted.path, posted.body) == ("/base/v1/traces", packed)
    assert posted.headers["content-type"] == "application/json; charset=utf-8"
    assert posted.headers["content-encoding"] == "gzip"
    assert posted.headers["authorization"] == "Bearer own", "the sender's own stays here"
    assert posted.headers["x-tenant"] == "t"


def test_requests_of_one_sender_keep_their_order_and_others_overtake(receiver: HttpReceiver, begin: Begin) -> None:
    forwarding = begin()
    for number in range(200):
        take(forwarding, number, sender=number % 5)
    wait_for(lambda: len(receiver.taken) == 200, "all are forwarded")
    found = numbers(receiver)
    for sender in range(5):
        assert [n for n in found if n % 5 == sender] == list(range(sender, 200, 5))


def test_a_backend_gets_everything_after_an_outage(
    receiver: HttpReceiver, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = Answers(first=[503, 502, 504, 429])
    forwarding = begin()
    take(forwarding, 1)
    wait_for(lambda: receiver.taken, "the first is forwarded")
    receiver.away()
    for number in (2, 3):
        take(forwarding, number)
    wait_for(lambda: "cannot be reached" in caplog.text, "it is tried in vain")
    receiver.back()
    wait_for(lambda: len(receiver.taken) == 3, "all are forwarded")
    assert numbers(receiver) == [1, 2, 3]
    assert forwarding.errors == 0


def test_a_hanging_backend_delays_neither_senders_nor_other_backends(receiver: HttpReceiver, begin: Begin) -> None:
    with http_receiver() as other:
        receiver.answers = Answers(status=None)
        forwarding = begin(Backend(receiver.url, {}), Backend(other.url, {}))
        begun = time.monotonic()
        for number in range(20):
            take(forwarding, number)
        assert time.monotonic() - begun < 8.0
        wait_for(lambda: len(other.taken) == 20, "the other one has all")
        assert receiver.taken == []
        assert forwarding.queues[0].waiting_bytes > 0


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500])
def test_other_failures_are_counted_and_not_retried(
    receiver: HttpReceiver, begin: Begin, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    receiver.answers = Answers(first=[status])
    forwarding = begin()
    take(forwarding, 1)
    take(forwarding, 2)
    wait_for(lambda: receiver.taken, "the second is forwarded")
    (queue,) = forwarding.queues
    wait_for(lambda: (queue.sent, queue.refused) == (1, 1), "both are counted")
    assert numbers(receiver) == [2]
    assert f"answers {status}" in caplog.text
    assert "such requests are lost to it" in caplog.text


def test_retry_after_is_honoured(receiver: HttpReceiver, begin: Begin) -> None:
    receiver.answers = Answers(first=[429], headers={"Retry-After": "1"})
    forwarding, begun = begin(), time.monotonic()
    take(forwarding, 1)
    wait_for(lambda: receiver.taken, "it is forwarded")
    assert time.monotonic() - begun >= 1.0


def test_a_partial_success_is_read(receiver: HttpReceiver, begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = 3
    answer.partial_success.error_message = "out of order\x1b[2J"
    receiver.answers = Answers(body=answer.SerializeToString())
    forwarding = begin()
    take(forwarding, 1)
    wait_for(lambda: forwarding.queues[0].rejected == 3, "they are counted")
    receiver.answers = Answers(body=b'{"partialSuccess":{"rejectedDataPoints":"4","errorMessage":"x"},"new":1}')
    take(forwarding, 2, content_type="application/json")
    wait_for(lambda: forwarding.queues[0].rejected == 7, "in JSON too")
    receiver.answers = Answers(body=b"OK")
    take(forwarding, 3)
    wait_for(lambda: forwarding.queues[0].sent == 3, "an answer in other words is a success")
    assert "rejects 3 points or spans: out of order" in caplog.text
    assert "\x1b" not in caplog.text


def test_a_full_queue_drops_the_oldest_requests_and_counts_them(
    receiver: HttpReceiver, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = Answers(status=503)
    forwarding = begin(limit=1024 * 1024)
    (queue,) = forwarding.queues
    take(forwarding, 0, sender=0)
    wait_for(lambda: receiver.posted, "the first is tried")
    for number in range(1, 300):
        forwarding.take("/v1/metrics", PROTOBUF, number % 3, b"request %d " % number + b"x" * 10_000)
        assert queue.waiting_bytes <= 1024 * 1024
    assert queue.missed > 100
    assert "requests were dropped unsent so far" in caplog.text
    receiver.answers = Answers()
    wait_for(lambda: queue.waiting_bytes == 0, "the rest is forwarded")
    assert queue.sent + queue.missed == 300
    newest = range(299 - 90, 300)
    assert set(newest) <= set(numbers(receiver)), "the newest are kept"


def test_requests_larger_than_the_queue_are_dropped(receiver: HttpReceiver, begin: Begin) -> None:
    forwarding = begin(limit=100)
    forwarding.take("/v1/metrics", PROTOBUF, 0, b"x" * 101)
    assert (forwarding.queues[0].missed, forwarding.queues[0].waiting_bytes) == (1, 0)


def test_what_is_left_at_the_end_is_sent_once_or_reported_as_lost(
    receiver: HttpReceiver, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    reached = begin()
    for number in range(50):
        take(reached, number)
    reached.close(10)
    assert numbers(receiver) == list(range(50))
    receiver.away()
    away = begin()
    take(away, 1)
    away.close(10)
    assert "were not forwarded before the monitor ended and are lost" in caplog.text


def test_forwarded_requests_are_not_forwarded_again(receiver: HttpReceiver, begin: Begin) -> None:
    forwarding = begin()
    take(forwarding, 1, **{module.FORWARDED: "1"})
    take(forwarding, 2)
    wait_for(lambda: receiver.taken, "the other is forwarded")
    assert numbers(receiver) == [2]
    assert receiver.taken[0].headers[module.FORWARDED] == "1"


def test_verdicts_are_forwarded_too(receiver: HttpReceiver, begin: Begin) -> None:
    begin().publish(snapshot(scored(slow=3), 1_000_000.0))
    (posted,) = wait_for(lambda: receiver.taken, "it is forwarded")
    request = ExportMetricsServiceRequest.FromString(posted.body)
    assert "rankwatch.job.state" in {m.name for m in request.resource_metrics[0].scope_metrics[0].metrics}


# Settings -------------------------------------------------------------------------------------------------------------


def test_headers_are_for_all_backends_or_for_one_by_its_number() -> None:
    found = backends(["http://a", "http://b"], ["X-All=1=2", "2:Authorization=Bearer b"])
    assert found == [
        Backend("http://a", {"X-All": "1=2"}),
        Backend("http://b", {"X-All": "1=2", "Authorization": "Bearer b"}),
    ]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("Authorization: Bearer top", "--forward-header needs NAME=VALUE"),
        ("=top", "--forward-header needs NAME=VALUE"),
        ("A B=top", "--forward-header needs NAME=VALUE"),
        ("A=top\r\nB: c", "--forward-header needs NAME=VALUE"),
        ("3:A=top", "--forward-header 3:A=… refers to a --forward that is not given"),
        ("0:A=top", "--forward-header 0:A=… refers to a --forward that is not given"),
    ],
)
def test_a_header_that_cannot_be_is_refused_without_its_value(header: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        backends(["http://a", "http://b"], [header])
    assert "top" not in str(refused.value)
