"""Logged values in the monitor: means between points, which rank's they are, bounds."""

from __future__ import annotations

import math
from typing import Any

from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.regression.logged import MAX_NAMES, OWNED, LoggedValues


def report(rank: int = 0, **logged: Any) -> RankReport:
    return RankReport(RankIdentity("j", rank), logged=logged)


def test_the_mean_since_the_last_point() -> None:
    logged = LoggedValues()
    for value in (1.0, 2.0, 6.0):
        logged.take(report(loss=value), 10.0)
    assert logged.take_means() == {"log.loss": 3.0}
    assert logged.take_means() == {}
    assert logged.latest["loss"].value == 6.0


def test_of_two_ranks_the_lowest_counts_while_it_reports() -> None:
    logged = LoggedValues()
    logged.take(report(7, loss=5.0, mfu=0.4), 0.0)
    logged.take(report(0, loss=1.0), 1.0)
    logged.take(report(7, loss=9.0, mfu=0.5), 2.0)
    assert {name: (each.value, each.rank) for name, each in logged.latest.items()} == {
        "loss": (1.0, 0),
        "mfu": (0.5, 7),
    }
    assert logged.take_means() == {"log.loss": 1.0, "log.mfu": 0.45}
    logged.take(report(7, loss=9.0), 2.0 + OWNED)
    assert logged.latest["loss"].rank == 7


def test_names_are_bounded_and_a_new_attempt_begins_empty() -> None:
    logged = LoggedValues()
    logged.take(report(**{f"n{i}": 1.0 for i in range(100)}, bad=math.nan), 0.0)
    counts = RankReport(RankIdentity("j", 0), logged_non_finite={f"n{i}": 2 for i in range(100)}, logged_step=5)
    logged.take(counts, 0.0)
    assert (len(logged.latest), len(logged.non_finite), logged.step) == (MAX_NAMES, MAX_NAMES, 5)
    logged.begin_attempt()
    assert (logged.latest, logged.non_finite, logged.step, logged.take_means()) == ({}, {}, None, {})
