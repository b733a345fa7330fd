from __future__ import annotations

import json

import pytest

from rankwatch.wire.limits import RankLimits

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
    assert LIMITS.standing(open_sections, heartbeat_age, idle) == (passed, ahead)


def test_without_limits_nothing_is_ever_too_long() -> None:
    assert RankLimits().standing({"step": 1e9}, 1e9, 1e9) == ([], INF)


def test_they_travel_as_settings_and_come_back_the_same() -> None:
    assert RankLimits.of_settings(json.loads(json.dumps(LIMITS.to_settings()))) == LIMITS


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
    assert RankLimits.of_settings(settings) == RankLimits()
