"""Kernels of a device get the group, operation and size of the flight recorder's entries where these can be told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.contract.statistics import OperationWindow
from rankwatch.profiling import process_groups
from rankwatch.profiling.process_groups import with_groups
from rankwatch.profiling.source import Collective, Trace, Transfer
from rankwatch.profiling.statistics import MAX_OPERATIONS, by_operation

STEP = (1_000, 9_000)
GROUPS = {"0": 4, "1": 2}


def entry(operation: str, group: str, at: int, elements: int = 100, **more: Any) -> dict[str, Any]:
    shape = {"input_sizes": [[elements]], "output_sizes": [[elements]], "input_dtypes": ["Float"]}
    name = "default_pg" if group == "0" else "tp"
    made = {"profiling_name": f"nccl:{operation}", "process_group": [group, name], "time_created_ns": at}
    return {**shape, "output_dtypes": ["Float"], "is_p2p": False, **made, **more}


def kernel(kind: str, stream: int, start: int, took: int = 100) -> Collective:
    return Collective(f"stream {stream}", f"ncclDevKernel_{kind}_Sum_f32_RING_LL", start, start + took)


class Recorder:
    """Stands for torch's bookkeeping of four ranks, two of them in a group."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[dict[str, Any]] = []
        world = SimpleNamespace(pg_names={name: name for name in GROUPS}, pg_group_ranks={})
        world.pg_group_ranks = {name: dict.fromkeys(range(size), 0) for name, size in GROUPS.items()}
        monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
        monkeypatch.setattr(process_groups, "_asked", lambda: json.dumps({"entries": self.entries}).encode())

    def of(self, *kernels: Collective) -> Trace:
        return with_groups(Trace(collectives=kernels, on_device=True), STEP)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


def groups(trace: Trace) -> list[tuple[int, str]]:
    return sorted((each.start_ns, each.group) for each in trace.collectives)


def test_kernels_of_one_group_are_its_entries_in_order(recorder: Recorder) -> None:
    recorder.entries = [entry("all_reduce", "0", 500, 7), entry("all_reduce", "0", 2_000), entry("barrier", "0", 3_000)]
    recorder.entries += [entry("_all_gather_base", "0", 4_000, 25), entry("all_reduce", "0", 9_500, 7)]
    trace = recorder.of(kernel("AllReduce", 7, 2_100), kernel("AllReduce", 7, 3_100), kernel("AllGather", 7, 4_100, 50))
    assert groups(trace) == [(2_100, "default_pg"), (3_100, "default_pg"), (4_100, "default_pg")]
    assert sorted(trace.transfers) == [
        Transfer("default_pg", "all_gather", 400, 4, 50),
        Transfer("default_pg", "all_reduce", 400, 4, 100),
        Transfer("default_pg", "barrier", 0, 4, 100),
    ]


def test_groups_are_told_by_how_many_each_stream_has(recorder: Recorder) -> None:
    recorder.entries = [entry("all_reduce", "1", 2_000 + n, 10) for n in range(3)] + [entry("all_reduce", "0", 5_000)]
    kernels = [kernel("AllReduce", 7, 2_100 + n) for n in range(3)] + [kernel("AllReduce", 9, 2_050)]
    trace = recorder.of(*kernels)
    assert groups(trace) == [(2_050, "default_pg"), *[(2_100 + n, "tp (1)") for n in range(3)]]
    assert {(each.group, each.size) for each in trace.transfers} == {("default_pg", 400), ("tp (1)", 40)}


def test_on_one_stream_kernels_come_in_the_order_of_the_calls(recorder: Recorder) -> None:
    """Where the script waits for them, torch runs the collectives of all groups on its own stream."""
    recorder.entries = [entry("all_reduce", "1", 2_000), entry("all_reduce", "0", 3_000)]
    trace = recorder.of(kernel("AllReduce", 7, 2_100), kernel("AllReduce", 7, 3_100))
    assert groups(trace) == [(2_100, "tp (1)"), (3_100, "default_pg")]


@pytest.mark.parametrize("third", [(), (11,)], ids=["as many in each", "a third stream"])
def test_what_cannot_be_told_keeps_its_stream(recorder: Recorder, third: tuple[int, ...]) -> None:
    recorder.entries = [entry("all_reduce", "1", 2_000), entry("all_reduce", "0", 3_000)]
    recorder.entries += [entry("all_reduce", "0", 4_000) for _ in third]
    streams = (7, 9, *third)
    trace = recorder.of(*(kernel("AllReduce", stream, 2_100 + stream) for stream in streams))
    assert {each.group for each in trace.collectives} == {f"stream {stream}" for stream in streams}
    assert trace.transfers == []


def test_a_kernel_too_many_leaves_all_of_its_kind_unknown(recorder: Recorder) -> None:
    recorder.entries = [entry("all_reduce", "0", 2_000)]
    trace = recorder.of(kernel("AllReduce", 7, 900), kernel("AllReduce", 7, 2_100))
    assert groups(trace) == [(900, "stream 7"), (2_100, "stream 7")]


def test_with_timing_the_recorder_s_own_durations_count_without_kernels(recorder: Recorder) -> None:
    recorder.entries = [entry("all_reduce", group, 2_000, duration_ms=0.5) for group in ("0", "1")]
    trace = recorder.of(kernel("AllReduce", 7, 2_100), kernel("AllReduce", 9, 2_100))
    assert sorted(trace.transfers) == [
        Transfer("default_pg", "all_reduce", 400, 4, 500_000),
        Transfer("tp (1)", "all_reduce", 400, 2, 500_000),
    ]


def test_sends_have_a_group_of_their_own_and_no_bandwidth(recorder: Recorder) -> None:
    recorder.entries = [entry("send 0->1", "0", 2_000, is_p2p=True)]
    trace = recorder.of(kernel("SendRecv", 7, 2_100))
    assert (groups(trace), list(trace.transfers)) == ([(2_100, "point_to_point")], [])


@pytest.mark.parametrize("dump", [b'{"entries":[{"a":', b'{"entries":[{"a":1}]}', b'{"entries"', b"", b"[]", b"\xff"])
def test_where_the_recorder_cannot_be_read_only_groups_are_unknown(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, dump: bytes
) -> None:
    monkeypatch.setattr(process_groups, "_asked", lambda: dump)
    trace = recorder.of(kernel("AllReduce", 7, 2_100))
    assert (groups(trace), list(trace.transfers)) == ([(2_100, "stream 7")], [])
    host = with_groups(Trace(collectives=[Collective("", "gloo:all_reduce", 1, 2)]), STEP)
    assert [each.group for each in host.collectives] == ["unknown"]


def test_figures_are_of_the_largest_collectives_and_bounded() -> None:
    moved = [Transfer("dp", "all_reduce", size, 4, ns) for size, ns in ((100, 10), (800, 50), (800, 40), (8, 1))]
    assert by_operation(moved) == {"all_reduce dp": OperationWindow(4, 101e-9, 40e-9, 1708, 800, 1200)}
    many = [Transfer(f"g{n}", "all_reduce", 8, 2, 100 + n) for n in range(MAX_OPERATIONS + 9)]
    assert len(found := by_operation(many)) == MAX_OPERATIONS
    assert "all_reduce g0" not in found


ASKS = """
import json, sys
from pathlib import Path
import torch, torch.distributed as dist
from rankwatch.liveness import torch_control_plane
from rankwatch.profiling import process_groups
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
for _ in range(300):
    dist.all_reduce(torch.ones(8))
assert not list(process_groups.flight_recorder(binding=False)), "of one group, the GIL is not held for it"
without = list(process_groups.flight_recorder(binding=True))
assert torch_control_plane.offer(Path(sys.argv[1], "0.sock"))
assert process_groups._asked() is not None
print(json.dumps([without == list(process_groups.flight_recorder(binding=False)), len(without)]))
"""


def test_the_control_plane_of_the_own_process_is_asked(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RANKWATCH_")}
    found = subprocess.run(
        [sys.executable, "-c", ASKS, str(tmp_path)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.stdout, found.stderr
    assert json.loads(found.stdout) == [True, 300]
