"""Profiles of real processes, and the text of py-spy."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch.contract.files import find_program
from rankwatch.contract.messages import Frame
from rankwatch_launcher import procfs
from rankwatch_launcher.diagnose import profile

SCRIPT = """
import threading, time
def waits(): time.sleep(600)
def works():
    while True: pass
threading.Thread(target=waits, daemon=True).start()
works()
"""


WRITES = """#!/bin/sh
while [ "$1" != --output ]; do shift; done
( echo "thread ($4): MainThread;main (x:3) 5"; head -c "$4" /dev/zero ) > "$2"
"""
"""A stand-in for py-spy that writes as many bytes as the number of the process."""


def test_a_process_is_profiled_in_slices_and_its_other_threads_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(SCRIPT)
    tool = find_program("py-spy")
    assert tool is not None
    with subprocess.Popen([sys.executable, str(tmp_path / "busy.py")]) as process:
        try:
            found = profile.profiles(tool, [process.pid, 1 << 22], 3.0)
        finally:
            process.kill()
    made = found.pop(process.pid)
    assert found == {}
    assert len(made.slices) == profile.SLICES
    inside = [each for of in made.slices for each in of if made.frames[each.frames[0]].function == "works"]
    assert sum(each.samples for each in inside) >= 10
    assert "waits" not in {frame.function for frame in made.frames}
    assert made.running is not None
    assert made.ready is not None
    assert made.running + made.ready > 0.5  # on a busy machine it has to wait for its CPU


def test_py_spys_raw_format() -> None:
    text = b"""thread (77): MainThread;main (/a/train.py:3);<native> (lib.so) 5
thread (78): MainThread;other (/a/train.py:9) 4
thread (77): MainThread;main (/a/train.py:3);<native> (lib.so) 2
thread (77): MainThread
nonsense
"""
    found = profile.read(io.BytesIO(text), 77)
    assert found == {(Frame("<native>", "lib.so", 0), Frame("main", "/a/train.py", 3)): 7}


def test_of_a_profile_the_most_frequent_stacks_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        f"thread (77): MainThread;{';'.join(f'f{n}_{i} (x:1)' for i in range(64))} {n % 9 + 1}" for n in range(900)
    ]
    found = profile.read(io.BytesIO("\n".join(lines).encode()), 77)
    assert len(found) == profile.MAX_STACKS
    assert min(found.values()) == 8
    monkeypatch.setattr(profile, "_slice", lambda *_: {77: found})
    made = profile.profiles("", [77], 3.0)[77]
    assert len(made.frames) < profile.MAX_PLACES + 64
    assert all(i < len(made.frames) for of in made.slices for each in of for i in each.frames)


def test_of_many_processes_that_give_much_the_others_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text(WRITES)
    tool.chmod(0o755)
    monkeypatch.setattr(profile, "MOST_TEXT", 100_000)
    found = profile._slice(str(tool), [7, 90_000, 80_000, 30], 1.0)
    assert set(found) == {7, 30, 80_000}


def test_a_quota_of_a_group_around_the_process_counts(tmp_path: Path) -> None:
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "cgroup").write_text("0::/job/rank\n")
    groups = tmp_path / "groups"
    (groups / "job" / "rank").mkdir(parents=True)
    (groups / "job" / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 2500000\n")
    assert procfs.throttled(9, tmp_path, groups) == 2.5
    assert procfs.throttled(8, tmp_path, groups) is None


@pytest.mark.timeout(60)
def test_a_function_whose_name_is_made_to_be_slow_to_read_is_read() -> None:
    name = " (" * 4000
    text = f"thread (77): MainThread;{name};x (/x.py:3);f (a (b):4) 5\n".encode() * 100
    found = profile.read(io.BytesIO(text), 77)
    assert sum(found.values()) == 500


def test_of_thousands_of_processes_few_are_profiled_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MOST_PROCESSES", 4)
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!/bin/sh\necho >> {tmp_path}/calls\n")
    tool.chmod(0o755)
    profile.profiles(str(tool), range(10**6, 10**6 + 2 * profile.MOST_PROCESSES), 0.0)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == profile.SLICES * profile.MOST_PROCESSES
