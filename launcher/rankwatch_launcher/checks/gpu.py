"""The GPUs that the ranks see, by NVML: lost, asking for recovery, memory errors, XIDs, throttling and clocks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from ctypes import byref
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from rankwatch.contract.node_checks import CheckName, CheckReason
from rankwatch.profiling import nvml as reader
from rankwatch_launcher.checks.check import Check, CheckedNode, Failed, Found, Passed, Skipped

RECOVERY_ACTIONS: Final = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain P2P traffic",
    4: "drain and reset",
    5: "recover the IMEX domain",
    6: "reset its bus",
    7: "reboot the system",
}
"""``NVML_GPU_RECOVERY_ACTION_*``."""
FATAL_XIDS: Final = frozenset({48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 144, 145, 149, 154})
"""Those that NVIDIA's list answers with a reset or a report; all others concern the process, or pass."""
AT_REST: Final = 5
"""Per cent of utilization up to which a GPU is at rest."""
COLD_THROTTLING: Final = 0x008 | 0x040 | 0x080
"""hw_slowdown, hw_thermal, hw_power_brake: none has a reason on a GPU at rest."""
COOLING_SECONDS: Final = 5.0
LOW_CLOCKS: Final = 0.8
"""Part of the default application clocks below which they were set low."""
MAX_LOG: Final = 4 << 20
"""Bytes of the kernel's log that are read."""
_XID: Final = re.compile(r"(?:\d+,\d+,(\d+),[^;\n]*;)?NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
"""With the microseconds since the machine was started, in ``/dev/kmsg``."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """NVML and the GPUs that are visible here."""

    nvml: Any
    handles: list[Any]

    def ask(self, call: Callable[[], Any]) -> Any:
        """The answer; None: the device, the driver or the user's rights do not allow it.

        Raises:
            NVMLError: the GPU is lost.
        """
        try:
            return call()
        except (self.nvml.NVMLError_GpuIsLost, self.nvml.NVMLError_ResetRequired):
            raise
        except (self.nvml.NVMLError, AttributeError):  # older drivers and packages lack newer calls
            return None

    def fabric(self, handle: Any) -> Any:
        """How a GPU is registered with the fabric of its NVLinks: :meth:`ask`."""

        def call() -> Any:
            info = self.nvml.c_nvmlGpuFabricInfo_t()
            self.nvml.nvmlDeviceGetGpuFabricInfo(handle, byref(info))
            return info

        return self.ask(call)


def opened() -> Gpus | Skipped | Failed:
    """The GPUs that the ranks would see, or why there is nothing to check."""
    if not reader.driver_present():
        return Skipped(CheckReason.NOTHING_HERE, {"what": "NVIDIA GPU"})
    try:
        nvml, handles = reader.visible_gpus()
    except reader.NoDeviceError as error:
        return Skipped(CheckReason.NOT_READABLE, {"what": "NVML", "error": f": {error}"})
    except Exception as error:
        if type(error).__name__ in ("NVMLError_GpuIsLost", "NVMLError_ResetRequired"):
            return Failed(CheckReason.GPU_LOST, {"gpu": "?", "error": str(error)})
        if type(error).__name__.startswith("NVMLError"):
            return Skipped(CheckReason.NOT_READABLE, {"what": "NVML", "error": f": {error}"})
        raise
    return Gpus(nvml, handles)


def run(node: CheckedNode) -> Found:
    """Check all visible GPUs; the first fault is the result."""
    gpus = opened()
    if not isinstance(gpus, Gpus):
        return gpus
    counters = {"gpus": len(gpus.handles)}
    if (before := node.last.get("gpus", 0)) > len(gpus.handles):
        return Failed(CheckReason.GPU_MISSING, {"found": str(len(gpus.handles)), "before": str(before)}, counters)
    xids = _xids(node)
    fault: Failed | None = None
    for index, handle in enumerate(gpus.handles):
        try:
            for found in _faults(node, gpus, handle, str(index), xids, counters):
                fault = fault or found
        except gpus.nvml.NVMLError as error:
            fault = fault or Failed(CheckReason.GPU_LOST, {"gpu": str(index), "error": str(error)})
    if fault is not None:
        return Failed(fault.reason, fault.evidence, counters)
    return Passed({"gpus": str(len(gpus.handles))}, counters)


def _faults(
    node: CheckedNode, gpus: Gpus, handle: Any, gpu: str, xids: dict[str, dict[int, int]], counters: dict[str, int]
) -> Iterator[Failed]:
    nvml, ask, here = gpus.nvml, gpus.ask, {"gpu": gpu}
    identity = nvml.nvmlDeviceGetUUID(handle)  # raises if the GPU is lost
    action = _recovery_action(gpus, handle)
    if action:
        yield Failed(CheckReason.RECOVERY_NEEDED, {**here, "action": RECOVERY_ACTIONS.get(action, str(action))})
    if ask(partial(_call, nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle)):
        yield Failed(CheckReason.PAGES_PENDING, here)
    rows = ask(partial(_call, nvml, "nvmlDeviceGetRemappedRows", handle))
    if rows is not None:
        _, _, pending, failure = rows
        if failure:
            yield Failed(CheckReason.ROWS_FAILED, here)
        if pending:
            yield Failed(CheckReason.ROWS_PENDING, here)
    errors = ask(
        lambda: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
    )
    if errors is not None:
        counters[f"{identity} ecc"] = errors
        # What is older than this job was contained, or is told by the pending rows and the recovery action.
        if rise := node.rise(f"{identity} ecc", errors):
            yield Failed(CheckReason.ECC_UNCORRECTED, {**here, "count": str(rise)})
    yield from _fatal_xids(node, gpus, handle, gpu, xids, counters, known=action is not None)
    busy = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    if busy is not None and busy <= AT_REST and (bits := _throttled_at_rest(nvml, handle)):
        names = ", ".join(name for bit, name in reader.THROTTLING.items() if bits & bit)
        yield Failed(CheckReason.THROTTLED_AT_REST, {**here, "throttling": names})
    clock = ask(lambda: nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_GRAPHICS))
    default = ask(lambda: nvml.nvmlDeviceGetDefaultApplicationsClock(handle, nvml.NVML_CLOCK_GRAPHICS))
    if clock and default and clock < LOW_CLOCKS * default:
        yield Failed(CheckReason.CLOCKS_LOW, {**here, "clock": str(clock), "default": str(default)})


def _fatal_xids(
    node: CheckedNode,
    gpus: Gpus,
    handle: Any,
    gpu: str,
    xids: dict[str, dict[int, int]],
    counters: dict[str, int],
    *,
    known: bool,
) -> Iterator[Failed]:
    """XIDs since the last check; those since boot where the driver does not tell whether the GPU needs recovery."""
    info = gpus.ask(lambda: gpus.nvml.nvmlDeviceGetPciInfo(handle))
    bus = bus_of(info.busId.decode() if isinstance(info.busId, bytes) else info.busId) if info is not None else ""
    for xid, count in xids.get(bus, {}).items():
        name = f"{bus} xid {xid}"
        counters[name] = count
        first = not node.last
        if count > node.last.get(name, 0) if not first else not known:
            yield Failed(CheckReason.XID, {"gpu": gpu, "xid": str(xid)})


def _recovery_action(gpus: Gpus, handle: Any) -> int | None:
    """What the driver wants to be done; None: it does not tell."""
    field = getattr(gpus.nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field is None:
        return None
    values = gpus.ask(partial(_call, gpus.nvml, "nvmlDeviceGetFieldValues", handle, [field]))
    if not values or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal)


def _throttled_at_rest(nvml: Any, handle: Any) -> int:
    """Bits of throttling that have no reason on a GPU at rest, and stay: one that was at work has to cool down."""
    until = time.monotonic() + COOLING_SECONDS
    while (bits := reader.throttle_bits(nvml, handle) & COLD_THROTTLING) and time.monotonic() < until:
        time.sleep(COOLING_SECONDS / 10)
    return bits


def _call(nvml: Any, name: str, *arguments: Any) -> Any:
    return getattr(nvml, name)(*arguments)


def _xids(node: CheckedNode) -> dict[str, dict[int, int]]:
    """Fatal XIDs in the kernel's log: how often each, by GPU. Empty where it may not be read, as for most users."""
    found: dict[str, dict[int, int]] = {}
    for each in kernel_xids(node.kernel_log) or ():
        if each.number in FATAL_XIDS:
            counts = found.setdefault(each.bus, {})
            counts[each.number] = counts.get(each.number, 0) + 1
    return found


class Xid(NamedTuple):
    """What the driver has written to the kernel's log."""

    bus: str
    """See :func:`bus_of`."""
    number: int
    at: float | None
    """Seconds since the machine was started; None: the log does not tell."""


def kernel_xids(log: str) -> list[Xid] | None:
    """All XIDs in the kernel's log, the oldest first; None: it may not be read, as by most users."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    text = b""
    try:
        while len(text) < MAX_LOG and (block := os.read(descriptor, 8192)):  # /dev/kmsg: one message each
            text += block + b"\n"
    except OSError:
        pass  # EAGAIN: all was read; EPIPE: it was overwritten meanwhile
    finally:
        os.close(descriptor)
    made = _XID.findall(text.decode(errors="replace"))
    return [Xid(bus_of(bus), int(number), int(at) / 1e6 if at else None) for at, bus, number in made]


def bus_of(text: str) -> str:
    """``3b:00`` of ``00000000:3B:00.0`` and of ``0000:3b:00``, with the domain: ``0:3b:00``."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest.partition('.')[0]}"


CHECK: Final = Check(CheckName.GPU, run, limit=20.0)
