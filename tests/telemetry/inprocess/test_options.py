from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rankwatch.inprocess import Wrapper


def test_durations_are_seconds_or_timedelta() -> None:
    assert Wrapper(soft_timeout=timedelta(seconds=30), hard_timeout=45).options.soft_timeout == 30.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"soft_timeout": 90}, r"soft_timeout \(90 s\) must be shorter than hard_timeout \(90 s\)"),
        ({"barrier_timeout": 60}, r"hard_timeout \(90 s\) must be shorter than barrier_timeout"),
        ({"heartbeat_interval": 61}, "heartbeat_interval"),
        ({"monitor_thread_interval": 0}, "must be more than 0 s"),
        ({"granularity": "rack"}, "'rank' or 'node', not 'rack'"),
        ({"active_world_size": 0}, "active_world_size must be None or a whole number from 1 on, not 0"),
        ({"max_rank_faults": -1}, "max_rank_faults"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Wrapper(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"soft_timout": 1}, "no option 'soft_timout'; it knows: soft_timeout"),
        ({"soft_timeout": "60"}, "a number of seconds or a datetime.timedelta, not '60'"),
        ({"abort": 3}, "abort must be callable, not 3"),
    ],
)
def test_what_is_of_another_type_is_refused_with_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Wrapper(**given)


def test_switched_off_it_leaves_the_function_alone() -> None:
    def train() -> int:
        return 3

    assert Wrapper(enabled=False)(train) is train
