"""Who is slow in a window: the threshold that a job's own noise sets, or those of nvidia-resiliency-ext.

Shapes: R ranks, T windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rankwatch.contract.enums import ScoreReference
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.ranks import Bools, Floats
from rankwatch_monitor.core.straggler import lateness
from rankwatch_monitor.core.straggler.signals import present

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job

DAY: Final = 86_400.0
MEASURED: Final = 4_096
"""Ranks from which the noise is measured, evenly spread over the job: more make it no surer."""


def measured(share_TR: Floats) -> Floats:
    """The columns of the ranks from which the noise of a job is measured."""
    ranks = share_TR.shape[1]
    return share_TR if ranks <= MEASURED else share_TR[:, np.linspace(0, ranks - 1, MEASURED, dtype=np.int64)]


def threshold(job: Job) -> float:
    """The signal above which a rank is slow; infinity while the job's noise is not known.

    The highest of what matters, what normal noise may show, and what healthy ranks did show. Ranks that would be
    stragglers by the first two are left out of the last.
    """
    policy, performance = job.policy, job.performance
    share_TR = measured(performance.share_TR)
    sigma = lateness.noise(share_TR)
    if np.isnan(sigma):
        return np.inf
    sigma = float(np.hypot(sigma, lateness.spread(share_TR)))
    chance = lateness.needed_chance(
        ranks=max(1, int(present(job).sum())),
        windows_a_day=DAY / performance.interval,
        needed=policy.straggler_windows_needed,
        of=policy.straggler_windows,
        alarms_a_day=policy.straggler_alarms_per_day,
    )
    at_least = max(policy.straggler_slowdown, lateness.needed_sigmas(chance) * sigma)
    with np.errstate(invalid="ignore"):
        often_R = (share_TR[-policy.straggler_windows :] > at_least).sum(axis=0) >= policy.straggler_windows_needed
    return max(at_least, lateness.blips(share_TR[:, ~often_R], chance))


def slow(job: Job, limit: float) -> Bools:
    """Which ranks are slow in each of the last n windows, the newest last; shape (n, R). ``limit``: the threshold."""
    policy = job.policy
    if policy.straggler_reference is ScoreReference.FASTEST:
        return _below_thresholds(job, policy)[None]
    recent_TR = job.performance.share_TR[-policy.straggler_windows :]
    with np.errstate(invalid="ignore"):
        slow_TR: Bools = recent_TR > limit
    return slow_TR


def _below_thresholds(job: Job, policy: Policy) -> Bools:
    """Strictly below a threshold by the fastest reference, as nvidia-resiliency-ext has it; NaN never is."""
    scores = job.performance.told.scores
    assert scores is not None
    judged_S = list(scores.judged.values())
    with np.errstate(invalid="ignore"):
        relative_R = (scores.gpu_relative_R < policy.relative_threshold) | np.any(
            scores.section_relative_RS[:, judged_S] < policy.relative_threshold, axis=1
        )
        individual_R = (scores.gpu_individual_R < policy.individual_threshold) | np.any(
            scores.section_individual_RS[:, judged_S] < policy.individual_threshold, axis=1
        )
    below_R: Bools = relative_R | individual_R
    return below_R


def needed(policy: Policy) -> int:
    """Windows in which a rank must be slow to be a straggler."""
    return 1 if policy.straggler_reference is ScoreReference.FASTEST else policy.straggler_windows_needed
