from __future__ import annotations

import functools
import inspect
import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

import rankwatch.inprocess
from rankwatch.inprocess import Wrapper
from rankwatch.inprocess.options import WrapperOptions


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
        ({"soft_timeout": math.nan}, "soft_timeout must be finite, not nan s"),
        ({"barrier_timeout": math.inf}, "barrier_timeout must be finite"),
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


def test_switched_off_it_calls_the_function_as_it_is() -> None:
    @Wrapper(enabled=False)
    def train(step: int) -> int:
        return step

    assert train(3) == 3
    train.ping()  # type: ignore[attr-defined]


def test_a_function_that_asks_for_its_call_is_given_it_when_switched_off_too() -> None:
    @Wrapper(enabled=False)
    def train(step: int, call: rankwatch.inprocess.CallWrapper | None = None) -> int:
        assert call is not None
        call.ping()
        with call.atomic():
            return step + call.iteration

    assert train(3) == 3


async def coroutine() -> None:
    pass


def generator() -> Iterator[int]:
    yield 1


async def asynchronous_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [coroutine, generator, asynchronous_generator, functools.partial(generator)])
def test_what_runs_after_its_call_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="runs after its call returns"):
        Wrapper()(function)


def test_the_constructor_shows_its_parameters() -> None:
    shown = inspect.signature(Wrapper).parameters
    assert {name: p.default for name, p in shown.items()} == {f.name: f.default for f in fields(WrapperOptions)}
    assert shown["soft_timeout"].annotation == "float | timedelta"
    assert "soft_timeout: time without progress" in (Wrapper.__init__.__doc__ or "")
