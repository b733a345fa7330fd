"""Named tokens of a real monitor: bound to jobs on every route, revoked at once, kept over a restart; the audit log."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from abuse.test_scopes import CONTENT, FILLED, ROUTES, ask, bearer
from rankwatch.cli.access import audit, token
from rankwatch.contract.semconv import JOB_HEADER
from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import PROTOBUF, body, rank_report, reports_of_all

FILTERED = tuple(
    f"/api/v1/{path}"
    for path in ("jobs", "hosts", "nodes", "nodes/{host}", "digest", "sparklines", "events", "policy/schema")
)
OWN, OTHER = "team-a-1", "team-b-1"
Make = Callable[..., str]


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(tmp_path_factory.mktemp("tokens"), "--token", "root") as running:
        with Api(running.url, "root") as api:
            for job in (OWN, OTHER, FILLED["job_id"]):
                assert api.post(f"/api/v1/jobs/{job}/nodes", json=CONTENT["nodes"]).status_code == 200
        yield running


@pytest.fixture
def root(monitor: RunningMonitor) -> Iterator[Api]:
    with Api(monitor.url, "root") as api:
        yield api


@pytest.fixture
def make(root: Api) -> Iterator[Make]:
    made: list[str] = []

    def create(name: str, scope: str, *jobs: str) -> str:
        answer = root.post("/api/v1/tokens", json={"name": name, "scope": scope, "jobs": list(jobs)})
        assert answer.status_code == 201, answer.text
        made.append(name)
        return str(answer.json()["token"])

    yield create
    for name in made:
        root.delete(f"/api/v1/tokens/{name}")


@pytest.mark.parametrize("scope", ["ingest", "read", "control"])
def test_a_bound_token_is_refused_for_another_job_on_every_route(
    monitor: RunningMonitor, make: Make, scope: str
) -> None:
    secret = make(f"bound-{scope}", scope, "team-a-*")
    for (method, path), wanted in ROUTES.items():
        if wanted is None or "/v1/metrics" in path or "/v1/traces" in path:
            continue
        answer = ask(monitor, method, path, bearer(secret))
        if path in FILTERED and scope != "ingest":
            assert answer.status == 200, (path, answer)
            assert OTHER.encode() not in answer.start
            assert FILLED["job_id"].encode() not in answer.start
        else:
            assert answer.status == 403, (method, path, answer)


def test_a_bound_token_opens_its_own_job(monitor: RunningMonitor, make: Make) -> None:
    with Api(monitor.url, make("own", "control", "team-a-*")) as api:
        assert [job["id"] for job in api.jobs()] == [OWN]
        assert api.change_policy(OWN, max_restarts=5)["max_restarts"] == 5
        assert api.get(f"/api/v1/jobs/{OWN}/ranks").status_code == 200


@pytest.mark.parametrize("named_in_header", [True, False])
def test_a_bound_token_reports_on_its_own_job_alone(
    monitor: RunningMonitor, root: Api, make: Make, named_in_header: bool
) -> None:
    """The second time the decoder knows the layout of the bytes; a request is refused as a whole."""
    with Api(monitor.url, make("ranks-a", "ingest", OWN)) as sender:
        header = {JOB_HEADER: OWN} if named_in_header else {}
        for step in (1, 2, 3):
            own, other = rank_report(OWN, 0, 2, iteration=step), rank_report(OTHER, 0, 1, iteration=step)
            for smuggled in (body(other), body(own, other), body(other, own)):
                answer = sender.export(smuggled, headers=PROTOBUF | header)
                assert answer.status_code == 403, answer.text
            assert sender.export(body(own), headers=PROTOBUF | header).status_code == 200
        assert sender.export(body(own), headers=PROTOBUF | {JOB_HEADER: OTHER}).status_code == 403
    assert root.job(OTHER)["world_size"] == 0
    assert [rank["iteration"] for rank in root.ranks(OWN)][:1] == [3]


def test_a_refused_report_leaves_no_trace_that_hides_the_true_one(
    monitor: RunningMonitor, root: Api, make: Make
) -> None:
    sent = body(rank_report("team-b-2", 0, 1, iteration=9))
    with Api(monitor.url, make("thief", "ingest", OWN)) as thief:
        assert thief.export(sent).status_code == 403
    assert root.export(sent).status_code == 200
    assert [rank["iteration"] for rank in root.ranks("team-b-2")] == [9]


def test_a_bound_token_sends_spans_of_its_own_job_alone(monitor: RunningMonitor, make: Make) -> None:
    def spans(job: str) -> bytes:
        resource = rank_report(job, 0, 1, iteration=1).resource
        return ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=resource)]).SerializeToString()

    with Api(monitor.url, make("spans-a", "ingest", OWN)) as sender:
        assert sender.export(spans(OWN), "/v1/traces").status_code == 200
        assert sender.export(spans(OTHER), "/v1/traces").status_code == 403


def test_a_bound_control_token_makes_no_tokens(monitor: RunningMonitor, make: Make, root: Api) -> None:
    with Api(monitor.url, make("ambitious", "control", "*")) as api:
        wanted = {"name": "more", "scope": "control"}
        assert api.post("/api/v1/tokens", json=wanted).status_code == 403
        assert api.get("/api/v1/audit").status_code == 403
    assert "more" not in [each["name"] for each in root.read("/tokens")["tokens"]]


def test_a_token_is_revoked_at_once_also_for_what_is_under_way(monitor: RunningMonitor, make: Make, root: Api) -> None:
    secret = make("short", "read")
    with Api(monitor.url, secret) as api, api.stream("GET", f"/api/v1/jobs/{OWN}/events", timeout=60) as stream:
        assert stream.status_code == 200
        received = stream.iter_lines()
        assert next(received)
        assert root.delete("/api/v1/tokens/short").status_code == 200
        with Api(monitor.url, secret) as again:
            assert again.get("/api/v1/jobs").status_code == 401
        for _ in received:  # ends, else the test times out
            pass


@pytest.mark.parametrize(
    "query", ["after=0&node=n&wait=30", "wait=30&after=0&node=n"], ids=["fast lane", "application"]
)
def test_a_revoked_token_gets_no_directive_that_it_already_waits_for(
    monitor: RunningMonitor, make: Make, root: Api, query: str
) -> None:
    secret, job = make("waits", "ingest"), f"waits-{query[0]}"
    node = {"node": "n", "host": "h", "launcher_pid": 1, "local_world_size": 1}
    assert root.post(f"/api/v1/jobs/{job}/nodes", json=node).status_code == 200
    answers: list[int] = []

    def wait() -> None:
        with Api(monitor.url, secret) as api:
            answers.append(api.get(f"/api/v1/jobs/{job}/directives?{query}").status_code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(1.0)  # it has begun to wait, else it is refused at once
    assert root.delete("/api/v1/tokens/waits").status_code == 200
    assert root.post(f"/api/v1/jobs/{job}/actions", json={"action": "capture"}).status_code == 202
    waiting.join(60)
    assert answers == [401]


def test_a_revoked_token_gets_no_log_that_it_already_waits_for(monitor: RunningMonitor, make: Make, root: Api) -> None:
    secret, job = make("reads", "read"), "reads-logs"
    launcher = PlayedLauncher(root, job, "n", (0,))
    launcher.register()
    launcher.start(1)
    answers: list[int] = []

    def read() -> None:
        with Api(monitor.url, secret) as api:
            answers.append(api.get(f"/api/v1/jobs/{job}/logs").status_code)

    reading = threading.Thread(target=read)
    reading.start()
    found = root.read(f"/jobs/{job}/directives?after=0&node=n&wait=30")["log_requests"]
    assert root.delete("/api/v1/tokens/reads").status_code == 200
    part = {"rank": 0, "stream": "output", "path": "/p", "lines": ["a line"], "end": 10, "size": 10}
    launcher.post("logs", {"node": "n", "request": found[0]["id"], "parts": [part]})
    reading.join(60)
    assert answers == [401]


def test_a_session_ends_with_its_token(monitor: RunningMonitor, make: Make, root: Api) -> None:
    secret = make("browser", "read", OWN)
    with Api(monitor.url) as page:
        assert page.post("/api/v1/session", json={"token": secret}).status_code == 200
        assert [job["id"] for job in page.jobs()] == [OWN]
        assert page.get(f"/api/v1/jobs/{OTHER}").status_code == 403
        assert root.delete("/api/v1/tokens/browser").status_code == 200
        assert page.get("/api/v1/jobs").status_code == 401


def test_a_control_token_may_revoke_itself(monitor: RunningMonitor, make: Make, root: Api) -> None:
    with Api(monitor.url, make("last-words", "control")) as api:
        assert api.delete("/api/v1/tokens/last-words").status_code == 200
        assert api.get("/api/v1/tokens").status_code == 401
    assert root.read("/audit?limit=1")["entries"][0]["by"] == "last-words"


def test_a_token_is_shown_once_and_never_logged(monitor: RunningMonitor, make: Make, root: Api) -> None:
    secret = make("silent", "ingest", OWN)
    [shown] = [each for each in root.read("/tokens")["tokens"] if each["name"] == "silent"]
    assert shown.keys() == {"name", "scope", "jobs", "created_at", "created_by"}
    assert (shown["scope"], shown["jobs"], shown["created_by"]) == ("ingest", [OWN], "control")
    everything = json.dumps(root.read("/tokens")) + json.dumps(root.read("/audit?limit=10000")) + monitor.printed()
    assert secret not in everything


def test_tokens_and_the_audit_log_survive_a_restart(tmp_path: Path) -> None:
    with running_monitor(tmp_path, "--token", "root") as first, Api(first.url, "root") as api:
        answers = [
            api.post("/api/v1/tokens", json={"name": name, "scope": "read"}).json()["token"] for name in ("a", "b")
        ]
        assert api.delete("/api/v1/tokens/b").status_code == 200
        api.read("/audit")  # a monitor that is killed at once may not have written the last entry yet
    with running_monitor(tmp_path, "--token", "root") as second:
        statuses = []
        for secret in answers:
            with Api(second.url, secret) as api:
                statuses.append(api.get("/api/v1/jobs").status_code)
        assert statuses == [200, 401]
        with Api(second.url, "root") as api:
            found = [(each["action"], each["subject"]) for each in api.read("/audit")["entries"]]
        assert found == [("token.revoke", "b"), ("token.create", "b"), ("token.create", "a")]


def test_a_monitor_without_tokens_makes_none(tmp_path: Path) -> None:
    with running_monitor(tmp_path) as open_monitor, Api(open_monitor.url) as api:
        answer = api.post("/api/v1/tokens", json={"name": "a", "scope": "read"})
        assert answer.status_code == 409
        assert "RANKWATCH_TOKEN" in answer.text


def test_every_order_and_policy_change_is_in_the_audit_log(monitor: RunningMonitor, make: Make, root: Api) -> None:
    job = "team-a-audited"
    launcher = PlayedLauncher(root, job)
    launcher.register()
    launcher.start(1)
    root.report(*reports_of_all(job, 4))
    with Api(monitor.url, make("ops", "control", "team-a-*")) as ops:
        ops.change_policy(job, max_restarts=7)
        assert ops.post(f"/api/v1/jobs/{job}/actions", json={"action": "capture", "reason": "look"}).status_code == 202
        assert ops.post(f"/api/v1/jobs/{job}/actions", json={"action": "no such"}).status_code == 422
    entries = [each for each in root.read("/audit")["entries"] if each["subject"] == job]
    assert [(each["action"], each["by"], each["address"], each["detail"]) for each in entries] == [
        ("order", "ops", "127.0.0.1", {"action": "capture", "reason": "look"}),
        ("policy", "ops", "127.0.0.1", {"max_restarts": 7}),
    ]
    assert all(abs(each["at"] - entries[0]["at"]) < 3600 for each in entries)


def test_the_commands(monitor: RunningMonitor, root: Api, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--monitor", monitor.url, "--token", "root"]
    assert token(["create", "from-cli", "--scope", "ingest", "--job", OWN, *own]) == 0
    printed = capsys.readouterr()
    secret = printed.out.strip()
    assert "shown once" in printed.err
    with Api(monitor.url, secret) as sender:
        sender.report(rank_report(OWN, 0, 2, iteration=4))
    assert token(["create", "from-cli", "--scope", "read", *own]) == 2
    assert "there is a token 'from-cli'" in capsys.readouterr().err
    assert token(["list", *own]) == 0
    listed = capsys.readouterr().out
    assert "from-cli" in listed
    assert secret not in listed
    assert token(["revoke", "from-cli", *own]) == 0
    capsys.readouterr()
    assert token(["revoke", "from-cli", *own]) == 2
    assert capsys.readouterr().err == (
        "rankwatch token: there is no token 'from-cli'; 'rankwatch token list' lists those there are\n"
    )
    assert audit([*own, "--limit", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[1].split()[3], lines[3].split()[3], len(lines)] == ["token.revoke", "token.create", 5]
    assert lines[4] == f'  scope ingest, jobs ["{OWN}"]'
    assert audit([*own, "--json", "--limit", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"][0]["by"] == "control"
    capsys.readouterr()
    assert token(["list", "--monitor", monitor.url, "--token", "guess"]) == 2
    assert audit(["--monitor", monitor.url]) == 2
    wrong, missing = capsys.readouterr().err.splitlines()
    assert wrong == "rankwatch token: the token is wrong: pass one that may control with --token or RANKWATCH_TOKEN"
    assert missing == (
        f"rankwatch audit: the monitor at {monitor.url} needs a token: pass one that may control with --token or "
        "RANKWATCH_TOKEN"
    )
