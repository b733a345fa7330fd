"""The verdict on a job's speed as published: ``healthy`` only while the job makes progress.

:func:`~rankwatch_monitor.core.views.job_verdict.finding` compares ranks. Ranks that hang alike, or that have ended, do
not differ, so its verdict of a job in trouble may be ``healthy``.
"""

from __future__ import annotations

from typing import Final

from rankwatch.contract.enums import JobState, StragglerVerdict
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Finding
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.core.views.job_verdict import finding

NO_PROGRESS: Final = (JobState.HUNG, JobState.RECOVERING, JobState.LOST, JobState.FAILED, JobState.STOPPED)


def shown_finding(job: Job, now: float) -> Finding:
    """The finding at ``now`` (unix seconds); ``no_step`` with the state's reason replaces a healthy one in trouble."""
    found = finding(job, now)
    if found.verdict is not StragglerVerdict.HEALTHY:
        return found
    state, reason = job_view.job_state(job, now)
    incident = job.open_incident
    suspected = incident is not None and not incident.elective and state is not JobState.FINISHED
    if state not in NO_PROGRESS and not suspected:
        return found
    return Finding(StragglerVerdict.NO_STEP, reason=reason or f"the job is {state}")
