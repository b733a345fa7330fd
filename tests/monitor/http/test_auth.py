"""Tokens through the real service: what is refused is reported, counted and has no effect; see abuse/test_scopes.py."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException, Request
from google.rpc.status_pb2 import Status
from starlette.datastructures import URL

import rankwatch_monitor
from rankwatch_monitor.http.auth import Grant, Scope, reader_of, require
from rankwatch_monitor.ingest.limits import Counters
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import PROTOBUF, body, rank_report

CONTROL, READ, INGEST = "control-secret", "read-secret", "ingest-secret"
OTHER = "of another scope"
REPORT = body(rank_report("guarded", 0, 1, iteration=1))
NODE = {"node": "n", "host": "h", "launcher_pid": 1, "local_world_size": 1}

CALLS = {
    "read": ("GET", "/api/v1/jobs", {}),
    "read metrics": ("GET", "/metrics", {}),
    "ingest": ("POST", "/v1/metrics", {"content": REPORT, "headers": PROTOBUF}),
    "ingest traces": ("POST", "/v1/traces", {"content": b"", "headers": PROTOBUF}),
    "ingest register": ("POST", "/api/v1/jobs/guarded/nodes", {"json": NODE}),
    "ingest directives": ("GET", "/api/v1/jobs/guarded/directives?wait=0", {}),
    "control policy": ("PATCH", "/api/v1/jobs/guarded/policy", {"json": {}}),
    "control actions": ("POST", "/api/v1/jobs/guarded/actions", {"json": {"action": "capture"}}),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    flags = ("--token", CONTROL, "--read-token", READ)
    folder = tmp_path_factory.mktemp("guarded")
    with running_monitor(folder, *flags, settings={"RANKWATCH_MONITOR_INGEST_TOKEN": INGEST}) as monitor:
        with Api(monitor.url, CONTROL) as api:
            assert api.post("/api/v1/jobs/guarded/nodes", json=NODE).status_code == 200
        yield monitor
        assert not any(token in monitor.printed() for token in (CONTROL, READ, INGEST)), "a token is never written down"


@pytest.fixture
def owner(guarded: RunningMonitor) -> Iterator[Api]:
    with Api(guarded.url, CONTROL) as api:
        yield api


@pytest.mark.parametrize("token", [None, "a-guess", "ünknown", OTHER], ids=["none", "wrong", "not ascii", OTHER])
@pytest.mark.parametrize("name", CALLS)
def test_without_the_right_token_nothing_is_reported_and_nothing_done(
    guarded: RunningMonitor, owner: Api, name: str, token: str | None
) -> None:
    method, path, more = CALLS[name]
    before, refused = owner.job("guarded")["policy"], owner.rejected().get("unauthorized", 0)
    scope = name.split()[0]
    if token == OTHER:
        token = INGEST if scope == "read" else READ
    given = {} if token is None else {"Authorization": f"Bearer {token}".encode()}
    with Api(guarded.url) as api:
        answer = api.request(method, path, **{**more, "headers": more.get("headers", {}) | given})
    if token in (READ, INGEST):
        assert answer.status_code == 403
        assert f"does not allow {scope}" in words(answer)
    else:
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert ("RANKWATCH_TOKEN" if token is None else "wrong") in words(answer)
    assert owner.rejected()["unauthorized"] == refused + 1
    assert owner.job("guarded")["policy"] == before
    assert owner.job("guarded")["incidents"] == len(owner.incidents("guarded"))


def words(answer) -> str:
    kind = answer.headers["content-type"]
    if kind == "application/x-protobuf":
        return Status.FromString(answer.content).message
    assert kind == "application/problem+json"
    return answer.json()["detail"]


def test_a_browser_may_give_its_token_in_the_address_of_a_stream(guarded: RunningMonitor) -> None:
    with Api(guarded.url) as api:
        with api.stream("GET", f"/api/v1/events?token={READ}") as answer:
            assert answer.status_code == 200
        assert api.get("/api/v1/events?token=guess").status_code == 401
        # An address is written into logs: it opens reading only, never an order.
        order = api.post(f"/api/v1/jobs/guarded/actions?token={CONTROL}", json={"action": "stop"})
        assert order.status_code == 401


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/"])
def test_health_and_the_page_itself_need_no_token(guarded: RunningMonitor, path: str) -> None:
    with Api(guarded.url) as api:
        assert api.get(path).status_code in (200, 503)
        assert api.get(path).status_code == 200 or path == "/"


def test_a_token_that_is_bound_to_jobs_has_one_line_from_all_addresses() -> None:
    bound, free = Grant(frozenset({Scope.READ}), "team", ("a-*",)), Grant(frozenset({Scope.READ}), "all")
    assert len({reader_of(bound, f"127.0.0.{last}") for last in range(9)}) == 1
    assert len({reader_of(each, f"127.0.0.{last}") for last in range(9) for each in (free, None)}) == 18


class OldRequest(Request):
    """A request of Starlette before 1.10, whose URL is what the client sent as ``Host``, and then the path."""

    @property
    def url(self) -> URL:
        return URL(f"http://{self.headers['host']}{self.scope['path']}")


@pytest.mark.parametrize("kind", [Request, OldRequest])
@pytest.mark.parametrize("host", ["monitor:9560", "x/api/v1/jobs?", "x/api/v1/nodes/y?", "x/api/v1/nodes/y#"])
def test_a_bound_token_opens_what_it_may_whatever_name_the_monitor_is_given(kind: type[Request], host: str) -> None:
    bound = Grant(frozenset({Scope.CONTROL}), "team", ("team-*",))
    tokens: Any = SimpleNamespace(any=True, grant_for=lambda _: bound)
    sessions: Any = SimpleNamespace(grant_in=lambda _: None)
    check = require(tokens, Scope.READ, Counters(), sessions)

    def ask(path: str) -> None:
        headers = [(b"host", host.encode()), (b"authorization", b"Bearer secret")]
        given = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
        asyncio.run(check(kind({**given, "scheme": "http", "server": ("127.0.0.1", 9560)})))

    ask("/api/v1/nodes/n0")
    for path in ("/api/v1/tokens", "/api/v1/audit", "/metrics"):
        with pytest.raises(HTTPException, match="bound to jobs"):
            ask(path)


def test_nothing_of_the_monitor_reads_an_address_that_the_client_has_named() -> None:
    read = [
        f"{file.name}:{node.lineno}: {ast.unparse(node)}"
        for file in Path(rankwatch_monitor.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Attribute) and node.attr in ("url", "base_url", "url_for")
        if ast.unparse(node.value).rpartition(".")[2] in ("request", "websocket", "connection")
    ]
    assert read == []
