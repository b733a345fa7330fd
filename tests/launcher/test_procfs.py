"""Memory as /proc and the control groups state it."""

from __future__ import annotations

import os
from pathlib import Path

from rankwatch_launcher import procfs


def test_this_machine_and_this_process_have_some() -> None:
    found = procfs.memory()
    assert found is not None
    assert 0 < found.available <= found.total
    assert procfs.resident_memory(os.getpid()) > 1 << 20
    assert procfs.resident_memory(2**22 + 1) == 0


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    step = groups / "job" / "step"
    step.mkdir(parents=True)
    assert procfs.memory(proc, groups) == procfs.Memory(8000000 * 1024, 9000000 * 1024)
    (step / "memory.max").write_text("max\n")
    for name, text in (("max", "5000\n"), ("current", "4000\n"), ("stat", "anon 3000\ninactive_file 700\n")):
        (groups / "job" / f"memory.{name}").write_text(text)
    assert procfs.memory(proc, groups) == procfs.Memory(1700, 5000)
    (proc / "meminfo").unlink()
    assert procfs.memory(proc, groups) is None


def test_a_control_group_of_version_1_counts_where_a_container_sees_it(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    (proc / "self" / "cgroup").write_text("12:cpu,cpuacct:/docker/1\n3:memory:/docker/1\n0::/init\n")
    own = groups / "memory"  # the group of the container is mounted as the root
    own.mkdir(parents=True)
    for name, text in (("limit_in_bytes", "5000\n"), ("usage_in_bytes", "4000\n"), ("stat", "total_inactive_file 1\n")):
        (own / f"memory.{name}").write_text(text)
    assert procfs.memory(proc, groups) == procfs.Memory(1001, 5000)
    (own / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # what version 1 has for "no limit"
    assert procfs.memory(proc, groups) == procfs.Memory(8000000 * 1024, 9000000 * 1024)


def test_a_process_that_has_imported_torch_maps_its_library(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(
        "7f0 r-xp 0 08:01 1  /usr/lib/libc.so.6\n7f1 r-xp 0 08:01 2  /x/libtorch_cpu.so\n"
    )
    assert procfs.maps_library(7, "libtorch", tmp_path)
    assert not procfs.maps_library(7, "libcuda", tmp_path)
    assert not procfs.maps_library(8, "libtorch", tmp_path)
