"""Traces on request: the next sampled step of a rank as a file for chrome://tracing and Perfetto, once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from rankwatch.contract.files import replace_file, temporary_folder
from rankwatch.profiling.plan import ProfilingPlan
from rankwatch.profiling.source import Interval, Sample, Span, Trace
from rankwatch.settings import Settings

MAX_FILES: Final = 20
"""This user's traces kept in the folder, of all ranks of a node; the oldest go first."""
MAX_ID: Final = 64
MAX_LANES: Final = 16
"""Lanes for one kind of events; further overlapping events share the last lane."""

_Shown = tuple[int, int, str, dict[str, str]]
"""Beginning, end, name and arguments."""

_PATTERN: Final = "*-rank*-*.json"
_HEAD: Final = '{"displayTimeUnit": "ms", "traceEvents": [\n'
"""The first line of every trace; a file of another program that matches the pattern does not have it."""


def write_trace(
    folder: Path, job: str, rank: int, request: str, trace: Trace, step: Interval, sections: Sequence[Span] = ()
) -> Path:
    """Write ``<job>-rank<rank>-<request>.json`` and return its path; times in it are microseconds into the step.

    Raises:
        OSError: it cannot be written, or a file of that name is not a trace of this user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{_plain(job)}-rank{rank}-{_plain(request)}.json"
    if os.path.lexists(path) and not _own_trace(path):
        raise FileExistsError(f"{path} exists and is not a trace of this user")
    events = ",\n".join(json.dumps(event) for event in _events(trace, step, sections, rank))
    replace_file(path, (_HEAD, events, "\n]}\n"))
    _keep_newest(folder)
    return path


def _events(trace: Trace, step: Interval, sections: Sequence[Span], rank: int) -> Iterator[dict[str, Any]]:
    shown: dict[str, Iterable[_Shown]] = {
        "step": [(*step, "step", {})],
        "sections": [(start, end, name, {}) for name, start, end in sections],
        "kernels" if trace.on_device else "operators": [
            (kernel.start_ns, kernel.end_ns, kernel.key or kernel.name or "operator", {}) for kernel in trace.kernels
        ],
        "collectives": [(c.start_ns, c.end_ns, c.name, {"group": c.group}) for c in trace.collectives],
        "data loader": [(start, end, "data", {}) for start, end in trace.data],
    }
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    number = 0
    for name, events in shown.items():
        for lane in _lanes(events):
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": name}}
            for start, end, called, arguments in lane:
                at, took = (start - step[0]) / 1e3, (end - start) / 1e3
                event = {"name": called, "ts": at, "dur": took, "args": arguments}
                yield {"ph": "X", "pid": rank, "tid": number, **event}
            number += 1


def _lanes(events: Iterable[_Shown]) -> list[list[_Shown]]:
    """Distribute events to lanes without partial overlap, which viewers cannot show."""
    lanes: list[list[_Shown]] = []
    around: list[list[int]] = []
    """For each lane, the ends of its open events, the innermost last."""
    for event in sorted(events, key=lambda event: (event[0], -event[1])):
        start, end = event[:2]
        for ends in around:
            while ends and ends[-1] <= start:
                ends.pop()
        fitting = (n for n, ends in enumerate(around) if not ends or end <= ends[-1])
        place = next(fitting, min(len(lanes), MAX_LANES - 1))
        if place == len(lanes):
            lanes.append([])
            around.append([])
        lanes[place].append(event)
        around[place].append(end)
    return lanes


def _keep_newest(folder: Path) -> None:
    """Remove the oldest traces of this user; other ranks may do so concurrently, so a file may already be gone."""
    found: list[tuple[float, Path]] = []
    for path in folder.glob(_PATTERN):
        with contextlib.suppress(OSError):
            if _own_trace(path):
                found.append((path.lstat().st_mtime, path))
    for _, path in sorted(found)[:-MAX_FILES]:
        with contextlib.suppress(OSError):
            path.unlink()


def _own_trace(path: Path) -> bool:
    """Whether it is a regular file of this user that :func:`write_trace` has written.

    Raises:
        OSError: it cannot be read.
    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(len(_HEAD)) == _HEAD


def _plain(text: str) -> str:
    """``text`` as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:MAX_ID] or "_"


class Notify(Protocol):
    """Logs a message once; with ``of_node`` it applies to all ranks of the node, and one of them logs it."""

    def __call__(self, message: str, *, of_node: bool = False) -> None:
        """Log it, unless it was logged before."""


class TraceRequests:
    """The trace requests of one session."""

    def __init__(self, settings: Settings, notify: Notify) -> None:
        self._settings = settings
        self._notify = notify
        self._done = ""

    def open(self, plan: ProfilingPlan) -> bool:
        """Whether an unanswered request asks for a trace of this rank."""
        return plan.trace is not None and plan.trace.rank == self._settings.rank and plan.trace.id != self._done

    def refuse(self, plan: ProfilingPlan, why: str) -> None:
        """Log why there can be no trace now; the request stays open."""
        if self.open(plan):
            self._notify(f"the requested trace of rank {self._settings.rank} cannot be made: {why}")

    def answer(self, plan: ProfilingPlan, sample: Sample, sections: Sequence[Span]) -> None:
        """Write the trace, if one was requested."""
        wanted, settings = plan.trace, self._settings
        if wanted is None or not self.open(plan):
            return
        self._done = wanted.id
        job = settings.job_id or "job"
        try:
            folder = Path(settings.trace_dir) if settings.trace_dir else temporary_folder("traces")
            path = write_trace(folder, job, settings.rank, wanted.id, sample.trace, sample.step, sections)
        except OSError as error:
            self._notify(
                f"the requested trace cannot be written: {error}; set RANKWATCH_TRACE_DIR to a folder "
                "in which this process may write"
            )
            return
        self._notify(f"the trace of step {sample.iteration} of rank {settings.rank} is in {path}")
