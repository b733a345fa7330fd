"""Decides what is worth a notice: incidents opened and closed, stragglers found and recovered, the end of a job.

:func:`new_notices` compares a job with what was announced about it, so it may be called at any time and reports each
change once. A notice is plain JSON of bounded size. Its key is derived from its subject, so a receiver can recognise
a notice that is created again after a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rankwatch.cli.formatting import count, duration, fault, gpu_time, of_it_lost, ranks, when
from rankwatch.contract.enums import Action, JobState, VerdictKind
from rankwatch_monitor.core.incident_record import Ended, Incident, Phase
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.liveness import TERMINAL_STATES
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import downtime, incident_view, verdict
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.core.views.quiet_host import QuietHost, quiet_host
from rankwatch_monitor.core.views.stated import stated

LAUNCHERS_DECIDE: Final = 15.0
"""Seconds in which launchers restart after a crash, or end the job; until then it is not announced."""
SHOWN: Final = 16
"""Culprits, and stragglers, named in one notice; further ones are counted."""


class Event(StrEnum):
    """What a notice is about."""

    INCIDENT_OPENED = "incident_opened"
    INCIDENT_CLOSED = "incident_closed"
    STRAGGLER_FOUND = "straggler_found"
    STRAGGLER_ENDED = "straggler_ended"
    JOB_FINISHED = "job_finished"
    JOB_FAILED = "job_failed"
    JOB_STOPPED = "job_stopped"
    JOB_LOST = "job_lost"
    JOB_BACK = "job_back"
    """A lost job reports again."""


_ENDS: Final = {
    JobState.FINISHED: Event.JOB_FINISHED,
    JobState.FAILED: Event.JOB_FAILED,
    JobState.STOPPED: Event.JOB_STOPPED,
    JobState.LOST: Event.JOB_LOST,
}


class Notice(NamedTuple):
    """One change of a job."""

    key: str
    """Equal for equal changes; safe in a header."""
    job_id: str
    at: float
    """Unix seconds."""
    body: dict[str, Any]


@dataclass(slots=True)
class Announced:
    """What was announced about one job."""

    state: JobState | None = None
    opened: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    stragglers: dict[str, bool] = field(default_factory=dict)
    """By id: whether its end was announced."""


def announced_so_far(job: Job, now: float) -> Announced:
    """The state of a job at ``now`` as announced: nothing of it is news."""
    announced = Announced()
    for _ in new_notices(job, announced, now):
        pass
    return announced


def new_notices(job: Job, announced: Announced, now: float, activity: HostActivity | None = None) -> list[Notice]:
    """The changes of a job since ``announced``, which is updated to ``now`` (unix seconds).

    Args:
        announced: what was announced about it.
        activity: from which hosts all jobs are heard; None: not known, and a host that is quiet may be down.
    """
    return [
        *_incidents(job, announced, now, activity),
        *_stragglers(job, announced, now, activity),
        *_state(job, announced, now, activity),
    ]


# Incidents ------------------------------------------------------------------------------------------------------------


def _incidents(job: Job, announced: Announced, now: float, activity: HostActivity | None) -> Iterator[Notice]:
    for incident in job.incidents:
        if incident.id not in announced.opened and _is_ripe(job, incident, now):
            announced.opened.add(incident.id)
            quiet = quiet_host(job, now, activity) if incident is job.open_incident else None
            up = quiet if quiet is not None and quiet.other_jobs else None
            shown = _shown(job, incident, now, activity) | ({} if up is None else {"headline": up.headline})
            yield _notice(Event.INCIDENT_OPENED, job, incident.id, now, activity, _opened(incident, up), incident=shown)
        if not incident.open and incident.id not in announced.closed:
            announced.closed.add(incident.id)
            if incident.id in announced.opened:
                shown = _shown(job, incident, now, activity) | {"cost_gpu_hours": _cost(job, incident)}
                text = _closed(job, incident, shown["cost_gpu_hours"])
                yield _notice(Event.INCIDENT_CLOSED, job, incident.id, now, activity, text, incident=shown)
    if len(announced.opened | announced.closed) > len(job.incidents):
        kept = {incident.id for incident in job.incidents}
        announced.opened &= kept
        announced.closed &= kept


def _is_ripe(job: Job, incident: Incident, now: float) -> bool:
    """No suspicion, no reason that the stacks may correct in a moment, no crash whose consequence is not known."""
    if incident.provisional or not (incident.confirmed or incident.held):
        return False
    crash = incident.kind is VerdictKind.PROCESS_EXITED and incident.open and incident.phase is not Phase.RECOVERING
    return not crash or job.ended is not None or now - incident.opened_at >= LAUNCHERS_DECIDE


def _opened(incident: Incident, up: QuietHost | None) -> str:
    """``up``: a host of which this job is not heard, and others are."""
    what = incident.reason if up is None else f"{incident.reason} {up.headline}."
    if incident.held:
        return what
    why = f"; {incident.action_reason}" if incident.action_reason else ""
    return f"{what} Action: {incident.action.replace('_', ' ')}{why}."


def _closed(job: Job, incident: Incident, cost: float | None) -> str:
    """``cost``: in GPU-hours; None: the job kept running."""
    took = downtime.held_up(incident)
    what = f"The incident of {when(incident.opened_at)} ({fault(incident.kind)})"
    text = f"{what} is over" + ("" if took is None else f" after {duration(took)}")
    text += f": {incident.outcome.rstrip('.')}." if incident.outcome else "."
    if cost is None:
        return text
    total = downtime.total(job, incident) or 0.0
    lost = of_it_lost(downtime.of_lost_steps(job, incident), incident.steps_lost)
    return f"{text} Cost: {duration(total)}{lost}; {gpu_time(3600.0 * cost)}."


def _cost(job: Job, incident: Incident) -> float | None:
    """GPU-hours in which all ranks were stopped or did steps that were lost; None if the job kept running."""
    took = downtime.total(job, incident)
    if took is None or (incident.elective and incident.action in (Action.LOG, Action.CAPTURE)):
        return None
    return took * job.world_size / 3600.0


def _shown(job: Job, incident: Incident, now: float, activity: HostActivity | None) -> dict[str, Any]:
    shown = plain(incident_view.shown(job, incident, now, activity))
    culprits = shown["culprits"]
    return {
        **shown,
        "culprits": culprits[:SHOWN],
        "culprits_count": len(culprits),
        "affected": ranks(incident.affected),
        "affected_count": len(incident.affected),
    }


# Stragglers -----------------------------------------------------------------------------------------------------------


def _stragglers(job: Job, announced: Announced, now: float, activity: HostActivity | None) -> Iterator[Notice]:
    present = job.performance.stragglers
    found = [s for s in present if s.id not in announced.stragglers]
    ended = [s for s in present if not s.open and not announced.stragglers.get(s.id, False)]
    if not found and not ended and len(announced.stragglers) == len(present):
        return
    announced.stragglers = {s.id: not s.open for s in present}
    for event, some in ((Event.STRAGGLER_FOUND, found), (Event.STRAGGLER_ENDED, ended)):
        if some:
            ids = ",".join(s.id for s in some)
            text = " ".join(_sentence(event, s) for s in some[:SHOWN])
            text += f" And {count(len(some) - SHOWN, 'more rank')}." if len(some) > SHOWN else ""
            shown = [s.to_json() for s in some[:SHOWN]]
            yield _notice(event, job, ids, now, activity, text, stragglers=shown, stragglers_count=len(some))


def _sentence(event: Event, straggler: Straggler) -> str:
    if event is Event.STRAGGLER_FOUND:
        return f"{straggler.reason.rstrip('.')}."  # the reason begins with rank and host
    where = f"Rank {straggler.rank}" + (f" on {straggler.host}" if straggler.host else "")
    lasted = (straggler.ended or straggler.seen) - straggler.since
    return (
        f"{where} is as fast as its peers again after {duration(max(0.0, lasted))}; "
        f"it cost {gpu_time(3600.0 * straggler.cost_gpu_hours)}."
    )


# The job --------------------------------------------------------------------------------------------------------------


def _state(job: Job, announced: Announced, now: float, activity: HostActivity | None) -> Sequence[Notice]:
    state, reason = verdict.job_state(job, now)
    before, announced.state = announced.state, state
    if state is before:
        return ()
    because = f": {reason.rstrip('.')}." if reason else "."
    if state in TERMINAL_STATES:
        # A job may be lost several times per attempt, but ends only once.
        about = f"{job.launches}/{job.attempt}" + (f"/{job.last_heard:.0f}" if state is JobState.LOST else "")
        last = job.incidents[-1] if job.incidents and state is JobState.FAILED else None
        of_it = last is not None and last.attempt == job.attempt and (last.open or last.ended is Ended.JOB_ENDED)
        more = {"incident": _shown(job, last, now, activity)} if last is not None and of_it else {}
        return (_notice(_ENDS[state], job, about, now, activity, f"The job is {state}{because}", **more),)
    if before is JobState.LOST:
        text = f"The job reports again; it is {state}{because}"
        return (_notice(Event.JOB_BACK, job, f"{job.last_heard:.0f}", now, activity, text),)
    return ()


def _notice(
    event: Event, job: Job, about: str, now: float, activity: HostActivity | None, text: str, **more: Any
) -> Notice:
    subject = "\0".join((event, job.id, f"{job.created_at:.0f}", about))
    key = f"rankwatch_{hashlib.sha256(subject.encode(errors='replace')).hexdigest()[:32]}"
    shown = {
        **stated(job, now, activity),
        "id": job.id,
        "world_size": job.world_size,
        "attempt": job.attempt,
        "restarts": job.restarts,
    }
    return Notice(key, job.id, now, {"event": str(event), "id": key, "at": now, "text": text, "job": shown, **more})
