"""Writes the trace of one sampled step as a file that chrome://tracing and Perfetto show."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rankwatch.kernels.source import Interval, Trace

MAX_FILES: Final = 20
"""Traces kept in the folder, of all ranks of a node; the oldest go first."""
MAX_ID: Final = 64

_PATTERN: Final = "*-rank*-*.json"
_LANES: Final = ("step", "kernels", "collectives", "data")


def write(folder: Path, job: str, rank: int, request: str, trace: Trace, step: Interval) -> Path:
    """Write ``<job>-rank<rank>-<request>.json`` and return its path; times in it are microseconds into the step.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_plain(job)}-rank{rank}-{_plain(request)}.json"
    unfinished = path.with_suffix(f".{os.getpid()}.part")
    try:
        with unfinished.open("w") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            file.write(",\n".join(json.dumps(event) for event in _events(trace, step, rank)))
            file.write("\n]}\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    _keep_newest(folder)
    return path


def _events(trace: Trace, step: Interval, rank: int) -> Iterator[dict[str, Any]]:
    for lane, name in enumerate(_LANES):
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": {"name": name}}

    def event(lane: int, name: str, start: int, end: int, **arguments: str) -> dict[str, Any]:
        at, took = (start - step[0]) / 1e3, (end - start) / 1e3
        return {"ph": "X", "name": name, "pid": rank, "tid": lane, "ts": at, "dur": took, "args": arguments}

    yield event(0, "step", *step)
    for kernel in trace.kernels:
        yield event(1, kernel.key or "operator", kernel.start_ns, kernel.end_ns)
    for collective in trace.collectives:
        yield event(2, collective.name, collective.start_ns, collective.end_ns, group=collective.group)
    for start, end in trace.data:
        yield event(3, "data", start, end)


def _keep_newest(folder: Path) -> None:
    """Other ranks may write and tidy up here at the same time, so a file may be gone before we come to it."""
    found: list[tuple[float, Path]] = []
    for path in folder.glob(_PATTERN):
        with contextlib.suppress(OSError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found)[:-MAX_FILES]:
        path.unlink(missing_ok=True)


def _plain(text: str) -> str:
    """``text`` as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:MAX_ID] or "_"
