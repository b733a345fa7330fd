"""Traces of PyTorch's profiler are judged like tables of operations, or refused with the true reason."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwatch_monitor.replay.cli import replay
from rankwatch_monitor.replay.traces import kineto as traces
from rankwatch_monitor.replay.traces.kineto import is_trace, read_traces
from rankwatch_monitor.replay.traces.read import TableError
from rankwatch_monitor.replay.traces.windows import read
from support.opens import never_opened

STEP, OWN, MORE = 100_000.0, 60_000.0, 30_000.0
"""Microseconds of a step, of a rank's computation in it, and of that of a slow one beyond it."""


def kineto(rank: int, *, steps: int = 20, slow: int | None = 1, since: int = 8, world: int = 4) -> dict[str, Any]:
    """What the profiler writes of a rank: kernels are launched early, and the collective waits for the slow rank."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "ts": 0}]
    at = 1_000_000.0
    for step in range(steps):
        late = MORE if slow is not None and step >= since else 0.0
        lasts, own = STEP + late, OWN + (late if rank == slow else 0.0)
        wiggle = 200.0 * ((7 * step + 3 * rank) % 5)
        numbers = (2 * step, 2 * step + 1)
        events += [
            span("user_annotation", f"ProfilerStep#{step}", at, lasts - 1),
            *(span("cuda_runtime", "cudaLaunchKernel", at + 10 + n, 5, correlation=n) for n in numbers),
            span("kernel", "void at::native::reduce_kernel<512>", at + 1000, own + wiggle, correlation=numbers[0]),
            span(
                "kernel",
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                at + 1000 + own + wiggle,
                lasts + 2000 - 1000 - own - wiggle,  # beyond the end of the step that launched it
                correlation=numbers[1],
            ),
        ]
        at += lasts
    info = {"backend": "nccl", "rank": rank, "world_size": world}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events, "baseTimeNanoseconds": 0}


def span(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


def folder(path: Path, *, packed: bool = False, **more: Any) -> Path:
    for rank in range(4):
        data = json.dumps(kineto(rank, **more), indent=2).encode()
        file = path / f"host_{rank}.pt.trace.json{'.gz' if packed else ''}"
        file.write_bytes(gzip.compress(data) if packed else data)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_a_slow_rank_is_named_in_a_folder_of_traces(
    tmp_path: Path, packed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay([str(folder(tmp_path, packed=packed)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["ranks"], found["cause"]) == ("worker", [1], "compute")
    assert found["share"] == pytest.approx(MORE / (STEP + MORE), rel=0.1)
    assert found["table"]["steps"] == 20


def test_its_twin_is_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay([str(folder(tmp_path, slow=None)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "healthy"


def test_one_rank_alone_is_read_and_it_is_said_that_there_is_nothing_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder(tmp_path) / "host_2.pt.trace.json"
    assert replay([str(file), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["table"]["notes"]
    assert any("one rank" in note for note in notes)


def test_the_trace_that_the_profiler_writes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=9)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as profiler:
        for _ in range(5):
            torch.randn(50, 50) @ torch.randn(50, 50)
            profiler.step()
    file = tmp_path / "rank3.json"
    profiler.export_chrome_trace(str(file))
    table = read(file)
    assert table.ranks.tolist() == [3]
    assert len(table.steps) == 4


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (json.dumps(kineto(0))[:-2000].encode(), "cut off or damaged"),
        (b'{"traceEvents": 5}', "no list traceEvents"),
        (b'{"traceEvents": []}', "without steps"),
        (json.dumps({"traceEvents": [span("cpu_op", "add", 1, 1)]}).encode(), "without steps"),
        (json.dumps({"traceEvents": [span("x", "ProfilerStep#1", 1, 1)]}).encode(), "no kernel and no operation"),
        (json.dumps([span("viztracer", "f", 1, 1)]).encode(), "without steps"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    assert is_trace(file)
    with pytest.raises(TableError, match=reason):
        read(file)


def unpacked_by_thousands(path: Path) -> None:
    path.write_bytes(gzip.compress(b'{"schemaVersion":1,"traceEvents":[' + b" " * (64 << 20) + b"]}"))


def of_a_hundred_million_lists(path: Path) -> None:
    path.write_bytes(b'{"schemaVersion":1,"traceEvents":[' + b"[],[]," * 20_000_000 + b"[]]}")


def sparse(path: Path) -> None:
    path.write_bytes(b'{"schemaVersion":1,"traceEvents":[')
    os.truncate(path, 1 << 40)


def of_a_rank_that_no_job_has(path: Path) -> None:
    path.write_text(json.dumps(kineto(10**12)))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("plant", [unpacked_by_thousands, of_a_hundred_million_lists, of_a_rank_that_no_job_has])
def test_a_trace_that_would_take_all_memory_is_refused(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / "rank-0.json")
    with pytest.raises(TableError):
        read_traces(tmp_path)


def test_of_a_file_no_more_is_read_than_a_trace_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_LARGEST", 1 << 20)
    sparse(tmp_path / "rank-0.json")
    with pytest.raises(TableError):
        read_traces(tmp_path)


@pytest.mark.timeout(60)
def test_a_pipe_in_a_folder_of_traces_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.json")
    (tmp_path / "rank-1.json").write_text(json.dumps(kineto(1)))
    assert len(read_traces(tmp_path)) > 0
    with never_opened(tmp_path / "rank-0.json"), pytest.raises(OSError, match="regular"):
        is_trace(tmp_path / "rank-0.json")


def test_traces_of_unknown_or_equal_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="holds no trace"):
        read(tmp_path)
    folder(tmp_path)
    (tmp_path / "again.json").write_text(json.dumps(kineto(2)))
    with pytest.raises(TableError, match="both of rank 2"):
        read(tmp_path)
    (tmp_path / "again.json").write_text(json.dumps({"traceEvents": kineto(2)["traceEvents"]}))
    with pytest.raises(TableError, match="states no rank"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b'{"a": 1}', b'{\n  "a": 1\n}\n', b"hello\nworld\n", b"{}\n"])
def test_what_is_no_recording_is_not_said_to_be_cut_off(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(content)
    assert replay([str(file)]) == 2
    assert "no recording of rankwatch" in capsys.readouterr().err
