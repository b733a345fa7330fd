"""Slow links: against the other groups of their kind or their own best, and never against steps of another kind."""

from __future__ import annotations

import pytest

from rankwatch_monitor.core.events import CollectiveWindow
from rankwatch_monitor.core.straggler.links import Links, Transfer


def transfer(seconds: float, calls: int = 10) -> Transfer:
    """What two members tell of collectives that take so long by themselves, one of which waits besides."""
    told = Transfer()
    told.take(CollectiveWindow(calls, seconds, seconds, seconds / calls))
    told.take(CollectiveWindow(calls, seconds + 0.5, seconds + 0.5, seconds / calls))
    return told


def test_a_group_that_takes_longer_than_its_siblings_is_named() -> None:
    links = Links()
    for _ in range(3):
        links.take({f"dp{n}": transfer(0.4 if n == 2 else 0.1) for n in range(4)})
    slow = links.slowest()
    assert slow is not None
    assert (slow.group, slow.against) == ("dp2", "others")
    assert (slow.seconds, slow.usual) == pytest.approx((0.4, 0.1))


def test_groups_of_another_kind_are_no_measure() -> None:
    links = Links()
    for _ in range(3):
        links.take({"tp0": transfer(0.1), "tp1": transfer(0.1), "tp2": transfer(0.1), "world": transfer(0.9)})
    assert links.slowest() is None


def test_one_group_alone_is_compared_with_its_own_best() -> None:
    links = Links()
    for seconds in [0.1] * 6 + [0.4] * 3:
        links.take({"world": transfer(seconds)})
    slow = links.slowest()
    assert slow is not None
    assert (slow.against, slow.usual) == ("itself", pytest.approx(0.1))


def test_steps_with_fewer_collectives_are_no_measure() -> None:
    """An evaluation exchanges one small number: after it, training is as fast as before."""
    links = Links()
    for seconds, calls in [(0.1, 10)] * 6 + [(0.001, 1)] * 6 + [(0.1, 10)] * 3:
        links.take({"world": transfer(seconds, calls)})
        assert links.slowest() is None


def test_memory_is_bounded() -> None:
    links = Links()
    for calls in range(1, 12_000):
        links.take({"world": transfer(0.1, calls)})
    assert len(links._known) <= 8_192
