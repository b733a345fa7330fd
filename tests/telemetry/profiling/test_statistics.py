from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch.contract.enums import Part
from rankwatch.profiling.source import Collective, Interval, Kernel, Trace
from rankwatch.profiling.statistics import (
    KERNELS_REPORTED,
    MAX_GROUPS,
    MAX_KERNELS,
    MAX_SAMPLES,
    MAX_WAITS,
    KernelTable,
    length,
    minus,
    step_parts,
    union,
)

S = 10**9


def kernel(start: float, end: float, key: str = "k") -> Kernel:
    return Kernel(key, round(start * S), round(end * S), round((end - start) * S))


def collective(start: float, end: float, group: str = "default_pg") -> Collective:
    return Collective(group, "gloo:all_reduce", round(start * S), round(end * S))


def interval(start: float, end: float) -> Interval:
    return round(start * S), round(end * S)


def test_a_step_on_a_device() -> None:
    trace = Trace([kernel(1, 4), kernel(3, 5)], [collective(4, 7), collective(9, 10)], [interval(0, 2)], on_device=True)
    parts, groups, *_ = step_parts(trace, interval(0, 10), [interval(0, 1)])
    assert parts == {Part.COMPUTE: 4, Part.COMMUNICATION: 3, Part.DATA: 1, Part.HOST: 2}
    assert groups["default_pg"] == (2, 4, 3, 1)


def test_a_device_that_runs_behind_its_host_is_looked_at_in_its_own_step() -> None:
    trace = Trace([kernel(3, 6), kernel(5, 7)], [collective(6, 9), collective(11, 12)], on_device=True)
    parts, groups, *_ = step_parts(trace, interval(0, 10), [interval(0, 2)])
    assert parts == {Part.COMPUTE: 4, Part.COMMUNICATION: 3, Part.DATA: 1, Part.HOST: 2}
    assert groups["default_pg"] == (2, 4, 3, 1)


def test_waits_are_where_nothing_is_computed_and_those_of_a_device_are_moved_to_the_step_of_the_host() -> None:
    trace = Trace([kernel(3, 6), kernel(5, 7)], [collective(5, 9), collective(11, 12)], on_device=True)
    assert step_parts(trace, interval(0, 10)).waits == [interval(5, 7), interval(9, 10)], "its lag is 2 s"
    trace = Trace([kernel(1, 4)], [collective(3, 7)])
    assert step_parts(trace, interval(0, 10)).waits == [interval(4, 7)]


def test_of_many_waits_the_longest_stay_in_order() -> None:
    trace = Trace((), [collective(n, n + 0.1 + n / 1000) for n in range(MAX_WAITS + 3)])
    waits = step_parts(trace, interval(0, 100)).waits
    assert waits == sorted(waits)
    assert [round(start / S) for start, _ in waits] == list(range(3, MAX_WAITS + 3))


def test_without_a_device_what_operators_do_for_input_or_around_a_wait_is_no_compute() -> None:
    trace = Trace([kernel(0, 2), kernel(4, 8)], [collective(5, 7)], waits=[interval(6, 7)])
    parts, *_ = step_parts(trace, interval(0, 10), [interval(1, 3)])
    assert parts == {Part.COMPUTE: 4, Part.COMMUNICATION: 1, Part.DATA: 2, Part.HOST: 3}


def test_waiting_for_input_behind_compute_or_a_collective_costs_nothing() -> None:
    trace = Trace([kernel(0, 3)], [collective(3, 5)], on_device=True)
    parts, *_ = step_parts(trace, interval(0, 6), [interval(0, 6)])
    assert parts == {Part.COMPUTE: 3, Part.COMMUNICATION: 2, Part.DATA: 1, Part.HOST: 0}


def test_a_collective_that_ends_after_the_step_is_not_its_shortest_unless_there_is_no_other() -> None:
    _, groups, *_ = step_parts(Trace((), [collective(2, 6), collective(8, 11)]), interval(0, 10))
    assert groups["default_pg"][1:] == (6, 6, 4)
    _, groups, *_ = step_parts(Trace((), [collective(8, 21)]), interval(0, 10))
    assert groups["default_pg"][1:] == (2, 2, 2), "what of it is in the step"


def test_groups_are_distinguished_and_bounded() -> None:
    trace = Trace([kernel(1, 2)], [collective(n, n + 1 + n / 1000, f"g{n}") for n in range(MAX_GROUPS + 3)])
    _, groups, *_ = step_parts(trace, interval(0, 1000))
    assert len(groups) == MAX_GROUPS
    assert "g0" not in groups
    assert groups["g66"].busy == pytest.approx(1.066)


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda ends: (min(ends), max(ends))))


@given(intervals, intervals, intervals, intervals, st.booleans())
def test_the_parts_add_up_to_the_step_whatever_happens(
    kernels: list[Interval], collectives: list[Interval], data: list[Interval], waits: list[Interval], device: bool
) -> None:
    trace = Trace(
        [Kernel("k", *each, each[1] - each[0]) for each in kernels],
        [Collective("g", "c", *each) for each in collectives],
        data,
        waits,
        on_device=device,
    )
    parts, *_ = step_parts(trace, (10, 50))
    assert round(sum(parts.values()) * 1e9) == 40
    assert min(parts.values()) >= 0


@given(intervals, intervals)
def test_interval_arithmetic_is_that_of_sets(left: list[Interval], right: list[Interval]) -> None:
    def points(given: list[Interval]) -> set[int]:
        return {p for start, end in given for p in range(start, end)}

    a, b = union(left, 5, 55), union(right, 5, 55)
    assert points(a) == {p for p in points(left) if 5 <= p < 55}
    assert points(minus(a, b)) == points(a) - points(b)
    assert length(minus(a, b)) == len(points(a) - points(b))


def test_kernel_statistics_are_exact() -> None:
    table = KernelTable()
    durations = [5, 1, 4, 2, 8]
    assert table.take(Kernel("k", 0, 0, each * S) for each in durations) == 0
    found = table.report()["k"]
    assert (found.calls, found.min, found.median, found.max, found.mean) == (5, 1, 4, 8, 4)
    assert found.tail == pytest.approx(17 / 3)
    assert found.stddev == pytest.approx(statistics.pstdev(durations))
    assert table.report() == {}, "a report begins again"


def test_the_costliest_kernels_are_reported() -> None:
    table = KernelTable()
    table.take(Kernel(f"k{n}", 0, 0, n) for n in range(KERNELS_REPORTED + 10))
    assert set(table.report()) == {f"k{n}" for n in range(10, KERNELS_REPORTED + 10)}


def test_too_many_kernels_and_too_many_calls_are_bounded() -> None:
    table = KernelTable()
    assert table.take(Kernel(f"k{n}", 0, 0, 1) for n in range(MAX_KERNELS + 7)) == 7
    table = KernelTable()
    table.take(Kernel("k", 0, 0, n) for n in range(20 * MAX_SAMPLES))
    found = table.report()["k"]
    assert found.calls == 20 * MAX_SAMPLES
    assert found.max == (20 * MAX_SAMPLES - 1) / 1e9
    assert math.isclose(found.median, 10 * MAX_SAMPLES / 1e9, rel_tol=0.2), "the samples are drawn from all calls"


def test_operators_without_a_key_only_count_as_compute() -> None:
    table = KernelTable()
    table.take([Kernel("", 0, 5, 5)])
    assert table.report() == {}
