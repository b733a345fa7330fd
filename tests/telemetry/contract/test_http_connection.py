"""One kept-open HTTP connection: what it does with closed peers, proxies of the environment, and long responses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from rankwatch.contract.http_connection import MOST_ASKED, HttpConnection, reason_of, retry_after
from support.dripping import BEGUN, dripping
from support.http_receiver import Answers, HttpReceiver, http_receiver
from support.waiting import wait_for


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpReceiver]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with http_receiver() as made:
        yield made


def test_a_connection_is_kept_and_one_that_the_peer_closed_is_replaced(receiver: HttpReceiver) -> None:
    connection = HttpConnection(receiver.url)
    for _ in range(2):
        assert connection.request("POST", "/x?y=1", b"{}", timeout=10).status == 200
    assert len(receiver._connections) == 1
    receiver.away()
    wait_for(lambda: not receiver._connections, "the peer has closed the connection")
    receiver.back()
    assert connection.request("POST", "/x", b"{}", timeout=10).status == 200
    connection.close()
    assert [each.path for each in receiver.posted] == ["/x?y=1", "/x?y=1", "/x"]


def test_no_more_than_the_limit_is_read_of_a_response(receiver: HttpReceiver) -> None:
    receiver.answers = Answers(body=b"x" * 1_000_000)
    connection = HttpConnection(receiver.url)
    assert connection.request("POST", "/", b"", timeout=10, limit=1000).body == b"x" * 1000
    assert not connection.is_open, "the rest is not read"
    receiver.answers = Answers(body=b"ok")
    assert connection.request("POST", "/", b"", timeout=10).body == b"ok"


@pytest.mark.parametrize("begun", BEGUN)
def test_a_response_that_is_sent_by_the_byte_is_not_waited_for(begun: bytes) -> None:
    with dripping(begun) as (url, answered):
        connection = HttpConnection(url, proxies=False)
        with pytest.raises(TimeoutError):
            connection.request("GET", "/", timeout=0.3, limit=1000)
        assert not connection.is_open
        assert not answered


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_a_proxy_of_the_environment_gets_whole_addresses(
    receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, f"me:p%40ss@127.0.0.1:{receiver.port}")
    assert HttpConnection("http://far.invalid:81").request("POST", "/x", b"", timeout=10).status == 200
    (posted,) = receiver.posted
    assert (posted.path, posted.headers["host"]) == ("http://far.invalid:81/x", "far.invalid:81")
    assert posted.headers["proxy-authorization"] == "Basic bWU6cEBzcw=="
    monkeypatch.setenv("no_proxy", "far.invalid")
    assert not HttpConnection("http://far.invalid:81").proxied
    assert not HttpConnection("http://other.invalid", proxies=False).proxied


def once(answer: bytes, received: list[bytes]) -> Callable[[socket.socket], None]:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            received.append(connection.recv(65536))
            connection.sendall(answer)

    return serve


@pytest.mark.parametrize(
    ("url", "answer", "first_line", "words"),
    [
        ("https://far.invalid", b"HTTP/1.1 407 No\r\n\r\n", b"CONNECT far.invalid:443 HTTP/1.", "407"),
        ("http://far.invalid", b"SSH-2.0\r\n", b"GET http://far.invalid/ HTTP/1.1", "SSH-2.0"),
    ],
)
def test_what_a_proxy_refuses_or_garbles_is_an_os_error(
    monkeypatch: pytest.MonkeyPatch, receiver: HttpReceiver, url: str, answer: bytes, first_line: bytes, words: str
) -> None:
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=once(answer, received), args=(listener,))
        thread.start()
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://me:pw@127.0.0.1:{listener.getsockname()[1]}")
        connection = HttpConnection(url)
        with pytest.raises(OSError, match=words):
            connection.request("GET", "/", timeout=10)
        thread.join(10)
    assert received[0].startswith(first_line)
    assert b"Proxy-Authorization: Basic bWU6cHc=" in received[0]
    assert not connection.is_open


def test_a_proxy_whose_port_is_no_number_is_an_os_error(
    monkeypatch: pytest.MonkeyPatch, receiver: HttpReceiver
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:here")
    with pytest.raises(OSError, match="the address of the proxy is invalid"):
        HttpConnection("http://far.invalid").connect()


def test_the_reason_of_a_failed_connection_is_that_of_the_operating_system() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(OSError) as failed:
            HttpConnection(f"http://127.0.0.1:{held.getsockname()[1]}", proxies=False).request("GET", "/x", timeout=5.0)
    assert reason_of(failed.value) == "connection refused"
    assert reason_of(socket.gaierror(-2, "Name or service not known")) == "name or service not known"
    assert reason_of(TimeoutError("The read operation timed out")) == "timed out"
    assert reason_of(ConnectionError()) == "ConnectionError"


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 120 ", 120.0),
        ("0", 0.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        ("99999999999999999999", MOST_ASKED),
        ("Tue, 14 Nov 2090 22:13:00 GMT", MOST_ASKED),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOW) == seconds
