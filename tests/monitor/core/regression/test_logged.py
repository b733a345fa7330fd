"""Logged values in the monitor: means between points, which rank's they are, bounds."""

from __future__ import annotations

import math
from typing import Any

from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.core.regression.logged import MAX_NAMES, OWNED, LoggedValues


def report(rank: int = 0, **logged: Any) -> RankReport:
    return RankReport(RankIdentity("j", rank), logged=logged)


def counted(rank: int = 0, **non_finite: int) -> RankReport:
    return RankReport(RankIdentity("j", rank), logged_non_finite=non_finite, logged_step=5)


def test_the_mean_since_the_last_point() -> None:
    logged = LoggedValues()
    for value in (1.0, 2.0, 6.0):
        logged.take(report(loss=value), 10.0)
    assert logged.take_point() == {"log.loss": 3.0}
    assert logged.take_point() == {}
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
    assert logged.take_point() == {"log.loss": 1.0, "log.mfu": 0.45}
    logged.take(report(7, loss=9.0), 2.0 + OWNED)
    assert logged.latest["loss"].rank == 7


def test_names_are_bounded_and_a_new_attempt_begins_empty() -> None:
    logged = LoggedValues()
    logged.take(report(**{f"n{i}": 1.0 for i in range(100)}, bad=math.nan), 0.0)
    logged.take(counted(**{f"n{i}": 2 for i in range(100)}), 0.0)
    assert (len(logged.latest), len(logged.take_point()), logged.step) == (MAX_NAMES, 2 * MAX_NAMES, 5)
    logged.begin_attempt()
    assert (logged.latest, logged.step, logged.take_point()) == ({}, None, {})


def test_a_point_has_how_many_new_values_were_not_finite() -> None:
    logged = LoggedValues()
    for count in (1, 3, 3):
        logged.take(counted(loss=count), 10.0)
    assert logged.take_point() == {"nan.loss": 3.0}
    logged.take(counted(loss=3), 20.0)
    assert logged.take_point() == {}, "no new one"
    logged.take(counted(loss=2), 30.0)
    assert logged.take_point() == {"nan.loss": 2.0}, "another process counts from zero"


def test_values_that_were_counted_before_the_monitor_began_are_not_new() -> None:
    logged = LoggedValues()
    logged.resume()
    logged.take(counted(loss=700), 0.0)
    assert logged.take_point() == {}
    logged.take(counted(loss=702), 1.0)
    assert logged.take_point() == {"nan.loss": 2.0}
    logged.begin_attempt()
    logged.take(counted(loss=1), 2.0)
    assert logged.take_point() == {"nan.loss": 1.0}


def test_of_two_ranks_that_count_the_lowest_is_shown() -> None:
    logged = LoggedValues()
    logged.take(counted(7, loss=5), 0.0)
    logged.take(counted(0, loss=4), 0.0)
    assert logged.take_point() == {"nan.loss": 4.0}
    logged.take(report(0, loss=1.0), 1.0)
    logged.take(counted(7, loss=9), 1.0)
    assert logged.take_point() == {"log.loss": 1.0}, "the loss of rank 0 counts, and is finite"


def test_the_total_of_a_job_never_decreases_is_of_the_lowest_rank_and_is_bounded() -> None:
    logged = LoggedValues()
    logged.take(report(0, loss=1.0), 0.0)
    assert logged.non_finite == {"loss": 0}, "a counter of Prometheus needs a value before its first increase"
    for rank in (0, 7):
        logged.take(counted(rank, grad_norm=3), 1.0)
    assert logged.non_finite == {"loss": 0, "grad_norm": 3}
    logged.take_point()
    logged.begin_attempt()
    logged.take(counted(0, grad_norm=2), 2.0)
    assert logged.non_finite == {"loss": 0, "grad_norm": 5}, "processes of a new attempt count from zero"
    logged.take(counted(7, grad_norm=9), 2.0 + OWNED)
    assert logged.non_finite["grad_norm"] == 14, "the lowest rank has not reported it for long"
    logged.take(counted(0, **{f"n{i}": 1 for i in range(100)}), 3.0)
    assert len(logged.non_finite) == MAX_NAMES
