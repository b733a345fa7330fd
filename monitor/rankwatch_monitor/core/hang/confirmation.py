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

from typing import Final

import numpy as np

from rankwatch.contract.enums import LimitSource
from rankwatch.contract.limits import RankLimits
from rankwatch_monitor.core.hang.verdict import Verdicts
from rankwatch_monitor.core.ranks import STOPPED, Bools, Floats, RankColumns, live_ranks

MOVING_SECONDS: Final = 10.0
"""Seconds since its last progress up to which a rank moves, also if its limit is shorter."""
SAME_MOMENT: Final = 0.001
"""Seconds by which two equal times of one report may differ by rounding."""


def proven(
    columns: RankColumns, limits: RankLimits, verdicts: Verdicts, begun: float, window: float, now: float
) -> bool:
    """Whether a suspicion holds at ``now``: see above, or a configured limit was passed meanwhile.

    Args:
        verdicts: ranks over a limit at ``now``.
        begun: when the suspicion began (unix seconds).
        window: seconds that it must last.
    """
    if verdicts.act_at_once:
        return True
    verdicts = verdicts.where(verdicts.elapsed_V > _limit(verdicts, limits))
    if now - begun < window:
        return False
    # Counted up to the rank's last report: what it did since is unknown.
    reported_V, passed_V = verdicts.since_V + verdicts.elapsed_V, verdicts.since_V + _limit(verdicts, limits)
    lasting = verdicts.where(reported_V - np.maximum(begun, passed_V) >= window)
    updated_R = now - columns.sections_updated_R <= window
    return bool(lasting) and _some_rank_waits_for_none(columns, limits, lasting, verdicts, updated_R)


def _limit(verdicts: Verdicts, limits: RankLimits) -> Floats:
    """The limit after which patience counts; a first-time section is looked at before it, which proves nothing yet."""
    limit_C = [
        limits.of_section(common.section, first=True)[0] or np.nan
        if common.source is LimitSource.FIRST_TIME and common.section is not None
        else np.nan
        for common in verdicts.commons
    ]
    own_V = np.array(limit_C, dtype=np.float64)[verdicts.common_V]
    return np.where(np.isnan(own_V), verdicts.limit_V, own_V)


def _some_rank_waits_for_none(
    columns: RankColumns,
    limits: RankLimits,
    lasting: Verdicts,
    verdicts: Verdicts,
    updated_R: Bools,
) -> bool:
    """Whether a lasting verdict is on a rank that waits for no busy rank; ``updated_R``: its progress is recent."""
    live_R = live_ranks(columns)
    free_R = live_R & (columns.process_R != STOPPED) & updated_R
    free_R[verdicts.rank_V[verdicts.elapsed_V > MOVING_SECONDS]] = False
    quiet_R = columns.sections_updated_R - columns.last_progress_R
    moving_R = free_R & (quiet_R <= max(MOVING_SECONDS, float(lasting.limit_V.min())))
    busy = _least_iteration(columns, _busy(columns, limits, free_R & ~moving_R))
    if 2 * np.count_nonzero(moving_R) > np.count_nonzero(live_R):
        moving_R[:] = False
    moving = _least_iteration(columns, moving_R)
    longest = limits.first_time or 0.0
    at_V = columns.iteration_R[lasting.rank_V]
    return bool(np.any((at_V < busy) & ((at_V < moving) | (lasting.elapsed_V > longest))))


def _busy(columns: RankColumns, limits: RankLimits, free_R: Bools) -> Bools:
    """Ranks within the limit of the section that they entered last, without progress since."""
    busy_R = np.zeros(len(columns), dtype=np.bool_)
    entered_R = np.fmax.reduce(columns.open_since_RS, axis=1, initial=-np.inf)
    still_R = free_R & (np.abs(entered_R - columns.last_progress_R) <= SAME_MOMENT)
    quiet_R = columns.sections_updated_R - columns.last_progress_R
    for s, name in enumerate(columns.sections):
        inside_R = still_R & (columns.open_since_RS[:, s] == entered_R)
        for first in (False, True) if inside_R.any() else ():
            limit = limits.of_section(name, first=first)[0]
            if limit is not None:
                busy_R |= inside_R & (columns.first_RS[:, s] == first) & (quiet_R <= limit)
    return busy_R


def _least_iteration(columns: RankColumns, where_R: Bools) -> float:
    """The least iteration of these ranks; infinite when there are none."""
    return float(np.min(columns.iteration_R[where_R])) if where_R.any() else np.inf
