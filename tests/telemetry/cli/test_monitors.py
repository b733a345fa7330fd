"""Commands find the monitor that the user's own launcher started."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.cli import monitors
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


def test_without_an_own_monitor_it_is_the_default_one() -> None:
    assert monitors.locate(None, "t", None) == (DEFAULT_MONITOR, "t")


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
