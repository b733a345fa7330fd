"""Confirms suspicions: whether ranks over a learned limit really hang, or wait for a rank that is busy.

A rank that checkpoints or evaluates alone keeps the others waiting in the next step, whose limit is short. While a rank
that is not ahead of them is within a limit of its own, theirs proves nothing:

=============================================  ========================================================================
the rank that may be waited for                excuses the others
=============================================  ========================================================================
entered a section, without progress since      until the limit of that section
makes progress (in whatever it does alone)     until they have made none for ``first_time_timeout``
=============================================  ========================================================================

If more than half of the ranks make progress, the others wait for none of them: such ranks run independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rankwatch.contract.limits import RankLimits
from rankwatch_monitor.core.hang.verdict import Verdict
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import live_ranks
from rankwatch_monitor.core.ranks import STOPPED, Bools, RankColumns

SAME_MOMENT: Final = 0.001
"""Seconds by which two equal times of one report may differ by rounding."""


def proven(job: Job, suspected_at: float, verdicts: Sequence[Verdict], now: float) -> bool:
    """Whether a suspicion holds at ``now``: see above, or a configured limit was passed meanwhile."""
    if any(v.source.acts_at_once for v in verdicts):
        return True
    begun, window = max(suspected_at, job.silence_baseline), job.policy.confirmation_window
    if now - begun < window:
        return False
    # Counted up to the rank's last report: what it did since is unknown.
    lasting = [v for v in verdicts if v.since + v.elapsed - max(begun, v.since + v.limit) >= window]
    return bool(lasting) and _some_rank_waits_for_none(job, lasting, verdicts, now)


def _some_rank_waits_for_none(job: Job, lasting: Sequence[Verdict], verdicts: Sequence[Verdict], now: float) -> bool:
    columns, rank = job.columns, job.limits.rank
    live_R = live_ranks(columns)
    free_R = live_R & (columns.process_R != STOPPED)
    free_R &= now - columns.sections_updated_R <= job.policy.confirmation_window
    free_R[[v.rank for v in verdicts]] = False
    quiet_R = columns.sections_updated_R - columns.last_progress_R
    moving_R = free_R & (quiet_R <= min(v.limit for v in lasting))
    busy = _least_iteration(columns, _busy(columns, rank, free_R & ~moving_R))
    if 2 * np.count_nonzero(moving_R) > np.count_nonzero(live_R):
        moving_R[:] = False
    moving = _least_iteration(columns, moving_R)
    longest = rank.first_time or 0.0
    return any((at := columns.iteration_R[v.rank]) < busy and (at < moving or v.elapsed > longest) for v in lasting)


def _busy(columns: RankColumns, rank: RankLimits, free_R: Bools) -> Bools:
    """Ranks within the limit of the section that they entered last, without progress since."""
    busy_R = np.zeros(len(columns), dtype=np.bool_)
    entered_R = np.fmax.reduce(columns.open_since_RS, axis=1, initial=-np.inf)
    still_R = free_R & (np.abs(entered_R - columns.last_progress_R) <= SAME_MOMENT)
    quiet_R = columns.sections_updated_R - columns.last_progress_R
    for s, name in enumerate(columns.sections):
        inside_R = still_R & (columns.open_since_RS[:, s] == entered_R)
        for first in (False, True) if inside_R.any() else ():
            limit = rank.of_section(name, first=first)[0]
            if limit is not None:
                busy_R |= inside_R & (columns.first_RS[:, s] == first) & (quiet_R <= limit)
    return busy_R


def _least_iteration(columns: RankColumns, where_R: Bools) -> float:
    """The least iteration of these ranks; infinite when there are none."""
    return float(np.min(columns.iteration_R[where_R])) if where_R.any() else np.inf
