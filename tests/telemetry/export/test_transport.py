"""OTLP requests to one receiver."""

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

from rankwatch.export.transport import OtlpClient, SendResult, SendStatus, interpret
from rankwatch.settings import load
from telemetry.receiver import Answer as Reply
from telemetry.receiver import Receiver


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (200, SendStatus.DELIVERED),
        (202, SendStatus.DELIVERED),
        (302, SendStatus.REJECTED),
        (400, SendStatus.REJECTED),
        (401, SendStatus.REJECTED),
        (413, SendStatus.REJECTED),
        (429, SendStatus.RETRY_LATER),
        (500, SendStatus.REJECTED),
        (502, SendStatus.RETRY_LATER),
        (503, SendStatus.RETRY_LATER),
        (504, SendStatus.RETRY_LATER),
    ],
)
def test_the_status_of_a_response_code(code: int, status: SendStatus) -> None:
    assert interpret(code, "Words", {}).status is status


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("2", 2, 2),
        ("-3", 0, 0),
        ("86400", 300, 300),
        ("nan", 0, 0),
        ("soon", 0, 0),
        pytest.param(format_datetime(datetime.now(UTC) + timedelta(days=1)), 300, 300, id="tomorrow"),
        pytest.param(format_datetime(datetime.now(UTC) - timedelta(days=1)), 0, 0, id="yesterday"),
    ],
)
def test_retry_after_in_seconds_or_as_a_date(value: str, low: float, high: float) -> None:
    assert low <= interpret(503, "", {"retry-after": value}).retry_after <= high


def test_the_reason_names_the_remedy() -> None:
    assert "RANKWATCH_TOKEN" in interpret(401, "Unauthorized", {}).reason
    assert (
        interpret(302, "Found", {"location": "http://login/"}).reason == "HTTP 302 Found; redirected to http://login/"
    )


def client(url: str, **variables: str) -> OtlpClient:
    return OtlpClient(url, load({"monitor": url, "token": "t"}, variables)[0])


@pytest.fixture
def to_receiver(receiver: Receiver) -> Iterator[OtlpClient]:
    made = client(receiver.url + "/v1/metrics")
    yield made
    made.close()


def test_token_and_content_type_are_sent(to_receiver: OtlpClient, receiver: Receiver) -> None:
    assert to_receiver.post(b"").status is SendStatus.DELIVERED
    assert receiver.requests[-1]["authorization"] == "Bearer t"
    assert receiver.requests[-1]["content-type"] == "application/x-protobuf"


def test_the_connection_is_reused(to_receiver: OtlpClient, receiver: Receiver) -> None:
    for _ in range(5):
        assert to_receiver.post(b"").status is SendStatus.DELIVERED
    assert receiver.connections == 1


def test_a_long_response_is_not_read_to_its_end(to_receiver: OtlpClient, receiver: Receiver) -> None:
    receiver.answer = Reply(200, body=b"x" * 5_000_000)
    assert len(to_receiver.post(b"").body) < 100_000
    receiver.answer = Reply()
    assert to_receiver.post(b"").status is SendStatus.DELIVERED


def test_a_response_that_is_not_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        answer = client(f"http://127.0.0.1:{listener.getsockname()[1]}/").post(b"")
        thread.join(60)
    assert answer == SendResult(SendStatus.RETRY_LATER, "SSH-2.0-OpenSSH")


def test_tls_without_a_trusted_certificate(receiver: Receiver) -> None:
    answer = client(receiver.url.replace("http:", "https:")).post(b"")
    assert answer.status is SendStatus.RETRY_LATER
    assert "SSL" in answer.reason or "record layer" in answer.reason.lower()


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_bodies_are_compressed_when_asked(receiver: Receiver, compression: str) -> None:
    made = client(receiver.url + "/v1/metrics", OTEL_EXPORTER_OTLP_COMPRESSION=compression)
    made.post(ExportMetricsServiceRequest(resource_metrics=[ResourceMetrics()]).SerializeToString())
    made.close()
    assert receiver.requests[-1]["content-encoding"] == compression
    assert len(receiver.reports) == 1


def test_a_failure_is_not_retried_at_once(to_receiver: OtlpClient, receiver: Receiver) -> None:
    receiver.answer = Reply(503, {"Retry-After": "7"})
    answer = to_receiver.post(b"")
    assert (answer.status, answer.retry_after) == (SendStatus.RETRY_LATER, 7.0)
    assert len(receiver.requests) == 1


def test_a_refused_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert client(f"http://127.0.0.1:{port}/").post(b"") == SendResult(SendStatus.RETRY_LATER, "connection refused")


def test_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        hasty = client(url, OTEL_EXPORTER_OTLP_TIMEOUT="0.05")
        assert hasty.post(b"") == SendResult(SendStatus.RETRY_LATER, "timed out")
        hasty.close()


def test_a_missing_certificate_file_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    answer = client("https://127.0.0.1:1/", OTEL_EXPORTER_OTLP_CERTIFICATE=missing).post(b"")
    assert answer.status is SendStatus.RETRY_LATER
    assert missing in answer.reason


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
        made = client(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        assert [made.post(b"").status for _ in range(2)] == [SendStatus.DELIVERED] * 2
        made.close()
        thread.join(60)
        assert not thread.is_alive()


def test_the_own_monitor_may_take_its_time_to_start(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        for variables, levels in (({"RANKWATCH_SLOTS_DIR": "/nowhere"}, []), ({}, ["WARNING"])):
            caplog.clear()
            made = client(url, **variables)
            assert [made.send(b"").status for _ in range(2)] == [SendStatus.RETRY_LATER] * 2
            assert [record.levelname for record in caplog.records] == levels
            made.close()


def test_a_token_that_is_wrong_is_left_to_the_launcher_to_log(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = Reply(401)
    for variables, levels in (({"RANKWATCH_SLOTS_DIR": "/nowhere"}, []), ({}, ["WARNING"])):
        caplog.clear()
        made = client(receiver.url, **variables)
        assert made.send(b"").status is SendStatus.REJECTED
        assert [record.levelname for record in caplog.records] == levels
        made.close()
