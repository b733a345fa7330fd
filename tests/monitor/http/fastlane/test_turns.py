"""More complete requests than one turn of the loop serves: they wait in line, and what is not in it is served soon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from monitor.http.fastlane.test_long_polls import LIVE, Inside, inside, order, reason
from monitor.http.raw_launcher import Line, Raw
from rankwatch_monitor.http.fastlane.launchers import LauncherFastLane
from rankwatch_monitor.http.fastlane.otlp import CONTENT_TYPE, REQUEST_LINE
from rankwatch_monitor.http.fastlane.protocol import MOST_PIPELINED
from rankwatch_monitor.ingest import work_queue
from support.monitor_process import Api
from support.otlp import body, rank_report
from support.waiting import wait_for

__all__ = ["inside"]

LAUNCHERS = 200


@pytest.fixture
def halfway() -> threading.Event:
    """The loop waits for it when it has served half of the launchers."""
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def few_a_turn(monkeypatch: pytest.MonkeyPatch, halfway: threading.Event) -> list[str]:
    """Each turn serves two requests; the kinds of those that were served."""
    served: list[str] = []
    respond = LauncherFastLane.respond

    def noted(self: LauncherFastLane, request: object, later: object) -> object:
        served.append(getattr(request, "kind", "poll"))
        if len(served) == LAUNCHERS // 2:
            assert halfway.wait(60), "what came last is not answered"
        return respond(self, request, later)  # type: ignore[arg-type]

    monkeypatch.setattr(LauncherFastLane, "respond", noted)
    monkeypatch.setattr(work_queue, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(work_queue, "TURN_LEAST", 1)
    return served


@contextmanager
def held(inside: Inside) -> Iterator[None]:
    """What is sent meanwhile is received by the loop in one turn."""
    release = threading.Event()
    assert inside.monitor._loop is not None
    inside.monitor._loop.call_soon_threadsafe(release.wait, 60)
    try:
        yield
    finally:
        release.set()


@pytest.mark.usefixtures("few_a_turn")
def test_a_health_check_is_answered_before_those_in_line(inside: Inside, halfway: threading.Event) -> None:
    halfway.clear()
    with ExitStack() as stack:
        launchers = [stack.enter_context(Line(inside.raw.served)) for _ in range(LAUNCHERS)]
        probe = stack.enter_context(Line(inside.raw.served))
        with held(inside):
            for line in launchers:
                line.send(inside.raw.observe("one of many"))
            probe.send(LIVE)
        assert probe.receive().content.startswith(b'{"status":"alive"'), "it came last and waited for a few turns"
        halfway.set()
        assert [line.receive().status for line in launchers] == [204] * LAUNCHERS


def test_a_report_of_a_rank_is_taken_before_launchers_that_register(
    inside: Inside, few_a_turn: list[str], halfway: threading.Event
) -> None:
    halfway.clear()
    report = body(rank_report("inside", 0, 1, iteration=7))
    fields = f"Host: localhost\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(report)}\r\n\r\n"
    with ExitStack() as stack:
        launchers = [stack.enter_context(Line(inside.raw.served)) for _ in range(LAUNCHERS)]
        rank = stack.enter_context(Line(inside.raw.served))
        with held(inside):
            for number, line in enumerate(launchers):
                registration = {"node": f"n{number}", "host": "h", "launcher_pid": 1, "local_world_size": 1}
                line.send(inside.raw.post("nodes", registration))
            rank.send(REQUEST_LINE, fields.encode(), report)
        answer = rank.receive()
        assert (answer.status, answer.short) == (200, True), "it came last and waited for a few turns"
        halfway.set()
        assert {line.receive().status for line in launchers} == {200}
    assert few_a_turn == ["nodes"] * LAUNCHERS, "all of them on the fast lane"


def test_more_behind_a_request_in_line_than_is_held_is_read_later(inside: Inside, few_a_turn: list[str]) -> None:
    words = [inside.raw.observe(f"word {number}", more="x" * 1_000) for number in range(300)]
    assert sum(map(len, words)) > 4 * MOST_PIPELINED
    with Line(inside.raw.served) as line, Api(inside.raw.served.url) as api:
        with held(inside):
            line.send(*words[:20])
        line.send(*words[20:])
        assert [line.receive().status for _ in words] == [204] * len(words)
        assert reason(api, inside.raw) == "word 299"
    assert len(few_a_turn) == 300


def test_a_question_in_line_waits_for_its_directive_and_is_answered_once(inside: Inside, few_a_turn: list[str]) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(inside.raw.served)) for _ in range(20)]
        with held(inside):
            for line in lines:
                line.send(inside.raw.ask(wait=30))
        wait_for(lambda: inside.waiting() == 20, "all wait")
        with Api(inside.raw.served.url) as api:
            order(api, inside.raw)
        for line in lines:
            assert [each["id"] for each in line.receive().directives] == [1]
            line.send(LIVE)
            assert line.receive().content.startswith(b'{"status":"alive"')


def test_of_a_client_that_leaves_the_line_nothing_is_taken(inside: Inside, few_a_turn: list[str]) -> None:
    other = Raw(inside.raw.served, "inside")
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(inside.raw.served)) for _ in range(20)]
        leaves = Line(inside.raw.served)
        with held(inside):
            for line in lines:
                line.send(inside.raw.observe("stays"))
            leaves.send(other.observe("left"))
            leaves.__exit__()
        assert [line.receive().status for line in lines] == [204] * 20
        with Api(inside.raw.served.url) as api:
            assert reason(api, inside.raw) == "stays"
    wait_for(lambda: len(inside.server.server_state.connections) == 0, "all connections are closed")
    assert len(few_a_turn) == 20
