"""The GPU, NVLink and memory checks on emulated devices: each fault with its reason, and a node in good health."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.contract.node_checks import CheckReason
from rankwatch.profiling import nvml
from rankwatch_launcher.checks import gpu, gpu_memory, nvlink
from rankwatch_launcher.checks.check import CheckedNode, Failed, Passed, Skipped
from support.emulated_gpus import Gpu, Node, pynvml

ONE, TWO = "GPU-11111111-aaaa-bbbb-cccc-000000000001", "GPU-22222222-aaaa-bbbb-cccc-000000000002"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(Gpu(ONE, utilization=0), Gpu(TWO, utilization=0, bus=b"00000000:86:00.0"))
    monkeypatch.setattr(nvml, "driver_present", lambda: True)
    monkeypatch.setattr(gpu, "COOLING_SECONDS", 0.05)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, function in node.functions().items():
        monkeypatch.setattr(pynvml, name, function)
    return node


@pytest.fixture
def checked(tmp_path: Path) -> CheckedNode:
    return CheckedNode(kernel_log=str(tmp_path / "kmsg"), slots=str(tmp_path / "slots"))


def failed(found: Any) -> Failed:
    assert isinstance(found, Failed), found
    return found


def test_a_healthy_node_passes_and_a_machine_without_a_gpu_is_skipped(
    node: Node, checked: CheckedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(gpu.run(checked), Passed)
    assert isinstance(nvlink.run(checked), Passed)
    assert isinstance(gpu_memory.run(checked), Passed)
    monkeypatch.setattr(nvml, "driver_present", lambda: False)
    for check in (gpu, nvlink, gpu_memory):
        found = check.run(checked)
        assert isinstance(found, Skipped)
        assert found.why == CheckReason.NOTHING_HERE


FAULTS: list[tuple[Callable[[Gpu], None], CheckReason, dict[str, str]]] = [
    (lambda g: setattr(g, "uuid", pynvml.NVMLError_GpuIsLost()), CheckReason.GPU_LOST, {}),
    (lambda g: setattr(g, "ecc", pynvml.NVMLError_ResetRequired()), CheckReason.GPU_LOST, {}),
    (lambda g: setattr(g, "recovery", 2), CheckReason.RECOVERY_NEEDED, {"action": "reboot the node"}),
    (lambda g: setattr(g, "retired", 1), CheckReason.PAGES_PENDING, {}),
    (lambda g: setattr(g, "rows", (0, 1, 1, 0)), CheckReason.ROWS_PENDING, {}),
    (lambda g: setattr(g, "rows", (0, 1, 0, 1)), CheckReason.ROWS_FAILED, {}),
    (lambda g: setattr(g, "throttle", 0x80), CheckReason.THROTTLED_AT_REST, {"throttling": "hw_power_brake"}),
    (lambda g: setattr(g, "application_clock", 345), CheckReason.CLOCKS_LOW, {"clock": "345", "default": "1980"}),
]


@pytest.mark.parametrize(("fault", "reason", "fields"), FAULTS, ids=[str(each[1]) for each in FAULTS])
def test_each_fault_is_found_with_its_gpu(
    node: Node, checked: CheckedNode, fault: Callable[[Gpu], None], reason: CheckReason, fields: dict[str, str]
) -> None:
    fault(node.gpus[1])
    found = failed(gpu.run(checked))
    assert (found.reason, found.evidence["gpu"]) == (reason, "1")
    assert fields.items() <= found.evidence.items()


def test_only_gpus_that_the_ranks_see_count(node: Node, checked: CheckedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.gpus[1].recovery = 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert isinstance(gpu.run(checked), Passed)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", TWO)
    assert failed(gpu.run(checked)).evidence["gpu"] == "0"


def test_throttling_and_old_memory_errors_of_a_gpu_at_work_are_no_faults(node: Node, checked: CheckedNode) -> None:
    node.gpus[0].throttle, node.gpus[0].utilization = 0x40, 97
    assert isinstance(gpu.run(checked), Passed)


def test_what_a_driver_does_not_know_is_left_out(node: Node, checked: CheckedNode) -> None:
    for each in node.gpus:
        each.recovery = each.retired = each.rows = each.ecc = each.application_clock = pynvml.NVMLError_NotSupported()
        each.fabric = pynvml.NVMLError_FunctionNotFound()
    assert isinstance(gpu.run(checked), Passed)
    assert isinstance(nvlink.run(checked), Passed)


def test_counters_are_compared_with_the_last_check(node: Node, checked: CheckedNode) -> None:
    first = gpu.run(checked)
    assert isinstance(first, Passed)
    later = replace(checked, last=first.counters, last_age=60.0)
    assert isinstance(gpu.run(later), Passed)
    node.gpus[1].ecc = {0: 12, 1: 5}
    found = failed(gpu.run(later))
    assert (found.reason, found.evidence["count"]) == (CheckReason.ECC_UNCORRECTED, "3")
    assert isinstance(gpu.run(replace(later, last=found.counters)), Passed)
    del node.gpus[1]
    found = failed(gpu.run(later))
    assert (found.reason, found.evidence) == (CheckReason.GPU_MISSING, {"found": "1", "before": "2"})


def test_xids_of_the_kernels_log(node: Node, checked: CheckedNode) -> None:
    log = Path(checked.kernel_log)
    log.write_text("6,1,2,-;NVRM: Xid (PCI:0000:86:00): 79, pid=123, GPU has fallen off the bus.\n")
    # The driver says that no recovery is needed: the GPU was reset since.
    first = gpu.run(checked)
    assert isinstance(first, Passed)
    node.gpus[1].recovery = pynvml.NVMLError_NotSupported()
    found = failed(gpu.run(checked))
    assert (found.reason, found.evidence) == (CheckReason.XID, {"gpu": "1", "xid": "79"})
    later = replace(checked, last=first.counters)
    assert isinstance(gpu.run(later), Passed)
    with log.open("a") as file:
        file.write("6,2,3,-;NVRM: Xid (PCI:0000:86:00): 31, an invalid address of the script\n")
        file.write("6,3,4,-;NVRM: Xid (PCI:0000:3b:00): 119, Timeout after 6s of waiting for RPC response from GSP\n")
    found = failed(gpu.run(later))
    assert found.evidence == {"gpu": "0", "xid": "119"}


def test_nvlinks_and_the_fabric(node: Node, checked: CheckedNode) -> None:
    first = nvlink.run(checked)
    assert isinstance(first, Passed)
    later = replace(checked, last=first.counters, last_age=60.0)
    node.gpus[0].links = [1, 1, 0, 1]
    found = failed(nvlink.run(later))
    assert (found.reason, found.evidence["active"], found.evidence["expected"]) == (
        CheckReason.LINK_INACTIVE,
        "3",
        "4",
    )
    assert isinstance(nvlink.run(checked), Passed), "a bridge that was never there"
    node.gpus[0].links = [1] * 4
    node.gpus[0].link_errors = {(2, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY): 1}
    found = failed(nvlink.run(later))
    assert (found.reason, found.evidence["link"], found.evidence["counter"]) == (
        CheckReason.LINK_ERRORS,
        "2",
        "recovery",
    )
    node.gpus[0].link_errors = {(2, pynvml.NVML_NVLINK_ERROR_DL_REPLAY): 20}
    assert isinstance(nvlink.run(later), Passed), "replays cost a packet each"
    node.gpus[1].fabric = (2, 0)
    assert failed(nvlink.run(later)).reason == CheckReason.FABRIC_NOT_READY
    node.gpus[1].fabric = (3, 999)
    assert failed(nvlink.run(later)).reason == CheckReason.FABRIC_FAILED
    node.gpus[1].fabric = (3, 0)
    assert isinstance(nvlink.run(later), Passed)


@pytest.fixture
def holder(checked: CheckedNode) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes of an attempt of a launcher with this folder."""
    started: list[subprocess.Popen[bytes]] = []

    def start(slots: str) -> subprocess.Popen[bytes]:
        variables = {**os.environ, "RANKWATCH_SLOTS_DIR": f"{slots}/attempt-1"}
        code = "import sys; print('up', flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", code]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_who_still_holds_memory_is_waited_for_then_ended(
    node: Node, checked: CheckedNode, holder: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = holder(checked.slots), holder("/dev/shm/rankwatch-of-another-job")

    def running(each: Gpu) -> list[Any]:
        alive = [process for process in (ours, theirs) if process.poll() is None] if each is node.gpus[1] else []
        return [SimpleNamespace(pid=process.pid, usedGpuMemory=4 << 30) for process in alive]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", running)
    monkeypatch.setattr(gpu_memory, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(gpu_memory, "POLL_SECONDS", 0.02)
    found = gpu_memory.run(checked)
    assert isinstance(found, Passed)
    assert f"(pid {ours.pid})" in found.figures["ended"]
    assert ours.wait(30) == -9
    assert theirs.poll() is None, "it is another job's"


def test_memory_that_nobody_frees_keeps_the_node_out(
    node: Node, checked: CheckedNode, holder: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = holder(checked.slots)
    node.gpus[0].processes = [SimpleNamespace(pid=ours.pid, usedGpuMemory=None)]
    monkeypatch.setattr(gpu_memory, "_kill", lambda *_: None)  # as one in an uninterruptible sleep
    for name in ("WAIT_SECONDS", "KILL_SECONDS", "POLL_SECONDS"):
        monkeypatch.setattr(gpu_memory, name, 0.05)
    found = failed(gpu_memory.run(checked))
    assert (found.reason, found.evidence["gpu"]) == (CheckReason.MEMORY_HELD, "0")
    assert str(ours.pid) in found.evidence["processes"]
    node.gpus[0].processes[0].usedGpuMemory = 100 << 20
    assert isinstance(gpu_memory.run(checked), Passed), "less than is tolerated"
