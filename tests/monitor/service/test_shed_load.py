"""What follows for the jobs when the monitor refuses reports under load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from monitor.core.scene import Scene
from monitor.ingest.otlp_requests import RANK_3, gauge, request_of
from rankwatch.contract import semconv
from rankwatch.contract.enums import DirectiveKind
from rankwatch_monitor.app import create_app
from rankwatch_monitor.http.auth import BoundSender, Grant, Scope, Tokens
from rankwatch_monitor.http.fastlane.otlp import OtlpFastLane
from rankwatch_monitor.ingest import admission
from rankwatch_monitor.ingest.admission import AboveShare
from rankwatch_monitor.ingest.routes import OtlpMiddleware
from rankwatch_monitor.service.monitor import Monitor

BODY = request_of(RANK_3, gauge("rankwatch.iteration", 7)).SerializeToString()
PROTOBUF = {"content-type": "application/x-protobuf", "authorization": "Bearer secret"}


def endpoints_of(app: FastAPI) -> Any:
    """What answers requests with telemetry."""
    (found,) = [each.kwargs["endpoints"] for each in app.user_middleware if each.cls is OtlpMiddleware]
    return found


class Loaded:
    """A monitor with two jobs that refuses whatever comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admission, "LATE", -1.0)
        monkeypatch.setattr(admission, "LATE_FOR_SPANS", -1.0)
        self.monitor = Monitor()
        self.app = create_app(self.monitor, Tokens(control="secret"))
        for name in ("a b", "other"):
            self.monitor.register(name, name)

    def post(self, path: str, **headers: str) -> set[str]:
        """Post a request that is refused; return the jobs whose silence counts from a later time than before."""
        before = {name: job.silence_since for name, job in self.monitor.jobs.items()}

        async def call() -> int:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return (await client.post(path, content=BODY, headers={**PROTOBUF, **headers})).status_code

        assert asyncio.run(call()) == 503
        self.monitor.tick()
        return {name for name, job in self.monitor.jobs.items() if job.silence_since > before[name]}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    return Loaded(monkeypatch)


def test_only_the_job_of_the_refused_report_is_excused(loaded: Loaded) -> None:
    assert loaded.post(semconv.OTLP_METRICS_PATH, **{semconv.JOB_HEADER: "a%20b"}) == {"a b"}


def test_every_job_is_excused_for_a_report_that_names_none(loaded: Loaded) -> None:
    assert loaded.post(semconv.OTLP_METRICS_PATH) == {"a b", "other"}


def test_refused_spans_excuse_no_job(loaded: Loaded) -> None:
    assert loaded.post(semconv.OTLP_TRACES_PATH, **{semconv.JOB_HEADER: "other"}) == set()


def test_a_stranger_excuses_no_job(loaded: Loaded) -> None:
    header = {"authorization": "Bearer wrong", semconv.JOB_HEADER: "other"}
    assert loaded.post(semconv.OTLP_METRICS_PATH, **header) == set()


def test_a_token_that_is_bound_to_jobs_excuses_its_own_alone(loaded: Loaded) -> None:
    grant = Grant(frozenset({Scope.INGEST}), "team", ("oth*",))
    loaded.monitor.report_shed(None, BoundSender(grant, loaded.monitor).refuses)
    before = {name: job.silence_since for name, job in loaded.monitor.jobs.items()}
    loaded.monitor.tick()
    assert {n for n, job in loaded.monitor.jobs.items() if job.silence_since > before[n]} == {"other"}


@pytest.mark.parametrize(("headers", "excused"), [({}, set()), ({semconv.JOB_HEADER: "other"}, {"other"})])
def test_one_sender_above_its_share_excuses_its_own_job_at_most(
    headers: dict[str, str], excused: set[str], loaded: Loaded
) -> None:
    before = {name: job.silence_since for name, job in loaded.monitor.jobs.items()}
    refusal = AboveShare(429, "unavailable", "more than of all others", retry_after=2)
    endpoints_of(loaded.app).count_shed(refusal, {**PROTOBUF, **headers})
    loaded.monitor.tick()
    assert {n for n, job in loaded.monitor.jobs.items() if job.silence_since > before[n]} == excused


def test_the_fast_lane_excuses_the_same(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = OtlpFastLane(endpoints_of(loaded.app))
    monkeypatch.setattr(admission, "LATE", 600.0)
    lines = {**PROTOBUF, semconv.JOB_HEADER: "other", "host": "localhost", "content-length": str(len(BODY))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    before = loaded.monitor.jobs["other"].silence_since

    async def refused_at_the_end() -> bytes:
        begun = lane.begin(f"POST {semconv.OTLP_METRICS_PATH} HTTP/1.1\r\n{head}\r\n".encode() + BODY, ("1.2.3.4", 5))
        assert begun is not None
        request, rest = begun
        lane.add(request, rest)
        monkeypatch.setattr(admission, "LATE", -1.0)
        return lane.respond(request, lambda _: None)

    assert b" 503 " in asyncio.run(refused_at_the_end())
    assert loaded.monitor.jobs["other"].silence_since > before


def shed_every_second(scene: Scene, until: Callable[[], object], within: int) -> None:
    for _ in range(within):
        if until():
            return
        scene.job.shed_at = scene.now
        scene.tick()
    raise AssertionError(f"not within {within} s")


def test_a_hang_without_configured_limits_is_restarted_while_load_is_shed() -> None:
    scene = Scene(reports_durations=True).run(40).hang(2)
    shed_every_second(scene, lambda: scene.directives(DirectiveKind.RESTART), within=120)


def test_a_rank_is_not_silent_while_its_job_s_reports_are_refused() -> None:
    scene = Scene(launchers=False, section_timeouts={"step": 1000.0}).run(20).cut(1)
    shed_every_second(scene, lambda: scene.now > 1_000_200, within=200)
    assert not scene.job.incidents
    scene.until_found()


def test_reports_of_a_token_that_is_bound_to_jobs_wait_in_a_line_of_their_own() -> None:
    """And those of other tokens by job: a flood of one of them has nobody else's refused."""
    monitor = Monitor()
    named = {"team-token": Grant(frozenset({Scope.INGEST}), "team", ("oth*",))}
    known = Tokens(control="secret")

    class Known:
        any = True
        hashed = known.hashed

        def grant_for(self, token: str) -> Grant | None:
            return named.get(token) or known.grant_for(token)

    lane = OtlpFastLane(endpoints_of(create_app(monitor, Known())))

    def line(**headers: str) -> str:
        lines = {**PROTOBUF, **headers, "host": "localhost", "content-length": str(len(BODY))}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        begun = lane.begin(f"POST {semconv.OTLP_METRICS_PATH} HTTP/1.1\r\n{head}\r\n".encode(), ("1.2.3.4", 5))
        assert begun is not None
        begun[0].release()
        return begun[0].sender

    team = {"authorization": "Bearer team-token"}
    assert len({line(), line(**{semconv.JOB_HEADER: "a"}), line(**{semconv.JOB_HEADER: "b"}), line(**team)}) == 4
    assert line(**team, **{semconv.JOB_HEADER: "other"}) == line(**team, **{semconv.JOB_HEADER: "oth2"}) == line(**team)
