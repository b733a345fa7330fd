"""Kernel timings from CUPTI, NVIDIA's tracing library, by the package ``cupti-python``.

How this works
--------------
:meth:`CuptiSource.start` tells CUPTI to record kernels, :meth:`CuptiSource.stop` tells it to leave off; both run on the
training thread, neither waits for the device. CUPTI fills buffers of 1 MiB while kernels end. A buffer that is full, or
asked for by a flush *without force*, comes back once all its kernels have ended: on a thread of CUPTI's or on the one
that flushes, where :meth:`CuptiSource._completed` copies what matters into a bounded queue.

The device runs behind the host, so at :meth:`stop` the last kernels of the window may still be to come.
:meth:`read`, on the exporter's thread, flushes and waits for them for :data:`LATE` seconds at most (usually not at all:
seconds have passed by then). If they are still not there the trace says that it is truncated; its kernels count, its
parts are not known. What comes even later is thrown away by the next :meth:`read`.

CUPTI has one set of callbacks and switches in a process, and torch's profiler uses the same. So nothing is recorded
while the user's profiler is prepared or runs, and a window of ours that is open then is ended first
(:class:`~rankwatch.profiling.profiler_lock.Guard`): CUPTI hands over what it has, and the window is told as truncated.

Everything is imported by the constructor, which takes some tenths of a second: not for the training thread. See
``docs/devices.md`` for what it needs and costs.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rankwatch.profiling.kernel_name import is_collective, kernel_key, short_name
from rankwatch.profiling.nvml import driver_present
from rankwatch.profiling.profiler_lock import Guard
from rankwatch.profiling.source import CUPTI, MAX_EVENTS, Collective, Kernel, SourceBusy, SourceUnavailable, Trace

LATE: Final = 0.2
"""Seconds that :meth:`CuptiSource.read` waits for kernels that are still to end: the exporter has to go on."""

_POLL: Final = 0.02
"""Seconds between two flushes while waiting."""

_BUFFER: Final = 1 << 20
"""Bytes of one buffer: about 5,000 kernels."""

_PENDING: Final = 2 * MAX_EVENTS
"""Records kept for :meth:`CuptiSource.read`: those of a window, and the late ones of the window before."""

_NAMES: Final = 8192
"""Different kernels' names kept, so that all calls share one string."""

_NO_FORCE, _FORCE = 0, 1
_SLACK: Final = 100_000
"""Nanoseconds that a kernel may seem to start before its window: the device's clock is only fitted to the host's."""

_BUSY: Final = ("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "ERROR_MAX_LIMIT_REACHED", "ERROR_HARDWARE_BUSY")
_WORDS: Final = {
    **dict.fromkeys(
        _BUSY,
        "another profiler uses CUPTI in this process (Nsight Systems, another tool, or a torch with another version of "
        "CUPTI): end it, or set kernel_timings=off for this job",
    ),
    "ERROR_NOT_INITIALIZED": "the driver is too old for this CUPTI, or the rank sees no GPU: install the cupti-python "
    "of the CUDA version that `nvidia-smi` shows, or set kernel_timings=kineto",
    "ERROR_INSUFFICIENT_PRIVILEGES": "the driver lets only administrators profile: an administrator can load it with "
    "NVreg_RestrictProfilingToAdminUsers=0, or set kernel_timings=off",
    "ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": "the hypervisor does not let this virtual GPU be profiled: its "
    "administrator can allow it, or set kernel_timings=off",
    "ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED": "this virtual GPU cannot be profiled: set kernel_timings=off",
}


class _Record(NamedTuple):
    """What is kept of one kernel; times by CUPTI's clock."""

    name: str
    shape: tuple[int, int, int, int, int, int]
    stream: int
    start: int
    end: int


@dataclass(slots=True)
class Recording:
    """One window: from when it was recorded, and what must be known to read it. Times by CUPTI's clock."""

    begun: int
    to_unix: int
    """Nanoseconds to add to make them unix time."""
    until: int | None = None
    """When the next window began."""
    cut_short: bool = False
    """The user's profiler began, and what was not there then will not come."""


class CuptiSource:
    """Kernels as CUPTI records them.

    Raises:
        SourceUnavailable: there is no GPU, package, library or right to use them.
    """

    name = CUPTI

    def __init__(self) -> None:
        self._cupti = _load()
        profiler = sys.modules.get("torch.autograd.profiler")
        try:
            self._guard = Guard(profiler, self._make_way) if profiler is not None else None
        except AttributeError as error:
            raise SourceUnavailable(
                f"This torch has another profiler than Rankwatch knows ({error}), so the two could get in each other's "
                "way: use a release that is supported."
            ) from None
        self._pending: deque[_Record] = deque()
        self._names: dict[str, str] = {}
        self._lost = 0
        self._recording: Recording | None = None
        self._running = False
        self._closed = False
        if not self._user_profiles():  # whatever keeps CUPTI from recording shows here, not in a step
            self._begin()
            self._switch(on=True)
            self._switch(on=False)
        # CUPTI hands back what it still holds when the process ends, which is after Python's end unless we ask before.
        atexit.register(self.close)
        if self._guard is not None:
            self._guard.install()

    def start(self) -> None:
        """Record kernels from now on.

        Raises:
            SourceBusy: the user's profiler, or another tool, uses CUPTI.
        """
        if self._user_profiles():
            raise SourceBusy("another profiler is running, and CUPTI serves one at a time")
        before, self._recording = self._recording, self._begin()
        if before is not None:
            before.until = self._recording.begun
        try:
            self._switch(on=True)
        except SourceUnavailable as error:
            raise SourceBusy(str(error)) from None
        self._running = True

    def stop(self) -> Recording:
        """Leave off; does not wait for the device, and takes nothing over yet."""
        assert self._recording is not None, "stop() without start()"
        if self._running:
            self._running = False
            self._switch(on=False)
        return self._recording

    def read(self, raw: Any, limit: int) -> Trace:
        """Take over what CUPTI has recorded of a window, waiting 0.2 s at most for kernels that are still to end."""
        assert isinstance(raw, Recording)
        complete = not raw.cut_short and not self._user_profiles() and self._drain(raw)
        earliest = raw.begun - _SLACK
        records: list[_Record] = []
        later: list[_Record] = []
        for record in self._taken():
            if record.start >= earliest:
                (later if raw.until is not None and record.start >= raw.until else records).append(record)
        self._pending.extendleft(reversed(later))
        records.sort(key=lambda record: record.start)
        lost, self._lost = self._lost, 0
        if not self._user_profiles():
            lost += self._dropped()
        kernels = [_kernel(record, raw.to_unix) for record in records[:limit] if not is_collective(record.name)]
        collectives = [_collective(record, raw.to_unix) for record in records[:limit] if is_collective(record.name)]
        truncated = lost + max(0, len(records) - limit)
        return Trace(kernels, collectives, truncated=truncated or int(not complete), on_device=True)

    def close(self) -> None:
        """Stop recording and make CUPTI hand back its buffers. It stays loaded: it cannot be unloaded in a safe way."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if not self._user_profiles():
            with suppress(SourceUnavailable):  # the process may be ending, and the driver with it
                if self._running:
                    self._switch(on=False)
                self._call("activity_flush_all", _FORCE)
        if self._guard is not None:
            self._guard.remove()
        self._pending.clear()

    # On CUPTI's threads: quick, never raising ------------------------------------------------------------------------
    @staticmethod
    def _requested() -> tuple[int, int]:
        """CUPTI asks for a buffer: its bytes, and the most records in it (0: as many as fit)."""
        return _BUFFER, 0

    def _completed(self, activities: list[Any]) -> None:
        """CUPTI gives a buffer back. Its records are gone when this returns, so what matters is copied."""
        names = self._names
        if len(names) > _NAMES:
            names.clear()
        for index, it in enumerate(activities):
            if len(self._pending) >= _PENDING:
                self._lost += len(activities) - index
                return
            if not it.end:
                continue  # not ended yet; only a forced flush, at the end, brings such
            name = it.name or ""
            shape = (it.grid_x, it.grid_y, it.grid_z, it.block_x, it.block_y, it.block_z)
            # One string for all calls of a kernel: CUPTI makes a new one each time.
            self._pending.append(_Record(names.setdefault(name, name), shape, it.stream_id, it.start, it.end))

    def _make_way(self) -> None:
        """End an open window before the user's profiler begins; on the user's thread, must not raise."""
        if not self._running or self._recording is None:
            return
        self._recording.cut_short = True
        with suppress(SourceUnavailable):
            self.stop()
            # Buffers that CUPTI kept would be handed to the other profiler. By force, but not synchronising either.
            self._call("activity_flush_all", _FORCE)

    def _user_profiles(self) -> bool:
        """Whether torch's profiler is prepared or runs; its own flag tells of one that is older than our guard."""
        enabled = getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", False)
        return bool(enabled) or (self._guard is not None and self._guard.user_profiles)

    # Details ---------------------------------------------------------------------------------------------------------
    def _begin(self) -> Recording:
        # Registered again each time: torch's profiler puts its own callbacks there whenever it runs.
        self._call("activity_register_callbacks", self._requested, self._completed)
        begun = self._call("get_timestamp")
        return Recording(begun=begun, to_unix=time.time_ns() - begun)

    def _switch(self, *, on: bool) -> None:
        kind = self._cupti.ActivityKind.CONCURRENT_KERNEL  # the other kind, KERNEL, would run kernels one by one
        self._call("activity_enable" if on else "activity_disable", kind)

    def _drain(self, raw: Recording) -> bool:
        """Flush until kernels have come and the next flush brings none, or time is up; tells whether that is all.

        A step's kernels mostly fit one buffer, which comes when all of them have ended.
        """
        deadline = time.monotonic() + LATE
        before = 0
        while True:
            self._call("activity_flush_all", _NO_FORCE)
            arrived = sum(record.start >= raw.begun - _SLACK for record in tuple(self._pending))
            if arrived and (arrived == before or raw.until is not None):  # a whole window has passed since
                return True
            if time.monotonic() >= deadline:
                return False
            before = arrived
            time.sleep(_POLL)

    def _taken(self) -> list[_Record]:
        """Everything that has come, out of the queue; CUPTI may go on appending."""
        return [self._pending.popleft() for _ in range(len(self._pending))]

    def _dropped(self) -> int:
        """Records that CUPTI lost for want of a buffer since it was last asked; asking sets its count to 0."""
        dropped = ctypes.c_size_t(0)
        try:
            self._call("activity_get_num_dropped_records", 0, 0, ctypes.addressof(dropped))
        except SourceUnavailable:  # not told for all contexts together in every version
            return 0
        return dropped.value

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._cupti, function)(*arguments)
        except Exception as error:  # noqa: BLE001 - CUPTI's errors and those of its loader share no class
            raise SourceUnavailable(_sentence(self._cupti, error)) from None


def _load() -> Any:
    if not driver_present():
        raise SourceUnavailable("CUPTI needs an NVIDIA GPU, and this machine shows none (there is no /dev/nvidiactl).")
    try:
        return importlib.import_module("cupti.cupti")
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] == "cupti":
            raise SourceUnavailable(
                "The package cupti-python is not installed: `pip install rankwatch[gpu]`, or set kernel_timings=kineto."
            ) from None
        raise SourceUnavailable(
            f"cupti-python cannot be imported ({error}): install it again with its dependencies, or set "
            "kernel_timings=kineto."
        ) from None
    except Exception as error:  # noqa: BLE001 - a broken installation raises what it likes while it is imported
        raise SourceUnavailable(f"cupti-python cannot be imported ({error}): install it again.") from None


def _sentence(cupti: Any, error: Exception) -> str:
    """Say what an error of CUPTI means and what can be done about it."""
    status = getattr(error, "status", None)
    if status is None:  # the loader's: the driver or libcupti itself is missing, and it says which
        return f"CUPTI cannot be used: {error}. Check that `nvidia-smi` works here, or set kernel_timings=kineto."
    try:
        result = str(cupti.Result(status).name)
    except ValueError:
        result = f"error {status}"
    return f"CUPTI cannot record ({result}): {_WORDS.get(result, 'set kernel_timings=kineto or off')}."


def _kernel(record: _Record, to_unix: int) -> Kernel:
    key = kernel_key(record.name, record.shape)
    return Kernel(key, record.start + to_unix, record.end + to_unix, record.end - record.start)


def _collective(record: _Record, to_unix: int) -> Collective:
    name = short_name(record.name)
    return Collective(f"stream {record.stream}", name, record.start + to_unix, record.end + to_unix)
