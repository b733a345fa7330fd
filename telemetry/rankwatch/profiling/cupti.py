"""Kernel timings from CUPTI, NVIDIA's tracing library, by the package ``cupti-python``.

:meth:`CuptiSource.start` enables the recording of kernels and :meth:`CuptiSource.stop` disables it; both run on the
training thread and do not wait for the device. CUPTI writes kernels into buffers of 1 MiB. A buffer that is full, or
flushed *without force*, is completed once all its kernels have ended: on a CUPTI thread or on the flushing one,
:meth:`CuptiSource._completed` copies the relevant fields into a bounded queue.

The device runs asynchronously, so at :meth:`stop` the last kernels of the window may not have ended.
:meth:`read`, on the exporter thread, flushes and waits for them for :data:`LATE` seconds at most (usually not at all:
seconds have passed by then). If they are still missing, the trace is marked as truncated: its kernels count, its
parts are unknown. Kernels that arrive later are dropped by the next :meth:`read`.

CUPTI's clock counts nanoseconds until torch's profiler has run once in the process: it registers the CPU's time stamp
counter with CUPTI for good. Beside an H100 every kernel then seemed to take 2.10 times as long, which would make a
straggler of a rank that profiled itself. So each window measures the clock against the host's (:func:`ticks_per_ns`).

CUPTI's callbacks and switches are global to the process, and torch's profiler uses the same. So nothing is recorded
while the user's profiler is prepared or runs, and a window that is open then is ended first
(:class:`~rankwatch.profiling.profiler_lock.ProfilerGuard`): CUPTI's buffers are flushed, the window is truncated.

The constructor imports everything, which takes some tenths of a second: it must not run on the training thread. See
``docs/devices.md`` for requirements and costs.
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
from rankwatch.profiling.profiler_lock import ProfilerGuard
from rankwatch.profiling.source import CUPTI, MAX_EVENTS, Collective, Kernel, SourceBusy, SourceUnavailable, Trace

LATE: Final = 0.2
"""Longest wait of :meth:`CuptiSource.read` for kernels that have not ended, in seconds; it delays the export."""

_POLL: Final = 0.02
"""Seconds between two flushes while waiting."""

_BUFFER: Final = 1 << 20
"""Bytes of one buffer: about 5,000 kernels."""

_PENDING: Final = 2 * MAX_EVENTS
"""Records kept for :meth:`CuptiSource.read`: those of a window, and late ones of the previous window."""

_NAMES: Final = 8192
"""Kernel names that are cached, so that all calls share one string."""

_NO_FORCE, _FORCE = 0, 1
_SLACK: Final = 100_000
"""Ticks by which a kernel may appear to start before its window: device time is fitted to the host's clock."""
_STAMPS: Final = 3
"""Attempts to read both clocks at one moment."""
_STAMP_SPREAD: Final = 20_000
"""Nanoseconds within which they count as read at one moment."""
_MEASURABLE: Final = 1_000_000
"""Nanoseconds of a window that is long enough to measure CUPTI's clock by."""
_UNCERTAINTY: Final = 0.02
"""Relative error of a measured clock: one that is this close to nanoseconds counts them."""

_BUSY: Final = ("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "ERROR_MAX_LIMIT_REACHED", "ERROR_HARDWARE_BUSY")
_REMEDIES: Final = {
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
    """The fields kept of one kernel; times are ticks of CUPTI's clock."""

    name: str
    shape: tuple[int, int, int, int, int, int]
    stream: int
    start: int
    end: int


class Stamp(NamedTuple):
    """One moment on three clocks."""

    ticks: int
    """Of CUPTI's clock."""
    monotonic: int
    """Nanoseconds of the host's monotonic clock."""
    unix: int
    """Nanoseconds of Unix time."""
    spread: int = 0
    """Nanoseconds that reading them took: the error of their relation."""


@dataclass(slots=True)
class Recording:
    """One recorded window, as :meth:`CuptiSource.read` needs it."""

    began: Stamp
    rate: float = 1.0
    """Ticks of CUPTI's clock in a nanosecond."""
    until: int | None = None
    """When the next window began, on CUPTI's clock."""
    cut_short: bool = False
    """The user's profiler was started; kernels not recorded by then are lost."""

    def unix(self, ticks: int) -> int:
        """A time of CUPTI's clock in nanoseconds of Unix time."""
        return self.began.unix + self.nanoseconds(ticks - self.began.ticks)

    def nanoseconds(self, ticks: int) -> int:
        """A duration."""
        return ticks if self.rate == 1.0 else round(ticks / self.rate)


def ticks_per_ns(began: Stamp, ended: Stamp, usual: float) -> float:
    """Ticks of CUPTI's clock in a nanosecond between two moments; ``usual`` where that cannot be measured."""
    elapsed = ended.monotonic - began.monotonic
    if elapsed < _MEASURABLE or began.spread + ended.spread > elapsed * _UNCERTAINTY / 2:
        return usual
    rate = (ended.ticks - began.ticks) / elapsed
    return 1.0 if abs(rate - 1.0) <= _UNCERTAINTY else rate if rate > 0 else usual


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
            self._guard = ProfilerGuard(profiler, self._end_for_user) if profiler is not None else None
        except AttributeError as error:
            raise SourceUnavailable(
                f"The profiler of this torch release is not supported ({error}), and the two could interfere with each "
                "other: use a supported release."
            ) from None
        self._pending: deque[_Record] = deque()
        self._names: dict[str, str] = {}
        self._lost = 0
        self._rate = 1.0
        self._recording: Recording | None = None
        self._running = False
        self._closed = False
        if not self._user_profiler_active():  # errors of CUPTI occur here, not in a step
            self._begin()
            self._switch(on=True)
            self._switch(on=False)
        # Otherwise CUPTI completes its buffers at the end of the process, when Python has been finalized.
        atexit.register(self.close)
        if self._guard is not None:
            self._guard.install()

    def start(self) -> None:
        """Record kernels from now on.

        Raises:
            SourceBusy: the user's profiler, or another tool, uses CUPTI.
        """
        if self._user_profiler_active():
            raise SourceBusy("another profiler is running, and CUPTI serves one at a time")
        before, self._recording = self._recording, self._begin()
        if before is not None:
            before.until = self._recording.began.ticks
        try:
            self._switch(on=True)
        except SourceUnavailable as error:
            raise SourceBusy(str(error)) from None
        self._running = True

    def stop(self) -> Recording:
        """Disable recording, without waiting for the device; :meth:`read` collects the records."""
        assert self._recording is not None, "stop() without start()"
        if self._running:
            self._running = False
            self._switch(on=False)
            self._rate = self._recording.rate = ticks_per_ns(self._recording.began, self._stamp(), self._rate)
        return self._recording

    def read(self, raw: Any, limit: int) -> Trace:
        """Collect the records of a window, waiting 0.2 s at most for kernels that have not ended."""
        assert isinstance(raw, Recording)
        complete = not raw.cut_short and not self._user_profiler_active() and self._drain(raw)
        earliest = raw.began.ticks - _SLACK
        records: list[_Record] = []
        later: list[_Record] = []
        for record in self._take_pending():
            if record.start >= earliest:
                (later if raw.until is not None and record.start >= raw.until else records).append(record)
        self._pending.extendleft(reversed(later))
        records.sort(key=lambda record: record.start)
        lost, self._lost = self._lost, 0
        if not self._user_profiler_active():
            lost += self._dropped()
        kernels = [_kernel(record, raw) for record in records[:limit] if not is_collective(record.name)]
        collectives = [_collective(record, raw) for record in records[:limit] if is_collective(record.name)]
        truncated = lost + max(0, len(records) - limit)
        return Trace(kernels, collectives, truncated=truncated or int(not complete), on_device=True)

    def close(self) -> None:
        """Stop recording and flush CUPTI's buffers. CUPTI stays loaded, since it cannot be unloaded safely."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if not self._user_profiler_active():
            with suppress(SourceUnavailable):  # the process may be ending, and the driver with it
                if self._running:
                    self._switch(on=False)
                self._call("activity_flush_all", _FORCE)
        if self._guard is not None:
            self._guard.remove()
        self._pending.clear()

    # Callbacks on CUPTI's threads: must be quick and never raise ------------------------------------------------------
    @staticmethod
    def _requested() -> tuple[int, int]:
        """Buffer requested: its size in bytes, and the maximum number of records (0: as many as fit)."""
        return _BUFFER, 0

    def _completed(self, activities: list[Any]) -> None:
        """Buffer completed. Its records are invalid after the return, so the fields that are needed are copied."""
        names = self._names
        if len(names) > _NAMES:
            names.clear()
        for index, it in enumerate(activities):
            if len(self._pending) >= _PENDING:
                self._lost += len(activities) - index
                return
            if not it.end:
                continue  # has not ended; only a forced flush yields such records
            name = it.name or ""
            shape = (it.grid_x, it.grid_y, it.grid_z, it.block_x, it.block_y, it.block_z)
            # One string for all calls of a kernel: CUPTI makes a new one each time.
            self._pending.append(_Record(names.setdefault(name, name), shape, it.stream_id, it.start, it.end))

    def _end_for_user(self) -> None:
        """End an open window before the user's profiler starts; on the user's thread, must not raise."""
        if not self._running or self._recording is None:
            return
        self._recording.cut_short = True
        with suppress(SourceUnavailable):
            self.stop()
            # Otherwise these buffers would go to the other profiler. A forced flush does not synchronise either.
            self._call("activity_flush_all", _FORCE)

    def _user_profiler_active(self) -> bool:
        """Whether torch's profiler is prepared or runs; its own flag covers one that was started before the guard."""
        enabled = getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", False)
        return bool(enabled) or (self._guard is not None and self._guard.user_profiles)

    # Details ---------------------------------------------------------------------------------------------------------
    def _begin(self) -> Recording:
        # Registered each time, because torch's profiler replaces the callbacks whenever it runs.
        self._call("activity_register_callbacks", self._requested, self._completed)
        return Recording(self._stamp(), self._rate)

    def _stamp(self) -> Stamp:
        """The closest of a few readings of the clocks: the thread may lose its CPU between two of them."""
        stamps = []
        for _ in range(_STAMPS):
            before = time.monotonic_ns()
            ticks = self._call("get_timestamp")
            unix, after = time.time_ns(), time.monotonic_ns()
            stamps.append(Stamp(ticks, (before + after) // 2, unix, after - before))
            if after - before <= _STAMP_SPREAD:
                break
        return min(stamps, key=lambda stamp: stamp.spread)

    def _switch(self, *, on: bool) -> None:
        kind = self._cupti.ActivityKind.CONCURRENT_KERNEL  # ActivityKind.KERNEL would serialise the kernels
        self._call("activity_enable" if on else "activity_disable", kind)

    def _drain(self, raw: Recording) -> bool:
        """Flush until kernels have arrived and the next flush adds none; False: the time ran out before.

        A step's kernels mostly fit one buffer, which is completed when all of them have ended.
        """
        deadline = time.monotonic() + LATE
        before = 0
        while True:
            self._call("activity_flush_all", _NO_FORCE)
            arrived = sum(record.start >= raw.began.ticks - _SLACK for record in tuple(self._pending))
            if arrived and (arrived == before or raw.until is not None):  # a whole window later, nothing is missing
                return True
            if time.monotonic() >= deadline:
                return False
            before = arrived
            time.sleep(_POLL)

    def _take_pending(self) -> list[_Record]:
        """Remove and return all queued records; CUPTI may append meanwhile."""
        return [self._pending.popleft() for _ in range(len(self._pending))]

    def _dropped(self) -> int:
        """Records that CUPTI dropped for lack of a buffer since the last call, which resets the count."""
        dropped = ctypes.c_size_t(0)
        try:
            self._call("activity_get_num_dropped_records", 0, 0, ctypes.addressof(dropped))
        except SourceUnavailable:  # some versions cannot count over all contexts
            return 0
        return dropped.value

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._cupti, function)(*arguments)
        except Exception as error:  # noqa: BLE001 - CUPTI's errors and those of its loader share no class
            raise SourceUnavailable(_describe(self._cupti, error)) from None


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
    except Exception as error:  # noqa: BLE001 - importing a broken installation can raise anything
        raise SourceUnavailable(f"cupti-python cannot be imported ({error}): install it again.") from None


def _describe(cupti: Any, error: Exception) -> str:
    """Describe an error of CUPTI and its remedy."""
    status = getattr(error, "status", None)
    if status is None:  # an error of the loader: the driver or libcupti is missing
        return f"CUPTI cannot be used: {error}. Check that `nvidia-smi` works here, or set kernel_timings=kineto."
    try:
        result = str(cupti.Result(status).name)
    except ValueError:
        result = f"error {status}"
    return f"CUPTI cannot record ({result}): {_REMEDIES.get(result, 'set kernel_timings=kineto or off')}."


def _kernel(record: _Record, of: Recording) -> Kernel:
    key, took = kernel_key(record.name, record.shape), of.nanoseconds(record.end - record.start)
    return Kernel(key, of.unix(record.start), of.unix(record.end), took)


def _collective(record: _Record, of: Recording) -> Collective:
    return Collective(f"stream {record.stream}", short_name(record.name), of.unix(record.start), of.unix(record.end))
