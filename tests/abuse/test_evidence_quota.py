"""Evidence of one job or token beyond what it may send in a minute is refused before it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from starlette.testclient import TestClient

from rankwatch.contract.messages import NodeRegistration
from rankwatch_monitor.app import create_app
from rankwatch_monitor.http.auth import AllTokens, Tokens
from rankwatch_monitor.http.fastlane.launchers import LauncherFastLane
from rankwatch_monitor.http.fastlane.requests import FallBackError, RefusedError
from rankwatch_monitor.http.launchers import LauncherMessages
from rankwatch_monitor.http.origins import Origins
from rankwatch_monitor.ingest.admission import Admission
from rankwatch_monitor.ingest.limits import MIB, Limits
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.service.monitor import Clock, Monitor
from rankwatch_monitor.service.tokens import NamedToken

LARGEST: Final = 8 * MIB


class Moved(Clock):
    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        return self.at


def made(launchers: int = 1, jobs: tuple[str, ...] = ("a1", "a2", "b"), **limits: int) -> tuple[Monitor, Moved]:
    clock = Moved()
    monitor = Monitor(clock=clock, limits=Limits(**limits))
    for job in jobs:
        monitor.register(job, "")
        for number in range(launchers):
            monitor.submit(job, NodeRegistration(f"n{number}", "host", 1, 8))
    return monitor, clock


def sent(monitor: Monitor, job: str, size: int, covers: Callable[[str], bool] | None = None) -> int | None:
    """When it may be sent again; None: it is taken."""
    try:
        monitor.refuse_evidence(job, size, "team", covers)
    except Refusal as refusal:
        return refusal.retry_after
    return None


def taken_at_once(monitor: Monitor, job: str, covers: Callable[[str], bool] | None = None) -> int:
    return next(count for count in range(1_000) if sent(monitor, job, LARGEST, covers) is not None)


def test_a_job_has_a_minutes_worth_and_gets_it_back() -> None:
    monitor, clock = made(evidence_bytes=4 * LARGEST)
    assert taken_at_once(monitor, "a1") == 4
    assert taken_at_once(monitor, "b") == 4, "another job has its own"
    wait = sent(monitor, "a1", LARGEST)
    assert wait is not None
    assert 0 < wait <= 16
    clock.at += wait
    assert sent(monitor, "a1", LARGEST) is None


def test_the_jobs_of_a_bound_token_share_one() -> None:
    monitor, _ = made(evidence_bytes=4 * LARGEST)

    def team(job: str) -> bool:
        return job.startswith("a")

    assert taken_at_once(monitor, "a1", team) == 4
    assert taken_at_once(monitor, "a2", team) == 0
    assert taken_at_once(monitor, "b") == 4


def test_a_job_of_100_000_ranks_is_looked_at_eight_times_in_a_minute() -> None:
    monitor, _ = made(launchers=12_500, jobs=("large",))
    one_node = 8 * 8_000  # bytes of 8 stacks with 64 frames each
    for _ in range(8):
        assert {sent(monitor, "large", one_node, lambda _: True) for _ in range(12_500)} == {None}


@pytest.mark.parametrize("chunked", [False, True])
def test_it_is_refused_before_its_body_is_read(chunked: bool) -> None:
    monitor, _ = made(evidence_bytes=1, evidence_bytes_per_launcher=1)
    client = TestClient(create_app(monitor), base_url="http://127.0.0.1")
    body = b"{" * 1000
    content = iter([body]) if chunked else body
    answer = client.post("/api/v1/jobs/a1/evidence", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 429, "and not 422, which what is read would give"
    assert int(answer.headers["Retry-After"]) > 0
    assert monitor.counters.rejected == {"too_much_evidence": 1}


def test_it_is_refused_on_the_fast_lane_and_counted_once_however_it_arrives() -> None:
    body = b"x" * 600
    monitor, _ = made(evidence_bytes=1000, evidence_bytes_per_launcher=1)
    lane = LauncherFastLane(LauncherMessages(monitor), Tokens(), Origins(), Admission())
    head = b"POST /api/v1/jobs/a1/evidence HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    head += b"content-length: 600\r\n\r\n"

    def post() -> None:
        begun = lane.begin(head, ("127.0.0.1", 1))
        assert begun is not None
        try:
            for part in (begun[1], body[:100], body[100:]):
                lane.add(begun[0], part)
        finally:
            begun[0].release()

    post()
    with pytest.raises(RefusedError) as refused:
        post()
    assert refused.value.response.startswith(b"HTTP/1.1 429 ")
    assert monitor.counters.rejected == {"too_much_evidence": 1}


HEAD: Final = b"POST /api/v1/jobs/a1/evidence HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


def one_stack() -> dict[str, Any]:
    return {"node": "n0", "attempt": 1, "incident_id": None, "stacks": []}


@pytest.mark.parametrize("token", ["reader", "of another team", "none"])
def test_who_may_not_report_on_a_job_uses_up_nothing_of_its_quota(token: str) -> None:
    monitor, _ = made(evidence_bytes=LARGEST)
    named = NamedToken("other", "ingest", ("b",), 1.0, "x")
    tokens = AllTokens(Tokens(control="root", read="reader", ingest="ranks"), {"of another team": named}.get)
    client = TestClient(create_app(monitor, tokens=tokens), base_url="http://127.0.0.1")
    lane = LauncherFastLane(LauncherMessages(monitor), tokens, Origins(), Admission())
    authorization = f"Bearer {token}"
    for _ in range(3):
        answer = client.post(
            "/api/v1/jobs/a1/evidence", content=b" " * LARGEST, headers={"authorization": authorization}
        )
        assert answer.status_code == (401 if token == "none" else 403)
        head = HEAD + f"authorization: {authorization}\r\ncontent-length: 400000\r\n\r\n".encode()
        assert lane.begin(head, ("127.0.0.1", 1)) is None
    given = {"authorization": "Bearer ranks"}
    assert client.post("/api/v1/jobs/a1/evidence", json=one_stack(), headers=given).status_code == 204
    assert taken_at_once(monitor, "b") == 1, "nor of the jobs that the token is for"


def test_what_is_announced_and_does_not_arrive_is_given_back() -> None:
    monitor, _ = made(evidence_bytes=600_000, evidence_bytes_per_launcher=1)
    lane = LauncherFastLane(LauncherMessages(monitor), Tokens(), Origins(), Admission())
    for _ in range(5):
        begun = lane.begin(HEAD + b"content-length: 250000\r\n\r\n", ("127.0.0.1", 1))
        assert begun is not None
        lane.add(begun[0], b"{")
        begun[0].release()
    assert sent(monitor, "a1", 599_990) is None


def test_of_what_comes_in_chunks_its_own_size_is_counted() -> None:
    monitor, _ = made(evidence_bytes=LARGEST + 1000, evidence_bytes_per_launcher=1)
    client = TestClient(create_app(monitor), base_url="http://127.0.0.1")
    for _ in range(5):
        content = iter([json.dumps(one_stack()).encode()])
        answer = client.post("/api/v1/jobs/a1/evidence", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 204


def test_what_the_fast_lane_leaves_to_the_application_is_counted_once() -> None:
    body = json.dumps(one_stack()).encode()
    monitor, _ = made(evidence_bytes=2 * len(body) - 1, evidence_bytes_per_launcher=1)
    lane = LauncherFastLane(LauncherMessages(monitor), Tokens(), Origins(), Admission())
    wrong = b"x" * len(body)
    begun = lane.begin(HEAD + f"content-length: {len(body)}\r\n\r\n".encode(), ("127.0.0.1", 1))
    assert begun is not None
    lane.add(begun[0], wrong)
    with pytest.raises(FallBackError):
        lane.respond(begun[0], lambda _: None)
    begun[0].release()
    assert sent(monitor, "a1", 2 * len(body) - 1) is None


def test_of_jobs_that_there_are_not_nothing_is_kept() -> None:
    monitor, _ = made()
    for number in range(100):
        assert sent(monitor, f"a-{number}", 1) is None
    assert not monitor._evidence._taken
    for number in range(100):
        sent(monitor, f"a-{number}", LARGEST, lambda job: job.startswith("a"))
    assert list(monitor._evidence._taken) == [("token", "team")], "what a bound token sends counts all the same"
