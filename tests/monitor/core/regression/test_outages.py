"""Outages laid over points: the edges of each series stand at the ends of an outage, and nothing else is invented."""

from __future__ import annotations

from rankwatch_monitor.core.regression.outages import EDGE, Outage, joined, with_edges
from rankwatch_monitor.core.regression.trends import Point


def point(at: float, attempt: int = 1, **values: float) -> Point:
    return Point(at, attempt, int(at), values)


def speeds(points: list[Point], *outages: Outage) -> list[tuple[float, float | None]]:
    return [(each.at, each.values.get("speed")) for each in with_edges(points, outages, 0.0)]


def test_a_short_outage_between_two_points_is_seen() -> None:
    points = [point(at, speed=1.0) for at in (90.0, 105.0, 120.0)]
    assert speeds(points, Outage(106.0, 108.0)) == [
        (90.0, 1.0),
        (105.0, 1.0),
        (106.0, 1.0),
        (106.0 + EDGE, 0.0),
        (108.0, 0.0),
        (108.0 + EDGE, 1.0),
        (120.0, 1.0),
    ]


def test_an_outage_that_goes_on_is_the_end() -> None:
    assert speeds(
        [point(60.0, speed=1.0), point(75.0, speed=1.0), point(90.0, speed=0.4)], Outage(80.0, 95.0, False)
    ) == [
        (60.0, 1.0),
        (75.0, 1.0),
        (80.0, 1.0),
        (80.0 + EDGE, 0.0),
        (90.0, 0.0),
        (95.0, 0.0),
    ]


def test_the_speed_of_the_last_step_holds_up_to_a_fault_that_was_found_later() -> None:
    points = [point(90.0, speed=1.0), point(105.0, speed=1.0), point(110.0, speed=0.9)]
    found = speeds(points, Outage(110.0, 120.0, False))
    assert found == [(90.0, 1.0), (105.0, 1.0), (110.0, 1.0), (110.0 + EDGE, 0.0), (120.0, 0.0)]
    slower = [point(105.0, speed=1.0), point(109.0, speed=0.9), point(120.0, speed=0.5)]
    assert speeds(slower, Outage(110.0, 120.0, False))[1:3] == [(109.0, 0.9), (110.0, 0.9)], "measured before it"


def test_without_outages_the_points_are_the_same_and_without_points_there_are_none() -> None:
    points = [point(60.0, speed=1.0)]
    assert with_edges(points, [], 0.0) == points
    assert with_edges(points, [Outage(10.0, 20.0), Outage(70.0, 80.0)], 0.0) == points
    assert with_edges([], [Outage(10.0, 20.0)], 0.0) == []


def test_between_two_outages_without_a_point_nothing_is_known() -> None:
    found = speeds([point(100.0, speed=1.0), point(200.0, 3, speed=1.0)], Outage(110.0, 120.0), Outage(140.0, 150.0))
    assert [speed for _, speed in found] == [1.0, 1.0, 0.0, 0.0, None, None, 0.0, 0.0, 1.0, 1.0]


def test_the_speed_of_an_attempt_holds_from_its_first_step_on() -> None:
    points = [point(100.0, speed=1.0), point(121.0, 2, goodput=0.5), point(136.0, 2, goodput=0.5, speed=2.0)]
    assert speeds(points, Outage(110.0, 120.0))[-3:] == [(120.0 + EDGE, 2.0), (121.0, 2.0), (136.0, 2.0)]


def test_what_is_far_away_holds_for_nothing_and_logged_values_only_for_their_moment() -> None:
    points = [point(100.0, speed=1.0, **{"log.loss": 3.0}), point(1000.0, 2, speed=2.0)]
    found = with_edges(points, [Outage(110.0, 120.0)], 0.0)
    assert ["log.loss" in each.values for each in found] == [True] + [False] * 5
    assert "speed" not in next(each for each in found if each.at == 120.0 + EDGE).values


def test_outages_that_overlap_are_one() -> None:
    assert joined([Outage(5.0, 9.0), Outage(1.0, 6.0), Outage(20.0, 21.0)]) == [Outage(1.0, 9.0), Outage(20.0, 21.0)]
