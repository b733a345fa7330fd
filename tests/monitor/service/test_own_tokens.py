"""A monitor that is given no token makes its own, which this user's programs find; with --no-token it has none."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.cli import monitors
from rankwatch.cli.status.command import status
from rankwatch.contract import access, env
from rankwatch.settings import load
from rankwatch_launcher.cli import main
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import PROTOBUF
from support.waiting import wait_for


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in (env.MONITOR_URL, env.TOKEN, env.JOB_ID):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


@pytest.fixture
def own(state: Path, tmp_path: Path) -> Iterator[RunningMonitor]:
    settings = {"RANKWATCH_MONITOR_NO_TOKEN": "false"}  # else the helper gives --no-token
    with running_monitor(tmp_path, settings=settings) as monitor:
        yield monitor


def test_it_opens_nothing_to_others_and_everything_to_its_user(
    own: RunningMonitor, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Api(own.url) as stranger:
        assert {stranger.get(f"/api/v1/{path}").status_code for path in ("jobs", "digest")} == {401}
        assert stranger.post("/api/v1/jobs/j/actions", json={"action": "stop"}).status_code == 401
        assert stranger.post("/v1/metrics", content=b"", headers=PROTOBUF).status_code == 401
    [found] = access.running()
    assert (found.url, found.job_id, found.pid) == (own.url, "", own.pid)
    [file] = (state / "rankwatch" / "monitors").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    printed = own.log.read_text()
    assert found.token not in printed
    assert found.ingest_token not in printed
    with Api(own.url, found.ingest_token) as ranks, Api(own.url, found.token) as operator:
        assert (ranks.get("/api/v1/jobs").status_code, operator.get("/api/v1/jobs").status_code) == (403, 200)
    assert monitors.locate(None, None, "any job") == monitors.locate(own.url, None, None) == (own.url, found.token)
    assert status(["--monitor", own.url]) == 0, capsys.readouterr()


def test_launchers_and_ranks_that_name_it_find_its_tokens(own: RunningMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = access.running()
    variables = {env.MONITOR_URL: own.url}
    assert load(variables=variables)[0].token == found.ingest_token
    assert load(variables=variables | {env.TOKEN: "given"})[0].token == "given"
    args = main.build_parser().parse_args(["--monitor", own.url, "train.py"])
    options, _ = main.read_options(args, {}, "")
    assert options.token == found.token


def test_its_file_goes_with_it(own: RunningMonitor, state: Path) -> None:
    own.process.terminate()
    assert own.process.wait(60) == 0
    assert list((state / "rankwatch" / "monitors").iterdir()) == []


def test_without_any_token_it_says_so(state: Path, tmp_path: Path) -> None:
    with running_monitor(tmp_path, "--no-token") as monitor, Api(monitor.url) as anybody:
        assert anybody.get("/api/v1/jobs").status_code == 200
        wait_for(lambda: "WARNING every user of this machine" in monitor.log.read_text(), "it warns")
        assert not (state / "rankwatch" / "monitors").exists()
        assert os.environ.get(env.TOKEN) is None
