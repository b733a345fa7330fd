"""Torch's real profiler, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import rankwatch
from rankwatch.contract.enums import Part
from rankwatch.profiling import kineto
from rankwatch.profiling.kineto import SHAPES_EVERY, KinetoSource
from rankwatch.profiling.sampler import DROP_WINDOW, SamplePlan, Sampler
from rankwatch.profiling.source import Sample, SourceBusy, SourceUnavailable, Trace
from rankwatch.profiling.statistics import step_parts
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.shared_slots import Slots
from support.forked import ForkedPopen

ROOT = Path(__file__).parents[3]


@pytest.fixture
def sampler(recorder: Recorder) -> Sampler:
    return Sampler(recorder)


@pytest.fixture
def source(sampler: Sampler) -> Iterator[KinetoSource]:
    source = KinetoSource(torch, on_device=False, end_window=sampler.interrupt)
    yield source
    source.close()
    assert not torch._C._autograd._profiler_enabled()
    assert torch.autograd.profiler._prepare_profiler is torch._C._autograd._prepare_profiler


def recorded(source: KinetoSource, limit: int = 10_000) -> Trace:
    source.start()
    layer = torch.nn.Linear(64, 64)
    with torch.profiler.record_function("mine::annotation"):
        layer(torch.ones(32, 64)).sum().backward()
    return source.read(source.stop(), limit)


def test_operators_have_their_shapes_and_their_own_time(source: KinetoSource) -> None:
    trace = recorded(source)
    kernels = {kernel.key: kernel for kernel in trace.kernels}
    assert "aten::addmm[64,32x64,64x64]" in kernels
    linear, inner = kernels["aten::linear[32x64,64x64,64]"], kernels["aten::addmm[64,32x64,64x64]"]
    assert linear.start_ns <= inner.start_ns <= inner.end_ns <= linear.end_ns
    assert linear.self_ns <= linear.end_ns - linear.start_ns - (inner.end_ns - inner.start_ns)
    assert all(kernel.key.startswith("aten::") for kernel in trace.kernels), "no wrapper, and nothing of the user's"
    assert (trace.truncated, trace.on_device, list(trace.collectives)) == (0, False, [])


def test_shapes_are_recorded_now_and_then_for_they_cost_most(source: KinetoSource) -> None:
    traces = [recorded(source) for _ in range(SHAPES_EVERY + 1)]
    assert [any(kernel.key for kernel in trace.kernels) for trace in traces] == [
        number % SHAPES_EVERY == 0 for number in range(SHAPES_EVERY + 1)
    ]
    assert all(trace.kernels for trace in traces), "without a key they still count as compute"
    assert "aten::addmm" in {kernel.name for kernel in traces[1].kernels}, "and have a name in a trace"


def test_a_step_with_too_many_events_is_reported_as_truncated(source: KinetoSource) -> None:
    trace = recorded(source, limit=5)
    assert len(trace.kernels) <= 5
    assert trace.truncated > 5


def test_fetching_from_a_loader_is_input(source: KinetoSource) -> None:
    class Slow(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            threading.Event().wait(0.05)  # what is measured here, not what is waited for
            return index

    loader = iter(DataLoader(Slow(), batch_size=2))
    sampler = Sampler(Recorder(Slots.private()))
    source.start()
    next(loader)
    trace = source.read(source.stop(), 10_000)
    (fetch,) = trace.data
    assert fetch[1] - fetch[0] > 0.1e9
    parts, *_ = step_parts(trace, (fetch[0] - 1000, fetch[1]))
    assert parts[Part.DATA] > 0.1
    assert sampler.collect() is None


def test_a_users_profiler_in_a_sampled_step_works_and_ours_makes_way(
    sampler: Sampler, source: KinetoSource, recorder: Recorder
) -> None:
    sampler.set(SamplePlan(source, 4))
    with rankwatch.step():
        assert torch._C._autograd._profiler_enabled(), "ours records"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            torch.ones(8) + 1
        assert any(event.key == "aten::add" for event in profiler.key_averages())
    assert recorder.dropped == {DROP_WINDOW: 1}
    assert sampler.collect() is None
    sample = next_sample(sampler)
    assert sample is not None
    assert sample.trace.kernels, "afterwards ours goes on"


def test_a_window_is_not_ended_inside_a_backward_pass_which_would_bring_it_back(
    sampler: Sampler, source: KinetoSource, recorder: Recorder
) -> None:
    class Interrupting(torch.autograd.Function):
        @staticmethod
        def forward(_: object, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        def backward(_: object, *gradients: torch.Tensor) -> torch.Tensor:
            sampler.interrupt()  # as for a step that lasts: between any two instructions of the main thread
            return gradients[0] * 2

    sampler.set(SamplePlan(source, 4))
    with rankwatch.step():
        Interrupting.apply(torch.ones(8, requires_grad=True)).sum().backward()
    assert recorder.dropped == {}
    assert next_sample(sampler) is not None
    assert not torch._C._autograd._profiler_enabled()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(8) + 1
    assert any(event.key == "aten::add" for event in profiler.key_averages())


def test_no_window_begins_between_a_users_warmup_and_its_end(
    sampler: Sampler, source: KinetoSource, recorder: Recorder
) -> None:
    found: list[list[str]] = []
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=2, repeat=1)
    sampler.set(SamplePlan(source, 1))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda profiler: found.append([event.key for event in profiler.key_averages()]),
    ) as profiler:
        for _ in range(8):
            with rankwatch.step():
                torch.ones(8) * 3
            profiler.step()
    assert len(found) == 1
    assert "aten::mul" in found[0]
    assert recorder.dropped[DROP_WINDOW] >= 4
    assert next_sample(sampler) is not None


def test_while_the_users_profiler_runs_no_window_begins(source: KinetoSource) -> None:
    with torch.profiler.profile(), pytest.raises(SourceBusy):
        source.start()
    source.start()
    source.stop()


def test_another_threads_profiler_does_not_end_our_window(sampler: Sampler, source: KinetoSource) -> None:
    sampler.set(SamplePlan(source, 4))
    with rankwatch.step():
        thread = threading.Thread(target=lambda: torch.autograd.profiler._disable_profiler)
        thread.start()
        thread.join()
    assert next_sample(sampler) is not None


def test_a_torch_with_other_names_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._autograd, "_prepare_profiler")
    with pytest.raises(SourceUnavailable, match="is not supported"):
        KinetoSource(torch, on_device=False, end_window=lambda: None)


def test_a_child_of_a_profiled_process_learns_that_it_cannot_profile(
    source: KinetoSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(source)
    assert kineto._started_in == os.getpid()
    monkeypatch.setattr(kineto, "_started_in", os.getpid() + 1)
    with pytest.raises(SourceUnavailable, match="forked from a profiled one"):
        KinetoSource(torch, on_device=False, end_window=lambda: None)


GROUPS = """
import json, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from rankwatch.liveness import torch_control_plane
from rankwatch.profiling.kineto import KinetoSource
from rankwatch.profiling.process_groups import with_groups
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
assert torch_control_plane.offer(Path(f"{sys.argv[2]}.{rank}.sock"))
one = torch.ones(4)
dist.all_reduce(one)
source = KinetoSource(torch, on_device=False, end_window=lambda: None)

def step():
    source.start()
    for _ in range(3):
        dist.all_reduce(one)
    if rank == 0:
        dist.send(one, 1)
    else:
        dist.recv(one, 0)
    dist.all_gather([torch.ones(4), torch.ones(4)], one)
    return with_groups(source.read(source.stop(), 10_000), (0, time.time_ns()))

alone = step()
pair = dist.new_group([0, 1], group_desc="pair")
for _ in range(5):
    dist.all_reduce(one, group=pair)

source.start()
dist.all_reduce(one)
for _ in range(2):
    dist.all_reduce(one, group=pair)
dist.broadcast(one, 0, group=pair)
both = with_groups(source.read(source.stop(), 10_000), (0, time.time_ns()))
print(json.dumps([sorted((c.group, c.name) for c in trace.collectives) for trace in (alone, both)]))
print(json.dumps([k.key for k in alone.kernels]))
print(json.dumps([sorted((t.group, t.operation, t.size, t.ranks) for t in trace.transfers) for trace in (alone, both)]))
dist.barrier()
dist.destroy_process_group()
"""


def test_collectives_have_their_process_group(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RANKWATCH_")}
    env |= {"PYTHONPATH": str(ROOT / "telemetry"), "OMP_NUM_THREADS": "1"}
    ranks = [
        ForkedPopen(
            [sys.executable, "-c", GROUPS, str(rank), str(tmp_path / "store")],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(10)
    for (out, err), peer in zip(outputs, ("gloo:send", "gloo:recv"), strict=True):
        assert out, err
        (alone, both), operators, moved = (json.loads(line) for line in out.splitlines())
        assert alone == [
            *[["default_pg", "gloo:all_gather"], *[["default_pg", "gloo:all_reduce"]] * 3],
            ["point_to_point", peer],
        ]
        assert both == [
            ["default_pg", "gloo:all_reduce"],
            *[["pair (1)", "gloo:all_reduce"]] * 2,
            ["pair (1)", "gloo:broadcast"],
        ]
        assert moved == [
            [["default_pg", "all_gather", 32, 2], *[["default_pg", "all_reduce", 16, 2]] * 3],
            [
                ["default_pg", "all_reduce", 16, 2],
                *[["pair (1)", "all_reduce", 16, 2]] * 2,
                ["pair (1)", "broadcast", 16, 2],
            ],
        ]
        assert not any(key.startswith("aten::copy_") for key in operators), "gloo's own copies are its own"


def next_sample(sampler: Sampler) -> Sample | None:
    """Make steps until one was sampled."""
    for _ in range(8):
        with rankwatch.step():
            torch.ones(8) + 1
        if (recording := sampler.collect()) is not None:
            return sampler.read(recording)
    return None


class _Event:
    """What torch 2.11 has of an event, and no more."""

    def __init__(self, name: str, device: object, start: int, *, annotation: bool = False) -> None:
        self.name, self.device_type, self.start_ns = (lambda: name), (lambda: device), (lambda: start)
        self.duration_ns, self.device_resource_id = (lambda: 10), (lambda: 7)
        self.is_user_annotation = lambda: annotation


class _Recorded:
    def __init__(self, *events: _Event) -> None:
        self._events = list(events)

    def events(self) -> list[_Event]:
        return self._events


def test_kernels_of_a_device_are_told_from_calls_and_annotations() -> None:
    host, device = torch._C._autograd.DeviceType.CPU, torch._C._autograd.DeviceType.CUDA
    source = KinetoSource(torch, on_device=True, end_window=lambda: None)
    try:
        recorded = _Recorded(
            _Event("cudaLaunchKernel", host, 0),
            _Event("void gemm<float>(float*)", device, 1),
            _Event("Optimizer.step#SGD.step", device, 1, annotation=True),
            _Event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", device, 2),
            _Event("enumerate(DataLoader)#_SingleProcessDataLoaderIter", host, 3),
        )
        trace = source.read(recorded, 100)
    finally:
        source.close()
    assert [(kernel.key, kernel.self_ns) for kernel in trace.kernels] == [("gemm<float>", 10)]
    assert [each.group for each in trace.collectives] == ["stream 7"]
    assert (len(trace.data), trace.on_device) == (1, True)


def test_every_method_of_an_event_that_is_called_exists_in_this_torch() -> None:
    for name in kineto._OF_EVENTS:
        assert callable(getattr(torch._C._autograd._KinetoEvent, name))
