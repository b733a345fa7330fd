"""Timings from torch's profiler (Kineto): of operators on a CPU, of kernels on a GPU.

On a GPU it synchronises the device when a window ends, so there it is only used on request
(``kernel_timings=kineto``). Modules of torch are looked up in ``sys.modules``, never imported.

How a recording is read
-----------------------
=========================  ===========================================================================================
``gloo:all_reduce`` ...    a collective, from enqueueing to completion, on a gloo thread. Operators on such a thread
                           belong to the collective
``c10d::``, functional     the script's call of a collective, which may wait; also nested in an operator
``enumerate(DataLoader)``  input
``aten::`` and others      an operator: any other name with a namespace. Its self time excludes nested operators
all else                   ignored: autograd nodes, optimizer steps, user annotations
=========================  ===========================================================================================

Input shapes are most of the cost of ending a window, so only every eighth window records them; in the others the
operators have no key and count as compute only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Final

from rankwatch.contract.collectives import is_point_to_point
from rankwatch.profiling.kernel_name import short_name
from rankwatch.profiling.profiler_lock import ProfilerGuard
from rankwatch.profiling.source import (
    KINETO_CPU,
    KINETO_CUDA,
    MAX_KERNEL_NAME,
    Collective,
    Kernel,
    SourceBusy,
    SourceUnavailable,
    Trace,
)

SHAPES_EVERY: Final = 8
"""Windows from one with shapes to the next; with them, stopping takes three times as long (4,000 operators: 22 ms)."""
BATCH: Final = 256
"""Events read between two pauses, about 1 ms; in a pause the script can acquire the GIL."""
PAUSE: Final = 0.001

_COLLECTIVE: Final = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "hccl:")
_CALL: Final = ("c10d::", "c10d_functional::", "_c10d_functional::", "_c10d_functional_autograd::")
_DATA_LOADER: Final = "enumerate(DataLoader)"
_WRAPPERS: Final = ("autograd::engine::", "torch::autograd::", "torch::jit::", "torch.distributed.")
_NCCL_KERNEL: Final = "ncclDev"
_OF_EVENTS: Final = (
    "name",
    "start_ns",
    "duration_ns",
    "start_thread_id",
    "shapes",
    "is_user_annotation",
    "device_type",
    "device_resource_id",
)
"""Methods of torch's events that are called; ``activity_type`` is not among them, since torch 2.11 lacks it."""

_Operator = tuple[int, int, int, str, str]
"""Thread, start, -end, key, name: this order sorts an operator before those nested in it."""

_started_in: int | None = None
"""Process id in which Kineto was started: a forked child inherits Kineto without its threads."""


class _Torch:
    """The private names of torch that this module uses, looked up once."""

    def __init__(self, torch: ModuleType) -> None:
        autograd, profiler = torch._C._autograd, torch._C._profiler
        self.prepare: Callable[..., None] = autograd._prepare_profiler
        self.enable: Callable[..., None] = autograd._enable_profiler
        self.disable: Callable[[], Any] = autograd._disable_profiler
        self.enabled: Callable[[], bool] = autograd._profiler_enabled
        self.backward: Callable[[], int] = torch._C._current_graph_task_id
        for name in _OF_EVENTS:
            getattr(autograd._KinetoEvent, name)
        self.host: Any = autograd.DeviceType.CPU
        self.cpu, self.cuda = profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA
        state, details = profiler.ProfilerState.KINETO, profiler._ExperimentalConfig
        # Record shapes (or not); never memory, stacks, flops or modules.
        self.with_shapes = profiler.ProfilerConfig(state, True, False, False, False, False, details())
        self.plain = profiler.ProfilerConfig(state, False, False, False, False, False, details())
        self.guarded: ModuleType = sys.modules["torch.autograd.profiler"]


class KinetoSource:
    """Torch's profiler on the thread that starts it. ``end_window`` is called when the user starts a profiler.

    Raises:
        SourceUnavailable: this torch release is not supported, or the process was forked from a profiled one.
    """

    def __init__(self, torch: ModuleType, *, on_device: bool, end_window: Callable[[], None]) -> None:
        if _started_in not in (None, os.getpid()):
            raise SourceUnavailable("the process was forked from a profiled one; Kineto does not survive a fork")
        try:
            self._torch = _Torch(torch)
            self._guard = ProfilerGuard(self._torch.guarded, end_window)
        except (AttributeError, KeyError, TypeError) as error:
            version = getattr(torch, "__version__", "?")
            raise SourceUnavailable(
                f"the profiler of torch {version} is not supported ({error}); use a supported release"
            ) from None
        self._on_device = on_device
        self._activities = {self._torch.cpu, self._torch.cuda} if on_device else {self._torch.cpu}
        self._windows = 0
        self._guard.install()

    @property
    def name(self) -> str:
        """``kineto-cuda`` or ``kineto-cpu``."""
        return KINETO_CUDA if self._on_device else KINETO_CPU

    def start(self) -> None:
        """Start recording; about 1 ms.

        Raises:
            SourceBusy: the user's profiler runs.
        """
        global _started_in
        torch = self._torch
        if self._guard.user_profiles or torch.enabled():
            raise SourceBusy("another profiler is running")
        config = torch.with_shapes if self._windows % SHAPES_EVERY == 0 else torch.plain
        _started_in = os.getpid()
        torch.prepare(config, self._activities)
        torch.enable(config, self._activities)
        self._windows += 1

    def stop(self) -> Any:
        """End the recording; about 2 µs for each operator, 6 with its shapes.

        Raises:
            SourceBusy: a backward pass runs on this thread. At its end torch restores the earlier state, with a
                profiler that no longer exists: the next window would crash the process.
        """
        if self._torch.backward() != -1:
            raise SourceBusy("a backward pass is running")
        return self._torch.disable()

    def read(self, raw: Any, limit: int) -> Trace:
        """Convert a recording to a trace."""
        events = raw.events()
        truncated = max(0, len(events) - limit)
        del events[limit:]
        trace = self._of_device(events, truncated) if self._on_device else self._of_host(events, truncated)
        _drop(events)
        return trace

    def close(self) -> None:
        """Restore the functions of torch."""
        self._guard.remove()

    def _of_host(self, events: list[Any], truncated: int) -> Trace:
        operators: list[_Operator] = []
        collectives: list[Collective] = []
        data, waits = [], []
        threads_of_collectives = set()
        for event in _in_batches(events):
            name = event.name()
            start = event.start_ns()
            end = start + event.duration_ns()
            if name.startswith(_COLLECTIVE):
                collectives.append(Collective("", name, start, end))
                if not is_point_to_point(name):  # recorded on the calling thread
                    threads_of_collectives.add(event.start_thread_id())
            elif name.startswith(_CALL):
                waits.append((start, end))
            elif name.startswith(_DATA_LOADER):
                data.append((start, end))
            elif "::" in name and not name.startswith(_WRAPPERS) and not event.is_user_annotation():
                operators.append((event.start_thread_id(), start, -end, _key(name, event.shapes()), name))
        kernels = _self_times(operator for operator in operators if operator[0] not in threads_of_collectives)
        return Trace(kernels, collectives, data, waits, truncated)

    def _of_device(self, events: list[Any], truncated: int) -> Trace:
        kernels: list[Kernel] = []
        collectives, data = [], []
        for event in _in_batches(events):
            name, start = event.name(), event.start_ns()
            end = start + event.duration_ns()
            if event.device_type() != self._torch.host:
                if event.is_user_annotation():  # a record_function of the script, drawn over its kernels
                    continue
                if _NCCL_KERNEL in name:
                    collectives.append(Collective(f"stream {event.device_resource_id()}", name, start, end))
                else:
                    kernels.append(Kernel(short_name(name), start, end, end - start))
            elif name.startswith(_DATA_LOADER):
                data.append((start, end))
        return Trace(kernels, collectives, data, (), truncated, on_device=True)


def _in_batches(events: list[Any]) -> Iterable[Any]:
    for number, event in enumerate(events):
        if number % BATCH == BATCH - 1:
            time.sleep(PAUSE)
        yield event


def _drop(events: list[Any]) -> None:
    """Free the events in small batches: freeing all at once holds the GIL for milliseconds."""
    while events:
        del events[-BATCH:]
        time.sleep(PAUSE)


def _key(name: str, shapes: list[Any]) -> str:
    """``aten::addmm[64,32x64,64x64]``; empty when no shapes were recorded."""
    if not shapes:
        return ""
    sizes = ",".join("x".join(map(str, shape)) for shape in shapes if shape)
    return f"{name}[{sizes}]"[:MAX_KERNEL_NAME]


def _self_times(operators: Iterable[_Operator]) -> list[Kernel]:
    """Operators with their self times, which exclude nested operators."""
    ordered = sorted(operators)
    self_times = [-negative_end - start for _, start, negative_end, _, _ in ordered]
    enclosing: list[int] = []
    """Indices of the open operators, the innermost last."""
    for index, (thread, start, negative_end, _, _) in enumerate(ordered):
        while enclosing and (ordered[enclosing[-1]][0] != thread or -ordered[enclosing[-1]][2] <= start):
            enclosing.pop()
        if enclosing:
            self_times[enclosing[-1]] -= -negative_end - start
        enclosing.append(index)
    return [
        Kernel(key, start, -negative_end, max(0, self_ns), name)
        for (_, start, negative_end, key, name), self_ns in zip(ordered, self_times, strict=True)
    ]
