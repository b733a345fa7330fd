"""What a trace of one step says: where its time went, its collectives, its kernels. Pure; nanoseconds in, seconds out.

How this works
--------------
The parts of a step follow from unions of intervals, each clipped to the step, and are taken out of it in this order,
so that they add up to it to the nanosecond:

=============  =======================================================================================================
compute        the union of all kernels; without a device, less the time that was spent fetching input or waiting in a
               collective, since an operator may be around either
communication  the union of all collectives, minus compute: what of them nothing covers
data           sections and data loaders that wait for input, minus both
host           the rest: Python, launches, logging, a CPU that was not given
=============  =======================================================================================================
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rankwatch.contract.enums import Part
from rankwatch.profiling.source import Interval, Kernel, Trace
from rankwatch.recording.section_statistics import median, tail

KERNELS_TOLD: Final = 64
"""Of one report: those with the largest total time."""
MAX_KERNELS: Final = 4096
"""Different kernels of which a report interval keeps account."""
MAX_SAMPLES: Final = 512
"""Durations of one kernel that are kept for its median and tail; all else is of all calls."""
MAX_GROUPS: Final = 64


class CollectiveStatistics(NamedTuple):
    """A rank's time in the collectives of one process group in one step, in seconds."""

    calls: int
    busy: float
    """Their union."""
    exposed: float
    """The part of it that no compute covers."""
    shortest: float
    """Of those that began and ended within the step."""


class KernelStatistics(NamedTuple):
    """One kernel over one report interval, in seconds."""

    calls: int
    min: float
    median: float
    tail: float
    """Mean of the slower half."""
    max: float
    mean: float
    stddev: float
    """Of the population."""


def step_parts(
    trace: Trace, step: Interval, data: Iterable[Interval] = ()
) -> tuple[dict[Part, float], dict[str, CollectiveStatistics]]:
    """What the time of ``step`` went into, and its collectives by process group.

    ``data`` are intervals in which the rank waited for input by its sections; the data loaders' are in the trace.
    """
    begin, end = step
    data = [*data, *trace.data]
    if trace.on_device:  # it runs behind the host: its own step is as far behind as its last kernel
        lag = max([end, *(k.end_ns for k in trace.kernels), *(c.end_ns for c in trace.collectives)]) - end
        if lag > 0:
            begin, end = step = (begin + lag, end + lag)
            data = [(start + lag, stop + lag) for start, stop in data]
    waiting = union(data, begin, end)
    compute = union(((k.start_ns, k.end_ns) for k in trace.kernels), begin, end)
    if not trace.on_device:
        compute = minus(compute, union([*waiting, *trace.waits], begin, end))
    collectives = union(((c.start_ns, c.end_ns) for c in trace.collectives), begin, end)
    communication = minus(collectives, compute)
    fetching = minus(minus(waiting, compute), communication)
    spent = {
        Part.DATA: length(fetching),
        Part.COMPUTE: length(compute),
        Part.COMMUNICATION: length(communication),
    }
    spent[Part.HOST] = end - begin - sum(spent.values())
    return {part: ns / 1e9 for part, ns in spent.items()}, _by_group(trace, step, compute)


def _by_group(trace: Trace, step: Interval, compute: Sequence[Interval]) -> dict[str, CollectiveStatistics]:
    groups: dict[str, list[Interval]] = {}
    for collective in trace.collectives:
        if collective.start_ns < step[1] and collective.end_ns > step[0]:
            groups.setdefault(collective.group, []).append((collective.start_ns, collective.end_ns))
    found = {}
    for group, intervals in groups.items():
        busy = union(intervals, *step)
        whole = [end - start for start, end in intervals if step[0] <= start and end <= step[1]]
        shortest = min(whole, default=length(busy))
        exposed = length(minus(busy, compute))
        found[group] = CollectiveStatistics(len(intervals), length(busy) / 1e9, exposed / 1e9, shortest / 1e9)
    longest = sorted(found, key=lambda group: -found[group].busy)[:MAX_GROUPS]
    return {group: found[group] for group in longest}


def union(intervals: Iterable[Interval], begin: int, end: int) -> list[Interval]:
    """The time that any of ``intervals`` covers between ``begin`` and ``end``, as disjoint intervals in order."""
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        start, stop = max(start, begin), min(stop, end)
        if start >= stop:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def minus(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """The time that ``left`` covers and ``right`` does not; both disjoint and in order, and so is the result."""
    found: list[Interval] = []
    place = 0
    for start, end in left:
        while place < len(right) and right[place][1] <= start:
            place += 1
        at, covered = start, place
        while covered < len(right) and right[covered][0] < end:
            if right[covered][0] > at:
                found.append((at, right[covered][0]))
            at = max(at, right[covered][1])
            covered += 1
        if at < end:
            found.append((at, end))
    return found


def length(intervals: Iterable[Interval]) -> int:
    """Nanoseconds covered by disjoint intervals."""
    return sum(end - start for start, end in intervals)


class _Calls:
    """The calls of one kernel in a report interval."""

    __slots__ = ("calls", "kept", "max", "min", "squares", "sum")

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.calls = self.sum = self.squares = self.max = 0
        self.min = 2**62

    def add(self, ns: int, chance: random.Random) -> None:
        self.calls += 1
        self.sum += ns
        self.squares += ns * ns
        self.min, self.max = min(self.min, ns), max(self.max, ns)
        if len(self.kept) < MAX_SAMPLES:
            self.kept.append(ns)
        elif (place := int(chance.random() * self.calls)) < MAX_SAMPLES:  # Vitter's algorithm R: each call alike
            self.kept[place] = ns

    def statistics(self) -> KernelStatistics:
        ordered = sorted(self.kept)
        mean = self.sum / self.calls
        # In whole numbers up to the last step: no digits are lost between two large squares.
        variance = max(0, self.calls * self.squares - self.sum * self.sum) / self.calls**2
        return KernelStatistics(
            self.calls,
            self.min / 1e9,
            median(ordered) / 1e9,
            tail(ordered) / 1e9,
            self.max / 1e9,
            mean / 1e9,
            variance**0.5 / 1e9,
        )


class KernelTable:
    """The kernels of one report interval, however many steps were sampled in it."""

    def __init__(self) -> None:
        self._kernels: dict[str, _Calls] = {}
        self._chance = random.Random(0)

    def take(self, kernels: Iterable[Kernel]) -> int:
        """Take in the kernels of one step; return how many calls were left out because there are too many kernels."""
        left_out = 0
        known = self._kernels
        for kernel in kernels:
            if not kernel.key:
                continue
            calls = known.get(kernel.key)
            if calls is None:
                if len(known) >= MAX_KERNELS:
                    left_out += 1
                    continue
                calls = known[kernel.key] = _Calls()
            calls.add(kernel.self_ns, self._chance)
        return left_out

    def report(self) -> Mapping[str, KernelStatistics]:
        """The dearest kernels by total time since the last report, which this one ends."""
        known, self._kernels = self._kernels, {}
        dearest = sorted(known, key=lambda key: -known[key].sum)[:KERNELS_TOLD]
        return {key: known[key].statistics() for key in dearest}
