"""The GPUs of the ranks by NVML, and what the driver has written about them to the kernel's log.

A driver that is stuck may hold a call for ever, so all is read on a thread that nobody waits for; what it has not read
in time is missing. Nothing is imported or opened on a node without a driver.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rankwatch.contract import semconv
from rankwatch.contract.diagnosis import Gpu, Hindrance, Obstacle
from rankwatch.contract.semconv import Metric
from rankwatch.contract.text import one_line
from rankwatch.profiling import nvml as reader
from rankwatch.profiling.nvml import Points
from rankwatch_launcher.checks.gpu import Xid, bus_of, kernel_xids
from rankwatch_launcher.diagnose.find import Rank

INTERVAL: Final = 1.0
STOP_SECONDS: Final = 2.0
"""For a reading that has begun."""
KERNEL_LOG: Final = "/dev/kmsg"
MAX_XIDS: Final = 16
HOST_PIDS: Final = "pid:[4026531836]"
"""The kernel's first namespace of processes always has this number."""


@dataclass
class _Read:
    """What the readings of one GPU have shown so far."""

    device: reader.Device
    bus: str
    points: Mapping[Metric, Points] = field(default_factory=dict)
    busy: list[float] = field(default_factory=list)


class Gpus:
    """Readings of the GPUs of some ranks, until they are asked for."""

    def __init__(
        self, ranks: Collection[Rank], *, kernel_log: str = KERNEL_LOG, devices: Path = Path("/sys/bus/pci/devices")
    ) -> None:
        self._ranks, self._log, self._devices = tuple(ranks), kernel_log, devices
        self._stop = threading.Event()
        self._read: dict[int, _Read] = {}
        self._why = ""
        self._xids: list[Xid] | None = []
        self._thread = threading.Thread(target=self._run, name="rankwatch-nvml", daemon=True)
        if reader.driver_present() and self._ranks:
            self._thread.start()

    def taken(self) -> tuple[dict[int, Gpu], list[Obstacle]]:
        """What is known of each process's GPU now, and why not more."""
        if self._thread.ident is None:
            return {}, []
        self._stop.set()
        self._thread.join(STOP_SECONDS)
        obstacles = list[Obstacle]()
        stuck = self._thread.is_alive()
        missing = tuple(each.pid for each in self._ranks if each.pid not in self._read)
        if stuck or (missing and self._why):
            why = "its driver does not answer" if stuck else self._why
            obstacles.append(Obstacle(Hindrance.NO_GPU_READINGS, missing, one_line(why, 200)))
        if self._xids is None:
            obstacles.append(Obstacle(Hindrance.NO_KERNEL_LOG))
        ages = {each.pid: each.age for each in self._ranks}
        return {pid: self._gpu(read, ages[pid]) for pid, read in dict(self._read).items() if read.points}, obstacles

    def _run(self) -> None:
        try:
            nvml = reader.library()
            by_pid = _by_process(nvml)
        except Exception as error:  # noqa: BLE001 - the thread's boundary: NVML raises classes of its own
            self._why = str(error)
            return
        for rank in self._ranks:
            try:
                device = by_pid.get(rank.pid) or reader.find(nvml, rank.local_rank, rank.devices)
                self._read[rank.pid] = _Read(device, bus_of(device.bus()))
            except Exception as error:  # noqa: BLE001 - as above
                self._why = str(error)
        while True:
            for read in self._read.values():
                try:
                    read.points = read.device.readings()
                except Exception as error:  # noqa: BLE001 - as above
                    self._why = str(error)
                    continue
                read.busy += [value for value, _ in read.points.get(semconv.GPU_UTILIZATION, ())]
            if self._stop.wait(INTERVAL):
                break
        self._xids = kernel_xids(self._log) if self._read else []

    def _gpu(self, read: _Read, age: float) -> Gpu:
        def one(metric: Metric) -> float | None:
            return next((value for value, _ in read.points.get(metric, ())), None)

        since = time.clock_gettime(time.CLOCK_BOOTTIME) - age
        logged = [x.number for x in self._xids or () if x.bus == read.bus and x.at is not None and x.at >= since]
        xids = dict.fromkeys((*logged, *read.device.xids))
        return Gpu(
            read.device.identity().get(semconv.HW_NAME, ""),
            round(sum(read.busy) / len(read.busy), 3) if read.busy else None,
            one(semconv.GPU_MEMORY_USAGE),
            one(semconv.GPU_MEMORY_LIMIT),
            one(semconv.GPU_POWER),
            one(semconv.GPU_CLOCK),
            one(semconv.GPU_CLOCK_LIMIT),
            tuple(about[semconv.ATTR_REASON] for _, about in read.points.get(semconv.GPU_THROTTLED, ())),
            tuple(xids)[-MAX_XIDS:],
            self._numa_node(read.bus),
        )

    def _numa_node(self, bus: str) -> int | None:
        domain, _, rest = bus.partition(":")
        try:
            found = int((self._devices / f"{domain:>04}:{rest}.0" / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return None if found < 0 else found


def _by_process(nvml: Any) -> dict[int, reader.Device]:
    """The GPU of each process that computes on one alone; the driver's numbers of processes are those of the host."""
    found: dict[int, list[Any]] = {}
    if os.readlink("/proc/self/ns/pid") != HOST_PIDS:
        return {}
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        try:
            running = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        except nvml.NVMLError:
            continue
        for each in running:
            found.setdefault(each.pid, []).append(gpu)
    return {pid: reader.Device(nvml, gpus[0], gpus[0]) for pid, gpus in found.items() if len(gpus) == 1}
