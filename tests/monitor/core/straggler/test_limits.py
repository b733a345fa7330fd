"""How far out of the noise a rank must stand: heavy tails keep to the budget, and hide no straggler."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.straggler import lateness, limits
from rankwatch_monitor.core.straggler.scores import Scores

RANKS, WINDOWS = 512, 1500


def job_of(ranks: int) -> Job:
    job = Job("job", 0.0, policy=Policy())
    job.columns.grow(ranks)
    job.columns.reported_R[:] = True
    return job


def named(share_TR: Floats) -> list[tuple[int, int]]:
    """(window, rank) of all that the default policy would name: slow in 3 of 5 windows, the newest included."""
    job, found, open_R = job_of(share_TR.shape[1]), [], np.zeros(share_TR.shape[1], dtype=np.bool_)
    for window in range(5, len(share_TR)):
        job.performance.share_TR = share_TR[max(0, window - 19) : window + 1]
        slow_TR = limits.slow(job, limits.threshold(job))
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
def test_by_the_fastest_reference_a_section_in_which_rank_0_does_more_blames_nobody(
    section: str, named: list[int]
) -> None:
    job = job_of(3)
    job.policy = job.policy.changed({"straggler_reference": "fastest"})
    job.performance.told.scores = scores = Scores.empty(3, 0.0, ("forward", section))
    scores.section_relative_RS[:] = [[1.0, 1.0], [1.0, 0.5], [1.0, 0.9]]
    assert np.flatnonzero(limits.slow(job, 0.0)[-1]).tolist() == named


@pytest.mark.parametrize("kind", ["pauses", "heavy tails"])
def test_pauses_and_heavy_tails_name_nobody(kind: str) -> None:
    heavy_TR = 0.01 * np.random.default_rng(0).standard_t(3, (WINDOWS, RANKS))
    assert named(pauses() if kind == "pauses" else heavy_TR) == []


def test_among_pauses_those_that_are_slow_for_good_are_named() -> None:
    share_TR = pauses(windows=60)
    share_TR[30:, 100:120] += 0.3  # 20 at once
    found = named(share_TR)
    assert {rank for _, rank in found} == set(range(100, 120))
    assert max(window for window, _ in found) <= 34


def test_single_blips_of_few_ranks_hide_nobody() -> None:
    share_TR = np.random.default_rng(0).normal(0.0, 0.01, (40, 8))
    share_TR[20, 1] = share_TR[21, 2] = 2.0
    share_TR[25:, 5] += 0.2
    assert [rank for _, rank in named(share_TR)] == [5]


def test_without_noise_nothing_is_known() -> None:
    assert limits.threshold(job_of(4)) == np.inf
    assert lateness.blips(np.full((3, 8), np.nan), 0.01) == -np.inf


def test_the_noise_of_a_large_job_is_measured_from_some_of_its_ranks() -> None:
    share_TR = np.random.default_rng(0).normal(0.0, 0.02, (5, 50_000))
    some_TR = limits.measured(share_TR)
    assert some_TR.shape == (5, limits.MEASURED)
    assert lateness.noise(some_TR) == pytest.approx(lateness.noise(share_TR), rel=0.05)
