"""What NVML tells of the GPU that this rank uses: load, memory, heat, power, clocks, why they are held down, errors.

How this works
--------------
The device is found once: ``CUDA_VISIBLE_DEVICES`` holds indices, UUIDs or MIG ids (both may be abbreviated), and the
local rank indexes it; a rank that sees one device only uses that one. See :func:`_find` for what indices mean.

NVML answers within milliseconds, but a sick driver can keep a caller for minutes, and this is exactly when the rank
must go on telling that it lives. So every question is asked on a thread of its own; whoever asks waits for at most
:data:`READ_LIMIT`, and while an answer is outstanding nothing else is asked. Each reading can be unsupported on a
device: then that one is left out. Where there is no NVML at all, there is one sentence: :attr:`Devices.reason`.
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
"""Seconds that a caller is kept at most: the exporter for a reading, a starting rank for the name of its device."""

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
"""NVML's bits ``nvmlClocksEventReason*`` that hold clocks down; idling (1) and clocks that were chosen (2) do not."""

_XIDS_AT_ONCE: Final = 64
"""Events taken in one reading; a device that reports more has told enough."""

_log = logging.getLogger("rankwatch")


class NoDeviceError(Exception):
    """There is no device to ask about; the message says why and what to do."""


class Devices:
    """The device of one local rank. Nothing happens before the first :meth:`read`."""

    def __init__(self, local_rank: int) -> None:
        self.reason: str | None = None
        """Why the last :meth:`read` returned nothing; ``None`` when it did return readings."""
        self._local_rank = local_rank
        self._device: _Device | None = None
        self._asked: _Question | None = None
        self._hopeless = False

    def read(self) -> dict[Metric, Points] | None:
        """Ask for everything in :data:`~rankwatch.contract.semconv.DEVICE_METRICS`; what is unsupported is left out.

        Returns after 0.25 s at the latest and never raises: ``None`` where there is no device, or no answer yet.
        """
        if self._hopeless:
            return None
        if self._asked is None:
            self._asked = _Question(self._ask)
        if not self._asked.wait(READ_LIMIT):
            self.reason = "NVML does not answer: its driver is busy or stuck; `nvidia-smi` on this node would tell."
            return None
        asked, self._asked = self._asked, None
        if isinstance(asked.answer, dict):
            self.reason = None
            return asked.answer
        self.reason = str(asked.answer)
        self._hopeless = self._device is None  # it was not found, and it will not appear while this process lives
        return None

    def _ask(self) -> dict[Metric, Points]:
        if self._device is None:
            self._device = _find(_nvml(), self._local_rank)
        return self._device.readings()


def identity(local_rank: int) -> dict[str, str]:
    """UUID and product name of the rank's device, as resource attributes; ``{}`` where there is none to be told.

    Returns after 50 ms at the latest and never raises: a driver that takes longer to wake up leaves the name out.
    """
    if not driver_present():
        return {}
    asked = _Question(lambda: _find(_nvml(), local_rank).identity())
    asked.wait(IDENTITY_LIMIT)
    return asked.answer if isinstance(asked.answer, dict) else {}


class _Question:
    """One call on a daemon thread: an answer, or the exception that it ended with."""

    def __init__(self, call: Callable[[], dict[Any, Any]]) -> None:
        self.answer: dict[Any, Any] | Exception | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, name="rankwatch-nvml", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except Exception as error:  # noqa: BLE001 - the thread's boundary: whatever NVML raises becomes the reason
            self.answer = error if isinstance(error, NoDeviceError) else NoDeviceError(f"NVML failed: {error}")


class _Device:
    """One device, found and open. A MIG instance has memory of its own; heat, power and clocks are its GPU's."""

    def __init__(self, nvml: Any, handle: Any, gpu: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._gpu = gpu
        self._xids = 0
        self._events: Any = None
        self._watched = False

    def identity(self) -> dict[str, str]:
        nvml = self._nvml
        told = {
            semconv.HW_ID: self._try(lambda: nvml.nvmlDeviceGetUUID(self._handle)),
            semconv.HW_NAME: self._try(lambda: nvml.nvmlDeviceGetName(self._handle)),
        }
        return {name: value for name, value in told.items() if value is not None}

    def readings(self) -> dict[Metric, Points]:
        nvml, gpu = self._nvml, self._gpu
        memory = self._try(lambda: nvml.nvmlDeviceGetMemoryInfo(self._handle))
        told: dict[Metric, float | None] = {
            semconv.GPU_UTILIZATION: self._try(lambda: nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100),
            semconv.GPU_MEMORY_USAGE: memory and memory.used,
            semconv.GPU_MEMORY_LIMIT: memory and memory.total,
            semconv.GPU_TEMPERATURE: self._try(lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            semconv.GPU_POWER: self._try(lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
            semconv.GPU_POWER_LIMIT: self._try(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3),
            semconv.GPU_CLOCK: self._try(lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6),
            semconv.GPU_CLOCK_LIMIT: self._try(lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6),
        }
        points: dict[Metric, Points] = {m: [(float(value), {})] for m, value in told.items() if value is not None}
        by_reason = {
            semconv.GPU_THROTTLED: [(reason, 1) for reason in self._throttled()],
            semconv.GPU_ERRORS: [(reason, count) for reason, count in self._errors() if count is not None],
        }
        for metric, reasons in by_reason.items():
            if reasons:
                points[metric] = [(float(value), {semconv.ATTR_REASON: reason}) for reason, value in reasons]
        if not points:
            raise NoDeviceError(
                "NVML tells nothing of this device: every reading failed; `nvidia-smi` on this node would."
            )
        return points

    def _throttled(self) -> list[str]:
        nvml = self._nvml
        # Drivers before 535 know only the older name of the same question.
        new = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        bits = self._try(partial(new, self._gpu)) if new is not None else None
        if bits is None:
            bits = self._try(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._gpu))
        return [name for bit, name in THROTTLING.items() if (bits or 0) & bit]

    def _errors(self) -> Iterator[tuple[str, int | None]]:
        nvml, gpu = self._nvml, self._gpu
        for reason, kind in (
            ("ecc_uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            ("ecc_corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ):
            # Volatile: since the driver was loaded. What the card saw in earlier years says nothing of this job.
            yield reason, self._try(partial(nvml.nvmlDeviceGetTotalEccErrors, gpu, kind, nvml.NVML_VOLATILE_ECC))
        if not self._watched:
            self._watched, self._events = True, self._watch()
        yield "xid", self._xids_seen() if self._events is not None else None

    def _watch(self) -> Any:
        """An event set for XIDs, or ``None`` where the device or the rights do not allow one."""
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
                self._xids += 1
                _log.warning("The GPU of this rank reported XID %d; `dmesg` on this node tells more.", event.eventData)
        return self._xids

    def _try(self, question: Callable[[], Any]) -> Any:
        """Answer, or ``None`` where this device, driver or user cannot have it."""
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def driver_present() -> bool:
    """Whether this machine has an NVIDIA driver at all: asked before anything is imported for it."""
    return any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg"))


def _nvml() -> Any:
    """Import and initialise NVML; it stays so until the process ends, since a shutdown would be the user's as well."""
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


def _find(nvml: Any, local_rank: int) -> _Device:
    """Return the device of a local rank.

    An index in ``CUDA_VISIBLE_DEVICES``, or the local rank itself where that is unset, counts devices as CUDA does.
    NVML counts by PCI bus. Both are the same with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, and on nodes whose GPUs are all of
    one model; on a mixed node without that setting an index is ambiguous, and no device is better than the wrong one.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = visible_devices(setting, len(handles))
    if not visible:
        raise NoDeviceError(
            "NVML sees no GPU here."
            if setting is None
            else f"CUDA_VISIBLE_DEVICES={setting!r} leaves this rank no GPU."
        )
    # One device to see, whatever the local rank: Slurm and others give each rank its own.
    position = 0 if len(visible) == 1 else local_rank
    if not 0 <= position < len(visible):
        raise NoDeviceError(f"Local rank {local_rank} has no GPU: {len(visible)} are visible to it.")
    chosen = visible[position]
    if chosen.isdecimal():
        models = {nvml.nvmlDeviceGetName(handle) for handle in handles}
        if len(models) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            raise NoDeviceError(
                f"This node mixes GPUs ({', '.join(sorted(models))}), so which one device {chosen} is depends on "
                "CUDA's order: set CUDA_DEVICE_ORDER=PCI_BUS_ID."
            )
        return _Device(nvml, handles[int(chosen)], handles[int(chosen)])
    for handle, gpu in _by_uuid(nvml, chosen, handles):
        return _Device(nvml, handle, gpu)
    raise NoDeviceError(f"CUDA_VISIBLE_DEVICES names {chosen}, which NVML does not know, or knows more than once.")


def visible_devices(setting: str | None, count: int) -> Sequence[str]:
    """The devices that CUDA shows: indices below ``count`` and ids, in order, up to the first that cannot be one."""
    if setting is None:
        return [str(index) for index in range(count)]
    visible: list[str] = []
    for entry in (word.strip() for word in setting.split(",")):
        if not (entry.startswith(("GPU-", "MIG-")) or (entry.isdecimal() and int(entry) < count)):
            break  # CUDA ignores the rest, too: -1 hides all that follow
        visible.append(entry)
    return visible


def _by_uuid(nvml: Any, wanted: str, handles: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the one device whose UUID begins so, and the GPU it is a part of; nothing unless there is exactly one."""
    devices = list(_instances(nvml, handles)) if wanted.startswith("MIG-") else [(gpu, gpu) for gpu in handles]
    fitting = [pair for pair in devices if nvml.nvmlDeviceGetUUID(pair[0]).startswith(wanted)]
    if len(fitting) == 1:
        yield fitting[0]


def _instances(nvml: Any, handles: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Every MIG instance of every GPU, with the GPU; a place without one raises ``NotFound``."""
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
