from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.faults.actions import rankwatch_injected_uninterruptible
from support.processes import MARK, marked
from support.waiting import wait_for

PROGRAM = """
import os, signal
from rankwatch.faults.actions import rankwatch_injected_uninterruptible
signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
rankwatch_injected_uninterruptible(3600)
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def has_a_shell(pid: int) -> bool:
    """Whether a child of the process runs a shell by now."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
        except OSError:  # ended meanwhile
            continue
        if int(rest.split()[1]) == pid and name in ("sh", "dash", "bash", "busybox"):
            return True
    return False


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose main thread is in state D."""
    environment = os.environ | {MARK: str(tmp_path), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, start_new_session=True)
    try:
        # Starting the shell that ends the wait takes a moment in state D too; once it runs, only the wait itself does.
        wait_for(
            lambda: has_a_shell(process.pid) and state_of(process.pid) == "D",
            "the process is in state D for long",
        )
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_wait_is_in_state_d_and_ends_when_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    states: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            states.add(state_of(os.getpid()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        rankwatch_injected_uninterruptible(0.5)
    finally:
        over.set()
        watcher.join()
    assert "D" in states, "and another thread saw it, so the GIL was free"
    assert list(tmp_path.iterdir()) == []


def test_no_handler_runs_and_sigkill_ends_it(stuck: subprocess.Popen[bytes]) -> None:
    stuck.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        stuck.wait(0.5)
    assert state_of(stuck.pid) == "D"
    stuck.kill()
    assert stuck.wait(60) == -9


def test_a_rank_that_is_killed_alone_leaves_nothing_behind(stuck: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert len(marked(str(tmp_path))) > 1, "the process, and what it needs to wait"
    stuck.kill()
    stuck.wait()
    wait_for(lambda: not marked(str(tmp_path)), "all processes are gone")
    wait_for(lambda: not list(tmp_path.iterdir()), "its folder is gone")
