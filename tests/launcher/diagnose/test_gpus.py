"""The GPUs of ranks on an emulated node: whose each is, what is read of it, and a driver that hangs or is not there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankwatch.contract.diagnosis import Gpu as Seen
from rankwatch.contract.diagnosis import Hindrance, Obstacle
from rankwatch.profiling import nvml
from rankwatch_launcher.diagnose import gpus
from rankwatch_launcher.diagnose.find import Rank
from support.emulated_gpus import Gpu, Node, pynvml
from support.waiting import wait_for

ZERO = Rank(100, "job", 0, 2, 0, 2, age=60.0)
ONE = replace(ZERO, pid=101, rank=1, local_rank=1)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(Gpu("GPU-1"), Gpu("GPU-2", utilization=0, clock=345, throttle=0x40, bus=b"00000000:86:00.0"))
    monkeypatch.setattr(nvml, "driver_present", lambda: True)
    monkeypatch.setattr(gpus, "INTERVAL", 0.01)
    for name, function in made.functions().items():
        monkeypatch.setattr(pynvml, name, function)
    yield made
    made.hang.set()


def taken(
    *ranks: Rank, log: Path = Path("/nonexistent"), devices: Path = Path("/")
) -> tuple[list[Seen], list[Obstacle]]:
    reading = gpus.Gpus(ranks, kernel_log=str(log), devices=devices)
    wait_for(lambda: len(reading._read) == len(ranks) and all(each.busy for each in reading._read.values()), "it reads")
    found, obstacles = reading.taken()
    return [found[rank.pid] for rank in ranks], obstacles


def test_the_readings_of_each_ranks_gpu(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "0000:86:00.0"
    folder.mkdir()
    (folder / "numa_node").write_text("1\n")
    (zero, one), obstacles = taken(ZERO, ONE, devices=tmp_path)
    assert (zero.name, zero.utilization, zero.memory_total, zero.clock) == ("NVIDIA H200", 0.87, 141 << 30, 1755e6)
    assert (one.utilization, one.clock, one.throttled) == (0.0, 345e6, ("hw_thermal",))
    assert (zero.numa_node, one.numa_node) == (None, 1)
    assert [each.kind for each in obstacles] == [Hindrance.NO_KERNEL_LOG]


def test_the_variables_of_the_rank_choose_its_gpu_and_its_process_where_it_has_a_context(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((other,), _) = taken(replace(ZERO, devices={"CUDA_VISIBLE_DEVICES": "1"}))
    assert other.clock == 345e6
    node.gpus[1].processes = [SimpleNamespace(pid=ZERO.pid)]
    monkeypatch.setattr(gpus, "HOST_PIDS", os.readlink("/proc/self/ns/pid"))
    ((other,), _) = taken(ZERO)
    assert other.clock == 345e6
    node.gpus[0].processes = node.gpus[1].processes
    ((own,), _) = taken(ZERO)
    assert own.clock == 1755e6, "one that has a context on several says which by its variables"


def test_xids_since_the_rank_was_started_are_its_own(node: Node, tmp_path: Path) -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    lines = [
        f"4,1,{int((now - 3600) * 1e6)},-;NVRM: Xid (PCI:0000:86:00): 31, pid=1, name=python",
        f"4,2,{int((now - 5) * 1e6)},-;NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        f"4,3,{int((now - 4) * 1e6)},-;NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>'",
    ]
    (tmp_path / "kmsg").write_text("\n".join(lines) + "\n")
    node.gpus[0].events = [94]
    (zero, one), obstacles = taken(ZERO, ONE, log=tmp_path / "kmsg")
    assert (zero.xids, one.xids, obstacles) == ((94,), (79,), [])


def test_a_driver_that_hangs_or_fails_is_said_and_not_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "STOP_SECONDS", 0.2)
    node.hang.clear()
    assert [each.kind for each in gpus.Gpus([ZERO]).taken()[1]] == [Hindrance.NO_GPU_READINGS]

    def fail() -> None:
        raise pynvml.NVMLError_DriverNotLoaded

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    monkeypatch.setattr(gpus, "STOP_SECONDS", 20.0)
    found, obstacles = gpus.Gpus([ZERO, ONE]).taken()
    assert (found, obstacles[0].kind, obstacles[0].pids) == ({}, Hindrance.NO_GPU_READINGS, (100, 101))


def test_a_node_without_a_driver_lacks_nothing() -> None:
    assert gpus.Gpus([ZERO]).taken() == ({}, [])
