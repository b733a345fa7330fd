"""Whether all ranks of a large job stand still, by reports of theirs that are older than the limit they have passed.

The ranks of a large job spread their reports of a passed limit over seconds (``rankwatch.contract.intervals``). Their
regular reports usually came in after the hang had begun, before the limit was passed. They show that nothing moves if
each rank has reported since the last movement of any; then no progress of a rank is left to be reported, and what is
open has been open until now.
"""

from __future__ import annotations

import copy
from typing import Final

import numpy as np

from rankwatch_monitor.core.ranks import RankColumns, live_ranks

DELIVERY_SECONDS: Final = 1.0
"""Seconds within which a report arrives. Its ages count from then, so a movement it reports may have been earlier."""


def stands_still(columns: RankColumns) -> bool:
    """Whether every live rank has reported since the last movement of any of them, as far as movements are known."""
    live_R = live_ranks(columns)
    moved_R = np.fmax(np.fmax(columns.last_progress_R, columns.inferred_progress_R), columns.last_heartbeat_R)[live_R]
    reported_R = np.fmin(columns.last_update_R, columns.sections_updated_R)[live_R]
    # NaN compares false: of a rank whose movements are unknown nothing is concluded.
    return len(moved_R) > 0 and bool(np.all(reported_R > np.max(moved_R) + DELIVERY_SECONDS))


def as_of(columns: RankColumns, now: float) -> RankColumns:
    """The ranks as if each had reported at ``now`` that nothing has changed; not to be written to."""
    seen = copy.copy(columns)
    seen.last_update_R = np.where(np.isnan(columns.last_update_R), np.nan, now)
    seen.sections_updated_R = np.where(np.isnan(columns.sections_updated_R), np.nan, now)
    return seen
