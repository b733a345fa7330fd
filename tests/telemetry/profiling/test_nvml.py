"""NVML readings: for real where there is no GPU, and their logic on an emulated device.

There is no GPU on the machines that run these tests, so the device is emulated (:mod:`support.emulated_gpus`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.contract import semconv
from rankwatch.profiling import nvml
from rankwatch.profiling.nvml import Devices, identity, visible_devices
from support.emulated_gpus import Gpu, Node

pynvml = pytest.importorskip("pynvml")

ONE = "GPU-11111111-aaaa-bbbb-cccc-000000000001"
TWO = "GPU-22222222-aaaa-bbbb-cccc-000000000002"
MIG = "MIG-99999999-aaaa-bbbb-cccc-000000000009"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(Gpu(ONE), Gpu(TWO, utilization=3))
    monkeypatch.setattr(nvml, "driver_present", lambda: True)
    # A busy machine may take long to run a thread; the tests of these limits set their own.
    monkeypatch.setattr(nvml, "READ_LIMIT", 20)
    monkeypatch.setattr(nvml, "IDENTITY_LIMIT", 20)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    for name, function in node.functions().items():
        monkeypatch.setattr(pynvml, name, function)
    yield node
    node.hang.set()
    for thread in threading.enumerate():
        if thread.name == "rankwatch-nvml":
            thread.join(60)
            assert not thread.is_alive()


def reading(devices: Devices) -> dict[str, Any]:
    """Readings by name: a number, or numbers by reason."""
    reported = devices.read()
    assert reported is not None, devices.reason
    flat: dict[str, Any] = {}
    for metric, points in reported.items():
        assert metric in semconv.DEVICE_METRICS
        by_reason = {attributes.get(semconv.ATTR_REASON, ""): value for value, attributes in points}
        flat[metric.name] = by_reason.get("", by_reason)
    return flat


def test_everything_is_read_in_the_units_of_the_contract(node: Node) -> None:
    node.gpus[0].throttle = 0x4 | 0x8 | 0x40
    assert reading(Devices(0)) == {
        "hw.gpu.utilization": 0.87,
        "hw.gpu.memory.usage": 40 << 30,
        "hw.gpu.memory.limit": 141 << 30,
        "hw.gpu.temperature": 64,
        "hw.gpu.power": 612.5,
        "hw.gpu.power.limit": 700,
        "hw.gpu.clock.frequency": 1.755e9,
        "hw.gpu.clock.limit": 1.98e9,
        "hw.gpu.throttled": {"power_cap": 1, "hw_slowdown": 1, "hw_thermal": 1},
        "hw.errors": {"ecc_uncorrected": 2, "ecc_corrected": 12, "xid": 0},
    }


def test_idling_and_chosen_clocks_are_no_throttling(node: Node) -> None:
    node.gpus[0].throttle = pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonApplicationsClocksSetting
    assert "hw.gpu.throttled" not in reading(Devices(0))


def test_the_names_of_throttling_are_those_of_nvml() -> None:
    prefix = "nvmlClocksThrottleReason"
    bits = {getattr(pynvml, prefix + name): name for name in (
        "SwPowerCap", "HwSlowdown", "SyncBoost", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown",
        "DisplayClockSetting", "BoardLimit", "Reliability",
    )}  # fmt: skip
    assert list(bits) == list(nvml.THROTTLING)
    known = sum(bits) | pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonApplicationsClocksSetting
    assert known == pynvml.nvmlClocksThrottleReasonAll, "pynvml knows a reason that has no name here"


def test_what_a_device_does_not_support_is_left_out_and_the_rest_stays(node: Node) -> None:
    gpu = node.gpus[0]
    gpu.utilization = gpu.ecc = gpu.limit = pynvml.NVMLError_NotSupported()
    gpu.events = pynvml.NVMLError_NoPermission()
    reported = reading(Devices(0))
    assert reported["hw.gpu.temperature"] == 64
    assert not {"hw.gpu.utilization", "hw.errors", "hw.gpu.power.limit"} & set(reported)


def test_a_driver_that_knows_only_the_older_name_of_throttling(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: Gpu) -> int:
        raise pynvml.NVMLError_FunctionNotFound

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", unknown)
    node.gpus[0].throttle = 0x20
    assert reading(Devices(0))["hw.gpu.throttled"] == {"sw_thermal": 1}


def test_xids_are_counted_and_named_in_the_log(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    devices = Devices(0)
    assert reading(devices)["hw.errors"]["xid"] == 0
    node.gpus[0].events += [48, 63]
    assert reading(devices)["hw.errors"]["xid"] == 2
    assert reading(devices)["hw.errors"]["xid"] == 2
    assert [record.args for record in caplog.records] == [(48,), (63,)]


def test_a_lost_gpu_is_reported_and_read_again_when_it_is_back(node: Node) -> None:
    devices, gpu = Devices(0), node.gpus[0]
    reading(devices)
    healthy = dict(vars(gpu))
    lost = pynvml.NVMLError_GpuIsLost()
    for field in ("utilization", "memory", "temperature", "power", "limit", "clock", "clock_limit", "throttle", "ecc"):
        setattr(gpu, field, lost)
    devices._device._events = None  # type: ignore[union-attr]
    assert devices.read() is None
    assert devices.reason is not None
    assert "every reading failed" in devices.reason
    vars(gpu).update(healthy)
    assert reading(devices)["hw.gpu.temperature"] == 64
    assert devices.reason is None


@pytest.mark.parametrize(
    ("visible", "local_rank", "device"),
    [
        (None, 1, TWO),
        ("1,0", 0, TWO),
        ("1,0", 1, ONE),
        ("1", 3, TWO),  # one device to see, as Slurm gives it: it is this rank's
        ("GPU-2222", 0, TWO),
        (f"{TWO},{ONE}", 1, ONE),
        (" 1 , 0 ", 0, TWO),
    ],
)
def test_the_rank_reads_its_own_device(
    node: Node, monkeypatch: pytest.MonkeyPatch, visible: str | None, local_rank: int, device: str
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert identity(local_rank) == {semconv.HW_ID: device, semconv.HW_NAME: "NVIDIA H200"}
    assert reading(Devices(local_rank))["hw.gpu.utilization"] == {ONE: 0.87, TWO: 0.03}[device]


@pytest.mark.parametrize(
    ("visible", "local_rank", "words"),
    [
        ("", 0, "CUDA_VISIBLE_DEVICES='' leaves this rank no GPU"),
        ("-1", 0, "leaves this rank no GPU"),
        ("0,1", 2, "Local rank 2 has no GPU: 2 are visible"),
        ("GPU-3", 0, "names GPU-3, which matches no device"),
        ("GPU-", 0, "more than one"),
        ("MIG-1", 0, "names MIG-1"),
    ],
)
def test_no_device_rather_than_the_wrong_one(
    node: Node, monkeypatch: pytest.MonkeyPatch, visible: str, local_rank: int, words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = Devices(local_rank)
    assert devices.read() is None
    assert devices.reason is not None
    assert words in devices.reason
    assert identity(local_rank) == {}


def test_a_node_with_different_gpus_needs_an_order(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.gpus[1].model = "NVIDIA A100"
    devices = Devices(0)
    assert devices.read() is None
    assert devices.reason is not None
    assert "mixes GPUs (NVIDIA A100, NVIDIA H200)" in devices.reason
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert reading(Devices(0))["hw.gpu.utilization"] == 0.87
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", TWO)
    assert identity(0)[semconv.HW_NAME] == "NVIDIA A100", "a UUID needs no order"


def test_a_mig_instance_has_its_own_memory_and_the_heat_of_its_gpu(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    unsupported = pynvml.NVMLError_NotSupported()
    part = Gpu(
        MIG, memory=SimpleNamespace(used=1 << 30, total=18 << 30), utilization=unsupported, temperature=unsupported
    )
    node.gpus[1].instances = [part]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-9999")
    reported = reading(Devices(0))
    assert reported["hw.gpu.memory.limit"] == 18 << 30
    assert reported["hw.gpu.temperature"] == 64
    assert "hw.gpu.utilization" not in reported
    assert identity(0)[semconv.HW_ID] == MIG


def test_a_driver_that_does_not_answer_blocks_nothing_and_is_asked_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "READ_LIMIT", 0.05)
    devices = Devices(0)
    node.hang.clear()
    for _ in range(3):
        begun = time.monotonic()
        assert devices.read() is None
        assert time.monotonic() - begun < 30
        assert sum(thread.name == "rankwatch-nvml" for thread in threading.enumerate()) == 1
    assert devices.reason is not None
    assert "does not answer" in devices.reason
    node.hang.set()
    monkeypatch.setattr(nvml, "READ_LIMIT", 20)
    assert reading(devices)["hw.gpu.utilization"] == 0.87


def test_a_slow_start_of_nvml_does_not_hold_up_a_rank(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "IDENTITY_LIMIT", 0.05)
    monkeypatch.setattr(pynvml, "nvmlInit", node.hang.wait)
    node.hang.clear()
    begun = time.monotonic()
    assert identity(0) == {}
    assert time.monotonic() - begun < 30


def test_without_a_gpu_there_is_one_sentence_and_no_thread() -> None:
    if nvml.driver_present():
        pytest.skip("this machine has a GPU")
    devices = Devices(0)
    assert devices.read() is None
    assert (
        devices.reason == "This machine shows no NVIDIA GPU (there is no /dev/nvidiactl), so its devices are not read."
    )
    assert devices.read() is None
    assert devices._pending is None, "a missing device is not looked for again"
    assert identity(0) == {}


def test_without_the_library_the_sentence_states_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pynvml, which does not find ``libnvidia-ml.so.1`` here."""
    if nvml.driver_present():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(nvml, "driver_present", lambda: True)
    devices = Devices(0)
    assert devices.read() is None
    assert devices.reason is not None
    assert devices.reason.startswith("libnvidia-ml.so.1 was not found")
    assert identity(0) == {}


def test_without_the_package_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "driver_present", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    devices = Devices(0)
    assert devices.read() is None
    assert devices.reason is not None
    assert "nvidia-ml-py is not installed" in devices.reason


def test_which_devices_cuda_shows() -> None:
    assert visible_devices(None, 3) == ["0", "1", "2"]
    assert visible_devices("2,0", 3) == ["2", "0"]
    assert visible_devices("1,7,0", 3) == ["1"], "CUDA ignores all from the first that is not there"
    assert visible_devices("0,-1,1", 3) == ["0"]
    assert visible_devices("GPU-1,MIG-2", 0) == ["GPU-1", "MIG-2"]
    assert visible_devices("gpu0", 3) == []
