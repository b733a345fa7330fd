"""The threshold above which a rank is slow: heavy tails keep to the alarm budget and hide no straggler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankwatch.contract.policy import Policy
from rankwatch_monitor.core import straggler_detector
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.straggler import lateness
from rankwatch_monitor.core.straggler.scores import Scores

RANKS, WINDOWS = 512, 1500


def job_of(ranks: int) -> Job:
    job = Job("job", 0.0, policy=Policy())
    job.columns.grow(ranks)
    job.columns.reported_R[:] = True
    return job


def named(signal_TR: Floats) -> list[tuple[int, int]]:
    """(window, rank) of all ranks the default policy names: slow in 3 of 5 windows, the newest included."""
    job, found, open_R = job_of(signal_TR.shape[1]), [], np.zeros(signal_TR.shape[1], dtype=np.bool_)
    for window in range(5, len(signal_TR)):
        job.performance.signal_TR = job.performance.lost_TR = signal_TR[max(0, window - 19) : window + 1]
        slow_TR = straggler_detector.slow(job).slow_TR[-5:]
        slow_R = slow_TR[-1] & (slow_TR.sum(axis=0) >= 3)
        found += [(window, int(rank)) for rank in np.flatnonzero(slow_R & ~open_R)]
        open_R = (open_R | slow_R) & slow_TR[-3:].any(axis=0)
    return found


def pauses(ranks: int = RANKS, windows: int = WINDOWS) -> Floats:
    """Each rank pauses for a sixth of the step in one of a hundred, as with garbage collection."""
    random = np.random.default_rng(0)
    quiet_TR: Floats = random.normal(0.0, 0.01, (windows, ranks))
    return quiet_TR + np.where(random.random((windows, ranks)) < 0.01, 0.15, 0.0)


@pytest.mark.parametrize(("section", "named"), [("step", [1]), ("data", [1]), ("checkpointing", []), ("eval", [])])
def test_the_fastest_reference_ignores_sections_in_which_rank_0_does_more(section: str, named: list[int]) -> None:
    job = job_of(3)
    job.policy = job.policy.changed({"straggler_reference": "fastest"})
    job.performance.scores = scores = Scores.empty(3, 0.0, ("forward", section))
    scores.section_relative_RS[:] = [[1.0, 1.0], [1.0, 0.5], [1.0, 0.9]]
    assert np.flatnonzero(straggler_detector.slow(job).slow_TR[-1]).tolist() == named


@pytest.mark.parametrize("reference", ["relative", "individual"])
@pytest.mark.parametrize("of", ["gpu_{}_R", "section_{}_RS"])
def test_a_score_at_its_threshold_names_no_rank_and_one_below_does(reference: str, of: str) -> None:
    job = job_of(3)
    job.policy = job.policy.changed({"straggler_reference": "fastest", f"{reference}_threshold": 0.75})
    empty = Scores.empty(3, 0.0, ("step",))
    score_R = np.array([1.0, 0.75, np.nextafter(0.75, 0.0)])
    column = of.format(reference)
    job.performance.scores = replace(empty, **{column: score_R if column.endswith("_R") else score_R[:, None]})
    assert np.flatnonzero(straggler_detector.slow(job).slow_TR[-1]).tolist() == [2]


@pytest.mark.parametrize("kind", ["pauses", "heavy tails"])
def test_pauses_and_heavy_tails_name_no_rank(kind: str) -> None:
    heavy_TR = 0.01 * np.random.default_rng(0).standard_t(3, (WINDOWS, RANKS))
    assert named(pauses() if kind == "pauses" else heavy_TR) == []


def test_constantly_slow_ranks_are_named_among_pauses() -> None:
    signal_TR = pauses(windows=60)
    signal_TR[30:, 100:120] += 0.3  # 20 at once
    found = named(signal_TR)
    assert {rank for _, rank in found} == set(range(100, 120))
    assert max(window for window, _ in found) <= 34


def test_single_blips_of_few_ranks_hide_no_straggler() -> None:
    signal_TR = np.random.default_rng(0).normal(0.0, 0.01, (40, 8))
    signal_TR[20, 1] = signal_TR[21, 2] = 2.0
    signal_TR[25:, 5] += 0.2
    assert [rank for _, rank in named(signal_TR)] == [5]


def test_the_threshold_is_infinite_while_the_noise_is_unknown() -> None:
    assert straggler_detector.threshold(job_of(4)) == np.inf
    assert lateness.blips(np.full((3, 8), np.nan), 0.01) == -np.inf


def test_three_ranks_that_reached_a_signal_are_enough_for_a_blip() -> None:
    signal_TR = np.array([[0.1, 0.2, 0.3], [0.4, 0.1, 0.2]])
    assert lateness.blips(signal_TR, 0.0) == 0.2, "the least of the largest values of three ranks"
    assert lateness.blips(signal_TR[:, :2], 0.0) == -np.inf, "two are too few"


def test_the_noise_of_a_large_job_is_measured_from_some_of_its_ranks() -> None:
    signal_TR = np.random.default_rng(0).normal(0.0, 0.02, (5, 50_000))
    some_TR = straggler_detector._surveyed(signal_TR)
    assert some_TR.shape == (5, straggler_detector.SURVEYED)
    assert lateness.noise(some_TR) == pytest.approx(lateness.noise(signal_TR), rel=0.05)
