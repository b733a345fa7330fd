"""The CUPTI source: for real where there is no GPU, and its logic on an emulated device.

No machine that runs these tests needs a GPU, so :class:`EmulatedCupti` stands in for ``cupti.cupti``: it keeps the
rules of CUPTI's documentation (one set of callbacks, buffers that come back by a flush once their kernels have ended).
``test_the_emulation_has_only_names_that_cupti_has`` holds it against the real package where that is installed.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rankwatch.profiling import cupti
from rankwatch.profiling.cupti import CuptiSource
from rankwatch.profiling.source import MAX_EVENTS, SourceBusy, SourceUnavailable

MANGLED = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
ALL_REDUCE = "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE"
CLOCK_OFFSET = 5_000_000_000
"""CUPTI's clock is behind unix time by this, so that a forgotten conversion shows."""


class CuptiError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Result(IntEnum):
    ERROR_INVALID_KIND = 21
    ERROR_NOT_INITIALIZED = 15
    ERROR_INSUFFICIENT_PRIVILEGES = 35
    ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39


class EmulatedCupti:
    """One device that ends its kernels when it is reported to, and a CUPTI that records them while it is enabled."""

    Result = Result
    ActivityKind = SimpleNamespace(CONCURRENT_KERNEL=10)

    def __init__(self) -> None:
        self.enabled = False
        self.refuses: int | None = None
        self.callbacks: tuple[Callable[[], tuple[int, int]], Callable[[list[Any]], None]] | None = None
        self.buffer: list[SimpleNamespace] | None = None
        self.dropped = 0
        self.flushes: list[int] = []
        self.rate = 1.0
        """Ticks of its clock in a nanosecond; about 2 after torch's profiler has run, the CPU's time stamp counter."""
        self.reading = 0.0
        """Seconds for which the reading thread loses its CPU."""

    def get_timestamp(self) -> int:
        if self.reading:
            time.sleep(self.reading)
        return int((time.time_ns() - CLOCK_OFFSET) * self.rate)

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        self.callbacks = (requested, completed)

    def activity_enable(self, kind: int) -> None:
        assert kind == 10
        if self.refuses is not None:
            raise CuptiError(self.refuses)
        self.enabled = True

    def activity_disable(self, kind: int) -> None:
        assert kind == 10
        self.enabled = False

    def activity_flush_all(self, flag: int) -> None:
        self.flushes.append(flag)
        buffer = self.buffer
        if buffer is not None and self.callbacks is not None and (flag or all(it.end for it in buffer)):
            self.buffer = None
            self.callbacks[1](buffer)

    def activity_get_num_dropped_records(self, context: int, stream_id: int, dropped: int) -> None:
        ctypes.c_size_t.from_address(dropped).value = self.dropped
        self.dropped = 0

    def launch(self, name: str = MANGLED, *, took: int | None = 1000, stream: int = 7, grid: int = 64) -> Any:
        """Launch a kernel; one that took ``None`` has not ended yet. It is recorded while CUPTI is enabled."""
        start = self.get_timestamp()
        end = 0 if took is None else start + int(took * self.rate)
        kernel = SimpleNamespace(
            name=name, start=start, end=end, stream_id=stream, device_id=0,
            grid_x=grid, grid_y=2, grid_z=1, block_x=128, block_y=1, block_z=1,
        )  # fmt: skip
        if self.enabled:
            assert self.callbacks is not None
            if self.buffer is None:
                size, most = self.callbacks[0]()
                assert size >= 1 << 16
                assert most == 0
                self.buffer = []
            self.buffer.append(kernel)
        return kernel


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> EmulatedCupti:
    emulated = EmulatedCupti()
    monkeypatch.setattr(cupti, "driver_present", lambda: True)
    monkeypatch.setitem(sys.modules, "cupti", ModuleType("cupti"))
    monkeypatch.setitem(sys.modules, "cupti.cupti", emulated)  # type: ignore[arg-type]
    return emulated


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What the source and its guard use of torch's profiler; the guard's own tests have the real one."""
    module = ModuleType("torch.autograd.profiler")
    module._is_profiler_enabled = False  # type: ignore[attr-defined]
    for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
        setattr(module, name, lambda *_: None)
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", module)
    return module


@pytest.fixture
def source(device: EmulatedCupti, profiler: ModuleType) -> Iterator[CuptiSource]:
    source = CuptiSource()
    yield source
    source.close()
    assert device.buffer is None, "CUPTI would hand it back after Python's end"
    assert not device.enabled


def test_a_window_gives_its_kernels_with_name_shape_and_unix_time(source: CuptiSource, device: EmulatedCupti) -> None:
    device.launch("before the window")
    begun = time.time_ns()
    source.start()
    device.launch(took=1500)
    device.launch("triton_poi_fused_add_0", took=500)
    raw = source.stop()
    device.launch("after the window")
    trace = source.read(raw, MAX_EVENTS)
    assert [kernel.key for kernel in trace.kernels] == [
        "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul>><<<64,2,1 128,1,1>>>",
        "triton_poi_fused_add_0<<<64,2,1 128,1,1>>>",
    ]
    assert [kernel.self_ns for kernel in trace.kernels] == [1500, 500]
    assert [kernel.end_ns - kernel.start_ns for kernel in trace.kernels] == [1500, 500]
    assert all(begun - 10**6 <= kernel.start_ns <= time.time_ns() for kernel in trace.kernels)
    assert (trace.truncated, trace.on_device, source.name) == (0, True, "cupti")


@pytest.mark.parametrize("rate", [2.1, 3.0, 0.999])
def test_times_are_nanoseconds_whatever_clock_torchs_profiler_left_behind(
    source: CuptiSource, device: EmulatedCupti, rate: float
) -> None:
    device.rate = rate
    source.start()
    began = time.time_ns()
    device.launch(took=100_000)
    time.sleep(0.05)
    ended = time.time_ns()
    (kernel,) = source.read(source.stop(), MAX_EVENTS).kernels
    assert kernel.self_ns == pytest.approx(100_000, rel=0.02)
    assert began - 10**6 <= kernel.start_ns <= ended
    source.start()
    device.launch(took=100_000)  # a window too short to measure the clock by
    (kernel,) = source.read(source.stop(), MAX_EVENTS).kernels
    assert kernel.self_ns == pytest.approx(100_000, rel=0.02)


def test_a_clock_that_could_not_be_read_at_one_moment_is_not_measured(
    source: CuptiSource, device: EmulatedCupti
) -> None:
    source.start()
    device.launch(took=100_000)
    device.reading = 0.004
    (kernel,) = source.read(source.stop(), MAX_EVENTS).kernels
    assert kernel.self_ns == 100_000


def test_kernels_of_nccl_are_collectives_of_their_stream(source: CuptiSource, device: EmulatedCupti) -> None:
    source.start()
    device.launch()
    device.launch(ALL_REDUCE, took=9000, stream=21)
    trace = source.read(source.stop(), MAX_EVENTS)
    assert len(trace.kernels) == 1
    (collective,) = trace.collectives
    assert collective.group == "stream 21"
    assert collective.name == "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    assert collective.end_ns - collective.start_ns == 9000


def test_stop_waits_for_nothing_and_read_waits_for_late_kernels_a_little(
    source: CuptiSource, device: EmulatedCupti
) -> None:
    source.start()
    device.launch()
    late = device.launch(took=None)
    raw = source.stop()
    assert device.flushes == [], "the training thread does not even flush"
    flush = device.activity_flush_all

    def end_it_at_the_third(flag: int) -> None:
        if len(device.flushes) == 2:
            late.end = late.start + 4000
        flush(flag)

    device.activity_flush_all = end_it_at_the_third  # type: ignore[method-assign]
    trace = source.read(raw, MAX_EVENTS)
    assert [kernel.self_ns for kernel in trace.kernels] == [1000, 4000]
    assert trace.truncated == 0
    assert set(device.flushes) == {0}, "never by force"


def test_what_comes_too_late_makes_the_trace_truncated_and_stays_out_of_the_next(
    source: CuptiSource, device: EmulatedCupti
) -> None:
    source.start()
    endless = device.launch("endless", took=None)
    begun = time.monotonic()
    trace = source.read(source.stop(), MAX_EVENTS)
    assert cupti.LATE <= time.monotonic() - begun < cupti.LATE + 30
    assert (len(trace.kernels), trace.truncated) == (0, 1)
    endless.end = endless.start + 1
    while device.get_timestamp() < endless.start + 10 * cupti._SLACK:
        pass
    source.start()
    device.launch("next")
    trace = source.read(source.stop(), MAX_EVENTS)
    assert [kernel.key.partition("<<<")[0] for kernel in trace.kernels] == ["next"]
    assert trace.truncated == 0


def test_a_window_that_is_read_while_the_next_one_runs_keeps_to_itself(
    source: CuptiSource, device: EmulatedCupti
) -> None:
    source.start()
    device.launch("first")
    first = source.stop()
    source.start()
    device.launch("second")
    assert [kernel.key[:5] for kernel in source.read(first, MAX_EVENTS).kernels] == ["first"]
    assert [kernel.key[:6] for kernel in source.read(source.stop(), MAX_EVENTS).kernels] == ["second"]


def test_more_than_the_limit_is_counted(source: CuptiSource, device: EmulatedCupti) -> None:
    source.start()
    for _ in range(10):
        device.launch()
    device.dropped = 3
    trace = source.read(source.stop(), 4)
    assert (len(trace.kernels), trace.truncated) == (4, 6 + 3)


def test_memory_is_bounded_however_long_nothing_is_read(
    source: CuptiSource, device: EmulatedCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupti, "_PENDING", 100)
    monkeypatch.setattr(cupti, "_NAMES", 10)
    source.start()
    for number in range(250):
        device.launch(f"kernel_{number}")
        device.activity_flush_all(0)
    assert len(source._pending) == 100
    assert len(source._names) <= 11
    trace = source.read(source.stop(), MAX_EVENTS)
    assert (len(trace.kernels), trace.truncated) == (100, 150)


def test_no_window_begins_while_the_user_profiles(
    source: CuptiSource, device: EmulatedCupti, profiler: ModuleType
) -> None:
    profiler._prepare_profiler()
    with pytest.raises(SourceBusy, match="profiler"):
        source.start()
    assert not device.enabled
    profiler._disable_profiler()
    source.start()
    device.launch()
    assert len(source.read(source.stop(), MAX_EVENTS).kernels) == 1


def test_a_window_of_ours_ends_before_the_profiler_of_the_user_begins(
    device: EmulatedCupti, profiler: ModuleType
) -> None:
    seen: list[tuple[bool, bool]] = []
    profiler._prepare_profiler = lambda: seen.append((device.enabled, device.buffer is None))  # type: ignore[attr-defined]
    source = CuptiSource()
    source.start()
    device.launch()
    device.launch(took=None)
    profiler._prepare_profiler()
    assert seen == [(False, True)], "off, and CUPTI holds no buffer of ours that the other would be given"
    device.enabled = True  # by the other profiler
    device.flushes.clear()
    trace = source.read(source.stop(), MAX_EVENTS)
    assert device.enabled, "the switch is the other's now"
    assert device.flushes == [], "a flush would take what is the other profiler's"
    assert (len(trace.kernels), trace.truncated) == (1, 1)
    source.close()


def test_a_source_that_is_made_while_the_user_profiles_touches_nothing(
    device: EmulatedCupti, profiler: ModuleType
) -> None:
    profiler._is_profiler_enabled = True  # type: ignore[attr-defined]
    device.enabled = True
    source = CuptiSource()
    assert device.enabled
    assert device.callbacks is None
    with pytest.raises(SourceBusy):
        source.start()
    source.close()
    assert device.enabled
    assert device.flushes == []


def test_closing_leaves_torch_and_cupti_as_they_were(device: EmulatedCupti, profiler: ModuleType) -> None:
    before = dict(vars(profiler))
    source = CuptiSource()
    source.start()
    device.launch(took=None)
    source.close()
    source.close()
    assert dict(vars(profiler)) == before
    assert (device.enabled, device.buffer, device.flushes) == (False, None, [1])


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "another profiler uses CUPTI in this process"),
        (Result.ERROR_INSUFFICIENT_PRIVILEGES, "NVreg_RestrictProfilingToAdminUsers=0"),
        (Result.ERROR_NOT_INITIALIZED, "the driver is too old for this CUPTI"),
        (Result.ERROR_INVALID_KIND, "ERROR_INVALID_KIND.*kernel_timings=kineto or off"),
        (4711, "error 4711"),
    ],
)
def test_errors_state_what_is_wrong_and_what_to_do(device: EmulatedCupti, status: int, words: str) -> None:
    device.refuses = status
    with pytest.raises(SourceUnavailable, match=words):
        CuptiSource()


def test_another_tool_that_comes_later_costs_a_window_and_no_more(source: CuptiSource, device: EmulatedCupti) -> None:
    device.refuses = Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
    with pytest.raises(SourceBusy, match="another profiler uses CUPTI"):
        source.start()
    device.refuses = None
    source.start()
    device.launch()
    assert len(source.read(source.stop(), MAX_EVENTS).kernels) == 1


def test_a_machine_without_a_gpu_is_reported_and_nothing_is_imported() -> None:
    if cupti.driver_present():
        pytest.skip("this machine has a GPU")
    before = set(sys.modules)
    with pytest.raises(SourceUnavailable, match="needs an NVIDIA GPU"):
        CuptiSource()
    assert set(sys.modules) == before


def test_without_the_package_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti, "driver_present", lambda: True)
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(SourceUnavailable, match=r"cupti-python is not installed: `pip install rankwatch\[gpu\]`"):
        CuptiSource()


def test_the_real_package_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupti.cupti")
    if cupti.driver_present():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(cupti, "driver_present", lambda: True)
    with pytest.raises(SourceUnavailable, match=r"CUPTI cannot be used: .*driver.*nvidia-smi"):
        CuptiSource()


def test_the_emulation_has_only_names_that_cupti_has() -> None:
    pytest.importorskip("cupti.cupti")
    real = importlib.import_module("cupti.cupti")
    functions = [name for name in vars(EmulatedCupti) if name.startswith(("activity_", "get_"))]
    assert len(functions) == 6
    assert [name for name in functions if not hasattr(real, name)] == []
    assert {result.name: int(real.Result[result.name]) for result in Result} == {r.name: int(r) for r in Result}
    assert int(real.ActivityKind.CONCURRENT_KERNEL) == EmulatedCupti.ActivityKind.CONCURRENT_KERNEL
    assert set(cupti._REMEDIES) <= set(real.Result.__members__)
    kernel = EmulatedCupti().launch()
    newest = max((name for name in vars(real) if name.startswith("ActivityKernel")), key=lambda name: int(name[14:]))
    assert [name for name in vars(kernel) if not hasattr(getattr(real, newest), name)] == []
