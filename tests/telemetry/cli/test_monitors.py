"""Commands find the monitor that the user's own launcher started."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rankwatch.cli import monitors, past
from rankwatch.cli.access import token
from rankwatch.cli.doctor import doctor
from rankwatch.cli.status.command import status
from rankwatch.contract import access, env
from rankwatch.contract.access import MonitorAccess
from rankwatch.monitor_client import DEFAULT_MONITOR, MonitorError
from support.monitor_process import running_monitor

FIRST, SECOND = "http://127.0.0.1:21", "http://127.0.0.1:22"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in (env.MONITOR_URL, env.TOKEN):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def other_launcher() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def publish(url: str, job: str, token: str = "secret", pid: int | None = None) -> None:
    access.publish(MonitorAccess(url, job, pid or os.getpid(), token, "ingest", socket.gethostname()))


def test_without_an_own_monitor_it_is_the_default_one_which_gets_no_token() -> None:
    assert monitors.locate(None, "whoever listens there would have it", None) == (DEFAULT_MONITOR, None)


def test_no_command_sends_a_token_to_an_address_that_was_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(f"{self.path} {self.headers}")
            self.send_error(401)

        do_POST = do_PATCH = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for module in (monitors, past, importlib.import_module("rankwatch.cli.doctor")):
            monkeypatch.setattr(module, "DEFAULT_MONITOR", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv(env.TOKEN, "secret")
        for command in (status, doctor, token):
            command(["list"] if command is token else [])
        server.shutdown()
        thread.join()
    assert {line.split()[0] for line in seen} >= {"/api/v1/jobs", "/livez", "/api/v1/tokens"}
    assert "secret" not in str(seen)


def test_the_only_own_monitor_is_taken_with_its_token_and_one_that_is_named_is_not() -> None:
    publish(FIRST, "a")
    assert monitors.locate(None, "for another monitor", None) == (FIRST, "secret")
    assert monitors.locate("http://elsewhere:9560", "t", None) == ("http://elsewhere:9560", "t")
    assert monitors.locate("http://elsewhere:9560", None, None) == ("http://elsewhere:9560", None)
    assert monitors.locate(f"{FIRST}/", "of a rank", None) == (f"{FIRST}/", "secret")


def test_of_several_the_job_decides_else_all_are_listed(other_launcher: int) -> None:
    publish(FIRST, "a")
    publish(SECOND, "b", pid=other_launcher)
    assert monitors.locate(None, None, "b")[0] == SECOND
    for job in (None, "unknown"):
        with pytest.raises(MonitorError, match="2 monitors of your launchers run here; name the job") as refused:
            monitors.locate(None, None, job)
        assert f"{FIRST}  job 'a'" in str(refused.value)
        assert f"{SECOND}  job 'b'" in str(refused.value)
        assert "secret" not in str(refused.value)
        assert refused.value.code == 2


def test_status_asks_it_with_its_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_monitor(tmp_path / "own", "--token", "of-the-own-monitor") as own:
        publish(own.url, "a", "wrong")
        assert status([]) == 2
        assert "the token is wrong" in capsys.readouterr().err
        publish(own.url, "a", "of-the-own-monitor")
        assert status([]) == 0
        assert "no job yet" in capsys.readouterr().out
