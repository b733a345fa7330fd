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


def verdicts(job: Job) -> Verdicts:
    """A verdict on each live rank of a stalled job, ordered by rank."""
    columns, pace = job.columns, job.pace
    if not pace.stalled or not job.policy.learn_timeouts or job.stopping is not None:
        return NONE
    live_R = live_ranks(columns)
    within_R = ~columns.outside_sections()
    stands_R = ~(columns.sections_updated_R - columns.last_progress_R <= RECENT)
    if np.any(live_R & within_R & stands_R):
        pace.excused_at = pace.seen_at
    since = max(pace.stepped_at, pace.excused_at)
    elapsed = pace.seen_at - since
    if elapsed <= pace.limit:
        return NONE
    ranks = np.flatnonzero(live_R)
    limit_V, elapsed_V, since_V = (np.full(len(ranks), value) for value in (pace.limit, elapsed, since))
    common = Common(VerdictKind.STALLED, source=LimitSource.FIRST_TIME)
    return Verdicts(ranks, limit_V, elapsed_V, since_V, [common])
