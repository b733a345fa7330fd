"""Every route with every token, in every wrong form: what each may do, of a real monitor.

The table below is the promise; a route that is added without a line in it fails the first test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest
from fastapi.routing import iter_route_contexts

from rankwatch_monitor.app import create_app
from rankwatch_monitor.http import auth
from rankwatch_monitor.http.auth import Scope, Tokens
from rankwatch_monitor.service.monitor import Monitor
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import body, rank_report

OPEN = None
READ, INGEST, CONTROL = Scope.READ, Scope.INGEST, Scope.CONTROL
SECRETS = {CONTROL: "Control-Secret-1", READ: "Read-Secret-2", INGEST: "Ingest-Secret-3"}
JOB = "guarded"
BELOW_JOB = "/api/v1/jobs/{job_id}"

ROUTES: dict[tuple[str, str], Scope | tuple[Scope, ...] | None] = {
    ("POST", "/v1/metrics"): INGEST,
    ("POST", "/v1/traces"): INGEST,
    ("POST", f"{BELOW_JOB}/nodes"): INGEST,
    ("POST", f"{BELOW_JOB}/runs"): INGEST,
    ("GET", f"{BELOW_JOB}/directives"): INGEST,
    ("POST", f"{BELOW_JOB}/directives/{{directive}}/acks"): INGEST,
    ("POST", f"{BELOW_JOB}/process-events"): INGEST,
    ("POST", f"{BELOW_JOB}/observations"): INGEST,
    ("POST", f"{BELOW_JOB}/evidence"): INGEST,
    ("POST", f"{BELOW_JOB}/logs"): INGEST,
    ("PATCH", f"{BELOW_JOB}/policy"): CONTROL,
    ("POST", f"{BELOW_JOB}/actions"): CONTROL,
    ("POST", "/api/v1/tokens"): CONTROL,
    ("GET", "/api/v1/tokens"): CONTROL,
    ("DELETE", "/api/v1/tokens/{name}"): CONTROL,
    ("GET", "/api/v1/audit"): CONTROL,
    ("GET", "/metrics"): READ,
    ("GET", "/api/v1/jobs"): READ,
    ("GET", "/api/v1/hosts"): READ,
    ("GET", "/api/v1/nodes"): READ,
    ("GET", "/api/v1/digest"): READ,
    ("GET", "/api/v1/sparklines"): READ,
    ("GET", "/api/v1/nodes/{host}"): READ,
    ("GET", "/api/v1/events"): READ,
    ("GET", "/api/v1/policy/schema"): READ,
    ("GET", BELOW_JOB): READ,
    **{
        ("GET", f"{BELOW_JOB}/{what}"): READ
        for what in (
            "ranks", "logs", "goodput", "report", "incidents", "incidents/{incident_id}",
            "incidents/{incident_id}/flight-recorder", "policy", "communication",
            "events", "why", "history", "kernels", "timeline", "timeline/trace", "trends", "grid/{look}", "layout",
        )
    },
    # A session is opened with a token in the body, and states no more of itself.
    ("POST", "/api/v1/session"): OPEN,
    ("GET", "/api/v1/session"): OPEN,
    ("POST", "/api/v1/session/codes"): READ,
    ("GET", "/api/v1/session/grant"): READ,
    ("DELETE", "/api/v1/session"): OPEN,
    # Ranks log these.
    **{("GET", f"{BELOW_JOB}/{what}"): (READ, INGEST) for what in ("scores", "scores/report", "stragglers")},
    ("GET", "/livez"): OPEN,
    ("GET", "/readyz"): OPEN,
    # The page is a program without data; what it shows it reads with the reader's own token.
    **{(method, path): OPEN for path in ("/", "/assets/{name}") for method in ("GET", "HEAD")},
    # The link that the console prints only leads to the page.
    **{(method, "/j/{job_id}"): OPEN for method in ("GET", "HEAD")},
    # So is the manual.
    **{(method, path): OPEN for path in ("/manual", "/manual/{path:path}") for method in ("GET", "HEAD")},
    # What the API looks like is no secret.
    **{
        (method, path): OPEN
        for path in ("/openapi.json", "/docs")
        for method in ("GET", "HEAD")
    },
}  # fmt: skip

GUARDED = [(method, path) for (method, path), scope in ROUTES.items() if scope is not None]


def may_use(holder: Scope, method: str, path: str) -> bool:
    scope = ROUTES[method, path]
    return holder is CONTROL or holder in (scope if isinstance(scope, tuple) else (scope,))


FILLED = {
    "job_id": JOB,
    "incident_id": "1",
    "directive": "1",
    "look": "heartbeat_age",
    "host": "h",
    "dimension": "data",
    "number": "0",
    "name": "none.js",
    "path": "none.html",
}
CONTENT: dict[str, Any] = {
    "nodes": {"node": "n", "host": "h", "launcher_pid": 1, "local_world_size": 1},
    "runs": {"run": "r", "host": "h", "launcher_pid": 1},
    "acks": {"node": "n", "state": "done"},
    "process-events": {"events": []},
    "observations": {"node": "n", "attempt": 0, "ranks": []},
    "evidence": {"node": "n", "attempt": 0, "incident_id": None, "stacks": []},
    "logs": {"node": "n", "request": "r"},
    "policy": {"max_restarts": 77},
    "actions": {"action": "capture"},
    "session": {"token": "guess"},
    "codes": {},
    "tokens": {"name": "made", "scope": "ingest"},
}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    start: bytes


def ask(monitor: RunningMonitor, method: str, path: str, headers: list[tuple[str, str]], query: str = "") -> Answer:
    """One request on a connection of its own; of an answer without an end only the head is read."""
    connection = HTTPConnection(str(urlsplit(monitor.url).netloc), timeout=60)
    sent, kind = b"", "application/json"
    if path.startswith("/v1/metrics"):
        sent, kind = body(rank_report("smuggled", 0, 1, iteration=1)), "application/x-protobuf"
    elif path.startswith("/v1/traces"):
        kind = "application/x-protobuf"
    elif method in ("POST", "PATCH"):
        sent = json.dumps(CONTENT[path.rsplit("/", 1)[1]]).encode()
    wait = ("wait=0&" if path.endswith("/directives") else "") + query
    try:
        connection.putrequest(method, path.replace(":path", "").format(**FILLED) + (f"?{wait}" if wait else ""))
        for name, value in (*headers, ("Content-Type", kind), ("Content-Length", str(len(sent)))):
            connection.putheader(name, value.encode())
        connection.endheaders(sent)
        answer = connection.getresponse()
        reported = {name.lower(): value for name, value in answer.getheaders()}
        stream = reported.get("content-type", "").startswith("text/event-stream")
        return Answer(answer.status, reported, b"" if stream else answer.read(2000))
    finally:
        connection.close()


def bearer(token: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {token}")]


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    flags = ("--token", SECRETS[CONTROL], "--read-token", SECRETS[READ], "--ingest-token", SECRETS[INGEST])
    with running_monitor(tmp_path_factory.mktemp("guarded"), *flags, "--log-level", "debug") as running:
        with Api(running.url, SECRETS[CONTROL]) as owner:
            assert owner.post(f"/api/v1/jobs/{JOB}/nodes", json=CONTENT["nodes"]).status_code == 200
        yield running
        printed = running.printed().lower()
        assert not [secret for secret in SECRETS.values() if secret.lower() in printed], "a token is never written down"


def test_every_route_of_the_application_has_its_scope_in_the_table() -> None:
    app = create_app(Monitor())
    found = set()
    for route in iter_route_contexts(app.routes):
        assert route.methods, f"{route.path} is a mount or a socket: state here which token may use it"
        found |= {(method, str(route.path)) for method in route.methods}
    assert found - ROUTES.keys() == set(), "a new route: state in the table which token may use it"
    assert ROUTES.keys() - found == set(), "these routes are gone"
    described = {(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods}
    assert described <= found


@pytest.mark.parametrize("holder", list(Scope))
@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_a_token_opens_its_own_scope_and_no_other(
    monitor: RunningMonitor, method: str, path: str, holder: Scope
) -> None:
    answer = ask(monitor, method, path, bearer(SECRETS[holder]))
    if may_use(holder, method, path):
        assert (
            answer.status < 300
            or (answer.status == 404 and path.endswith(("_id}", "{number}")))
            or (answer.status == 404 and path.endswith(("/tokens/{name}", "/flight-recorder")))
        ), answer
    else:
        assert answer.status == 403, answer
        assert f"does not allow {ROUTES[method, path]}".encode() in answer.start


WRONG = {
    "none": [],
    "wrong": bearer("guess"),
    "empty": bearer(""),
    "in another case": bearer(SECRETS[CONTROL].lower()),
    "only the beginning of it": bearer(SECRETS[CONTROL][:-1]),
    "more than it": bearer(SECRETS[CONTROL] + "x"),
    "two of them": bearer(f"{SECRETS[READ]} {SECRETS[CONTROL]}"),
    "as a password": [("Authorization", f"Basic {SECRETS[CONTROL]}")],
    "without its word": [("Authorization", SECRETS[CONTROL])],
    "in another header": [("X-Token", SECRETS[CONTROL]), ("Cookie", f"token={SECRETS[CONTROL]}")],
    "of another script": bearer("Сontrol-Secret-1"),
    "after a wrong one": [*bearer("guess"), *bearer(SECRETS[CONTROL])],
}


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_no_wrong_token_opens_anything(monitor: RunningMonitor, method: str, path: str) -> None:
    for name, headers in WRONG.items():
        answer = ask(monitor, method, path, headers)
        assert answer.status == 401, f"{name}: {answer}"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert not any(secret.encode() in answer.start for secret in SECRETS.values()), name


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_a_token_in_the_address_opens_what_is_read_and_nothing_that_acts(
    monitor: RunningMonitor, method: str, path: str
) -> None:
    for holder, secret in SECRETS.items():
        answer = ask(monitor, method, path, [], f"token={quote(secret)}")
        may = method == "GET" and may_use(holder, method, path)
        assert (answer.status not in (401, 403)) == may, f"{holder}: {answer}"
    assert ask(monitor, method, path, [], "token=").status == 401
    assert ask(monitor, method, path, [], f"Token={quote(SECRETS[CONTROL])}").status == 401
    # An address with a token does not help a request that states another one.
    assert ask(monitor, method, path, bearer("guess"), f"token={quote(SECRETS[CONTROL])}").status == 401


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "CONNECT-TO", "get"])
def test_no_other_method_gets_past_the_tokens(monitor: RunningMonitor, method: str) -> None:
    for path in sorted({path for _, path in GUARDED}):
        assert ask(monitor, method, path, []).status in (401, 404, 405), path


@pytest.mark.parametrize("odd", ["//api/v1/jobs", "/api/v1/jobs/", "/API/v1/jobs", "/api/v1/../v1/jobs", "/./metrics"])
def test_no_other_spelling_of_an_address_gets_past_the_tokens(monitor: RunningMonitor, odd: str) -> None:
    answer = ask(monitor, "GET", odd, [])
    assert answer.status in (307, 401, 404), answer
    assert b'"jobs"' not in answer.start


@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for (method, path), scope in ROUTES.items() if scope is OPEN]
)
def test_what_needs_no_token_answers_without_and_reports_nothing_of_jobs(
    monitor: RunningMonitor, method: str, path: str
) -> None:
    answer = ask(monitor, method, path, [])
    if path == "/api/v1/session":
        assert answer.status == (204 if method == "DELETE" else 401), answer
        return
    assert answer.status in (200, 307, 404, 503), answer
    unbuilt = path in ("/", "/assets/{name}") or path.startswith("/manual")
    leads = path == "/j/{job_id}" and answer.status == 307
    assert answer.status == 200 or leads or unbuilt, "page and manual may not be built here"
    assert JOB.encode() not in answer.start


def test_a_refused_policy_and_order_change_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    flags = ("--token", SECRETS[CONTROL], "--read-token", SECRETS[READ], "--ingest-token", SECRETS[INGEST])
    with (
        running_monitor(tmp_path_factory.mktemp("untouched"), *flags) as fresh,
        Api(fresh.url, SECRETS[CONTROL]) as api,
    ):
        assert api.post(f"/api/v1/jobs/{JOB}/nodes", json=CONTENT["nodes"]).status_code == 200
        before = api.job(JOB)["policy"], api.incidents(JOB), [job["id"] for job in api.jobs()]
        for method, path in GUARDED:
            if method != "GET":
                for holder in (READ, INGEST):
                    if holder is not ROUTES[method, path]:
                        assert ask(fresh, method, path, bearer(SECRETS[holder])).status == 403
        assert (api.job(JOB)["policy"], api.incidents(JOB), [job["id"] for job in api.jobs()]) == before


def test_a_token_is_compared_in_full_with_each_that_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    whole = auth.hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return bool(whole(one, other))

    monkeypatch.setattr(auth.hmac, "compare_digest", counted)
    tokens = Tokens(SECRETS[CONTROL], SECRETS[READ], SECRETS[INGEST])
    everyone = {secret.encode() for secret in SECRETS.values()}
    grant = tokens.grant_for(SECRETS[CONTROL])
    assert grant is not None
    assert grant.allows(READ)
    assert {other for _, other in compared} == everyone, "no short cut"
    compared.clear()
    assert tokens.grant_for("x") is None
    assert compared == [(b"x", secret.encode()) for secret in SECRETS.values()]
