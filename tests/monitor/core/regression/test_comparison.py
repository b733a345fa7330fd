"""What is stated of step times needs its evidence: windows on both sides, and little noise."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch_monitor.core.regression.comparison import Comparison, Evidence, compare, recent
from rankwatch_monitor.core.regression.explain import KnownSlow, explain
from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.regression.sample import Sample

START = 1.79e9
REAL = (0.0984, 0.0809, 0.0719, 0.0951, 0.102, 0.1112, 0.1033, 0.1074, 0.1115)
"""Windows of a real job of which the fifth is the first with a fault."""


def windows(*steps: float) -> list[Sample]:
    return [Sample(START + 10 * i, 10.0, 1, i, 4, ("vm",), step, step) for i, step in enumerate(steps, 1)]


def history(*steps: float) -> History:
    made = History()
    for sample in windows(*steps):
        made.add(sample)
    return made


def stated(*steps: float) -> Comparison:
    found = recent(windows(*steps))
    assert found is not None
    return found


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("after", [4, 20, 100])
def test_one_or_two_windows_before_are_too_few_and_nothing_is_denied(before: int, after: int) -> None:
    found = stated(*[0.06] * before, *[0.12] * after)
    assert (found.evidence, found.windows) == (Evidence.UNSURE, (before, after))
    assert found.factor == pytest.approx(2.0)
    told = explain(history(*[0.06] * before, *[0.12] * after))
    assert (told.kind, told.factor) == ("unsure", pytest.approx(2.0))


def test_its_twin_a_warm_up_is_no_change() -> None:
    assert stated(0.3, 0.15, *[0.1] * 20).evidence is Evidence.SAME


@pytest.mark.parametrize("steps", [REAL, (0.0907, 0.0701, 0.1067, 0.1136, 0.1183, 0.1424)])
def test_windows_of_real_jobs_that_became_slower(steps: tuple[float, ...]) -> None:
    found = stated(*steps)
    assert found.evidence is Evidence.UNSURE
    assert found.factor > 1.2


def test_at_a_moment_that_is_given_one_test_decides() -> None:
    told = explain(history(*REAL), at=START + 40)
    assert (told.kind, told.compared and told.compared.windows) == ("change", (4, 5))


def test_a_rank_that_became_slow_is_such_a_moment_and_part_of_every_answer() -> None:
    slow = {2: KnownSlow(START + 40, host="vm", cause="data")}
    told = explain(history(*REAL), stragglers=slow)
    assert told.kind == "change"
    assert [(each.rank, each.since, each.ended) for each in told.slow] == [(2, START + 40, None)]
    assert told.slow[0].step_before == pytest.approx(np.median(REAL[:4]))
    past = {2: KnownSlow(START + 40, ended=START + 60, step_before=0.1)}
    told = explain(history(*[0.1] * 20), stragglers=past)
    assert (told.kind, told.slow[0].ended, told.slow[0].step_before) == ("steady", START + 60, 0.1)
    assert told.states_slow
    assert told.sentence.startswith("The step time did not change")


@pytest.mark.parametrize(
    ("noise", "length", "evidence"), [(0.005, 12, "same"), (0.02, 100, "same"), (0.1, 60, "unseen")]
)
def test_nothing_changed_only_where_a_change_would_have_been_seen(noise: float, length: int, evidence: str) -> None:
    seen = [
        stated(*0.1 * np.exp(np.random.default_rng(seed).normal(0, noise, length))).evidence == evidence
        for seed in range(20)
    ]
    assert sum(seen) >= 18


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_holds_the_factor(seed: int) -> None:
    step_T = 0.1 * np.exp(np.random.default_rng(seed).normal(0, 0.03, 40))
    step_T[20:] *= 1.3
    found = compare(step_T, 0, 20, 40)
    assert found.evidence is Evidence.CHANGED
    assert found.low < 1.3 < found.high


def test_the_last_windows_are_no_lasting_change_and_not_denied() -> None:
    told = explain(history(*[0.06] * 20, 0.075, 0.075))
    assert told.kind == "steady"
    assert "2 of 22 samples up to 75 ms" in told.sentence


def test_the_comparison_is_made_once_for_each_window() -> None:
    made = history(*[0.1] * 20)
    assert made.compared(())[0] is made.compared(())[0]
    made.add(windows(*[0.1] * 21)[-1])
    found, _ = made.compared(())
    assert found is not None
    assert found.windows == (10, 11)
