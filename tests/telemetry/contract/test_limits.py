from __future__ import annotations

import json

import pytest

from rankwatch.contract.enums import LimitSource
from rankwatch.contract.limits import LimitCheck, RankActivity, RankLimits

INF = float("inf")
LIMITS = RankLimits(heartbeat=30, sections={"step": 10, "save": 100}, out_of_section=5)


@pytest.mark.parametrize(
    ("open_sections", "heartbeat_age", "idle", "passed", "ahead"),
    [
        ({}, None, None, [], INF),
        ({}, 29.0, None, [], 1.0),
        ({}, 31.0, None, ["heartbeat"], INF),
        ({"step": 9.0}, None, None, [], 1.0),
        ({"step": 10.5, "save": 20.0}, None, None, ["section step"], 80.0),
        ({"unlimited": 1e6}, None, None, [], INF),
        ({}, 1.0, 4.0, [], 1.0),
        ({}, None, 6.0, ["out of section"], INF),
    ],
)
def test_what_is_past_its_limit_and_what_comes_next(
    open_sections: dict[str, float], heartbeat_age: float | None, idle: float | None, passed: list[str], ahead: float
) -> None:
    assert LIMITS.passed(RankActivity(open_sections, heartbeat_age, idle)) == (passed, ahead)


def test_without_limits_nothing_is_ever_too_long() -> None:
    everything = RankActivity({"step": 1e9}, 1e9, 1e9, 1e9, frozenset({"step"}))
    assert RankLimits().passed(everything) == ([], INF)


LEARNED = RankLimits(
    sections={"save": 100}, learned={"step": 20, "forward": 4}, first_time=600, first_times={"forward": 900}
)


def judged(open_sections: dict[str, float], quiet: float, *first: str, beat: float | None = None) -> list[LimitCheck]:
    return LEARNED.checks(RankActivity(open_sections, beat, None, quiet, frozenset(first)))


def test_a_learned_limit_is_about_the_innermost_section_and_how_long_nothing_moved() -> None:
    assert judged({"step": 1000.0, "forward": 3.0}, 2.0) == [LimitCheck("section forward", 2.0, 4, LimitSource.LEARNED)]
    (standing,) = judged({"step": 25.0}, 21.0)
    assert standing == LimitCheck("section step", 21.0, 20, LimitSource.LEARNED)
    assert standing.passed


def test_what_runs_for_the_first_time_has_the_limit_of_first_times() -> None:
    (standing,) = judged({"step": 300.0}, 300.0, "step")
    assert (standing.limit, standing.source, standing.passed) == (600, LimitSource.FIRST_TIME, False)
    assert judged({"forward": 700.0}, 700.0, "forward")[0].limit == 900, "known to take longer"
    assert judged({"unheard of": 601.0}, 601.0)[0].passed, "nothing was learned of it"


def test_a_heartbeat_is_a_sign_of_life_where_nothing_is_known_and_not_where_something_is() -> None:
    assert not judged({"step": 700.0}, 700.0, "step", beat=1.0)[0].passed
    assert judged({"step": 700.0}, 700.0, beat=1.0)[0].passed


def test_a_configured_section_is_judged_by_its_age_alone() -> None:
    (standing,) = judged({"save": 101.0}, 0.5)
    assert (standing.elapsed, standing.source, standing.passed) == (101.0, LimitSource.CONFIGURED, True)


def test_outside_all_sections_nothing_was_learned() -> None:
    assert judged({}, 1e6) == []


def test_the_first_step_raises_a_shorter_configured_limit_of_all_that_it_holds() -> None:
    limits = RankLimits(sections={"step": 10, "forward": 5, "epoch": 50}, first_time=600)
    ages = {"epoch": 60.0, "step": 40.0, "forward": 30.0}
    first = {s.what: s.limit for s in limits.checks(RankActivity(ages, quiet=30.0, first_time=frozenset({"step"})))}
    assert first == {"section epoch": 50, "section step": 600, "section forward": 600}
    later = {s.what: s.limit for s in limits.checks(RankActivity(ages, quiet=30.0))}
    assert later == {"section epoch": 50, "section step": 10, "section forward": 5}


def test_a_default_heartbeat_is_not_judged_while_a_section_is_open() -> None:
    limits = RankLimits(heartbeat=30, heartbeat_outside=True)
    assert limits.passed(RankActivity({"save": 40.0}, 40.0)) == ([], INF)
    assert limits.passed(RankActivity({}, 40.0)) == (["heartbeat"], INF)
    assert limits.passed(RankActivity({}, 40.0, quiet=10.0)) == ([], 20.0), "a section was open until then"


def test_they_travel_as_settings_and_come_back_the_same() -> None:
    for limits in (LIMITS, LEARNED, RankLimits(heartbeat=1, heartbeat_outside=True)):
        assert RankLimits.from_settings(json.loads(json.dumps(limits.to_settings()))) == limits


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"limits": None},
        {"limits": [1]},
        {"limits": {"heartbeat": "soon", "out_of_section": True, "sections": ["step"]}},
        {"limits": {"heartbeat": -1, "sections": {"step": 0, "save": float("nan"), "load": None}}},
        {"limits": {"of_tomorrow": 3}},
    ],
)
def test_what_is_odd_is_no_limit(settings: dict[str, object]) -> None:
    assert RankLimits.from_settings(settings) == RankLimits()
