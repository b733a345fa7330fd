"""Emulated GPUs: the functions of the real ``pynvml`` are replaced by those of :class:`Node`.

Its error classes and constants stay. A name that pynvml does not have cannot be replaced, so none is made up here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pynvml = pytest.importorskip("pynvml")


class Gpu(SimpleNamespace):
    """One emulated GPU; what is set to an NVML error is unsupported on it."""

    def __init__(self, uuid: str, **changes: Any) -> None:
        values: dict[str, Any] = {
            "uuid": uuid,
            "model": "NVIDIA H200",
            "utilization": 87,
            "memory": SimpleNamespace(used=40 << 30, total=141 << 30),
            "temperature": 64,
            "power": 612_500,
            "limit": 700_000,
            "clock": 1755,
            "clock_limit": 1980,
            "throttle": 0,
            "ecc": {0: 12, 1: 2},
            "events": [],
            "instances": [],
            "registered": None,
            "recovery": 0,
            "retired": 0,
            "rows": (0, 0, 0, 0),
            "processes": [],
            "application_clock": 1980,
            "bus": b"00000000:3B:00.0",
            "links": [1] * 4,
            "link_errors": {},
            "fabric": (0, 0),
            "cluster": bytes(16),
            "clique": 0,
        }
        super().__init__(**values | changes)

    def reported(self, field: str) -> Any:
        value = getattr(self, field)
        if isinstance(value, Exception):
            raise value
        return value


class Node:
    """The NVML of an emulated node, under the names of pynvml's functions."""

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = list(gpus)
        self.hang = threading.Event()
        self.hang.set()

    def functions(self) -> dict[str, Callable[..., Any]]:
        def field(name: str) -> Callable[..., Any]:
            return lambda gpu, *_: gpu.reported(name)

        def utilization(gpu: Gpu) -> Any:
            self.hang.wait(30)
            return SimpleNamespace(gpu=gpu.reported("utilization"))

        def register(gpu: Gpu, kinds: int, events: list[Gpu]) -> None:
            assert kinds == pynvml.nvmlEventTypeXidCriticalError
            gpu.reported("events")
            events.append(gpu)

        def wait(events: list[Gpu], milliseconds: int) -> Any:
            assert milliseconds == 0, "the exporter must not wait"
            for gpu in events:
                if gpu.events:
                    return SimpleNamespace(eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=gpu.events.pop(0))
            raise pynvml.NVMLError_Timeout

        def instance(gpu: Gpu, place: int) -> Gpu:
            if place >= len(gpu.instances):
                raise pynvml.NVMLError_NotFound
            return gpu.instances[place]  # type: ignore[no-any-return]

        def field_values(gpu: Gpu, fields: list[int]) -> Any:
            assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
            return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=gpu.reported("recovery")))]

        def link_state(gpu: Gpu, link: int) -> int:
            if link >= len(gpu.links):
                raise pynvml.NVMLError_NotSupported
            return gpu.links[link]  # type: ignore[no-any-return]

        def fabric(gpu: Gpu, reference: Any) -> None:
            info = reference._obj  # what ctypes.byref() refers to
            info.state, info.status = gpu.reported("fabric")
            info.clusterUuid[:], info.cliqueId = gpu.cluster, gpu.clique

        return {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: self.gpus[index],
            "nvmlDeviceGetUUID": field("uuid"),
            "nvmlDeviceGetName": field("model"),
            "nvmlDeviceGetUtilizationRates": utilization,
            "nvmlDeviceGetMemoryInfo": field("memory"),
            "nvmlDeviceGetTemperature": field("temperature"),
            "nvmlDeviceGetPowerUsage": field("power"),
            "nvmlDeviceGetEnforcedPowerLimit": field("limit"),
            "nvmlDeviceGetClockInfo": field("clock"),
            "nvmlDeviceGetMaxClockInfo": field("clock_limit"),
            "nvmlDeviceGetCurrentClocksEventReasons": field("throttle"),
            "nvmlDeviceGetCurrentClocksThrottleReasons": field("throttle"),
            "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, _: gpu.reported("ecc")[kind],
            "nvmlDeviceGetFieldValues": field_values,
            "nvmlDeviceGetRetiredPagesPendingStatus": field("retired"),
            "nvmlDeviceGetRemappedRows": field("rows"),
            "nvmlDeviceGetComputeRunningProcesses": field("processes"),
            "nvmlDeviceGetApplicationsClock": field("application_clock"),
            "nvmlDeviceGetDefaultApplicationsClock": lambda gpu, _: 1980,
            "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(busId=gpu.bus),
            "nvmlDeviceGetNvLinkState": link_state,
            "nvmlDeviceGetNvLinkErrorCounter": lambda gpu, link, kind: gpu.link_errors.get((link, kind), 0),
            "nvmlDeviceGetGpuFabricInfo": fabric,
            "nvmlEventSetCreate": list,
            "nvmlEventSetFree": lambda events: None,
            "nvmlDeviceRegisterEvents": register,
            "nvmlEventSetWait_v2": wait,
            "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": instance,
        }
