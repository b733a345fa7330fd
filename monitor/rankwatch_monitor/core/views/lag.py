"""The figures behind "it is behind within the same step": the ranks' progress counters, which no other column shows."""

from __future__ import annotations

import numpy as np

from rankwatch_monitor.core.hang.blame import WITHIN_STEP
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.ranks import RankColumns, live_ranks


def with_figures(culprit: Culprit, columns: RankColumns) -> str:
    """The culprit's reason, with its progress counter and those of the ranks that are ahead of it in the same step."""
    rank = culprit.rank
    if WITHIN_STEP not in culprit.reason or rank >= len(columns):
        return culprit.reason
    own, progress_R = int(columns.progress_R[rank]), columns.progress_R
    ahead_R = live_ranks(columns) & (columns.iteration_R == columns.iteration_R[rank]) & (progress_R > own)
    if own < 0 or not np.any(ahead_R):
        return culprit.reason
    least, most = int(progress_R[ahead_R].min()), int(progress_R[ahead_R].max())
    theirs = str(least) if least == most else f"{least} to {most}"
    done = "1 sign of progress" if own == 1 else f"{own} signs of progress"
    return f"{culprit.reason} ({done} in this step, the others {theirs})"
