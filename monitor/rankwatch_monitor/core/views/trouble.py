"""Since when a job is in trouble: it hangs, recovers, is suspected, lost or slow, or has failed. Derived when read."""

from __future__ import annotations

from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.job_verdict import NO_TROUBLE, finding


def recovering_since(job: Job, state: JobState) -> float | None:
    """Unix seconds since when the job is being restarted, which is after its training stopped; None: it is not."""
    incident = job.open_incident
    if state is not JobState.RESTARTING or incident is None:
        return None
    decided, captured = incident.timeline.decided, incident.timeline.captured
    return max((at for at in (decided, captured) if at is not None), default=incident.phase_since)


def trouble_since(job: Job, state: JobState, now: float) -> float | None:
    """Unix seconds since when the job is in trouble; None: it is not, or it ended as wanted.

    Args:
        job: the job.
        state: its state at ``now``.
        now: unix seconds.
    """
    if job.ended is not None:
        return job.ended.at if job.ended.state is JobState.FAILED else None
    if state is JobState.FINISHED:
        return None
    if state is JobState.LOST:
        return job.last_heard
    incident = job.open_incident
    if incident is not None and (state not in (JobState.RUNNING, JobState.SLOW) or not incident.elective):
        return incident.timeline.since or incident.opened_at
    found = finding(job, now)
    return None if found.verdict in NO_TROUBLE else found.since
