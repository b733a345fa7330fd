"""Pages of other sites: under a name of their own that resolves to the monitor, and by requests of a user's browser."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from rankwatch_monitor.http.origins import Origins
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import PROTOBUF, body, rank_report

EVIL = "evil.example:80"
NODE = {"node": "n", "host": "h", "launcher_pid": 1, "local_world_size": 1}
REPORT = body(rank_report("smuggled", 0, 1, iteration=1))
TOKEN = "control-secret"


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    flags = ("--allowed-host", "gpu-box.lan", "--external-url", "https://watch.example/")
    with running_monitor(tmp_path_factory.mktemp("open"), *flags) as monitor, Api(monitor.url) as api:
        assert api.post("/api/v1/jobs/j/nodes", json=NODE).status_code == 200
        yield monitor


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(tmp_path_factory.mktemp("guarded"), "--token", TOKEN) as monitor:
        with Api(monitor.url, TOKEN) as api:
            assert api.post("/api/v1/jobs/j/nodes", json=NODE).status_code == 200
        yield monitor


CALLS = {
    "page": ("GET", "/", b"", {}),
    "jobs": ("GET", "/api/v1/jobs", b"", {}),
    "metrics": ("GET", "/metrics", b"", {}),
    "description": ("GET", "/openapi.json", b"", {}),
    "order": ("POST", "/api/v1/jobs/j/actions", b'{"action": "capture"}', {"content-type": "application/json"}),
    "policy": ("PATCH", "/api/v1/jobs/j/policy", b'{"max_restarts": 77}', {"content-type": "application/json"}),
    "directives, fast": ("GET", "/api/v1/jobs/j/directives?after=0&node=n&wait=0", b"", {}),
    "events, fast": (
        "POST", "/api/v1/jobs/j/process-events", b'{"events": []}', {"content-type": "application/json"},
    ),
    "telemetry, fast": ("POST", "/v1/metrics", REPORT, PROTOBUF),
    "telemetry": ("POST", "/v1/metrics", REPORT, {**PROTOBUF, "x-odd": "1", "te": "trailers"}),
    "nothing": ("GET", "/api/v1/jobs/", b"", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_name_that_is_not_the_monitors_opens_nothing(unguarded: RunningMonitor, name: str) -> None:
    method, path, content, headers = CALLS[name]
    with Api(unguarded.url) as api:
        before = api.job("j")["policy"], len(api.incidents("j"))
        answer = api.request(method, path, content=content, headers={**headers, "host": EVIL})
        assert answer.status_code == 421, answer.text
        assert "location" not in answer.headers
        assert (api.job("j")["policy"], len(api.incidents("j"))) == before
        assert [job["id"] for job in api.jobs()] == ["j"]


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_may_use_any_name(unguarded: RunningMonitor, path: str) -> None:
    with Api(unguarded.url) as api:
        assert api.get(path, headers={"host": EVIL}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9560", "x.localhost", "127.0.0.1:1", "10.1.2.3:9560", "[::1]:9560", "gpu-box.lan:9560",
     "gpu-box.lan.", "watch.example"],
)  # fmt: skip
def test_own_names_and_addresses_open_the_monitor(unguarded: RunningMonitor, host: str) -> None:
    with Api(unguarded.url) as api:
        assert api.get("/api/v1/jobs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [EVIL, "localhost.evil.example", "127.0.0.1.evil.example", "evilgpu-box.lan", "[", "u@evil.example", "a b"],
)
def test_no_other_name_is_taken_for_an_own_one(host: str) -> None:
    assert Origins(["gpu-box.lan"]).denied("GET", {"host": host}, guarded=False) is not None


def test_the_names_that_are_remembered_are_bounded() -> None:
    origins = Origins()
    for port in range(2_000):
        assert origins.denied("GET", {"host": f"localhost:{port}"}, guarded=False) is None
    assert len(origins._allowed) <= 256


FOREIGN = ["http://evil.example", "null", "https://127.0.0.1.evil.example", "http://127.0.0.1:1", "file://"]


@pytest.mark.parametrize("name", ["order", "policy", "events, fast", "telemetry, fast", "telemetry"])
@pytest.mark.parametrize("origin", FOREIGN)
def test_a_page_of_another_site_changes_nothing(unguarded: RunningMonitor, name: str, origin: str) -> None:
    method, path, content, headers = CALLS[name]
    with Api(unguarded.url) as api:
        before = api.job("j")["policy"], len(api.incidents("j"))
        answer = api.request(method, path, content=content, headers={**headers, "origin": origin})
        assert answer.status_code == 403, answer.text
        assert (api.job("j")["policy"], len(api.incidents("j"))) == before
        assert [job["id"] for job in api.jobs()] == ["j"]


def test_the_monitors_own_page_may_change_something(unguarded: RunningMonitor) -> None:
    method, path, content, headers = CALLS["events, fast"]
    with Api(unguarded.url) as api:
        for origin in (unguarded.url, unguarded.url.upper(), "https://watch.example"):
            answer = api.request(method, path, content=content, headers={**headers, "origin": origin})
            assert answer.status_code == 204, answer.text


def test_a_cookie_changes_something_only_from_the_monitors_own_page(guarded: RunningMonitor) -> None:
    with Api(guarded.url) as api:
        assert api.post("/api/v1/session", json={"token": TOKEN}).status_code == 200
        path = "/api/v1/jobs/j/policy"
        for headers in ({}, *({"origin": origin} for origin in FOREIGN)):
            assert api.patch(path, json={"max_restarts": 77}, headers=headers).status_code == 403, headers
        assert api.job("j")["policy"]["max_restarts"] != 77
        assert api.patch(path, json={"max_restarts": 9}, headers={"origin": guarded.url}).status_code == 200
        assert api.job("j")["policy"]["max_restarts"] == 9


def test_a_token_is_enough_under_any_name(guarded: RunningMonitor) -> None:
    service = {"host": "rankwatch.training.svc"}
    with Api(guarded.url, TOKEN) as api:
        assert api.get("/api/v1/jobs", headers=service).status_code == 200
        assert api.post("/v1/metrics", content=b"", headers=PROTOBUF | service).status_code == 200
        assert api.get("/", headers=service).status_code == 200
    with Api(guarded.url) as api:
        assert api.get("/api/v1/jobs", headers=service).status_code == 401


def test_no_answer_leads_to_the_name_of_the_request(guarded: RunningMonitor) -> None:
    for path in ("/api/v1/jobs/", "/metrics/", "/docs/", "//evil.example/x", "/assets/"):
        connection = HTTPConnection(str(urlsplit(guarded.url).netloc), timeout=60)
        try:
            connection.putrequest("GET", path, skip_host=True)
            connection.putheader("Host", EVIL)
            connection.putheader("Authorization", f"Bearer {TOKEN}")
            connection.endheaders()
            answer = connection.getresponse()
            assert answer.status == 404, path
            assert answer.getheader("location") is None
        finally:
            connection.close()
