"""Finds jobs whose ranks are alive and move, but complete no step: verdicts that only proof confirms.

No step has completed for 60 s and for 5 times the longest pause so far (:class:`.job.Pace`), although no live rank is
within a section, where its limit applies: retries that never end, steps that begin and fail, a rank that does not end
when the others have. Whether the ranks are busy, as in a long export, or stand still, is found by looking at them
(:mod:`.hang.proof`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rankwatch.contract.enums import LimitSource, VerdictKind
from rankwatch_monitor.core.hang.verdict import NONE, Common, Verdicts
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import live_ranks

RECENT: Final = 10.0
"""Seconds since the last progress up to which a rank within a section counts as moving."""


def observe(job: Job) -> None:
    """Note at an evaluation whether a rank stands within a section, so that its time there is not held against it."""
    if _judged(job) and _within_a_section(job):
        job.pace.excused_at = job.pace.seen_at


def verdicts(job: Job) -> Verdicts:
    """A verdict on each live rank of a stalled job, ordered by rank."""
    pace = job.pace
    if not _judged(job) or _within_a_section(job):
        return NONE
    since = max(pace.stepped_at, pace.excused_at)
    elapsed = pace.seen_at - since
    if elapsed <= pace.limit:
        return NONE
    ranks = np.flatnonzero(live_ranks(job.columns))
    limit_V, elapsed_V, since_V = (np.full(len(ranks), value) for value in (pace.limit, elapsed, since))
    common = Common(VerdictKind.STALLED, source=LimitSource.FIRST_TIME)
    return Verdicts(ranks, limit_V, elapsed_V, since_V, [common])


def _judged(job: Job) -> bool:
    return job.pace.stalled and job.policy.learn_timeouts and job.stopping is None


def _within_a_section(job: Job) -> bool:
    """Whether a live rank makes no progress within a section, where its limit applies."""
    columns = job.columns
    stands_R = ~(columns.sections_updated_R - columns.last_progress_R <= RECENT)
    return bool(np.any(live_ranks(columns) & ~columns.outside_sections() & stands_R))
