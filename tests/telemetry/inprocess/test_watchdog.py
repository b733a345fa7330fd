"""The watchdog ends a process that states nothing more, whatever its interpreter does, and goes when it goes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.waiting import wait_for

PROGRAM = """
import ctypes, os, signal, sys, time
from rankwatch.inprocess.watchdog import Watchdog
watchdog = Watchdog(0.05, float(sys.argv[2]))
print(watchdog._process.pid, flush=True)
kind = sys.argv[1]
if kind == "closes":
    watchdog.set_timeout(0.2)
    watchdog.set_timeout(None)
    watchdog.close()
    time.sleep(0.5)
    sys.exit(7)
watchdog.set_timeout(0.3)
if kind == "gil":
    signal.signal(signal.SIGTERM, lambda *_: None)
    ctypes.PyDLL(None).sleep(1000)
if kind == "stop":
    os.kill(os.getpid(), signal.SIGSTOP)
if kind == "rest":
    watchdog.set_timeout(None)
time.sleep(1000)
"""

Start = Callable[..., "tuple[subprocess.Popen[str], int]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(kind: str, grace: float = 0.2) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-c", PROGRAM, kind, str(grace)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        output = started[-1].stdout
        assert output is not None
        return started[-1], int(output.readline())

    yield begin
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("kind", "end"), [("gil", signal.SIGKILL), ("stop", signal.SIGKILL), ("sleep", signal.SIGTERM)]
)
def test_a_process_past_its_deadline_is_ended(start: Start, kind: str, end: int) -> None:
    process, watchdog = start(kind)
    assert process.wait(60) == -end
    wait_for(lambda: not alive(watchdog), "the watchdog ends with it")


def test_without_a_deadline_nothing_is_ended_and_the_watchdog_goes_with_the_process(start: Start) -> None:
    process, watchdog = start("rest")
    assert alive(watchdog)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    wait_for(lambda: not alive(watchdog), "the watchdog ends with it")


def test_a_closed_guard_ends_nothing(start: Start) -> None:
    process, watchdog = start("closes")
    assert process.wait(60) == 7
    assert not alive(watchdog)
