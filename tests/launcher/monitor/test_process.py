"""The monitor beside the launcher, with a stand-in for the monitor itself."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.conftest import wait_for
from rankwatch.contract import access, records
from rankwatch_launcher.monitor.process import (
    KeptRecords,
    LocalMonitor,
    bind_address,
    first_port,
    listen,
    records_folder,
)

STAND_IN = """
import argparse, json, os, signal, socket
parser = argparse.ArgumentParser()
for flag in ("--host", "--port", "--listen-fd", "--ready-file", "--parent-pid", "--database"):
    parser.add_argument(flag)
args = parser.parse_args()
listener = socket.socket(fileno=int(args.listen_fd))
assert listener.getsockname() == (args.host, int(args.port))
with open(args.ready_file + ".new", "w") as file:
    tokens = [os.environ[f"RANKWATCH_MONITOR_{name}TOKEN"] for name in ("", "INGEST_")]
    json.dump({"url": "u", "pid": os.getpid(), "tokens": tokens}, file)
os.rename(args.ready_file + ".new", args.ready_file)
signal.pause()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "rankwatch_monitor"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return package


@pytest.fixture
def local_monitor(folder: Path, caplog: pytest.LogCaptureFixture) -> Iterator[LocalMonitor]:
    caplog.set_level(logging.INFO, "rankwatch")
    made = LocalMonitor("job 1")
    yield made
    made.close()


def test_it_always_has_tokens_which_are_not_logged(
    local_monitor: LocalMonitor, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    local_monitor.start()
    assert local_monitor.wait_ready()
    tokens = {local_monitor.token, local_monitor.ingest_token}
    assert len(tokens) == 2
    assert min(map(len, tokens)) >= 32
    assert not [token for token in tokens if token in caplog.text]
    process = local_monitor._process
    assert process is not None
    assert not [token for token in tokens if token.encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes()]


def test_its_file_is_for_its_user_and_goes_with_it(local_monitor: LocalMonitor) -> None:
    local_monitor.start()
    assert local_monitor.wait_ready()
    [found] = access.running()
    assert (found.url, found.job_id, found.token) == (local_monitor.url, "job 1", local_monitor.token)
    [file] = (Path(os.environ["XDG_STATE_HOME"]) / "rankwatch" / "monitors").iterdir()
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    local_monitor.close()
    assert not file.exists()


def test_configured_tokens_are_used_and_one_for_another_monitor_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_MONITOR_TOKEN", "mine")
    monkeypatch.setenv("RANKWATCH_TOKEN", "for another monitor")
    made = LocalMonitor("job")
    assert made.token == "mine"
    assert made.ingest_token not in ("mine", "for another monitor")
    assert "for another monitor" not in made._environment.values()
    made.close()


def test_it_comes_back_on_the_same_port(local_monitor: LocalMonitor, caplog: pytest.LogCaptureFixture) -> None:
    local_monitor.start()
    assert local_monitor.wait_ready()
    process = local_monitor._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: "is restarted" in caplog.text)
    wait_for(lambda: local_monitor._process is not process)
    given = json.loads(wait_for(lambda: local_monitor._ready_file.exists() and local_monitor._ready_file.read_text()))
    assert given["tokens"] == [local_monitor.token, local_monitor.ingest_token], "ranks go on with the same token"
    port = int(local_monitor.url.rpartition(":")[2])

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    wait_for(listens)


def test_one_that_cannot_start_is_given_up_with_its_last_log_line(
    local_monitor: LocalMonitor, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "__main__.py").write_text("raise SystemExit('no room')")
    local_monitor.start()
    wait_for(lambda: "does not start" in caplog.text)
    assert "no room. Training continues" in caplog.text


def test_a_monitor_of_several_nodes_listens_on_loopback_if_they_are_all_here() -> None:
    assert bind_address("127.0.0.1", "node7") == "127.0.0.1"
    assert bind_address("node7", "node7") == "node7"


def test_addresses_must_be_ours() -> None:
    with pytest.raises(OSError, match="no free port"):
        listen("192.0.2.1")


def test_each_job_has_its_own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = [LocalMonitor(job_id) for job_id in ("a/b", "a_b")]
    assert [each.record for each in made] == [tmp_path / "rankwatch" / "jobs" / name for name in ("a%2Fb.db", "a_b.db")]
    monkeypatch.setenv("RANKWATCH_MONITOR_DATABASE", "x")
    made.append(LocalMonitor("a"))
    assert made[-1].record is None
    for each in made:
        each.close()


def test_without_a_state_folder_the_database_is_in_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    env = {"XDG_STATE_HOME": str(tmp_path / "file")}
    private = tmp_path / f"rankwatch.{os.geteuid()}" / "jobs"
    assert records_folder(env) == private
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    private.chmod(0o777)
    fresh = records_folder(env)
    assert fresh not in (private, tmp_path), "one that others may have prepared is not used"
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700


def test_its_log_stays_beside_the_record_and_its_warnings_are_shown(
    local_monitor: LocalMonitor, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warning = "2026-03-01 10:00:00,123 [rankwatch monitor] WARNING wandb is not installed"
    main = folder / "__main__.py"
    main.write_text(f"import sys; print({warning!r}, file=sys.stderr, flush=True)\n{main.read_text()}")
    local_monitor.start()
    wait_for(lambda: "monitor: wandb is not installed" in caplog.text)
    local_monitor.close()
    assert local_monitor.record is not None
    assert warning in records.log_of(local_monitor.record).read_text()


def test_old_records_are_removed_once_it_is_ready(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rankwatch")
    old = records_folder(os.environ) / "old.db"
    old.touch()
    os.utime(old, (0, 0))
    made = LocalMonitor("job 1", keep=KeptRecords(90, 2048))
    try:
        made.start()
        wait_for(lambda: not old.exists())
        wait_for(lambda: "1 old records of jobs were removed" in caplog.text)
    finally:
        made.close()


def test_without_a_page_that_is_stated(
    local_monitor: LocalMonitor, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = folder / "__main__.py"
    main.write_text(main.read_text().replace('"url": "u",', '"url": "u", "page": False,'))
    local_monitor.start()
    wait_for(lambda: "no page" in caplog.text)


def test_it_comes_back_although_its_temporary_folder_was_removed(local_monitor: LocalMonitor) -> None:
    local_monitor.start()
    assert local_monitor.wait_ready()
    process = local_monitor._process
    assert process is not None
    shutil.rmtree(local_monitor._folder)
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: local_monitor._process is not process and local_monitor._ready_file.exists())
    assert local_monitor._folder.stat().st_mode & 0o777 == 0o700


def test_jobs_of_one_user_take_the_same_ports_again_and_never_one_of_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rankwatch_launcher.monitor.process.first_port", lambda _: first_port(1_500))
    with contextlib.ExitStack() as open_:
        first, second = listen("127.0.0.1"), open_.enter_context(listen("127.0.0.1"))
        ports = [each.getsockname()[1] for each in (first, second)]
        assert set(ports) <= {*range(first_port(1_500), first_port(1_500) + 10)}
        assert ports[0] < ports[1]
        first.close()
        again = open_.enter_context(listen("127.0.0.1"))
        assert again.getsockname()[1] == ports[0]
        monkeypatch.setattr("rankwatch_launcher.monitor.process._USER_PORTS", 1)
        other = open_.enter_context(listen("127.0.0.1"))
        assert 15000 <= other.getsockname()[1] < 32000


def seized(host: str, port: int) -> bool:
    """Whether another process could listen on a port; it tries each option that shares ports."""
    for options in ([], [socket.SO_REUSEADDR], [socket.SO_REUSEPORT], [socket.SO_REUSEADDR, socket.SO_REUSEPORT]):
        with socket.socket() as other:
            for option in options:
                other.setsockopt(socket.SOL_SOCKET, option, 1)
            with contextlib.suppress(OSError):
                other.bind((host, port))
                other.listen()
                return True
    return False


class Seizing(threading.Thread):
    """Another process that tries to take a port all the time."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.tries, self.taken, self.over = port, 0, False, threading.Event()

    def run(self) -> None:
        while not self.over.is_set() and not self.taken:
            self.taken = seized("127.0.0.1", self.port) or seized("0.0.0.0", self.port)
            self.tries += 1
            time.sleep(0.001)


def test_the_port_is_never_another_process_s_while_the_monitor_starts_and_is_restarted(
    local_monitor: LocalMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    """The ranks send the token from their first report on, whether or not the monitor runs already."""
    port = local_monitor._port
    assert not seized("127.0.0.1", port), "before it is started"
    other = Seizing(port)
    other.start()
    try:
        local_monitor.start()
        assert local_monitor.wait_ready()
        process = local_monitor._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: "is restarted" in caplog.text)
        wait_for(lambda: local_monitor._process is not process and local_monitor._ready_file.exists())
    finally:
        other.over.set()
        other.join()
    assert other.tries > 50
    assert not other.taken
    local_monitor.close()
    assert seized("127.0.0.1", port), "after the job it is free"


def test_the_port_of_a_monitor_that_does_not_start_answers_nothing_and_stays_taken(
    local_monitor: LocalMonitor, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "__main__.py").write_text("raise SystemExit('no room')")
    local_monitor.start()
    wait_for(lambda: "does not start" in caplog.text)
    assert not seized("127.0.0.1", local_monitor._port)
    with socket.create_connection(("127.0.0.1", local_monitor._port), timeout=10) as client:
        client.settimeout(10)
        assert client.recv(1) == b"", "closed at once: a rank does not wait for an answer"


def test_the_folder_of_a_launcher_that_was_killed_is_removed_by_a_later_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = LocalMonitor("dead")
    dead._ready_file.touch()
    live = LocalMonitor("live")
    live._ready_file.touch()
    os.close(dead._folder_lock)  # as the kernel does when the process is killed
    dead._folder_lock = -1
    other = LocalMonitor("other")
    assert not dead._folder.exists()
    assert live._folder.exists()
    for each in (dead, live, other):
        each.close()
    assert not list(tmp_path.glob("rankwatch-monitor-*"))
