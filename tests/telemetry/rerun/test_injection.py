"""Errors on purpose: where they strike and what re-runs are stated to show."""

from __future__ import annotations

import math
import random

import pytest

from rankwatch.rerun import RerunDiagnostic, RerunErrorInjector, RerunState

IN_PLACE, FROM_CHECKPOINT = RerunState.RERUNNING_IN_PLACE, RerunState.RERUNNING_FROM_CHECKPOINT


@pytest.mark.parametrize(
    ("kind", "in_place", "from_checkpoint"),
    [("transient_error", math.inf, 0), ("persistent_error", 0, math.inf), ("correct_result", 0, 0)],
)
def test_each_class_shows_what_it_is(kind: str, in_place: float, from_checkpoint: float) -> None:
    injector = RerunErrorInjector(error_injection_type=kind, at=(1, 4))
    assert injector.simulated_difference(IN_PLACE) is None, "nothing is injected yet"
    assert not injector.maybe_inject(1, 3)
    assert not injector.maybe_inject(0, 4)
    assert injector.maybe_inject(1, 4)
    assert not injector.maybe_inject(1, 4), "one at a time"
    assert injector.simulated_difference(IN_PLACE) == in_place
    resumed = RerunErrorInjector(error_injection_type=kind)
    resumed.load_state_dict(injector.state_dict())
    assert resumed.simulated_difference(FROM_CHECKPOINT) == from_checkpoint
    injector.clear()
    assert injector.simulated_difference(IN_PLACE) is None
    assert not injector.maybe_inject(1, 4), "once in a process"


def test_a_rate_is_met_and_disturbs_no_other_random_numbers() -> None:
    injector = RerunErrorInjector(10, RerunDiagnostic.TRANSIENT_ERROR, seed=1)
    state = random.getstate()
    struck = 0
    for step in range(2000):
        struck += injector.maybe_inject(0, step)
        injector.clear()
    assert 150 < struck < 250
    assert random.getstate() == state
    assert not any(RerunErrorInjector().maybe_inject(0, step) for step in range(100)), "off unless asked for"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flaky,rank=1,step=4", "unknown error type 'flaky'; the types are correct_result, transient_error"),
        ("transient_error,rank=1", "rank and step must be given together"),
        ("transient_error,rank=one,step=4", "with whole numbers"),
        ("transient_error,node=1", "unknown key node"),
        ("transient_error,rate=-1", "must not be negative, but is -1"),
    ],
)
def test_what_cannot_be_injected_is_reported(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RerunErrorInjector.parse(text)


def test_an_injector_from_a_flag() -> None:
    injector = RerunErrorInjector.parse("persistent_error, rank=1, step=4")
    assert (injector.error_injection_type, injector.at) == (RerunDiagnostic.PERSISTENT_ERROR, (1, 4))
    assert RerunErrorInjector.parse("correct_result,rate=1000,seed=3").error_injection_rate == 1000
