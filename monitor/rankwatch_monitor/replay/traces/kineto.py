"""Reads traces of PyTorch's profiler (Kineto; chrome JSON, also .gz) as HTA does: one file a rank, or a folder of them.

A row is a kernel, on CPU jobs an operation, or what the data loader took; the number of its step is that of the
``ProfilerStep#N`` in which it was launched. Everything but collectives and the loader is computation.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch.contract import text
from rankwatch.contract.files import opened
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.replay.traces.read import MAX_RANK, Column, Rows, TableError

UNIT: Final = "us"
_SUFFIXES: Final = (".json", ".json.gz")
_GZIP: Final = b"\x1f\x8b"
_BEGIN: Final = 1 << 16
_LARGEST: Final = 2 << 30
"""Bytes of one unpacked file: a profile of a few steps has hundreds of megabytes."""
_RATIO: Final = 256
"""How many times as large as the file the unpacked trace may be: those of the profiler are 10 to 30 times."""
_MOST_VALUES: Final = 50_000_000
"""Values of a trace, by its commas and brackets: one of them takes up to 60 bytes when it is read."""
_MARKS: Final = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"')
_STEP: Final = re.compile(r"ProfilerStep#(\d+)")
_RANK: Final = re.compile(r"(?:rank|trace)[-_.]?(\d+)", re.IGNORECASE)
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES: Final = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"})
_COLLECTIVE: Final = re.compile(r"nccl|rccl|gloo:|^nccl:", re.IGNORECASE)
_LOADER: Final = "enumerate(DataLoader)"
_WORDS: Final = ("kernel", "nccl", "data")
_KERNEL, _NCCL, _DATA = range(3)


class _Row(NamedTuple):
    """One operation; microseconds."""

    step: int
    kind: int
    start: float
    duration: float


def is_trace(path: Path) -> bool:
    """Whether it is a folder, or a file that begins like a chrome trace."""
    if path.is_dir():
        return True
    with opened(path) as file:
        began = file.read(_BEGIN)
    if began.startswith(_GZIP):
        try:
            began = zlib.decompressobj(wbits=31).decompress(began, _BEGIN)
        except zlib.error:
            return False
    began = began.lstrip()
    listed = began.startswith(b"[") and b'"ph"' in began
    return listed or (began.startswith(b"{") and any(mark in began for mark in _MARKS))


def read_traces(path: Path) -> Rows:
    """Read the trace of one rank, or those of all ranks in a folder.

    Raises:
        TableError: there is none, or one cannot be read; the message gives the reason.
        OSError: it cannot be opened.
    """
    files = _files(path)
    if not files:
        raise TableError(f"{path} holds no trace of PyTorch's profiler: expected *.json or *.json.gz, one a rank")
    numbers: dict[str, list[Floats]] = {name: [] for name in ("rank", "step", "start_ts", "duration")}
    kinds: list[Floats] = []
    hosts: list[str] = []
    host_of: list[Floats] = []
    seen: dict[int, Path] = {}
    for file in files:
        trace = _parsed(file)
        rank = _rank_of(trace, file, alone=len(files) == 1)
        if rank > MAX_RANK:
            raise TableError(f"{file} is of rank {rank}: at most {MAX_RANK} is expected")
        if (other := seen.setdefault(rank, file)) is not file:
            raise TableError(f"{file} and {other} are both of rank {rank}: one trace a rank is expected")
        rows = list(_rows(trace, file))
        steps, of_kind, start, duration = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
        for name, column in zip(numbers, (np.full(len(rows), float(rank)), steps, start, duration), strict=True):
            numbers[name].append(column)
        kinds.append(of_kind)
        hosts.append(str(trace.get("hostname") or trace.get("host_name") or trace.get("hostName") or ""))
        host_of.append(np.full(len(rows), float(len(hosts) - 1)))
    joined = {name: np.concatenate(columns) for name, columns in numbers.items()}
    joined["start_ts"] -= joined["start_ts"].min()
    texts = {
        "optype": Column(np.concatenate(kinds).astype(np.int64), _WORDS),
        "host": Column(np.concatenate(host_of).astype(np.int64), tuple(hosts)),
    }
    return Rows(path, joined, texts)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(
        each for each in path.iterdir() if each.name.endswith(_SUFFIXES) and each.is_file() and is_trace(each)
    )


def _parsed(file: Path) -> Mapping[str, Any]:
    with opened(file) as content:
        data = content.read(_LARGEST)
    most = _LARGEST
    try:
        if data.startswith(_GZIP):
            most = min(_LARGEST, max(_BEGIN, _RATIO * len(data)))
            data = zlib.decompressobj(wbits=31).decompress(data, most)
        if len(data) >= most or text.values(data) > _MOST_VALUES:
            raise TableError(f"{file} has {most >> 20} MiB or {_MOST_VALUES:,} values, or more: profile fewer steps")
        trace = json.loads(data)
    except (zlib.error, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise TableError(f"{file} is a trace of PyTorch's profiler, but cut off or damaged: {error}") from None
    found = {"traceEvents": trace} if isinstance(trace, list) else trace
    if not isinstance(found.get("traceEvents"), list):
        raise TableError(f"{file} is JSON, but no trace: it has no list traceEvents")
    return found


def _rank_of(trace: Mapping[str, Any], file: Path, *, alone: bool) -> int:
    info = trace.get("distributedInfo")
    if isinstance(info, Mapping) and isinstance(rank := info.get("rank"), int) and rank >= 0:
        return rank
    if (named := _RANK.search(file.name)) is not None:
        return int(named[1])
    if alone:
        return 0
    raise TableError(
        f"{file} states no rank: it has no distributedInfo, and its name no 'rank' and number; name it rank-N.json"
    )


def _rows(trace: Mapping[str, Any], file: Path) -> Iterator[_Row]:
    events = [each for each in trace["traceEvents"] if _is_span(each)]
    base = trace.get("baseTimeNanoseconds")
    offset = base / 1000.0 if isinstance(base, int | float) else 0.0
    begin_S, end_S, step_S = _steps(events, file)
    launched = {
        correlation: each["ts"]
        for each in events
        if each.get("cat") in _LAUNCHES and (correlation := _correlation(each)) is not None
    }
    on_device = any(each.get("cat") in _DEVICE for each in events)
    found = False
    for each in events:
        kind = _kind_of(each, on_device=on_device)
        if kind is None:
            continue
        at = launched.get(_correlation(each), each["ts"]) if each.get("cat") in _DEVICE else each["ts"]
        place = int(np.searchsorted(begin_S, at, side="right")) - 1
        if place < 0 or at > end_S[place]:
            continue  # before the first step, or between two
        found = True
        yield _Row(int(step_S[place]), kind, each["ts"] + offset, max(0.0, each["dur"]))
    if not found:
        raise TableError(f"{file}: its steps hold no kernel and no operation; profile with activities CPU and CUDA")


def _steps(events: Sequence[Mapping[str, Any]], file: Path) -> tuple[Floats, Floats, Floats]:
    """Begin, end and number of each step, in order."""
    found = sorted(
        (each["ts"], each["ts"] + each["dur"], int(named[1]))
        for each in events
        if each.get("cat") != "gpu_user_annotation" and (named := _STEP.fullmatch(str(each.get("name"))))
    )
    if not found:
        raise TableError(
            f"{file} is a chrome trace without steps: it has no ProfilerStep#N; give "
            "torch.profiler.profile a schedule, and call its step() after each step of training"
        )
    begin_S, end_S, step_S = (np.array(column, dtype=np.float64) for column in zip(*found, strict=True))
    return begin_S, end_S, step_S


def _is_span(event: Any) -> bool:
    return (
        isinstance(event, Mapping)
        and event.get("ph") == "X"
        and isinstance(event.get("ts"), int | float)
        and isinstance(event.get("dur"), int | float)
    )


def _correlation(event: Mapping[str, Any]) -> Any:
    found = event.get("args")
    return found.get("correlation") if isinstance(found, Mapping) else None


def _kind_of(event: Mapping[str, Any], *, on_device: bool) -> int | None:
    category, name = event.get("cat"), str(event.get("name"))
    if name.startswith(_LOADER):
        return _DATA
    if category in _DEVICE:
        return _NCCL if _COLLECTIVE.search(name) else _KERNEL
    if on_device or _STEP.fullmatch(name):
        return None
    if _COLLECTIVE.match(name):
        return _NCCL
    return _KERNEL if category == "cpu_op" else None
