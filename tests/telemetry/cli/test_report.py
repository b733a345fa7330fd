"""``rankwatch report`` where there is no monitor: every way to ask wrongly ends in words and an exit code."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rankwatch import monitor_client
from rankwatch.cli.report import report


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANKWATCH_MONITOR", "RANKWATCH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stranger() -> Iterator[tuple[str, dict[str, tuple[int, bytes]], list[str]]]:
    """A server that is no monitor: its address, what it answers by path (else 404), and the tokens it was shown."""
    answers: dict[str, tuple[int, bytes]] = {}
    shown: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization", ""))
            status, body = answers.get(self.path, (404, b"not here"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", answers, shown
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rankwatch report: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_an_unreachable_monitor(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert report(["--monitor", url]) == 1
    words = printed(capsys)
    assert f"no monitor answers at {url}" in words
    assert "--monitor or RANKWATCH_MONITOR" in words


@pytest.mark.parametrize("url", ["nonsense", "ftp://host/", "http://", "127.0.0.1:9560", "http://host:port"])
def test_an_address_that_is_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["job", "--monitor", url]) == 2
    assert f"not {url!r}" in printed(capsys)


def test_a_server_that_is_no_monitor(
    stranger: tuple[str, dict[str, tuple[int, bytes]], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, answers, _ = stranger
    assert report(["--monitor", url]) == 2
    assert "is not a Rankwatch monitor" in printed(capsys)
    answers["/api/v1/jobs"] = (200, b"<html>hello</html>")
    assert report(["--monitor", url]) == 2
    assert "is not a Rankwatch monitor" in printed(capsys)
    answers["/api/v1/jobs"] = (200, b"[]")
    assert report(["--monitor", url]) == 2
    assert "is not a Rankwatch monitor" in printed(capsys)


def test_a_monitor_that_fails(
    stranger: tuple[str, dict[str, tuple[int, bytes]], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, answers, _ = stranger
    answers["/api/v1/jobs/a%2Fb/report"] = (500, b'{"detail": "broken"}')
    assert report(["a/b", "--monitor", url]) == 1
    assert "answered 500: broken" in printed(capsys)


def test_a_line_that_is_cut_in_the_middle(
    stranger: tuple[str, dict[str, tuple[int, bytes]], list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitor_client, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert report(["job", "--monitor", f"http://127.0.0.1:{mute.getsockname()[1]}"]) == 1
    assert "timed out" in printed(capsys)


def test_no_token_is_sent_when_none_is_given_and_the_given_one_when_it_is(
    stranger: tuple[str, dict[str, tuple[int, bytes]], list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, answers, shown = stranger
    answers["/api/v1/jobs/job/report"] = (200, b"JOB job\n")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert report(["job", "--monitor", url]) == 0
    assert report(["job", "--monitor", f"{url}/", "--token", "secret"]) == 0
    assert shown == ["", "Bearer secret"]
    assert capsys.readouterr().out == "JOB job\n" * 2


def test_a_token_that_cannot_be_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["job", "--monitor", "http://127.0.0.1:9", "--token", "a\nb"]) in (1, 2)
    assert "a\nb" not in printed(capsys)


def test_help_names_the_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        report(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "RANKWATCH_MONITOR" in out
    assert "RANKWATCH_TOKEN" in out


def test_an_unknown_flag_is_a_wrong_question() -> None:
    with pytest.raises(SystemExit) as ended:
        report(["--colour"])
    assert ended.value.code == 2


ROW = {"group": "dp (3)", "operation": "all_reduce", "ranks": 4, "calls": 2, "seconds": 0.0123, "bytes": 2 << 20}
ROW |= {"algorithm": 11e9, "bus": 16.5e9, "peers": 43e9, "best": None, "slow": True}


def test_bandwidths_are_a_table(
    stranger: tuple[str, dict[str, tuple[int, bytes]], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, answers, _ = stranger
    found = {"at": 1.0, "step": 0.1, "operations": [ROW], "omitted": 3}
    answers["/api/v1/jobs/j/communication"] = (200, json.dumps(found).encode())
    assert report(["j", "--monitor", url, "--communication"]) == 0
    head, row, more = capsys.readouterr().out.splitlines()
    assert head.split()[-3:] == ["BUSBW", "PEERS", "BEST"]
    assert row.split("  ")[0] == "dp (3)"
    assert "11 GB/s" in row
    assert row.endswith("slow")
    assert more == "and 3 more"
    assert report(["j", "--monitor", url, "--communication", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_without_bandwidths_it_is_stated_why(
    stranger: tuple[str, dict[str, tuple[int, bytes]], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, answers, _ = stranger
    answers["/api/v1/jobs/j/communication"] = (200, b'{"operations": [], "omitted": 0}')
    assert report(["j", "--monitor", url, "--communication"]) == 0
    assert "kernel_timings" in capsys.readouterr().out
