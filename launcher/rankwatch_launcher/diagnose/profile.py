"""Profiles of ranks: samples of their main threads by py-spy, which pauses nothing, and what the kernel accounts.

The time is cut into consecutive slices, each with profiles of its own: what holds in all of them is no accident.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import IO, Final, NamedTuple

from rankwatch.contract.diagnosis import Profile, Profiled
from rankwatch.contract.messages import Frame
from rankwatch_launcher import procfs
from rankwatch_launcher.stacks.capture import limit_py_spy
from rankwatch_launcher.stacks.formats import MAX_FRAMES, frame

SLICES: Final = 3
RATE: Final = 20
"""Samples a second, for which py-spy takes about 2 % of a CPU."""
NICENESS: Final = 10
"""py-spy has to wait for a CPU, not the rank."""
LATE_SECONDS: Final = 5.0
"""What py-spy may take longer than it is told to."""
LARGEST: Final = 4 << 20
"""Bytes that py-spy may write of a slice of one process."""
MOST_TEXT: Final = 8 << 20
"""The same of all processes: those with the most are left out. What py-spy writes of a rank is 0.2 MiB."""
MAX_STACKS: Final = 200
"""Kept of a slice, the most frequent ones."""
MAX_PLACES: Final = 2048
"""Frames kept of a profile, each once."""
MOST_PROCESSES: Final = 256
"""Profiled on a node, each by a process of 20 MB; of thousands the first, users in turn."""
_MAIN: Final = re.compile(r"thread \((\w+)\): (.*)")


class Spent(NamedTuple):
    """What the kernel has accounted to a rank's main thread and to its control group, in seconds."""

    running: float
    ready: float
    """Ready to run, without a CPU."""
    throttled: float | None
    """None: no group limits its CPU time."""
    faults: int
    """Pages that were read from a disk."""


def profiles(tool: str, pids: Collection[int], seconds: float, *, proc: Path = procfs.PROC) -> dict[int, Profile]:
    """Sample the main threads of processes for so long; those of which nothing is known are missing."""
    pids = tuple(pids)[:MOST_PROCESSES]
    begin = {pid: spent(pid, proc) for pid in pids}
    began = time.monotonic()
    slices = [_slice(tool, pids, seconds / SLICES) for _ in range(SLICES)]
    took = time.monotonic() - began
    found = {}
    for pid in pids:
        frames: dict[Frame, int] = {}
        stacks = []
        for counts in (each.get(pid, Counter()) for each in slices):
            known = ((stack, number) for stack, number in counts.most_common() if len(frames) < MAX_PLACES)
            placed = [
                (tuple(frames.setdefault(each, len(frames)) for each in stack), number) for stack, number in known
            ]
            stacks.append(tuple(Profiled(*each) for each in placed))
        if frames:
            found[pid] = Profile(tuple(frames), tuple(stacks), **_accounted(begin[pid], spent(pid, proc), took))
    return found


def spent(pid: int, proc: Path = procfs.PROC) -> Spent | None:
    """What the kernel has accounted so far; None: it does not tell."""
    try:
        running, ready, _ = (proc / f"{pid}/task/{pid}/schedstat").read_text().split()
        faults = int(procfs.stat_fields((proc / f"{pid}/stat").read_text())[9])
        return Spent(int(running) / 1e9, int(ready) / 1e9, procfs.throttled(pid, proc), faults)
    except (OSError, ValueError, IndexError):
        return None


def _accounted(before: Spent | None, after: Spent | None, seconds: float) -> dict[str, float]:
    """The fields of :class:`.Profile` that the kernel tells."""
    if before is None or after is None:
        return {}
    spent = {"running": after.running - before.running, "ready": after.ready - before.ready}
    if before.throttled is not None and after.throttled is not None:
        spent["throttled"] = after.throttled - before.throttled
    shares = {name: round(min(1.0, max(0.0, each / seconds)), 3) for name, each in spent.items()}
    return shares | {"faults": round(max(0, after.faults - before.faults) / seconds, 1)}


def _slice(tool: str, pids: Collection[int], seconds: float) -> dict[int, Counter[tuple[Frame, ...]]]:
    """The stacks that the samples of all processes found, all at once."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankwatch-")))
        started: dict[int, subprocess.Popen[bytes]] = {}
        for pid in pids:
            options = ["--nonblocking", "--idle", "--threads", "--full-filenames", "--format", "raw"]
            limits = ["--rate", str(RATE), "--duration", str(max(1, round(seconds)))]
            place = ["--output", str(folder / str(pid)), "--pid", str(pid)]
            process = subprocess.Popen(
                [tool, "record", *options, *limits, *place],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            limit_py_spy(process.pid, LARGEST)
            stack.callback(process.wait)
            stack.callback(process.kill)
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            started[pid] = process
        until = time.monotonic() + seconds + LATE_SECONDS
        sizes = dict[int, int]()
        for pid, process in started.items():
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                process.wait(max(0.1, until - time.monotonic()))
                sizes[pid] = (folder / str(pid)).stat().st_size
        found, room = {}, MOST_TEXT
        for pid in sorted(sizes, key=sizes.__getitem__):
            if (room := room - sizes[pid]) >= 0:
                with contextlib.suppress(OSError), (folder / str(pid)).open("rb") as file:
                    found[pid] = read(file, pid)
        return found


def read(file: IO[bytes], pid: int) -> Counter[tuple[Frame, ...]]:
    """The main thread's stacks in py-spy's raw format, innermost first, and how often each was found."""
    counts: Counter[str] = Counter()
    for line in file.read(LARGEST).decode(errors="replace").splitlines():
        stack, _, number = line.rpartition(" ")
        thread, found, frames = stack.partition(";")
        named = _MAIN.fullmatch(thread)
        if named is None or not found or not (number.isascii() and number.isdigit() and len(number) < 10):
            continue
        if named[1] == str(pid) or (not named[1].isdigit() and named[2] == "MainThread"):
            counts[frames] += int(number)
    made: Counter[tuple[Frame, ...]] = Counter()
    for frames, times in counts.most_common(MAX_STACKS):
        made[tuple(_frame(each) for each in reversed(frames.split(";")[-MAX_FRAMES:]))] += times
    return made


def _frame(text: str) -> Frame:
    function, found, place = text.rpartition(" (")
    if not found or not place.endswith(")"):
        return frame(text, "", 0)
    file, _, line = place[:-1].rpartition(":")
    known = bool(file) and line.isascii() and line.isdigit() and len(line) < 10
    return frame(function, file, int(line)) if known else frame(function, place[:-1], 0)
