"""The verdict on a job at one moment: the one record that every surface prints, and none derives anew.

List, page, tab title, ``rankwatch status``, ``report``, messages and W&B show its fields; numbers and times are fields,
so that its sentences hold none that grows, and a reader formats them with its own clock and time zone.

=========  ============================================================================================================
tone       what a reader does
=========  ============================================================================================================
``bad``    nothing trains, and a person is needed
``waits``  nothing trains, or it is not certain, and Rankwatch or the launchers act by themselves
``warns``  it trains, with a loss
``calm``   it trains, or is about to begin
``over``   it ended as wanted
=========  ============================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rankwatch.cli.formatting import count
from rankwatch.contract.enums import JobState
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import copied
from rankwatch_monitor.core.ranks import STOPPED, live_ranks
from rankwatch_monitor.core.views import downtime, ended, goodput_note, headline, incident_view, responses, verdict
from rankwatch_monitor.core.views.advice import playbook
from rankwatch_monitor.core.views.advice.record import Advice
from rankwatch_monitor.core.views.advice.situation import situation
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.job_verdict import NO_TROUBLE, finding, steps_per_second
from rankwatch_monitor.core.views.quiet_host import QuietHost
from rankwatch_monitor.core.views.slow_headline import slow_headline
from rankwatch_monitor.core.views.throttling import throttle_of

TONES: Final[Mapping[JobState, responses.Tone]] = {
    JobState.HUNG: "bad",
    JobState.LOST: "bad",
    JobState.FAILED: "bad",
    JobState.NO_STEP: "warns",
    JobState.SLOW: "warns",
    JobState.SUSPECTED: "waits",
    JobState.RESTARTING: "waits",
    JobState.STOPPING: "waits",
    JobState.STARTING: "calm",
    JobState.RUNNING: "calm",
    JobState.FINISHED: "over",
    JobState.STOPPED: "over",
}
"""Unless what is needed follows by itself, or does not."""


def stated(job: Job, now: float, activity: HostActivity | None = None) -> responses.Verdict:
    """The verdict on a job.

    Args:
        activity: from which hosts all jobs are heard; None: not known.
    """
    state, reason = verdict.job_state(job, now)
    seen = situation(job, state, now, activity)
    advised, quiet, found = playbook.advice(seen), seen.quiet, finding(job, now)
    incident = job.open_incident if job.ended is None else ended.last_incident(job, job.ended)
    speed = steps_per_second(job, now)
    over = job.ended.at if job.ended else job.last_heard if state is JobState.FINISHED else None
    trouble = _trouble_since(job, state, now)
    return {
        "name": job.name,
        "state": state,
        "tone": _tone(job, state, advised),
        "headline": _headline(job, state, reason, quiet),
        "title": _title(job, state, reason, quiet),
        "reason": reason,
        "since": over if trouble is None else trouble,
        "detected": None if incident is None else incident.timeline.detected or incident.opened_at,
        "elapsed": None if incident is None else incident.elapsed,
        "limit": None if incident is None else incident.limit,
        "place": None if incident is None else incident_view.place(incident),
        "next": None if advised is None or not advised.next else {"text": advised.next, "due": advised.until},
        "iteration": verdict.step(job),
        "goodput": verdict.goodput(job),
        "idle": job.world_size if over is None and state is not JobState.LOST and trouble and speed == 0 else 0,
        "lost": None if incident is None else _lost(job, incident, now),
        "steps_lost": goodput_note.steps_lost(job, state),
        "steps_at_risk": goodput_note.steps_at_risk(job, state, now),
        "restart_loses": _restart_loses(job),
        "advice": None if advised is None else advised.to_json(),
        "quiet_host": None if quiet is None else copied(responses.QuietHost, quiet),
        "verdict": found.verdict,
        "open_incidents": int(job.open_incident is not None),
        "ended_at": over,
    }


def _tone(job: Job, state: JobState, advised: Advice | None) -> responses.Tone:
    tone = TONES[state]
    if state is JobState.RUNNING and job.performance.open_stragglers and job.open_incident is None:
        return "warns"
    if tone == "bad" and (advised is None or advised.waits):
        return "waits"
    return "warns" if tone == "waits" and advised is not None and not advised.waits else tone


def _trouble_since(job: Job, state: JobState, now: float) -> float | None:
    """Unix seconds since when the job is in trouble; None: it is not, or it ended as wanted."""
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


def _headline(job: Job, state: JobState, reason: str, quiet: QuietHost | None) -> str:
    """The state in one line for lists; empty of a job that simply runs."""
    if quiet is not None:
        return quiet.headline
    if state is JobState.LOST:  # what was found before is no news of its ranks
        return headline.of_job(None, reason)
    if job.ended is not None and job.open_incident is None:
        failed = ended.last_incident(job, job.ended) if state is JobState.FAILED else None
        return headline.of_job(failed, ended.cause(job))
    if job.open_incident is None and (stragglers := job.performance.open_stragglers):
        return slow_headline(stragglers[0], throttle_of(job, stragglers[0]))
    return headline.of_job(job.open_incident, reason)


def _title(job: Job, state: JobState, reason: str, quiet: QuietHost | None) -> str:
    """The same with more room, and never empty."""
    incident = job.open_incident if job.ended is None else ended.last_incident(job, job.ended)
    if incident is not None and quiet is None and state is not JobState.LOST:
        in_state = incident.elective or job.ended is None or state is JobState.FAILED
        if in_state and (incident.open or state is JobState.FAILED):
            return headline.title(incident)
    return _headline(job, state, reason, quiet) or _calm(job, state)


def _calm(job: Job, state: JobState) -> str:
    """The state of a job without a reason."""
    columns, world = job.columns, job.world_size
    if state is JobState.RUNNING:
        stopped, reporting = int(np.sum(columns.process_R == STOPPED)), int(np.sum(live_ranks(columns)))
        if stopped:
            return f"{stopped:,} of {count(world, 'rank')} stopped; no limit is passed yet"
        if reporting < world:
            return f"{reporting:,} of {count(world, 'rank')} report; no limit is passed"
        ranks = "Both" if world == 2 else f"All {world:,}"
        return "The rank makes progress" if world == 1 else f"{ranks} ranks make progress"
    return _PLAIN.get(state, str(state).capitalize())


_PLAIN: Final[Mapping[JobState, str]] = {
    JobState.STARTING: "No rank has made progress yet",
    JobState.NO_STEP: "No step has completed yet",
    JobState.RESTARTING: "Restarted; no new step has completed yet",
    JobState.FINISHED: "All ranks ended with exit code 0",
    JobState.STOPPED: "Stopped by an order",
}


def _lost(job: Job, incident: Incident, now: float) -> responses.Lost:
    """What the incident has cost, of a job that failed by crashes that came again what these have cost together."""
    again = ended.repeated(job)
    if again is not None:
        return {"seconds": again.cost, "since": None, "gpus": job.world_size, "steps": again.steps_lost}
    cost = downtime.cost(job, incident, now)
    return {"seconds": cost.seconds, "since": cost.since, "gpus": job.world_size, "steps": incident.steps_lost}


def _restart_loses(job: Job) -> str:
    """What a restart loses, as a clause: ``loses up to 39 steps``; empty: that is not known."""
    checkpoint = job.ledger.checkpoint
    if verdict.step(job) is None:
        return ""
    if checkpoint is None:
        return "begins again at step 0, as no checkpoint is known"
    if checkpoint.iteration < 0:
        return "loses the steps since the last checkpoint"
    steps = goodput_accounting.steps_at_risk(job)
    return f"loses {'' if checkpoint.loaded else 'up to '}{count(steps, 'step')}" if steps else "loses no step"
