"""The line to the monitor: queued, in order, and never in the way."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from launcher.conftest import FakeMonitor, wait_for
from rankwatch.contract.enums import DirectiveKind
from rankwatch.contract.messages import Directive, NodeRegistration
from rankwatch_launcher.monitor import link as module
from rankwatch_launcher.monitor.link import MonitorLink, read_directive


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


def test_a_monitor_that_never_was_holds_up_nothing(control: MonitorLink, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("rankwatch").propagate = True
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
    logging.getLogger("rankwatch").propagate = True
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
