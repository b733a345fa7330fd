"""OTLP over gRPC at the port for HTTP: the exporter gets a status that it can show, and the log has the remedy.

``tests/frameworks/test_otel_js.py`` has a real gRPC exporter.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from rankwatch_monitor.http.grpc_refusal import MESSAGE, MOST_BYTES, PREFACE, GrpcRefusal
from support.monitor_process import Api, RunningMonitor
from support.waiting import wait_for

HEADERS, SETTINGS, GOAWAY = 1, 4, 7
SETTINGS_OF_CLIENT = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + b"\x00\x03\x00\x00\x00\x64"
REQUEST = b"\x00\x00\x03\x01\x04\x00\x00\x00\x01" + b"\x83\x86\x84"
"""POST http /, on stream 1."""


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame."""
    found = []
    while data:
        size = int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        assert len(found[-1][3]) == size, "a frame is incomplete"
        data = data[9 + size :]
    return found


def test_a_grpc_client_gets_a_status_and_the_log_the_remedy(monitor: RunningMonitor, api: Api) -> None:
    address = urlsplit(monitor.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as client:
        client.sendall(PREFACE + SETTINGS_OF_CLIENT)
        answer = client.recv(65_536)
        client.sendall(REQUEST)
        while more := client.recv(65_536):
            answer += more
    kinds = [(kind, flags, stream) for kind, flags, stream, _ in frames(answer)]
    assert kinds == [(SETTINGS, 0, 0), (SETTINGS, 1, 0), (HEADERS, 5, 1), (GOAWAY, 0, 0)]
    trailers = frames(answer)[2][3]
    assert b"\x0bgrpc-status\x0212" in trailers
    assert MESSAGE.encode() in trailers
    wait_for(lambda: "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in monitor.log.read_text(), "the log has the remedy")
    assert api.get("/livez").status_code == 200


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_answer_is_the_same_in_whatever_pieces_the_request_comes(size: int) -> None:
    refusal, sent, answer = GrpcRefusal(), PREFACE + SETTINGS_OF_CLIENT + REQUEST, b""
    for start in range(0, len(sent), size):
        answer += refusal.receive(sent[start : start + size])
    assert refusal.done
    assert [kind for kind, *_ in frames(answer)] == [SETTINGS, SETTINGS, HEADERS, GOAWAY]


def test_what_is_no_preface_gets_nothing() -> None:
    refusal = GrpcRefusal()
    assert frames(refusal.receive(PREFACE[:-1] + b"x")) == [(SETTINGS, 0, 0, b"")]
    assert refusal.done


def test_a_client_that_never_sends_a_request_is_closed() -> None:
    refusal = GrpcRefusal()
    refusal.receive(PREFACE)
    ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)
    refusal.receive(ping * (MOST_BYTES // len(ping)))
    assert refusal.done


def test_the_message_fits_its_encoding() -> None:
    assert MESSAGE.isascii()
    assert MESSAGE.isprintable()
    assert "%" not in MESSAGE
    assert len(MESSAGE) < 127
