"""What a rank's processes do between looks: CPU time, bytes and wake-ups from /proc, and whether the stack moves.

A rank that evaluates or saves alone burns CPU, reads and writes, or has loader workers that do, and its stack moves;
one that hangs does nothing of that. Counters are sums over threads and child processes, so that one that ends takes
nothing away. Reads files of /proc only.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from rankwatch.contract.enums import WaitKind
from rankwatch.contract.messages import Frame, RankStack, Usage, Wait
from rankwatch_launcher import procfs
from rankwatch_launcher.procfs import TICK
from rankwatch_launcher.stacks.capture import run_all
from rankwatch_launcher.stacks.waits import Found, PythonThread, wait_of
from rankwatch_launcher.tcp import bytes_moved

SPAN: Final = 10.0
"""Seconds of looks over which counters are compared."""
NOT_WORK: Final = ("NCCL", "pt_nccl", "cuda-", "rankwatch")
"""Beginnings of the names of threads that spin or poll while the rank waits, and of Rankwatch's own."""
GPU_FILES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/accel", "/dev/davinci")
WAIT_SECONDS: Final = 3.0
"""Seconds for reading what the ranks of a node wait for, which takes milliseconds."""
WITHOUT_END: Final = (WaitKind.THREAD, WaitKind.STOPPED)
"""What counts only if the look before did not show something else."""
NOT_READ: Final = Found(Wait(WaitKind.UNKNOWN))
MAX_STACKS: Final = 64
"""Different stacks of a rank that are remembered."""

_CUTIME, _PPID = 13, 1
"""Positions in :func:`.procfs.stat_fields`."""


class _Counters(NamedTuple):
    at: float
    cpu: float = 0.0
    main_cpu: float = 0.0
    child_cpu: float = 0.0
    main_delay: float = 0.0
    child_delay: float = 0.0
    io_bytes: int = 0
    wakeups: int = 0


@dataclass
class _Watched:
    """One rank's process tree over the looks so far; ticks of CPU and bytes by thread or process."""

    pid: int
    gpu: bool
    threads: dict[int, int] = field(default_factory=dict)
    children: dict[int, int] = field(default_factory=dict)
    delays: dict[int, float] = field(default_factory=dict)
    """Seconds spent waiting for a CPU: of the main thread under ``pid``, of each child in all its threads."""
    io_bytes: dict[int, int] = field(default_factory=dict)
    sockets: dict[str, int] = field(default_factory=dict)
    """Bytes that have passed through each TCP socket, by inode."""
    arrived: float = -math.inf
    """When bytes last passed through the connection that was waited for."""
    reaped: int = 0
    wakeups: int = 0
    total: _Counters = field(default_factory=lambda: _Counters(0.0))
    history: deque[_Counters] = field(default_factory=deque)
    stack: tuple[Frame, ...] = ()
    stack_since: float = 0.0
    functions_since: float = 0.0
    seen: set[tuple[Frame, ...]] = field(default_factory=set)
    new_since: float = 0.0
    ends: bool = False
    """At the last look it waited for something that may end by itself."""


class UsageMeter:
    """Compares looks at ranks. The first look at a process is the baseline. Used by one thread."""

    def __init__(self, proc: Path = procfs.PROC) -> None:
        self._proc = proc
        self._watched: dict[int, _Watched] = {}

    def sample(
        self, stacks: Sequence[RankStack], now: float, threads: Mapping[int, Mapping[int, PythonThread]]
    ) -> dict[int, Usage]:
        """What each rank has done since the looks before, and what it waits for, by rank.

        Args:
            stacks: those of the ranks of this node.
            now: on the monotonic clock.
            threads: the Python threads of each rank, by their id in the kernel.
        """
        parents, moved = self._parents(), bytes_moved()
        waits, found = self._waits(stacks, parents, threads), {}
        for stack in stacks:
            watched = self._watched.get(stack.rank)
            if watched is None or watched.pid != stack.pid:
                watched = self._watched[stack.rank] = _Watched(stack.pid, self._holds_gpu(stack.pid))
            wait, awaited = waits.get(stack.rank, NOT_READ)
            if awaited in watched.sockets and moved.get(awaited, 0) > watched.sockets[awaited]:
                watched.arrived = now
            self._count(watched, _descendants(stack.pid, parents), moved, now)
            _compare(watched, stack.frames, now)
            ends = wait.kind not in WITHOUT_END
            if not ends and watched.ends:
                wait = NOT_READ.wait  # files of /proc are read one after the other, as what is waited for just ends
            watched.ends = ends
            found[stack.rank] = replace(_usage(watched), wait=wait, arrives=now - watched.arrived <= SPAN)
        return found

    def _waits(
        self,
        stacks: Sequence[RankStack],
        parents: Mapping[int, int],
        threads: Mapping[int, Mapping[int, PythonThread]],
    ) -> dict[int, Found]:
        """What each rank waits for; of one whose memory or files the kernel does not give, nothing.

        A reader of a process that is stuck in the kernel can get stuck there itself.
        """
        of_job = [os.getpid(), *(stack.pid for stack in stacks)]
        tasks = []
        for each in stacks:
            watched = self._watched.get(each.rank)
            look = partial(wait_of, each.pid, threads.get(each.rank, {}), parents, of_job, proc=self._proc)
            tasks.append((each.rank, partial(look, device=watched is None or watched.gpu)))
        return run_all(time.monotonic() + WAIT_SECONDS, tasks)

    def _count(self, watched: _Watched, children: Iterable[int], passed: Mapping[str, int], now: float) -> None:
        folder, pid, first = self._proc / str(watched.pid), watched.pid, not watched.history
        threads = self._threads(pid)
        ticks = {tid: spent - watched.threads.get(tid, 0) for tid, spent in threads.items()}
        spent = {child: procfs.ticks(self._stat(self._proc / str(child))) for child in children}
        ended = sum(known for child, known in watched.children.items() if child not in spent)
        reaped = procfs.ticks(self._stat(folder), _CUTIME)  # of children that have ended and were waited for
        in_children = sum(max(0, each - watched.children.get(child, 0)) for child, each in spent.items())
        in_children += max(0, reaped - watched.reaped - ended)
        delays = {pid: self._delay([folder])}
        delays |= {each: self._delay(procfs.tasks(each, self._proc)) for each in spent}
        waited = {each: max(0.0, seconds - watched.delays.get(each, 0.0)) for each, seconds in delays.items()}
        io_bytes = {each: self._bytes(self._proc / str(each)) for each in (pid, *spent)}
        moved = sum(max(0, each - watched.io_bytes.get(of, 0)) for of, each in io_bytes.items())
        # Neither send() nor recv() counts as bytes, and a slow receiver keeps a sender asleep for seconds.
        held = {str(inode) for each in (pid, *spent) for inode in procfs.sockets(each, self._proc)}
        sockets = {inode: passed[inode] for inode in held & passed.keys()}
        moved += sum(max(0, each - watched.sockets.get(inode, each)) for inode, each in sockets.items())
        wakeups = procfs.field(folder / "task" / str(pid) / "status", "voluntary_ctxt_switches") or 0
        before = watched.total
        watched.total = _Counters(
            now,
            before.cpu + (0.0 if first else sum(max(0, each) for tid, each in ticks.items() if tid != pid) / TICK),
            before.main_cpu + (0.0 if first else max(0, ticks.get(pid, 0)) / TICK),
            before.child_cpu + (0.0 if first else in_children / TICK),
            before.main_delay + (0.0 if first else waited[pid]),
            before.child_delay + (0.0 if first else sum(waited.values()) - waited[pid]),
            before.io_bytes + (0 if first else moved),
            before.wakeups + (0 if first else max(0, wakeups - watched.wakeups)),
        )
        watched.threads, watched.children, watched.delays, watched.io_bytes = threads, spent, delays, io_bytes
        watched.sockets, watched.reaped, watched.wakeups = sockets, max(watched.reaped, reaped), wakeups
        watched.history.append(watched.total)
        while len(watched.history) > 2 and now - watched.history[1].at >= SPAN:
            watched.history.popleft()

    # /proc ------------------------------------------------------------------------------------------------------------

    def _parents(self) -> dict[int, int]:
        found = {}
        try:
            names = [name for name in os.listdir(self._proc) if name.isdigit()]
        except OSError:
            return {}
        for name in names:
            fields = self._stat(self._proc / name)
            if fields:
                found[int(name)] = int(fields[_PPID])
        return found

    def _stat(self, folder: Path) -> list[str]:
        return procfs.stat_fields(procfs.text(folder / "stat"))

    def _threads(self, pid: int) -> dict[int, int]:
        """Ticks of CPU by thread, without those whose work proves nothing."""
        found = {}
        for task in procfs.tasks(pid, self._proc):
            text = procfs.text(task / "stat")
            if text and not text.partition("(")[2].startswith(NOT_WORK):
                found[int(task.name)] = procfs.ticks(procfs.stat_fields(text))
        return found

    def _delay(self, tasks: Iterable[Path]) -> float:
        """Seconds that threads spent waiting for a CPU; 0 where the kernel does not count them."""
        fields = (procfs.text(task / "schedstat").split() for task in tasks)
        return sum(int(each[1]) for each in fields if len(each) == 3 and each[1].isdigit()) / 1e9

    def _bytes(self, folder: Path) -> int:
        return sum(value for name, value in _named(folder / "io") if name in ("rchar", "wchar"))

    def _holds_gpu(self, pid: int) -> bool:
        return any(target.startswith(GPU_FILES) for target in procfs.open_files(pid, self._proc))


def _compare(watched: _Watched, frames: tuple[Frame, ...], now: float) -> None:
    """Note since when the main thread stands at the same lines, and in the same functions."""
    if not frames:
        return  # not read this time, which proves nothing
    if [(f.function, f.file) for f in frames] != [(f.function, f.file) for f in watched.stack]:
        watched.functions_since = now
    if frames != watched.stack:
        watched.stack_since = now
    if frames not in watched.seen:
        if len(watched.seen) >= MAX_STACKS:
            watched.seen.clear()
        watched.seen.add(frames)
        watched.new_since = now
    watched.stack = frames


def _usage(watched: _Watched) -> Usage:
    first, last = watched.history[0], watched.history[-1]
    since = (watched.stack_since, watched.functions_since, watched.new_since)
    stack, functions, new = (round(last.at - at, 3) if watched.stack else None for at in since)
    return Usage(
        seconds=round(last.at - first.at, 3),
        looks=len(watched.history),
        cpu=round(last.cpu - first.cpu, 3),
        main_cpu=round(last.main_cpu - first.main_cpu, 3),
        child_cpu=round(last.child_cpu - first.child_cpu, 3),
        main_delay=round(last.main_delay - first.main_delay, 3),
        child_delay=round(last.child_delay - first.child_delay, 3),
        io_bytes=last.io_bytes - first.io_bytes,
        wakeups=last.wakeups - first.wakeups,
        same_stack=stack,
        same_functions=functions,
        new_stack=new,
        gpu=watched.gpu,
    )


def _descendants(pid: int, parents: Mapping[int, int]) -> list[int]:
    found, families = list[int](), dict[int, list[int]]()
    for child, parent in parents.items():
        families.setdefault(parent, []).append(child)
    left = families.get(pid, [])
    while left:
        child = left.pop()
        found.append(child)
        left.extend(families.get(child, ()))
    return found


def _named(path: Path) -> list[tuple[str, int]]:
    """Numbers in a file of ``NAME: NUMBER`` lines."""
    pairs = (line.split(":", 1) for line in procfs.text(path).splitlines() if ":" in line)
    return [(name, int(value)) for name, value in pairs if value.strip().isdigit()]
