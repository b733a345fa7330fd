"""Bandwidths: of the member that waits least, beside groups of the same kind, and the host that slow ones share."""

from __future__ import annotations

import pytest

from rankwatch.contract.collectives import series
from rankwatch.contract.statistics import OperationWindow
from rankwatch_monitor.core.slow_cause import SlowLink
from rankwatch_monitor.core.straggler.bandwidth import MAX_KEPT, Bandwidths, Moved

HOSTS = ("a", "b", "c", "d")
MB = 1_000_000


def moved(ranks: tuple[int, ...], rate: float, size: int = 8 * MB) -> Moved:
    """An all-reduce of ranks that moves so many MB a second; the first waits a second for the others."""
    made = Moved()
    for place, rank in enumerate(ranks):
        seconds = size / (rate * MB) + (1.0 if place == 0 else 0.0)
        made.take(
            rank, OperationWindow(2, 2 * seconds, seconds, 2 * size, size, 2 * size * (len(ranks) - 1) // len(ranks))
        )
    return made


def windows(kept: Bandwidths, number: int, **groups: tuple[tuple[int, ...], float]) -> None:
    for _ in range(number):
        kept.take({series("all_reduce", name): moved(*each) for name, each in groups.items()}, HOSTS, 1.0)


def test_the_member_that_waits_least_gives_the_bandwidth() -> None:
    kept = Bandwidths()
    windows(kept, 3, world=((0, 1, 2, 3), 40.0))
    (row,) = kept.rows()
    assert (row.operation, row.group, row.calls, row.members) == ("all_reduce", "world", 2, 4)
    assert (row.algorithm, row.bus) == (pytest.approx(40 * MB), pytest.approx(60 * MB))
    assert (row.bytes, row.seconds) == (16 * MB, pytest.approx(0.4))
    assert (row.peers, row.best) == (None, None)


def test_of_a_member_with_smaller_collectives_the_largest_count() -> None:
    made = Moved()
    made.take(0, OperationWindow(1, 0.1, 0.1, 10, 10, 10))
    made.take(1, OperationWindow(1, 0.5, 0.5, 20, 20, 20))
    made.take(2, OperationWindow(1, 0.01, 0.01, 10, 10, 10))
    assert (made.largest, made.shortest) == (20, 0.5)


def test_a_slow_group_stands_beside_its_peers() -> None:
    kept = Bandwidths()
    windows(kept, 3, dp0=((0, 1), 43.0), dp1=((2, 3), 11.0), dp2=((0, 2), 43.0), world=((0, 1, 2, 3), 5.0))
    rows = {row.group: row for row in kept.rows()}
    assert rows["dp1"].peers == pytest.approx(43 * MB)
    assert [name for name, row in rows.items() if row.slow] == ["dp1"]
    assert (rows["world"].peers, rows["world"].usual) == (None, None)


def test_the_slow_member_is_in_all_slow_groups_and_in_no_fast_one() -> None:
    kept = Bandwidths()
    groups = {"row0": ((0, 1), 40.0), "row1": ((2, 3), 40.0), "column0": ((0, 2), 40.0), "column1": ((1, 3), 40.0)}
    windows(kept, 6, **groups)
    assert not any(row.slow for row in kept.rows())
    windows(kept, 3, **{**groups, "row1": ((2, 3), 4.0), "column1": ((1, 3), 4.0)})
    assert kept.slow_host("row1") == "d"
    link = kept.explained(SlowLink("row1", 4.0, 0.4, "itself"))
    assert (link.operation, link.hosts, link.slow_host) == ("all_reduce", ("c", "d"), "d")
    assert (link.bandwidth, link.usual_bandwidth) == (pytest.approx(4 * MB), pytest.approx(40 * MB))


def test_without_another_group_both_members_may_be_slow() -> None:
    kept = Bandwidths()
    windows(kept, 6, row0=((0, 1), 40.0), row1=((2, 3), 40.0))
    windows(kept, 3, row0=((0, 1), 40.0), row1=((2, 3), 4.0))
    assert kept.slow_host("row1") == ""
    assert kept.explained(SlowLink("row1", 4.0, 0.4, "itself")).hosts == ("c", "d")


def test_a_small_message_is_no_reference_for_a_large_one_and_no_figures_are_stated_that_are_not_worse() -> None:
    kept = Bandwidths()
    windows(kept, 6, world=((0, 1), 40.0))
    for _ in range(3):
        kept.take({"all_reduce world": moved((0, 1), 1.0, size=100)}, HOSTS, 1.0)
    (row,) = kept.rows()
    assert (row.largest, row.best, row.slow) == (100, None, False)
    assert kept.explained(SlowLink("world", 1.0, 0.1, "itself")).bandwidth == 0.0


def test_bandwidths_are_bounded() -> None:
    kept = Bandwidths()
    for size in range(1, MAX_KEPT + 500):
        kept.take({"all_reduce world": moved((0, 1), 1.0, size=size)}, HOSTS, 1.0)
    assert len(kept._kept) <= MAX_KEPT


def test_noise_makes_no_other_member_suspect() -> None:
    kept = Bandwidths()
    groups = {"row0": ((0, 1), 40.0), "row1": ((2, 3), 40.0), "column0": ((0, 2), 40.0), "column1": ((1, 3), 40.0)}
    windows(kept, 6, **groups)
    windows(kept, 3, row0=((0, 1), 15.0), row1=((2, 3), 2.0), column0=((0, 2), 25.0), column1=((1, 3), 3.0))
    assert kept.slow_host("row1") == "d"
    assert kept.slow_host("column0") == "", "it is hardly slow itself"
