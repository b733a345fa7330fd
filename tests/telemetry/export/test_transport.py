from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from rankwatch.export.transport import Answer, Fate, Transport, judge
from rankwatch.settings import load
from telemetry.receiver import Answer as Reply
from telemetry.receiver import Receiver


@pytest.mark.parametrize(
    ("status", "fate"),
    [
        (200, Fate.DELIVERED),
        (202, Fate.DELIVERED),
        (302, Fate.REFUSED),
        (400, Fate.REFUSED),
        (401, Fate.REFUSED),
        (413, Fate.REFUSED),
        (429, Fate.LATER),
        (500, Fate.REFUSED),
        (502, Fate.LATER),
        (503, Fate.LATER),
        (504, Fate.LATER),
    ],
)
def test_the_fate_of_a_status(status: int, fate: Fate) -> None:
    assert judge(status, "Words", {}).fate is fate


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("2.5", 2.5, 2.5),
        ("-3", 0, 0),
        ("86400", 300, 300),
        ("nan", 0, 0),
        ("soon", 0, 0),
        pytest.param(format_datetime(datetime.now(UTC) + timedelta(days=1)), 300, 300, id="tomorrow"),
        pytest.param(format_datetime(datetime.now(UTC) - timedelta(days=1)), 0, 0, id="yesterday"),
    ],
)
def test_the_pause_asked_for(value: str, low: float, high: float) -> None:
    assert low <= judge(503, "", {"retry-after": value}).pause <= high


def test_words_help() -> None:
    assert "RANKWATCH_TOKEN" in judge(401, "Unauthorized", {}).words
    assert (
        judge(302, "Found", {"location": "http://login/"}).words == "it answers 302 Found; it points to http://login/"
    )


def transport(url: str, **variables: str) -> Transport:
    return Transport(url, load({"monitor": url, "token": "t"}, variables)[0])


@pytest.fixture
def to_receiver(receiver: Receiver) -> Iterator[Transport]:
    made = transport(receiver.url + "/v1/metrics")
    yield made
    made.close()


def test_a_body_goes_with_the_headers_it_needs(to_receiver: Transport, receiver: Receiver) -> None:
    assert to_receiver.post(b"").fate is Fate.DELIVERED
    assert receiver.requests[-1]["authorization"] == "Bearer t"
    assert receiver.requests[-1]["content-type"] == "application/x-protobuf"


def test_one_connection_is_enough(to_receiver: Transport, receiver: Receiver) -> None:
    for _ in range(5):
        assert to_receiver.post(b"").fate is Fate.DELIVERED
    assert receiver.connections == 1


def test_an_endless_answer_is_not_read_to_its_end(to_receiver: Transport, receiver: Receiver) -> None:
    receiver.answer = Reply(200, body=b"x" * 5_000_000)
    assert len(to_receiver.post(b"").body) < 100_000
    receiver.answer = Reply()
    assert to_receiver.post(b"").fate is Fate.DELIVERED


def test_what_is_no_http_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        answer = transport(f"http://127.0.0.1:{listener.getsockname()[1]}/").post(b"")
        thread.join(10)
    assert answer == Answer(Fate.LATER, "SSH-2.0-OpenSSH")


def test_tls_without_a_trusted_certificate_is_told(receiver: Receiver) -> None:
    answer = transport(receiver.url.replace("http:", "https:")).post(b"")
    assert answer.fate is Fate.LATER
    assert "SSL" in answer.words or "record layer" in answer.words.lower()


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_bodies_are_compressed_when_asked(receiver: Receiver, compression: str) -> None:
    made = transport(receiver.url + "/v1/metrics", OTEL_EXPORTER_OTLP_COMPRESSION=compression)
    made.post(ExportMetricsServiceRequest(resource_metrics=[ResourceMetrics()]).SerializeToString())
    made.close()
    assert receiver.requests[-1]["content-encoding"] == compression
    assert len(receiver.reports) == 1


def test_a_failure_is_one_request_and_an_answer(to_receiver: Transport, receiver: Receiver) -> None:
    receiver.answer = Reply(503, {"Retry-After": "7"})
    answer = to_receiver.post(b"")
    assert (answer.fate, answer.pause) == (Fate.LATER, 7.0)
    assert len(receiver.requests) == 1


def test_nobody_there_is_told_in_the_systems_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert transport(f"http://127.0.0.1:{port}/").post(b"") == Answer(Fate.LATER, "connection refused")


def test_no_answer_in_time_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        hasty = transport(url, OTEL_EXPORTER_OTLP_TIMEOUT="0.05")
        assert hasty.post(b"") == Answer(Fate.LATER, "no answer in time")
        hasty.close()


def test_a_certificate_file_that_is_missing_is_told(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    answer = transport("https://127.0.0.1:1/", OTEL_EXPORTER_OTLP_CERTIFICATE=missing).post(b"")
    assert answer.fate is Fate.LATER
    assert missing in answer.words


def test_a_connection_that_went_stale_is_replaced_at_once() -> None:
    """The server answers one request on the first connection and then closes it without saying so."""
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            first, _ = listener.accept()
            with first:
                first.recv(65536)
                first.sendall(reply)
                first.recv(65536)  # the next request; it is left without an answer
            second, _ = listener.accept()
            with second:
                second.recv(65536)
                second.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        made = transport(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        assert [made.post(b"").fate for _ in range(2)] == [Fate.DELIVERED] * 2
        made.close()
        thread.join(10)
        assert not thread.is_alive()
