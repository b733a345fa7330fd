"""The verdict on a job's speed as shown to users: ``healthy`` needs evidence that the job trains.

The straggler detector compares ranks. A job that never reaches its first step gives it nothing to compare, and an empty
finding would read as "healthy". A healthy finding is therefore replaced by ``no_step`` while all of this holds:

==============  =======================================================================================================
no step         no rank of this attempt has completed one
no heartbeat    no rank has sent one: a script with heartbeats only is healthy, and held to its heartbeat limit
no progress     no section was entered or left and no ``progress()`` counted within :data:`FIRST_STEP_AFTER`: a script
                with sections but no steps is healthy while these change
for a while     the first rank reported that long ago; or no rank has reported, and the attempt is that old
==============  =======================================================================================================

A job that has completed steps is ``no_step`` while it is stalled (:class:`~rankwatch_monitor.core.job.Pace`), while an
incident holds it up, after it was lost and after it failed; its steps per second are 0 then. The finding causes no
action; :mod:`~rankwatch_monitor.core.stall` raises suspicions.

A job in which the last windows show a rank late that cannot be named yet is ``suspected``: it runs, in no trouble.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rankwatch.cli.formatting import capital
from rankwatch.contract.enums import Cause, JobState, StragglerVerdict
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Finding
from rankwatch_monitor.core.words import slow as words

FIRST_STEP_AFTER: Final = 60.0
"""Seconds without a completed step or other progress after which a job is not called healthy."""
ENDED_EARLY: Final = (JobState.FAILED, JobState.STOPPED)
NO_TROUBLE: Final = (StragglerVerdict.HEALTHY, StragglerVerdict.SUSPECTED)


def finding(job: Job, now: float) -> Finding:
    """Why the job loses time; ``healthy`` only where something shows that it trains."""
    found = job.performance.finding
    if found.verdict is not StragglerVerdict.HEALTHY:
        return found
    if (held_up := _held_up(job, now)) is not None:
        return held_up
    if job.pace.stalled:
        reason = "No step completes any more."
        return Finding(StragglerVerdict.NO_STEP, reason=reason, since=job.pace.stepped_at)
    since = no_step_since(job, now)
    if since is None:
        late = job.performance.late
        if late is None or not late.suspected:
            return found
        reason = f"{capital(words.late(late))}."
        return Finding(StragglerVerdict.SUSPECTED, Cause.UNEXPLAINED, reason, late.since, (late.rank,), late.share)
    # No time in the reason, which is in ``since``: it is a label of a metric, and each value would be a new series.
    why = "its ranks report" if job.instrumented else "no rank has reported"
    what = "No step has completed yet" if job.ended is None else "No step completed"
    return Finding(StragglerVerdict.NO_STEP, reason=f"{what}: {why}.", since=since)


def findings(job: Job, now: float) -> list[Finding]:
    """The verdict, then all else that slows the job, by cost."""
    found, measured = finding(job, now), job.performance
    return [found, *(measured.findings[1:] if found.verdict is measured.finding.verdict else ())]


def steps_per_second(job: Job, now: float) -> float | None:
    """Recent steps per second; 0 when the job is over, lost or held up, None while unknown."""
    if job.ended is not None or liveness.lost(job, now) or liveness.all_shut_down(job):
        return 0.0
    incident = _holding_up(job)
    stepped = incident is not None and job.pace.samples and job.pace.stepped_at > incident.opened_at
    return job.steps_per_second if incident is None or stepped else 0.0


def _held_up(job: Job, now: float) -> Finding | None:
    """Why a job does not advance at all, whatever was measured before; None: it may, or it ended well."""
    if job.ended is not None:
        if job.ended.state not in ENDED_EARLY:
            return None
        reason, since = job.ended.reason or f"The job has {job.ended.state}.", job.ended.at
    elif job.ever_instrumented and liveness.lost(job, now):
        reason, since = "No rank or launcher reports any more.", job.last_heard
    elif (incident := _holding_up(job)) is not None:
        reason, since = incident.reason, incident.timeline.since or incident.opened_at
    else:
        return None
    return Finding(StragglerVerdict.NO_STEP, reason=reason, since=since)


def _holding_up(job: Job) -> Incident | None:
    """The incident for which the ranks complete no step: a fault, or an order that is being carried out."""
    incident = job.open_incident
    if incident is None or (incident.elective and incident.phase not in (Phase.ACTING, Phase.RECOVERING)):
        return None
    return incident


def no_step_since(job: Job, now: float) -> float | None:
    """Since when the job runs without a sign that it trains, in unix seconds; None: there is one, or not for long.

    A job that has ended is judged as of its end.
    """
    columns = job.columns
    if job.ended is not None:
        now = min(now, job.ended.at)
    elif liveness.all_shut_down(job):
        now = min(now, job.last_heard)
    if job.furthest_iteration is not None or np.any(columns.heartbeats_R > 0):
        return None
    if job.ended is not None and job.ledger.furthest >= 0:  # loaded from its record, without its ranks
        return None
    if job.instrumented:
        since = float(np.nanmin(columns.first_report_R))
    elif not job.ever_instrumented and not job.counts_steps:
        since = job.attempt_since
    else:  # new ranks, or a new monitor, of a job that has shown that it trains
        return None
    return since if now - since > FIRST_STEP_AFTER and not _progresses(job, now) else None


def _progresses(job: Job, now: float) -> bool:
    """Whether any rank has shown progress lately; of an emitter that counts progress without its time, ever."""
    columns = job.columns
    moved_R = np.fmax(columns.last_progress_R, columns.idle_since_R)
    for since_R in columns.open_since_RS.T:
        moved_R = np.fmax(moved_R, since_R)
    counted_R = np.isnan(moved_R) & (columns.progress_R > 0)
    return bool(np.any(counted_R | (now - moved_R < FIRST_STEP_AFTER)))
