"""Native frames: read of a process that runs, which goes on whatever becomes of py-spy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.contract.enums import ProcessState
from rankwatch.contract.files import find_program
from rankwatch_launcher import procfs
from rankwatch_launcher.diagnose import native
from support.waiting import wait_for

SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def fake(folder: Path, script: str) -> str:
    tool = folder / "py-spy"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return str(tool)


def test_frames_of_libraries_stand_beside_those_of_python(sleeper: int) -> None:
    tool = find_program("py-spy")
    assert tool is not None
    frames = native.of_rank(tool, sleeper, time.monotonic() + 60.0)
    assert frames[-1].line == 0 or frames[-1].file == "<string>"
    assert any(".so" in frame.file for frame in frames)
    assert any(frame.function == "<module>" for frame in frames)
    wait_for(lambda: procfs.process_state(sleeper) is ProcessState.ALIVE, "it goes on")


@pytest.mark.parametrize("then", ["exit 1", "exec sleep 600"])
def test_a_process_goes_on_although_it_was_left_stopped(sleeper: int, tmp_path: Path, then: str) -> None:
    tool = fake(tmp_path, f'[ "$*" = "dump --native --json --pid {sleeper}" ] && kill -STOP {sleeper}; {then}')
    assert native.of_rank(tool, sleeper, time.monotonic() + 1.0) == ()
    wait_for(lambda: procfs.process_state(sleeper) is ProcessState.ALIVE, "it goes on")


def test_one_that_is_stopped_is_left_so(sleeper: int, tmp_path: Path) -> None:
    os.kill(sleeper, signal.SIGSTOP)
    wait_for(lambda: procfs.process_state(sleeper) is ProcessState.STOPPED, "it is stopped")
    assert native.of_rank(fake(tmp_path, "exit 1"), sleeper, time.monotonic() + 1.0) == ()
    assert procfs.process_state(sleeper) is ProcessState.STOPPED
