"""What shows that a rank is behind within the same step: where it is and where the others wait, else who has moved."""

from __future__ import annotations

import numpy as np

from rankwatch.contract.peers import waiting_call
from rankwatch_monitor.core.cause import Behind
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.ranks import RankColumns, live_ranks
from rankwatch_monitor.core.views.headline import innermost, when_of
from rankwatch_monitor.core.words.causes import reason


def explained(incident: Incident, culprit: Culprit, columns: RankColumns) -> str:
    """The culprit's reason, with what shows it while ranks are ahead of it in the same step."""
    rank, cause = culprit.rank, culprit.cause
    stated = reason(cause, when_of(incident))
    if not isinstance(cause, Behind) or not cause.within_step or rank >= len(columns):
        return stated
    own, live_R = int(columns.progress_R[rank]), live_ranks(columns)
    ahead_R = live_R & (columns.iteration_R == columns.iteration_R[rank]) & (columns.progress_R > own)
    if own < 0 or not np.any(ahead_R):
        return stated
    shown = _by_stacks(incident, rank) or _by_progress(own, int(np.sum(ahead_R)), int(np.sum(live_R)) - 1)
    return f"{stated} ({shown})"


def _by_stacks(incident: Incident, rank: int) -> str:
    """``it is in load_batch, the others are already in all_reduce``; empty: the stacks do not show it."""
    named = {culprit.rank for culprit in incident.culprits}
    others = [group for group in incident.stacks.groups() if not named.issuperset(group.ranks)]
    calls = {call and call.function.rsplit(".", 1)[-1] for call in (waiting_call(each.frames) for each in others)}
    function, reached = innermost(incident, rank), next(iter(calls), None)
    if not function or reached is None or len(calls) > 1 or function.rsplit(".", 1)[-1] == reached:
        return ""
    one = sum(len(each.ranks) for each in others) == 1
    return f"it is in {function}, the {'other is' if one else 'others are'} already in {reached}"


def _by_progress(own: int, ahead: int, others: int) -> str:
    """``it has not moved in this step; the 15 others have``."""
    which = (
        "the other" if others == 1 else f"the {others} others" if ahead == others else f"{ahead} of the {others} others"
    )
    one = ahead == 1
    if own:
        return f"{which} {'is' if one else 'are'} further in this step"
    return f"it has not moved in this step; {which} {'has' if one else 'have'}"
