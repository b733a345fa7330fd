"""Parts of a step, its collectives and its kernels, computed from a trace. Pure; nanoseconds in, seconds out.

The parts of a step are unions of intervals, clipped to the step and subtracted from it in this order, so that they add
up to the step to the nanosecond:

=============  =======================================================================================================
compute        the union of all kernels; on a CPU, minus the time fetching input or waiting in a collective, since
               either may be nested in an operator
communication  the union of all collectives, minus compute: exposed communication
data           sections and data loaders that wait for input, minus both
host           the rest: Python, kernel launches, logging, waiting for a CPU
=============  =======================================================================================================
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rankwatch.contract.collectives import bus_factor, series
from rankwatch.contract.enums import Part
from rankwatch.contract.statistics import CollectiveWindow, KernelStatistics, OperationWindow
from rankwatch.profiling.source import Interval, Kernel, Trace, Transfer
from rankwatch.recording.section_statistics import median, tail

KERNELS_REPORTED: Final = 64
"""Kernels in one report: those with the largest total time."""
MAX_KERNELS: Final = 4096
"""Different kernels that are counted in a report interval; further ones are dropped."""
MAX_SAMPLES: Final = 512
"""Durations sampled per kernel for its median and tail; the other statistics cover all calls."""
MAX_GROUPS: Final = 64
MAX_OPERATIONS: Final = 16
"""Operations of process groups of one step that are reported."""
MAX_WAITS: Final = 32
"""Intervals of exposed communication kept of one step, the longest ones."""


class StepParts(NamedTuple):
    """One sampled step."""

    parts: Mapping[Part, float]
    """Its seconds by part."""
    collectives: Mapping[str, CollectiveWindow]
    """By process group."""
    waits: Sequence[Interval]
    """Its exposed communication, in order; nanoseconds. Those of a device are moved back by its lag behind the host."""
    operations: Mapping[str, OperationWindow]
    """By operation and process group (:func:`rankwatch.contract.collectives.series`)."""


def step_parts(trace: Trace, step: Interval, data: Iterable[Interval] = ()) -> StepParts:
    """Split ``step`` into its parts.

    ``data`` are the intervals of sections that waited for input; those of data loaders are in the trace.
    """
    begin, end = step
    data = [*data, *trace.data]
    lag = 0
    if trace.on_device:  # the device runs asynchronously: shift the step by the lag of its last kernel
        lag = max([end, *(k.end_ns for k in trace.kernels), *(c.end_ns for c in trace.collectives)]) - end
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
    longest = sorted(communication, key=lambda each: each[0] - each[1])[:MAX_WAITS]
    waits = [(start - lag, stop - lag) for start, stop in sorted(longest)]
    parts = {part: ns / 1e9 for part, ns in spent.items()}
    return StepParts(parts, _by_group(trace, step, compute), waits, by_operation(trace.transfers))


def by_operation(transfers: Iterable[Transfer]) -> dict[str, OperationWindow]:
    """The figures of each operation in each group, of the :data:`MAX_OPERATIONS` that took longest."""
    found: dict[tuple[str, str], list[Transfer]] = {}
    for each in transfers:
        found.setdefault((each.operation, each.group), []).append(each)
    longest = sorted(found, key=lambda key: -sum(each.took_ns for each in found[key]))[:MAX_OPERATIONS]
    return {series(*key): _operation(found[key]) for key in longest}


def _operation(transfers: Sequence[Transfer]) -> OperationWindow:
    largest = max(each.size for each in transfers)
    fastest = min((each for each in transfers if each.size == largest), key=lambda each: each.took_ns)
    factor = bus_factor(fastest.operation, fastest.ranks)
    return OperationWindow(
        len(transfers),
        sum(each.took_ns for each in transfers) / 1e9,
        fastest.took_ns / 1e9,
        sum(each.size for each in transfers),
        largest,
        round(largest * factor),
    )


def _by_group(trace: Trace, step: Interval, compute: Sequence[Interval]) -> dict[str, CollectiveWindow]:
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
        found[group] = CollectiveWindow(len(intervals), length(busy) / 1e9, exposed / 1e9, shortest / 1e9)
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

    def add(self, ns: int, rng: random.Random) -> None:
        self.calls += 1
        self.sum += ns
        self.squares += ns * ns
        self.min, self.max = min(self.min, ns), max(self.max, ns)
        if len(self.kept) < MAX_SAMPLES:
            self.kept.append(ns)
        elif (place := int(rng.random() * self.calls)) < MAX_SAMPLES:  # Vitter's algorithm R: a uniform sample
            self.kept[place] = ns

    def statistics(self) -> KernelStatistics:
        ordered = sorted(self.kept)
        mean = self.sum / self.calls
        # In integers up to the division, to avoid cancellation between two large squares.
        variance = max(0, self.calls * self.squares - self.sum * self.sum) / self.calls**2
        return KernelStatistics(
            self.calls,
            median(ordered) / 1e9,
            tail(ordered) / 1e9,
            mean / 1e9,
            self.min / 1e9,
            self.max / 1e9,
            variance**0.5 / 1e9,
        )


class KernelTable:
    """The kernels of one report interval, however many steps were sampled in it."""

    def __init__(self) -> None:
        self._kernels: dict[str, _Calls] = {}
        self._random = random.Random(0)

    def take(self, kernels: Iterable[Kernel]) -> int:
        """Add the kernels of one step; return the number of calls dropped because there are too many kernels."""
        dropped = 0
        table = self._kernels
        for kernel in kernels:
            if not kernel.key:
                continue
            calls = table.get(kernel.key)
            if calls is None:
                if len(table) >= MAX_KERNELS:
                    dropped += 1
                    continue
                calls = table[kernel.key] = _Calls()
            calls.add(kernel.self_ns, self._random)
        return dropped

    def report(self) -> Mapping[str, KernelStatistics]:
        """Return the costliest kernels by total time since the last report, and start a new interval."""
        finished, self._kernels = self._kernels, {}
        costliest = sorted(finished, key=lambda key: -finished[key].sum)[:KERNELS_REPORTED]
        return {key: finished[key].statistics() for key in costliest}
