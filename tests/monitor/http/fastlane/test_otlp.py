"""The OTLP fast lane: which requests take it, and that responses equal those of the application."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_monitor.errors import HeldElsewhereError
from rankwatch_monitor.http.fastlane import otlp
from rankwatch_monitor.http.fastlane.otlp import CONTENT_TYPE, REQUEST_LINE
from rankwatch_monitor.http.fastlane.requests import LONGEST_HEAD, parse_post
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.routes import OtlpEndpoints, Senders
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import body, rank_report

USUAL = (("Host", "localhost:1"), ("Content-Type", "application/x-protobuf"), ("Content-Length", "12"))


def head(*fields: tuple[str, str], begins: bytes = REQUEST_LINE) -> bytes:
    return begins + b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in fields)


def parse(head: bytes) -> dict[str, str] | None:
    return parse_post(head, REQUEST_LINE, CONTENT_TYPE)


def test_requests_of_ranks_and_collectors_take_the_fast_lane() -> None:
    more = (
        ("Authorization", "Bearer t"),
        ("Content-Encoding", "gzip"),
        ("Connection", "Keep-Alive"),
        ("Rankwatch-Job", "j"),
    )
    headers = parse(head(*USUAL, *more))
    assert headers is not None
    assert headers["authorization"] == "Bearer t"
    assert headers["content-length"] == "12"


def test_a_head_is_parsed_once_and_its_headers_cannot_be_changed() -> None:
    sent = head(*USUAL, ("Authorization", "Bearer t"))
    otlp._headers.cache_clear()
    found = otlp._headers(sent)
    assert found == parse(sent)
    with pytest.raises(TypeError):
        found["authorization"] = "Bearer u"  # type: ignore[index]
    assert otlp._headers(sent) is found
    assert otlp._headers(sent.replace(b"Bearer t", b"Bearer v")) != found
    for number in range(2 * otlp.HEADS):
        otlp._headers(head(*USUAL, ("X-Number", str(number))))
    assert otlp._headers.cache_info().currsize == otlp.HEADS


@pytest.mark.parametrize(
    "fields",
    [
        USUAL[1:],
        USUAL[:2],
        (*USUAL, ("content-length", "12")),
        (*USUAL, ("Transfer-Encoding", "chunked")),
        (*USUAL, ("Expect", "100-continue")),
        (*USUAL, ("Connection", "close")),
        (*USUAL, ("Upgrade", "websocket")),
        (*USUAL, ("X-Empty", "")),
        (*USUAL, ("X Space", "1")),
        (*USUAL, ("X-Bytes", "\xff")),
        (*USUAL, ("X-Control", "a\x00b")),
        (*USUAL, ("X-Folded", "a\r\n b")),
        (*USUAL, ("X-Bare", "a\nContent-Length: 3")),
        (USUAL[0], USUAL[1], ("Content-Length", "-1")),
        (USUAL[0], USUAL[1], ("Content-Length", "1,2")),
        (USUAL[0], USUAL[1], ("Content-Length", "٣")),
        (USUAL[0], USUAL[1], ("Content-Length", "9" * 20)),
        (USUAL[0], ("Content-Type", "application/json"), USUAL[2]),
        (USUAL[0], ("Content-Type", "application/x-protobuf; charset=x"), USUAL[2]),
    ],
)
def test_an_unusual_head_falls_back(fields: tuple[tuple[str, str], ...]) -> None:
    try:
        made = head(*fields)
    except UnicodeEncodeError:
        made = REQUEST_LINE + "".join(f"{name}: {value}\r\n" for name, value in fields).encode()
    assert parse(made) is None


@pytest.mark.parametrize(
    "line", ["POST /v1/metrics?x HTTP/1.1", "POST /v1/metrics HTTP/1.0", "GET /v1/metrics HTTP/1.1"]
)
def test_another_request_line_falls_back(line: str) -> None:
    assert parse(head(*USUAL, begins=f"{line}\r\n".encode())) is None


@given(st.binary(max_size=200))
def test_no_input_makes_the_parser_raise(noise: bytes) -> None:
    parse(REQUEST_LINE + noise)
    found = parse(head(*USUAL) + noise + b"\r\n")
    assert found is None or found["content-length"] == "12"


@pytest.mark.parametrize("status", [429, 503])
def test_a_job_that_the_monitor_does_not_own_is_refused_on_the_fast_lane(status: int) -> None:
    """Thousands of ranks report at once on jobs that are acquired, and a proxy tries other monitors for moved ones."""

    def admit(_: Mapping[str, str]) -> None:
        raise Refusal(status, HeldElsewhereError.counted_as, "it is another monitor's", retry_after=1)

    endpoints = OtlpEndpoints(lambda _: pytest.fail("it is not ours"), senders=Senders(admit=admit))
    lane = otlp.OtlpFastLane(endpoints)

    async def refused() -> bytes:
        begun = lane.begin(head(*USUAL, ("Rankwatch-Job", "j")) + b"\r\n" + 12 * b"x", ("192.0.2.1", 5))
        assert begun is not None
        request, rest = begun
        assert lane.add(request, rest) == b""
        response = lane.respond(request, lambda _: None)
        request.release()
        return response

    response = asyncio.run(refused())
    assert response.startswith(b"HTTP/1.1 %d " % status)
    assert b"retry-after: 1\r\n" in response
    assert endpoints.counters.rejected == {"held_elsewhere": 1}
    assert endpoints.admission.held == 0


# Over real connections ----------------------------------------------------------------------------------------------

TOKEN = "letmein"


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMonitor]:
    with running_monitor(tmp_path_factory.mktemp("express"), "--token", TOKEN) as running:
        yield running


@contextmanager
def connected(monitor: RunningMonitor) -> Iterator[socket.socket]:
    where = urlsplit(monitor.url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        yield connection


def request(content: bytes, *more: tuple[str, str], token: str = TOKEN) -> bytes:
    fields = (*USUAL[:2], ("Content-Length", str(len(content))), ("Authorization", f"Bearer {token}"), *more)
    return head(*fields) + b"\r\n" + content


def reports(job: str, rank: int = 0) -> bytes:
    return body(rank_report(job, rank, 2, iteration=7, beats=1, heartbeat_age=0.1))


def answers(connection: socket.socket, number: int) -> list[tuple[int, bytes]]:
    """So many answers: status and body."""
    stream, found = connection.makefile("rb"), []
    for _ in range(number):
        status = int(stream.readline().split()[1])
        length = 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        found.append((status, stream.read(length)))
    return found


def test_requests_in_any_pieces_and_one_behind_the_other(monitor: RunningMonitor) -> None:
    whole = request(reports("pieces", 0)) + request(gzip.compress(reports("pieces", 1)), ("Content-Encoding", "gzip"))
    with connected(monitor) as connection, Api(monitor.url, TOKEN) as api:
        before = api.metrics()[("rankwatch_ingest_reports_total", ())]
        connection.sendall(whole)
        assert answers(connection, 2) == [(200, b"")] * 2
        for at in range(0, len(whole), 61):
            connection.sendall(whole[at : at + 61])
        assert answers(connection, 2) == [(200, b"")] * 2
        assert api.metrics()[("rankwatch_ingest_reports_total", ())] == before + 4
        assert {rank["rank"]: rank["iteration"] for rank in api.ranks("pieces")} == {0: 7, 1: 7}


def test_both_ways_take_turns_on_one_connection(monitor: RunningMonitor) -> None:
    get = f"GET /livez HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    with connected(monitor) as connection:
        for _ in range(3):
            connection.sendall(request(reports("turns")))
            assert answers(connection, 1) == [(200, b"")]
            connection.sendall(get)
            assert answers(connection, 1)[0][0] == 200
        connection.sendall(get + request(reports("turns")) + get)  # what comes behind an ordinary one goes its way
        assert [status for status, _ in answers(connection, 3)] == [200, 200, 200]


@pytest.mark.parametrize(
    ("content", "more", "token", "status"),
    [
        (b"\xff\xff", (), TOKEN, 400),
        (b"no gzip", (("Content-Encoding", "gzip"),), TOKEN, 400),
        (b"", (("Content-Encoding", "br"),), TOKEN, 415),
        (b"", (), "wrong", 401),
        (b"", (("X-Long", "x" * LONGEST_HEAD),), TOKEN, 200),
    ],
)
def test_it_refuses_as_the_ordinary_way_does(
    monitor: RunningMonitor, content: bytes, more: tuple[tuple[str, str], ...], token: str, status: int
) -> None:
    with connected(monitor) as connection:
        connection.sendall(request(content, *more, token=token))
        short = answers(connection, 1)
    with connected(monitor) as connection:
        connection.sendall(request(content, *more, ("Connection", "close"), token=token))  # the ordinary way
        ordinary = answers(connection, 1)
    assert short == ordinary
    assert short[0][0] == status


def test_a_sender_that_goes_away_in_the_middle_holds_nothing(monitor: RunningMonitor) -> None:
    for _ in range(50):
        with connected(monitor) as connection:
            connection.sendall(request(b"x" * 100_000)[:50_000])
    with Api(monitor.url, TOKEN) as api:
        assert api.get("/readyz").status_code == 200
    with connected(monitor) as connection:
        connection.sendall(request(reports("after")))
        assert answers(connection, 1) == [(200, b"")]
