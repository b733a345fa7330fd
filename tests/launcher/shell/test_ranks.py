"""Real processes: watched without being reaped, killed with what they started, looked into, swept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.conftest import wait_for
from rankwatch.contract.enums import ProcessState
from rankwatch.contract.files import find_program
from rankwatch_launcher import procfs
from rankwatch_launcher.node.attempt import RankProcess
from rankwatch_launcher.shell.orphan_reaper import OrphanReaper, start_time
from rankwatch_launcher.shell.ranks import RankProcesses
from rankwatch_launcher.stacks.capture import STACK_SIGNAL, StackReader, Target

Spawn = Callable[..., "subprocess.Popen[str]"]
HANG = (
    "import threading\ndef stuck_here():\n    print('ready', flush=True)\n    threading.Event().wait()\nstuck_here()\n"
)


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, *, lines: int = 1) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def watched(*processes: subprocess.Popen[str]) -> RankProcesses:
    return RankProcesses([RankProcess(i, i, p.pid) for i, p in enumerate(processes)])


def kill(ranks: RankProcesses) -> list[int | None]:
    """Kill all; the codes with which they then exit."""
    ranks.kill()
    codes = [process.code for process in ranks.wait_all(60.0)]
    assert ranks.alive() == []
    return codes


def test_exits_are_seen_at_once_and_left_to_be_reaped(spawn: Spawn) -> None:
    ranks = watched(spawn("import sys; print(); sys.exit(3)"), spawn(HANG))
    (ended,) = ranks.wait(60.0)
    assert (ended.rank, ended.code) == (0, 3)
    assert [p.rank for p in ranks.alive()] == [1]
    assert procfs.process_state(ended.pid) is ProcessState.EXITED
    os.kill(ranks.alive()[0].pid, signal.SIGSEGV)
    assert [p.code for p in ranks.wait_all(10.0)] == [-signal.SIGSEGV]


def test_a_wake_descriptor_ends_the_wait(spawn: Spawn) -> None:
    ranks = watched(spawn(HANG))
    reader, writer = os.pipe()
    os.write(writer, b"!")
    assert ranks.wait(60.0, reader) == []
    kill(ranks)
    for fd in (reader, writer):
        os.close(fd)


def test_kill_takes_the_children_of_a_rank_that_has_ended(spawn: Spawn) -> None:
    child = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); sys.exit(1)"
    process = spawn(child, lines=0)
    assert process.stdout is not None
    orphan = int(process.stdout.readline())
    ranks = watched(process)
    ranks.wait_all(10.0)
    kill(ranks)
    wait_for(lambda: procfs.process_state(orphan) is ProcessState.EXITED)


def test_what_may_have_been_reaped_is_not_killed(spawn: Spawn) -> None:
    process = spawn(
        "import signal; signal.signal(signal.SIGUSR1, lambda *_: exit(3)); print(flush=True); signal.pause()"
    )
    ranks = watched(process)
    ranks.close()
    ranks.kill()
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 3


def test_a_stopped_rank_can_be_terminated(spawn: Spawn) -> None:
    process = spawn(HANG)
    ranks = watched(process)
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: procfs.process_state(process.pid) is ProcessState.STOPPED)
    ranks.signal(signal.SIGTERM, ending=True)
    assert [p.code for p in ranks.wait_all(60.0)] == [-signal.SIGTERM]


@pytest.mark.skipif(find_program("py-spy") is None, reason="py-spy is not installed")
def test_py_spy_reads_a_running_and_a_stopped_process(spawn: Spawn) -> None:
    processes = [spawn(HANG), spawn(HANG)]
    os.kill(processes[1].pid, signal.SIGSTOP)
    wait_for(lambda: procfs.process_state(processes[1].pid) is ProcessState.STOPPED)
    reader = StackReader()
    reader.probe()
    stacks = reader.capture([Target(i, i, p.pid) for i, p in enumerate(processes)], 30.0, last=False)
    assert [s.method for s in stacks] == ["py-spy", "py-spy"], stacks
    assert all("stuck_here" in [f.function for f in s.frames] for s in stacks)
    assert [s.process_state for s in stacks] == ["alive", "stopped"]


def with_faulthandler(path: Path) -> str:
    opened = f"import faulthandler\nf = open({str(path)!r}, 'ab', buffering=0)\n"
    return f"{opened}faulthandler.register({int(STACK_SIGNAL)}, file=f, all_threads=False)\n{HANG}"


def without_py_spy() -> StackReader:
    reader = StackReader(refusal="py-spy: not permitted")
    reader._probed.set()
    return reader


def test_faulthandler_stands_in(spawn: Spawn, tmp_path: Path) -> None:
    path = tmp_path / "0.stack"
    process = spawn(with_faulthandler(path))
    for _ in range(2):
        (stack,) = without_py_spy().capture([Target(0, 0, process.pid, path)], 20.0, last=False)
        assert stack.method == "faulthandler", stack
        assert "stuck_here" in [f.function for f in stack.frames]
    assert process.poll() is None


def test_a_stopped_process_is_continued_only_when_it_is_killed_next(spawn: Spawn, tmp_path: Path) -> None:
    path = tmp_path / "0.stack"
    process = spawn(with_faulthandler(path))
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: procfs.process_state(process.pid) is ProcessState.STOPPED)
    (stack,) = without_py_spy().capture([Target(0, 0, process.pid, path)], 0.3, last=False)
    assert stack.error
    assert procfs.process_state(process.pid) is ProcessState.STOPPED
    (stack,) = without_py_spy().capture([Target(0, 0, process.pid, path)], 20.0, last=True)
    assert stack.method == "faulthandler"


def test_a_process_that_does_not_catch_the_signal_is_not_sent_it(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(HANG)
    (stack,) = without_py_spy().capture([Target(0, 0, process.pid, tmp_path / "0.stack")], 5.0, last=True)
    assert "not permitted" in stack.error
    assert "rankwatch.init()" in stack.error
    assert process.poll() is None


def test_a_process_that_is_gone_is_reported(spawn: Spawn) -> None:
    process = spawn("print()")
    process.wait()
    (stack,) = StackReader().capture([Target(0, 0, process.pid)], 5.0, last=False)
    assert (stack.error, stack.process_state) == ("the process is gone", ProcessState.EXITED)


def test_the_reaper_kills_what_a_dead_launcher_leaves(spawn: Spawn, tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    reaper = OrphanReaper(folder)
    old, now = spawn(HANG), spawn(HANG)
    reaper.add(old.pid)
    reaper.forget()
    reaper.add(now.pid)
    pipe = reaper._process.stdin
    assert pipe is not None
    pipe.close()
    assert now.wait(60) == -signal.SIGKILL
    reaper._process.wait(60)
    assert old.poll() is None, "only the ranks of the last attempt are named"
    assert not folder.exists()


def test_a_dismissed_reaper_kills_no_process(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(HANG)
    reaper = OrphanReaper(tmp_path / "none")
    reaper.add(process.pid)
    reaper.dismiss()
    assert process.poll() is None
    assert start_time(process.pid)
    assert start_time(2**22 + 1) == ""


@pytest.mark.parametrize("error", [OSError(38, "Function not implemented"), OSError(24, "Too many open files")])
def test_exits_are_found_without_process_descriptors(
    error: OSError, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int) -> int:
        raise error

    monkeypatch.setattr(os, "pidfd_open", refused)
    ranks = watched(spawn("import sys; print(); sys.exit(3)"), spawn(HANG))
    (ended,) = ranks.wait(60.0)
    assert (ended.rank, ended.code) == (0, 3)
    reader, writer = os.pipe()
    os.write(writer, b"!")
    assert ranks.wait(60.0, reader) == []
    kill(ranks)
    for fd in (reader, writer):
        os.close(fd)


def test_another_thread_kills_while_one_waits(spawn: Spawn) -> None:
    """The guard ends the ranks while the main thread is blocked."""
    ranks = watched(spawn(HANG), spawn(HANG))
    codes: list[int | None] = []
    waiting = threading.Thread(
        target=lambda: codes.extend(process.code for process in ranks.wait_all(600.0)), daemon=True
    )
    waiting.start()
    wait_for(lambda: Path(f"/proc/self/task/{waiting.native_id}/wchan").exists())
    killed = kill(ranks)
    waiting.join(60.0)
    assert not waiting.is_alive()
    assert [*killed, *codes] == [-signal.SIGKILL] * 2
