"""Requests whose end two parsers may see at different places: no request that is hidden in a body is answered."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import pytest

from support.monitor_process import Api, RunningMonitor, running_monitor

TOKEN: Final = "control-secret"
HEAD: Final = (
    "POST /v1/metrics HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/x-protobuf\r\n"
    f"authorization: Bearer {TOKEN}\r\n"
)
HIDDEN: Final = f"GET /api/v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
CHUNKED: Final = "transfer-encoding: chunked\r\n"
POLL: Final = (
    "GET /api/v1/jobs/j/directives?after=0&node=n&wait=0 HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    f"authorization: Bearer {TOKEN}\r\n"
)


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(tmp_path_factory.mktemp("framing"), "--token", TOKEN) as running:
        yield running


def answered(monitor: RunningMonitor, request: str) -> list[int]:
    """The status of each response, up to that of a last request or the end of the connection."""
    place = urlsplit(monitor.url)
    last = "GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    with socket.create_connection((place.hostname, place.port), timeout=60) as line:
        line.sendall((request + last).encode())
        received = b""
        try:
            while part := line.recv(65_536):
                received += part
        except ConnectionResetError:  # closed with bytes of the request unread
            pass
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


LENGTH: Final = f"content-length: {len(HIDDEN)}\r\n"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (HEAD + f"content-length: 4\r\n{CHUNKED}\r\n0\r\n\r\n" + HIDDEN, [400]),
        (HEAD + f"{CHUNKED}content-length: {5 + len(HIDDEN)}\r\n\r\n0\r\n\r\n" + HIDDEN, [400]),
        (HEAD + f"content-length: 0\r\n{LENGTH}\r\n" + HIDDEN, [400]),
        (HEAD + f"content-length: 0, {len(HIDDEN)}\r\n\r\n" + HIDDEN, [400]),
        (HEAD + f"content-length: +{len(HIDDEN)}\r\n\r\n" + HIDDEN, [400]),
        (HEAD + "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN, [400]),
        (HEAD + "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + HIDDEN, [400]),
        (HEAD + f"{CHUNKED}transfer-encoding: identity\r\n\r\n0\r\n\r\n" + HIDDEN, [400]),
        (HEAD + "transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN, [400]),
        (HEAD + f"x: a\rcontent-length: 0\r\n{LENGTH}\r\n" + HIDDEN, [400]),
        (HEAD + f"{LENGTH}\r\n" + HIDDEN, [400, 200]),
        (POLL + f"{LENGTH}\r\n" + HIDDEN, [404, 200]),
        (POLL + f"{CHUNKED}\r\n{len(HIDDEN):x}\r\n{HIDDEN}\r\n0\r\n\r\n", [404, 200]),
    ],
)
def test_no_request_hidden_in_the_body_of_another_is_answered(
    monitor: RunningMonitor, request_: str, expected: list[int]
) -> None:
    assert answered(monitor, request_) == expected


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/metrics", "/api/v1/events"])
def test_a_query_of_many_fields_without_a_token_is_refused_and_logs_no_traceback(
    monitor: RunningMonitor, path: str
) -> None:
    many = "&".join(["a=1"] * 200)
    assert answered(monitor, f"GET {path}?{many} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n") == [401, 200]
    assert "Traceback" not in monitor.printed()


@pytest.mark.parametrize(
    "path", ["/", "/api/v1/jobs", "/api/v1/nothing", "/metrics", "/livez", "/openapi.json", "/nothing", "/v1/traces"]
)
@pytest.mark.parametrize("token", [TOKEN, "wrong"])
def test_no_browser_guesses_the_type_of_an_answer(monitor: RunningMonitor, path: str, token: str) -> None:
    """Names of jobs and what ranks printed are in it."""
    with Api(monitor.url, token) as api:
        assert api.get(path).headers.get_list("x-content-type-options") == ["nosniff"]
