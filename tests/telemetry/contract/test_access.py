"""The files by which commands find a user's monitors: private, never planted by others, gone with their launcher."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from rankwatch.contract import access
from rankwatch.contract.access import MonitorAccess
from rankwatch.contract.processes import start_time


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "state"


def monitor(pid: int | None = None) -> MonitorAccess:
    return MonitorAccess("http://127.0.0.1:1", "job", pid or os.getpid(), "secret", "other", socket.gethostname())


def published(pid: int | None = None) -> list[MonitorAccess]:
    return [replace(monitor(pid), started=start_time(pid or os.getpid()) or "")]


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_file_is_readable_by_its_user_alone_whatever_the_umask(state: Path) -> None:
    before = os.umask(0)
    try:
        path = access.publish(monitor())
    finally:
        os.umask(before)
    assert path.parent == state / "rankwatch" / "monitors"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert access.running() == published()
    assert "secret" not in repr(monitor())


def test_files_of_ended_launchers_are_removed(state: Path) -> None:
    path = access.publish(monitor(ended_pid()))
    assert access.running() == []
    assert not path.exists()


def test_a_pid_that_another_process_has_by_now_names_no_monitor(state: Path) -> None:
    path = access.publish(monitor())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"started": "1"}))
    assert access.running() == []
    assert not path.exists()


def test_a_launcher_that_waits_to_be_reaped_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path = access.publish(monitor(process.pid))
    assert access.running() == published(process.pid)
    assert process.stdin
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert access.running() == []
    assert not path.exists()
    process.wait()


def test_a_folder_that_others_may_enter_is_not_used(state: Path, tmp_path: Path) -> None:
    shared = state / "rankwatch" / "monitors"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    path = access.publish(monitor())
    assert path.parent == tmp_path / "tmp" / f"rankwatch.{os.geteuid()}" / "monitors"
    (shared / "planted.json").write_text(path.read_text())
    assert access.running() == published(), "and what is planted there is not read"


@pytest.mark.parametrize("kind", ["link", "open to others", "pipe", "no JSON", "no object", "wrong fields"])
def test_a_file_that_is_not_as_it_was_written_is_ignored(state: Path, kind: str) -> None:
    path = access.publish(monitor())
    if kind == "link":
        path.rename(state / "elsewhere")
        path.symlink_to(state / "elsewhere")
    elif kind == "open to others":
        path.chmod(0o644)
    elif kind == "pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    else:
        path.write_text({"no JSON": "{", "no object": "[]", "wrong fields": '{"url": 1}'}[kind])
    assert access.running() == []
