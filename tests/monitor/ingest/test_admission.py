"""Refusing more than can be done: who is told what, and that a real rank waits, comes back and loses nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from monitor.ingest.otlp_requests import RANK_3, gauge, request_of
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest import admission as rules
from rankwatch_monitor.ingest.admission import Admission
from rankwatch_monitor.ingest.limits import Counters
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.routes import OtlpEndpoints, OtlpMiddleware

BODY = request_of(RANK_3, gauge("rankwatch.iteration", 7)).SerializeToString()
HEADERS = {"content-type": "application/x-protobuf"}


def behind(seconds: float, then: Callable[[Admission], Any]) -> Any:
    """What ``then`` states in a turn of the loop that has lasted so long already."""

    async def turn() -> Any:
        admission = Admission()
        assert admission.late() == 0
        started = time.monotonic()
        while time.monotonic() - started < seconds + rules._BEAT:  # a turn is long because something computes
            pass
        return then(admission)

    return asyncio.run(turn())


def refused(call: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value


def test_a_loop_that_keeps_up_lets_everything_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LATE", 60.0)  # on a busy machine this loop does not keep up with the real limits
    monkeypatch.setattr(rules, "LATE_FOR_SPANS", 60.0)

    async def turns() -> None:
        admission = Admission()
        for _ in range(20):
            admission.check()
            admission.check(spans=True)
            await asyncio.sleep(0)

    asyncio.run(turns())


def test_spans_are_given_up_before_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LATE", 600.0)

    def then(admission: Admission) -> Refusal:
        admission.check()
        return refused(lambda: admission.check(spans=True))

    refusal = behind(rules.LATE_FOR_SPANS, then)
    assert (refusal.status, refusal.reason) == (503, "unavailable")


def test_metrics_are_refused_with_a_time_to_come_again() -> None:
    refusal = behind(rules.LATE, lambda admission: refused(admission.check))
    assert (refusal.status, refusal.reason) == (503, "unavailable")
    assert refusal.retry_after in range(rules.RETRY_AFTER[0], rules.RETRY_AFTER[1] + 1)
    assert "behind" in refusal.message


def test_who_has_nothing_else_in_line_is_not_refused_for_the_flood_of_another() -> None:
    answers: list[tuple[str, bool]] = []

    def ask(admission: Admission, sender: str) -> None:
        try:
            admission.check()
        except Refusal:
            answers.append((sender, False))
        else:
            answers.append((sender, True))

    def then(admission: Admission) -> None:
        def flood() -> None:
            for sender in ("flood", "healthy", "flood", "flood"):
                admission.queue.submit(partial(ask, admission, sender), sender=sender)

        admission.queue.submit(flood)
        while admission.queue._lines:
            admission.queue._run_oldest()

    behind(rules.LATE, then)
    assert answers[:2] == [("flood", False), ("healthy", True)]


def test_the_next_turn_lets_in_again() -> None:
    async def turns() -> None:
        admission = Admission()
        admission.late()
        started = time.monotonic()
        while time.monotonic() - started < rules.LATE + 2 * rules._BEAT:
            pass
        refused(admission.check)
        while True:  # the timer runs in one of the next turns; each look asks again
            await asyncio.sleep(0)
            try:
                admission.check()
            except Refusal:
                continue
            return

    asyncio.run(asyncio.wait_for(turns(), 60))


def test_an_idle_loop_has_no_timer_and_is_not_late() -> None:
    async def turns() -> float:
        admission = Admission()
        admission.late()
        while admission._loop is not None:
            await asyncio.sleep(rules._BEAT)
        return admission.late()

    assert asyncio.run(asyncio.wait_for(turns(), 60)) == 0


def test_the_sender_with_most_in_flight_gets_429_and_others_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "HELD_BYTES", 100)

    async def turns() -> None:
        admission = Admission()
        with admission.body("small") as small, admission.body("big") as big:
            small.grew(40)
            admission.check()
            assert refused(lambda: big.grew(70)).status == 429
            assert refused(admission.check).status == 503
            small.grew(1)
        assert admission.held == 0
        admission.check()

    asyncio.run(turns())


def test_what_is_only_announced_excludes_no_node() -> None:
    async def turns() -> None:
        admission = Admission()
        with admission.body("idle"):
            assert admission.held == 0
            admission.check()

    asyncio.run(turns())


class Server:
    """The routes in an app, reached past its layers, called in memory."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.reports: list[RankReport] = []
        endpoints = OtlpEndpoints(self._take, counters=self.counters)
        self.app = FastAPI()
        self.app.include_router(endpoints.router)
        self.app.add_middleware(OtlpMiddleware, endpoints=endpoints)

    def _take(self, reports: Any) -> tuple[()]:
        self.reports.extend(reports)
        return ()

    def run(self, call: Callable[[httpx.AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
        async def within() -> Any:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://monitor") as client:
                return await call(client)

        return asyncio.run(within())


def test_a_request_is_refused_before_any_of_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LATE", -1.0)
    monkeypatch.setattr(rules, "LATE_FOR_SPANS", -1.0)
    server = Server()

    monkeypatch.setattr("rankwatch_monitor.ingest.routes._read_body", lambda *_: pytest.fail("the body was read"))

    async def call(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await client.post("/v1/metrics", content=BODY, headers=HEADERS),
            await client.post("/v1/traces", content=BODY, headers=HEADERS),
        ]

    for answer in server.run(call):
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
    assert server.counters.rejected == {"unavailable": 2}
    assert server.reports == []


def test_the_straight_way_takes_what_the_routes_take_and_leaves_the_rest() -> None:
    server = Server()

    async def call(client: httpx.AsyncClient) -> list[int]:
        answers = [
            await client.post("/v1/metrics", content=BODY, headers=HEADERS),
            await client.get("/v1/metrics"),
            await client.post("/v1/nothing", content=BODY, headers=HEADERS),
        ]
        return [answer.status_code for answer in answers]

    assert server.run(call) == [200, 405, 404]
    assert [report.iteration for report in server.reports] == [7]
