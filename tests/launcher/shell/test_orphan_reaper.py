"""The reaper of ranks without a launcher: which processes it kills, with short-lived processes of this test."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.conftest import wait_for
from rankwatch_launcher.shell.orphan_reaper import OrphanReaper, reap, start_time

Begin = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start a process in a group of its own, as ranks are."""
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The launcher's folder, with a file in it."""
    made = tmp_path / "launcher"
    made.mkdir()
    (made / "0.slots").touch()
    return made


def line(process: subprocess.Popen[bytes]) -> str:
    return f"{process.pid} {start_time(process.pid)}\n"


def ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(row.split()[1] for row in status if row.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_when_its_input_ends_the_listed_ranks_are_killed_and_the_folder_is_removed(begin: Begin, folder: Path) -> None:
    ranks = begin(), begin()
    reap([line(rank) for rank in ranks], str(folder))
    assert [rank.wait(60) for rank in ranks] == [-signal.SIGKILL] * 2
    assert not folder.exists()


def test_a_later_process_with_a_ranks_pid_lives_on(begin: Begin, folder: Path) -> None:
    stranger, rank = begin(), begin()
    reap([f"{stranger.pid} {int(start_time(stranger.pid)) - 1}\n", line(rank)], str(folder))
    assert rank.wait(60) == -signal.SIGKILL
    assert stranger.poll() is None


def test_ranks_of_an_earlier_attempt_are_forgotten(begin: Begin, folder: Path) -> None:
    before, now = begin(), begin()
    reap([line(before), "forget\n", line(now)], str(folder))
    assert now.wait(60) == -signal.SIGKILL
    assert before.poll() is None


def test_a_rank_that_has_ended_and_half_a_line_are_passed_over(begin: Begin, folder: Path) -> None:
    ended, rank = begin(), begin()
    gone = line(ended)
    ended.kill()
    ended.wait()
    reap([gone, f"{ended.pid} \n", "12", "", line(rank)], str(folder))
    assert rank.wait(60) == -signal.SIGKILL


def test_a_process_that_does_not_exist_has_no_start_time() -> None:
    assert start_time(2**22 + 1) == ""


def test_a_launcher_that_dies_leaves_no_rank(begin: Begin, folder: Path) -> None:
    reaper, rank = OrphanReaper(folder), begin()
    try:
        reaper.add(rank.pid)
        wait_for(lambda: ignores(reaper._process.pid, signal.SIGTERM))
        reaper._process.send_signal(signal.SIGTERM)
        assert reaper._process.stdin is not None
        reaper._process.stdin.close()  # what the kernel does when the launcher is killed
        assert rank.wait(60) == -signal.SIGKILL
        wait_for(lambda: not folder.exists())
    finally:
        reaper._process.kill()
        reaper._process.wait()


def test_a_launcher_that_has_ended_its_ranks_itself_has_none_killed(begin: Begin, folder: Path) -> None:
    reaper, rank = OrphanReaper(folder), begin()
    reaper.add(rank.pid)
    reaper.dismiss()
    assert reaper._process.wait(60) == 0
    assert rank.poll() is None


def test_without_the_reaper_the_launcher_goes_on(begin: Begin, folder: Path) -> None:
    reaper = OrphanReaper(folder)
    reaper._process.kill()
    reaper._process.wait()
    reaper.add(begin().pid)
    reaper.dismiss()
