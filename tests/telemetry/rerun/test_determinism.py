"""Histograms of differences: bounded, exact under addition, and honest about what they bound."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch.rerun import DeterminismStatistics, Differences

DIFFERENCES = st.lists(st.one_of(st.just(0.0), st.floats(1e-20, 2.0), st.just(math.inf)), max_size=60)


def counted(differences: list[float]) -> Differences:
    found = Differences()
    for difference in differences:
        found.record(difference)
    return found


@given(DIFFERENCES, DIFFERENCES)
def test_histograms_of_ranks_add_up(first: list[float], second: list[float]) -> None:
    total = counted(first)
    total.combine(counted(second))
    together = counted(first + second)
    assert (total.decades, total.count, total.identical, total.infinite, total.largest) == (
        together.decades,
        together.count,
        together.identical,
        together.infinite,
        together.largest,
    )
    assert total.mean == pytest.approx(together.mean)


@given(DIFFERENCES.filter(bool), st.sampled_from([50.0, 90.0, 99.9, 100.0]))
def test_a_percentile_bounds_what_it_states(differences: list[float], percent: float) -> None:
    bound = counted(differences).percentile(percent)
    assert sum(each <= bound for each in differences) >= math.ceil(len(differences) * percent / 100)
    assert bound <= max(differences) or bound == 1e-17


def test_what_a_report_states() -> None:
    statistics = DeterminismStatistics()
    assert statistics.report() == "determinism: no value has been validated twice yet"
    for _ in range(9):
        statistics.record("loss", 0.0)
        statistics.record("norm", 0.0)
    statistics.record("norm", 3e-7)
    assert statistics.report().splitlines() == [
        "determinism of 'loss': 9 pairs, all identical",
        "determinism of 'norm': 10 pairs, 9 identical; relative difference: mean 3.000e-08, p50 <= 0.0e+00, "
        "p90 <= 0.0e+00, p99 <= 3.0e-07, p99.9 <= 3.0e-07, max 3.000e-07",
    ]
    statistics.record("loss", math.inf)
    assert "1 NaN or infinite in one run only" in statistics.report()


def test_it_can_be_kept_as_json() -> None:
    statistics = DeterminismStatistics()
    statistics.record("loss", 5e-4)
    found = json.loads(json.dumps(statistics.as_dict()))["loss"]
    assert (found["count"], found["identical"], found["max"], found["decades"]) == (1, 0, 5e-4, {"-3": 1})
