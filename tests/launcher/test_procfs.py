"""Memory as /proc and the control groups state it."""

from __future__ import annotations

import os
from pathlib import Path

from rankwatch_launcher import procfs


def test_this_machine_and_this_process_have_some() -> None:
    free = procfs.available_memory()
    assert free is not None
    assert free > 0
    assert procfs.resident_memory(os.getpid()) > 1 << 20
    assert procfs.resident_memory(2**22 + 1) == 0


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    step = groups / "job" / "step"
    step.mkdir(parents=True)
    assert procfs.available_memory(proc, groups) == 8000000 * 1024
    (step / "memory.max").write_text("max\n")
    for name, text in (("max", "5000\n"), ("current", "4000\n"), ("stat", "anon 3000\ninactive_file 700\n")):
        (groups / "job" / f"memory.{name}").write_text(text)
    assert procfs.available_memory(proc, groups) == 1700
    (proc / "meminfo").unlink()
    assert procfs.available_memory(proc, groups) is None
