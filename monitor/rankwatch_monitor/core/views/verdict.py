"""State, step and goodput of a job, as :mod:`.stated` has them beside what follows from them."""

from __future__ import annotations

from typing import Final

import numpy as np

from rankwatch.cli.formatting import capital
from rankwatch.contract.enums import RESTARTS, Action, JobState, StragglerVerdict, VerdictKind
from rankwatch_monitor.core import attempts, goodput_accounting, liveness, nodes
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.core.incident.lifecycle import STOPS, UNINSTRUMENTED_AFTER
from rankwatch_monitor.core.incident_record import Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import EXITED, UNKNOWN
from rankwatch_monitor.core.views import job_verdict
from rankwatch_monitor.core.words.step_times import clock_time

TOO_EARLY: Final = 60.0
"""Seconds of a job's life in which its goodput is not shown: it mostly shows the startup."""


def step(job: Job) -> int | None:
    """The last step that the newest attempt completed; of a job that was loaded from the store by its ledger."""
    if job.furthest_iteration is None and job.ended is not None and job.ledger.reached >= 0:
        return job.ledger.reached - job.ledger.offset
    return job.furthest_iteration


def goodput(job: Job) -> float | None:
    """The share of a job's life in steps that were kept, without waiting for slow ranks.

    None before the first step, and in the first minute of a job that goes on. Rounded here, so that all that is shown
    agrees.
    """
    known = goodput_accounting.ratio(job)
    too_early = job.ended is None and job.ledger.until - job.created_at < TOO_EARLY
    return None if known is None or too_early else round(known, 3)


def job_state(job: Job, now: float) -> tuple[JobState, str]:
    """The state of a job, and the reason in one sentence unless it is simply running."""
    if job.ended is not None:
        return job.ended.state, job.ended.reason
    heard = job.ever_instrumented and not job.instrumented
    if job.of_record and heard and not liveness.all_shut_down(job):
        return JobState.LOST, f"running until {clock_time(job.last_heard, now)} (UTC), then nothing more was heard"
    if liveness.lost(job, now):
        return JobState.LOST, "nothing is received from any rank or launcher"
    incident = job.open_incident
    if incident is not None and (found := _in_incident(job, incident)) is not None:
        return found
    columns = job.columns
    if liveness.all_shut_down(job) and not nodes.end_is_awaited(job, now):
        return JobState.FINISHED, "every rank shut down by itself"
    if job.instrumented:
        finding = job_verdict.finding(job, now)
        if finding.verdict not in job_verdict.NO_TROUBLE:
            no_step = finding.verdict is StragglerVerdict.NO_STEP
            return JobState.NO_STEP if no_step else JobState.SLOW, finding.reason
        return JobState.RUNNING, attempts.TROUBLE if job.stale.trouble(now) else ""
    # In whichever state: processes that import from a slow disk are in uninterruptible sleep every now and then.
    started = bool(np.any((columns.process_R != EXITED) & (columns.process_R != UNKNOWN)))
    if started and not job.ever_instrumented and now - job.attempt_since > UNINSTRUMENTED_AFTER:
        return JobState.RUNNING, "no rank has called rankwatch.init() yet: only exits and stacks are watched"
    return JobState.STARTING, "no rank has reported yet"


def _in_incident(job: Job, incident: Incident) -> tuple[JobState, str] | None:
    """The state for an open incident; None: the job is as without it."""
    acts = incident.phase in (Phase.ACTING, Phase.RECOVERING)
    if incident.elective and not (acts and incident.action in (*RESTARTS, *STOPS)):
        # Healthy; an order that is to be carried out is stated.
        if incident.action is Action.CAPTURE:
            return None
        return JobState.SLOW if incident.kind is VerdictKind.STRAGGLER else JobState.RUNNING, incident.reason
    if acts and incident.action in RESTARTS:
        waits = incident.exclude and incident.phase is Phase.ACTING
        consequences = f" {capital(exclusion.consequences(job, incident.exclude))}." if waits else ""
        return JobState.RESTARTING, f"{incident.reason}{consequences}"
    if acts and incident.action in STOPS:
        return JobState.STOPPING, incident.reason
    if not incident.confirmed:
        return JobState.SUSPECTED, incident.reason
    if incident.kind in (VerdictKind.PROCESS_EXITED, VerdictKind.NODE_LOST):
        # Its launchers are about to end it, or to start it again.
        return JobState.RESTARTING if incident.action in RESTARTS else JobState.STOPPING, incident.reason
    return JobState.HUNG, incident.reason
