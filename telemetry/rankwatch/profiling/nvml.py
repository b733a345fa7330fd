"""NVML readings of this rank's GPU: utilization, memory, temperature, power, clocks, throttling, errors.

The device is found once: ``CUDA_VISIBLE_DEVICES`` holds indices, UUIDs or MIG ids (both may be abbreviated), and the
local rank indexes it; a rank that sees one device only uses that one. See :func:`find` for what indices mean.

NVML answers within milliseconds, but a failing driver can block a call for minutes, during which the rank must keep
exporting its liveness. So each query runs on a thread of its own: the caller waits :data:`READ_LIMIT` at most, and no
second query starts while one is pending. A reading that the device does not support is left out; if there is no NVML,
:attr:`Devices.reason` describes why.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rankwatch.contract import semconv
from rankwatch.contract.semconv import Metric

Points = list[tuple[float, Mapping[str, str]]]
"""Points of one metric: value, attributes."""

READ_LIMIT: Final = 0.25
IDENTITY_LIMIT: Final = 0.05
"""Longest wait in seconds: of the exporter for a reading, of a starting rank for its device's UUID and name."""

THROTTLING: Final[Mapping[int, str]] = {
    0x004: "power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
"""NVML's ``nvmlClocksEventReason*`` bits that mean throttling; idle (1) and application clocks (2) do not."""

_XIDS_AT_ONCE: Final = 64
"""Events read at once, so that a device that reports them without end does not block the reading."""

_log = logging.getLogger("rankwatch")


class NoDeviceError(Exception):
    """No device can be read; the message describes the cause and the remedy."""


class Devices:
    """Readings of one local rank's device, which is opened by the first :meth:`read`."""

    def __init__(self, local_rank: int) -> None:
        self.reason: str | None = None
        """Why the last :meth:`read` returned nothing; ``None`` when it did return readings."""
        self._local_rank = local_rank
        self._device: Device | None = None
        self._pending: _Query | None = None
        self._unavailable = False

    def read(self) -> dict[Metric, Points] | None:
        """Read all of :data:`~rankwatch.contract.semconv.DEVICE_METRICS` that the device supports.

        Returns after 0.25 s at the latest and never raises: ``None`` where there is no device, or no answer yet.
        """
        if self._unavailable:
            return None
        if self._pending is None:
            self._pending = _Query(self._query)
        if not self._pending.wait(READ_LIMIT):
            self.reason = "NVML does not answer: its driver is busy or stuck; run `nvidia-smi` on this node to check."
            return None
        query, self._pending = self._pending, None
        if isinstance(query.result, dict):
            self.reason = None
            return query.result
        self.reason = str(query.result)
        self._unavailable = self._device is None  # a missing device does not appear while this process runs
        return None

    def _query(self) -> dict[Metric, Points]:
        if self._device is None:
            self._device = find(library(), self._local_rank)
        return self._device.readings()


def identity(local_rank: int) -> dict[str, str]:
    """UUID and product name of the rank's device, as resource attributes; ``{}`` if they are not available.

    Returns after 50 ms at the latest and never raises; with a driver that takes longer to start they are left out.
    """
    if not driver_present():
        return {}
    query = _Query(lambda: find(library(), local_rank).identity())
    query.wait(IDENTITY_LIMIT)
    return query.result if isinstance(query.result, dict) else {}


class _Query:
    """One call on a daemon thread, and its result or exception."""

    def __init__(self, call: Callable[[], dict[Any, Any]]) -> None:
        self.result: dict[Any, Any] | Exception | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, name="rankwatch-nvml", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:  # noqa: BLE001 - the thread's boundary: whatever NVML raises becomes the reason
            self.result = error if isinstance(error, NoDeviceError) else NoDeviceError(f"NVML failed: {error}")


class Device:
    """One open device. A MIG instance has memory of its own; temperature, power and clocks are those of its GPU."""

    def __init__(self, nvml: Any, handle: Any, gpu: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._gpu = gpu
        self.xids: list[int] = []
        """Those since the first reading, of any process on the device."""
        self._events: Any = None
        self._watched = False

    def identity(self) -> dict[str, str]:
        """UUID and product name, as resource attributes."""
        nvml = self._nvml
        attributes = {
            semconv.HW_ID: self._try(lambda: nvml.nvmlDeviceGetUUID(self._handle)),
            semconv.HW_NAME: self._try(lambda: nvml.nvmlDeviceGetName(self._handle)),
        }
        return {name: value for name, value in attributes.items() if value is not None}

    def bus(self) -> str:
        """The address of the GPU on its bus, as the driver writes it; empty: it does not tell."""
        info = self._try(lambda: self._nvml.nvmlDeviceGetPciInfo(self._gpu))
        found = "" if info is None else info.busId
        return found.decode() if isinstance(found, bytes) else str(found)

    def readings(self) -> dict[Metric, Points]:
        """All of :data:`~rankwatch.contract.semconv.DEVICE_METRICS` that the device supports."""
        nvml, gpu = self._nvml, self._gpu
        memory = self._try(lambda: nvml.nvmlDeviceGetMemoryInfo(self._handle))
        values: dict[Metric, float | None] = {
            semconv.GPU_UTILIZATION: self._try(lambda: nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100),
            semconv.GPU_MEMORY_USAGE: memory and memory.used,
            semconv.GPU_MEMORY_LIMIT: memory and memory.total,
            semconv.GPU_TEMPERATURE: self._try(lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            semconv.GPU_POWER: self._try(lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
            semconv.GPU_POWER_LIMIT: self._try(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3),
            semconv.GPU_CLOCK: self._try(lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6),
            semconv.GPU_CLOCK_LIMIT: self._try(lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6),
        }
        points: dict[Metric, Points] = {m: [(float(value), {})] for m, value in values.items() if value is not None}
        by_reason = {
            semconv.GPU_THROTTLED: [(reason, 1) for reason in self._throttled()],
            semconv.GPU_ERRORS: [(reason, count) for reason, count in self._errors() if count is not None],
        }
        for metric, reasons in by_reason.items():
            if reasons:
                points[metric] = [(float(value), {semconv.ATTR_REASON: reason}) for reason, value in reasons]
        if not points:
            raise NoDeviceError(
                "NVML reads nothing from this device: every reading failed; run `nvidia-smi` on this node to check."
            )
        return points

    def _throttled(self) -> list[str]:
        bits = throttle_bits(self._nvml, self._gpu)
        return [name for bit, name in THROTTLING.items() if bits & bit]

    def _errors(self) -> Iterator[tuple[str, int | None]]:
        nvml, gpu = self._nvml, self._gpu
        for reason, kind in (
            ("ecc_uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            ("ecc_corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ):
            # Volatile counts start when the driver is loaded; lifetime counts include errors of earlier jobs.
            yield reason, self._try(partial(nvml.nvmlDeviceGetTotalEccErrors, gpu, kind, nvml.NVML_VOLATILE_ECC))
        if not self._watched:
            self._watched, self._events = True, self._watch()
        yield "xid", self._xids_seen() if self._events is not None else None

    def _watch(self) -> Any:
        """An event set for XIDs; ``None`` if the device does not support one or the process may not create it."""
        nvml = self._nvml

        def watch() -> Any:
            events = nvml.nvmlEventSetCreate()
            try:
                nvml.nvmlDeviceRegisterEvents(self._gpu, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError:
                nvml.nvmlEventSetFree(events)
                raise
            return events

        return self._try(watch)

    def _xids_seen(self) -> int:
        """XIDs since the first reading, of any process on the device; each is logged with its number."""
        for _ in range(_XIDS_AT_ONCE):
            event = self._try(lambda: self._nvml.nvmlEventSetWait_v2(self._events, 0))  # raises Timeout: nothing new
            if event is None:
                break
            if event.eventType & self._nvml.nvmlEventTypeXidCriticalError:
                self.xids.append(event.eventData)
                _log.warning(
                    "The GPU of this rank reported XID %d; see `dmesg` on this node for details.", event.eventData
                )
        return len(self.xids)

    def _try(self, query: Callable[[], Any]) -> Any:
        """The result of ``query``; ``None`` if the device, the driver or the user's rights do not allow it."""
        try:
            return query()
        except self._nvml.NVMLError:
            return None


def throttle_bits(nvml: Any, gpu: Any) -> int:
    """Bits of :data:`THROTTLING` and of idling that are set; 0: none, or they cannot be read."""
    # Drivers before 535 have this function under its older name only.
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        if (read := getattr(nvml, name, None)) is not None:
            try:
                return int(read(gpu))
            except nvml.NVMLError:
                continue
    return 0


def driver_present() -> bool:
    """Whether this machine has an NVIDIA driver, so that nothing is imported in vain."""
    return any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg"))


def library() -> Any:
    """Import and initialise NVML. It is never shut down, since that would also affect the user's own use of it."""
    if not driver_present():
        raise NoDeviceError(
            "This machine shows no NVIDIA GPU (there is no /dev/nvidiactl), so its devices are not read."
        )
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise NoDeviceError(
            "The package nvidia-ml-py is not installed, so clocks and throttling are not read: `pip install "
            "rankwatch[gpu]`."
        ) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        raise NoDeviceError(
            "libnvidia-ml.so.1 was not found, so clocks and throttling are not read. It comes with the driver; a "
            "container gets it with NVIDIA_DRIVER_CAPABILITIES=utility (or all)."
        ) from None
    except nvml.NVMLError as error:
        raise NoDeviceError(
            f"NVML could not be initialised ({error}): see whether `nvidia-smi` works on this node."
        ) from None
    return nvml


def visible_gpus() -> tuple[Any, list[Any]]:
    """NVML, and the GPUs that CUDA sees here, by its own calls: they may block for as long as the driver likes.

    Raises:
        NoDeviceError: there is none.
        NVMLError: of pynvml, the driver's answer.
    """
    nvml = library()
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = nvml.nvmlDeviceGetCount()
    visible = visible_devices(setting, count)
    if all(entry.isdecimal() for entry in visible):  # those that nobody sees may be lost, and are not asked
        found = [nvml.nvmlDeviceGetHandleByIndex(int(entry)) for entry in visible]
    else:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        found = [
            gpu
            for entry in visible
            for _, gpu in ([(0, handles[int(entry)])] if entry.isdecimal() else _by_uuid(nvml, entry, handles))
        ]
    if not found:
        raise NoDeviceError("NVML sees no GPU here.")
    return nvml, found


def find(nvml: Any, local_rank: int, environment: Mapping[str, str] = os.environ) -> Device:
    """Return the device of a local rank in this environment.

    An index in ``CUDA_VISIBLE_DEVICES``, or the local rank itself where that is unset, counts devices as CUDA does.
    NVML counts by PCI bus. Both are the same with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, and on nodes whose GPUs are all of
    one model; on a mixed node without that setting an index is ambiguous, and no device is better than the wrong one.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    visible = visible_devices(setting, len(handles))
    if not visible:
        raise NoDeviceError(
            "NVML sees no GPU here."
            if setting is None
            else f"CUDA_VISIBLE_DEVICES={setting!r} leaves this rank no GPU."
        )
    # A single visible device is the rank's, whatever its local rank: Slurm and others give each rank its own.
    position = 0 if len(visible) == 1 else local_rank
    if not 0 <= position < len(visible):
        raise NoDeviceError(f"Local rank {local_rank} has no GPU: {len(visible)} are visible to it.")
    chosen = visible[position]
    if chosen.isdecimal():
        models = {nvml.nvmlDeviceGetName(handle) for handle in handles}
        if len(models) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            raise NoDeviceError(
                f"This node mixes GPUs ({', '.join(sorted(models))}), so which one device {chosen} is depends on "
                "CUDA's order: set CUDA_DEVICE_ORDER=PCI_BUS_ID."
            )
        return Device(nvml, handles[int(chosen)], handles[int(chosen)])
    for handle, gpu in _by_uuid(nvml, chosen, handles):
        return Device(nvml, handle, gpu)
    raise NoDeviceError(f"CUDA_VISIBLE_DEVICES names {chosen}, which matches no device of NVML, or more than one.")


def visible_devices(setting: str | None, count: int) -> Sequence[str]:
    """The devices visible to CUDA: indices below ``count`` and ids, in order, up to the first invalid entry."""
    if setting is None:
        return [str(index) for index in range(count)]
    visible: list[str] = []
    for entry in (word.strip() for word in setting.split(",")):
        if not (entry.startswith(("GPU-", "MIG-")) or (entry.isdecimal() and int(entry) < count)):
            break  # as CUDA does: -1 hides all that follow
        visible.append(entry)
    return visible


def _by_uuid(nvml: Any, wanted: str, handles: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the device whose UUID starts with ``wanted``, and its GPU; nothing unless exactly one matches."""
    devices = list(_instances(nvml, handles)) if wanted.startswith("MIG-") else [(gpu, gpu) for gpu in handles]
    matching = [pair for pair in devices if nvml.nvmlDeviceGetUUID(pair[0]).startswith(wanted)]
    if len(matching) == 1:
        yield matching[0]


def _instances(nvml: Any, handles: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Every MIG instance of every GPU, with the GPU; an index without an instance raises ``NotFound``."""
    for gpu in handles:
        try:
            places = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
        except nvml.NVMLError:
            continue
        for place in range(places):
            try:
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place), gpu
            except nvml.NVMLError:
                continue
