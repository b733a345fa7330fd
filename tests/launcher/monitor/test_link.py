"""The line to the monitor: queued, in order, and never in the way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from launcher.conftest import FakeMonitor, wait_for
from rankwatch.contract.enums import DirectiveKind
from rankwatch.contract.http_connection import NO_HEADERS, Response
from rankwatch.contract.messages import Directive, NodeRegistration
from rankwatch_launcher.monitor import link as module
from rankwatch_launcher.monitor.answers import read_directive
from rankwatch_launcher.monitor.link import MonitorLink


@pytest.fixture
def control() -> Iterator[MonitorLink]:
    made = MonitorLink("a/job", lambda: NodeRegistration("n", "h", 1, 2))
    yield made
    made.close(5.0)


def test_what_was_posted_before_the_monitor_was_known_arrives_in_order(
    control: MonitorLink, monitor: FakeMonitor
) -> None:
    for number in range(5):
        control.post("process-events", lambda n=number: {"events": [{"kind": "started", "n": n}]})  # type: ignore[misc]
    control.connect(monitor.url)
    monitor.until(lambda: len(monitor.events()) == 5)
    assert [e["n"] for e in monitor.events()] == [0, 1, 2, 3, 4]


def test_closing_sends_what_is_left(control: MonitorLink, monitor: FakeMonitor) -> None:
    control.connect(monitor.url)
    monitor.until(lambda: monitor.of("nodes"))
    control.post("process-events", lambda: {"events": [{"kind": "finished"}]})
    control.close(10.0)
    assert monitor.events("finished")


def test_the_bytes_of_a_file_name_that_are_no_text_lose_no_message(control: MonitorLink, monitor: FakeMonitor) -> None:
    control.connect(monitor.url)
    control.post(
        "process-events", lambda: {"events": [{"kind": "failed", "cause": "no file /d/\udce9, \u00e9\U0001f600"}]}
    )
    monitor.until(lambda: monitor.events("failed"))
    assert monitor.events("failed")[0]["cause"] == "no file /d/?, \u00e9\U0001f600"


def test_a_monitor_that_never_was_holds_up_nothing(control: MonitorLink, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rankwatch"):
        control.connect("http://127.0.0.1:9")
        wait_for(lambda: "does not answer" in caplog.text)
    for _ in range(module.QUEUE_LIMIT + 10):
        control.post("x", dict)
    control.close(60.0)
    printed = [(r.created, r.threadName, r.thread) for r in caplog.records if "does not answer" in r.getMessage()]
    assert len(printed) == 1, printed


def test_directives_arrive_once_and_odd_ones_are_passed_over(control: MonitorLink, monitor: FakeMonitor) -> None:
    got: list[Directive] = []
    control.on_directive = got.append
    monitor.order("dance", 1)
    monitor.order("capture", 1, incident_id="i", surprise=1)
    control.connect(monitor.url)
    wait_for(lambda: got)
    monitor.order("restart", 1)
    wait_for(lambda: len(got) == 2)
    assert [(d.id, d.kind) for d in got] == [(2, DirectiveKind.CAPTURE), (3, DirectiveKind.RESTART)]


def test_warnings_about_a_registration_are_logged_once(
    control: MonitorLink, monitor: FakeMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    monitor.warnings = ["the policy of this launcher is ignored"]
    with caplog.at_level(logging.WARNING, "rankwatch"):
        control.connect(monitor.url)
        control.post("nodes", lambda: {"node": "n"})
        monitor.until(lambda: len(monitor.of("nodes")) == 2)
        wait_for(lambda: "is ignored" in caplog.text)
        control.close(60.0)
    assert caplog.text.count("the policy of this launcher is ignored") == 1


def test_a_directive_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        read_directive({"id": 1, "kind": "stop"})


@pytest.mark.parametrize(
    ("status", "token", "words"),
    [(401, True, "not the monitor's"), (401, False, "wants a token"), (403, True, "may not control")],
)
def test_a_refusal_names_the_remedy_and_not_the_problem_document(status: int, token: bool, words: str) -> None:
    body = b'{"title": "Unauthorized", "detail": "x", "status": 401}'
    answer = Response(status, "Unauthorized", NO_HEADERS, body)
    refusal = module._refusal(answer, token)
    assert words in refusal
    assert "RANKWATCH_TOKEN" in refusal
    assert "{" not in refusal
    assert module._refusal(replace(answer, status=422), token) == "422 x"


def test_nothing_is_sent_before_the_own_monitor_listens(control: MonitorLink, monitor: FakeMonitor) -> None:
    ready = threading.Event()
    asked = threading.Semaphore(0)

    def is_ready() -> bool:
        asked.release()
        return ready.wait(0.05)

    control.connect(monitor.url, "secret", ready=is_ready)
    for _ in range(3):
        assert asked.acquire(timeout=30.0)
    assert monitor.posts == []
    ready.set()
    monitor.until(lambda: monitor.of("nodes"))
