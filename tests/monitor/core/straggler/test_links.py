"""Slow links: compared with the other groups of their kind or their own best, never with steps of another kind."""

from __future__ import annotations

import pytest

from rankwatch.contract.statistics import CollectiveWindow
from rankwatch_monitor.core.straggler.links import MAX_TRANSFERS, Transfer, TransferTimes


def transfer(seconds: float, calls: int = 10) -> Transfer:
    """The reports of two members about collectives that take so long by themselves; one member waits besides."""
    made = Transfer()
    made.take(CollectiveWindow(calls, seconds, seconds, seconds / calls))
    made.take(CollectiveWindow(calls, seconds + 0.5, seconds + 0.5, seconds / calls))
    return made


def test_a_group_that_takes_longer_than_its_siblings_is_named() -> None:
    times = TransferTimes()
    for _ in range(3):
        times.take({f"dp{n}": transfer(0.4 if n == 2 else 0.1) for n in range(4)})
    slow = times.slowest()
    assert slow is not None
    assert (slow.group, slow.against) == ("dp2", "others")
    assert (slow.seconds, slow.usual) == pytest.approx((0.4, 0.1))


def test_groups_of_another_kind_are_no_reference() -> None:
    times = TransferTimes()
    for _ in range(3):
        times.take({"tp0": transfer(0.1), "tp1": transfer(0.1), "tp2": transfer(0.1), "world": transfer(0.9)})
    assert times.slowest() is None


def test_one_group_alone_is_compared_with_its_own_best() -> None:
    times = TransferTimes()
    for seconds in [0.1] * 6 + [0.4] * 3:
        times.take({"world": transfer(seconds)})
    slow = times.slowest()
    assert slow is not None
    assert (slow.against, slow.usual) == ("itself", pytest.approx(0.1))


def test_steps_with_fewer_collectives_are_no_reference() -> None:
    """An evaluation exchanges one small number; after it, training is not slow by comparison."""
    times = TransferTimes()
    for seconds, calls in [(0.1, 10)] * 6 + [(0.001, 1)] * 6 + [(0.1, 10)] * 3:
        times.take({"world": transfer(seconds, calls)})
        assert times.slowest() is None


def test_transfer_times_are_bounded() -> None:
    times = TransferTimes()
    for calls in range(1, 12_000):
        times.take({"world": transfer(0.1, calls)})
    assert len(times._times) <= MAX_TRANSFERS
