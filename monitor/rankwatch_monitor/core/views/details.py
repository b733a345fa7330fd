"""One job, and one incident, with all that is shown of it alone: by its route of the API, and in the text report."""

from __future__ import annotations

from typing import Final, cast

from rankwatch_monitor.core.hang import limits
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import copied
from rankwatch_monitor.core.views import (
    crash_head,
    flight_dumps,
    incident_view,
    job_view,
    nccl_answers,
    rank_logs,
    responses,
)
from rankwatch_monitor.core.views.account import clauses, unsaved_log
from rankwatch_monitor.core.views.advice import playbook
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.stack_errors import stack_errors

PROGRESS_SHOWN: Final = 1024
"""Positions within process groups in one response."""


def of_job(job: Job, now: float, activity: HostActivity | None = None) -> responses.JobDetail:
    """The job as ``GET /jobs/{id}`` shows it; ``activity``: from which hosts all jobs are heard, None: not known."""
    return {
        **job_view.summary(job, now, activity),
        "policy": job.policy.to_json(),
        "timeouts": cast("list[responses.Timeout]", limits.table(job.policy, job.durations)),
        "nodes": job_view.launchers(job, now),
        "vitals": vitals(job),
        "account": clauses(job, now),
        "unsaved_log": unsaved_log(job, now),
        "sections": {
            name: {"finished": observed.count, "longest": observed.longest, "first": observed.first}
            for name, observed in sorted(job.durations.sections.items())
        },
        "dropped": job.dropped,
        "stale_reports": job.stale.count,
    }


def vitals(job: Job) -> responses.Vitals:
    """A step and its parts, and what the script logged last; None: not known.

    The step is that of the newest window of this attempt, medians over the ranks.
    """
    sample = job.performance.history.latest
    step: responses.StepParts | None = None
    if sample is not None and sample.attempt == job.attempt:
        step = {"seconds": sample.step, "parts": dict(sample.parts), "waiting": sample.waiting}
    return {"step": step, "logged": {name: each.value for name, each in sorted(job.logged.latest.items())}}


def of_incident(
    job: Job, incident: Incident, now: float, activity: HostActivity | None = None
) -> responses.IncidentDetail:
    """The incident as ``GET /jobs/{id}/incidents/{id}`` shows it."""
    advised = playbook.of_job(job, now, activity) if incident is job.open_incident else None
    return {
        **incident_view.shown(job, incident, now, activity),
        "of_host": incident_view.of_host(job, incident, now, activity),
        "advice": None if advised is None else advised.to_json(),
        "crash": crash_head.head(incident),
        "stack_groups": job_view.stack_groups(incident),
        "stack_errors": stack_errors(job, incident),
        "logs": rank_logs.of_incident(job, incident),
        "flight_dumps": flight_dumps.shown(job, incident),
        "nccl": nccl_answers.shown(incident),
        "collectives": [
            copied(responses.GroupProgress, each) for each in incident.stacks.group_progress()[:PROGRESS_SHOWN]
        ],
    }
