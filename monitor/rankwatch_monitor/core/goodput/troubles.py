"""What incidents say of the time that a job has spent: laid over it when it is shown, and when it is settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rankwatch.contract.enums import Action, VerdictKind
from rankwatch_monitor.core.goodput import intervals
from rankwatch_monitor.core.goodput.intervals import Bucket, Span
from rankwatch_monitor.core.incident.incident import RESTARTS, Incident

_ACTING: Final = (*RESTARTS, Action.SAVE_AND_STOP, Action.STOP)


def overlaid(done: list[Span], incidents: Sequence[Incident], *, went_on: bool = False) -> list[Span]:
    """The same time, with what incidents say of it. ``went_on``: it was ended by a step of the same attempt."""
    if not done:
        return done
    start, end = done[0].start, done[-1].end
    for incident in reversed(incidents):
        if incident.closed_at is not None and incident.closed_at <= start:
            break
        done = _troubled(done, incident, end, went_on=went_on)
    return done


def _troubled(done: list[Span], incident: Incident, end: float, *, went_on: bool) -> list[Span]:
    if incident.elective and (incident.action not in _ACTING or not incident.directive):
        return done  # nothing stands still; of a stop that launchers asked for, the end of the run takes account
    timeline = incident.timeline
    began = incident.opened_at if timeline.since is None or incident.elective else timeline.since
    over = next((at for at in (timeline.restarted, incident.closed_at) if at is not None), end)
    by_itself = incident.closed_at is not None and timeline.restarted is None and incident.closed_at < end
    if went_on or by_itself:
        return intervals.relabel(done, _trouble(Bucket.STALLED), began, over)
    found = incident.opened_at if timeline.detected is None else timeline.detected
    if incident.elective or incident.kind is VerdictKind.PROCESS_EXITED:
        found = began  # nothing hung: a process ended, or a person spoke
    elif incident.action not in _ACTING:
        found = over  # nothing is done about it
    done = intervals.relabel(done, _trouble(Bucket.HANG), began, found)
    return intervals.relabel(done, _trouble(Bucket.HANDLING), found, over)


def _trouble(bucket: Bucket) -> Callable[[Bucket], Bucket]:
    return lambda known: known if known in (Bucket.UNSEEN, Bucket.DOWN) else bucket
