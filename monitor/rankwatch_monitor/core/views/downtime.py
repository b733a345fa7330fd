"""What an incident costs in time: one definition for API, page, command line, report, messages and digest. Pure.

An incident costs the time that the job stood still, and the time of the steps that its restart threw away. The job
stood still from the beginning of the trouble, not from its detection,

*  until the first new step, where the ranks were restarted,
*  else until it was closed,
*  else until the job ended, or was last heard of where it is lost,
*  else until now: its cost *so far*.

The first new step is part of it, so that of the lost steps those after it count.
"""

from __future__ import annotations

from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.regression.outages import Outage, joined
from rankwatch_monitor.core.views.job_verdict import steps_per_second
from rankwatch_monitor.core.views.responses import Cost


def began(incident: Incident) -> float:
    """Unix seconds at which the trouble began."""
    since = incident.timeline.since
    return incident.opened_at if since is None else since


def over(incident: Incident) -> float | None:
    """Unix seconds at which it ceased to cost time; None: not yet."""
    first_step = incident.timeline.first_step
    return incident.closed_at if first_step is None else first_step


def known_until(job: Job, incident: Incident, now: float) -> float | None:
    """Unix seconds up to which its cost is known, which does not grow any more; None: it grows."""
    if (end := over(incident)) is not None:
        return end
    if job.ended is not None:
        return job.ended.at
    return job.last_heard if liveness.lost(job, now) else None


def held_up(incident: Incident) -> float | None:
    """Seconds in which the job stood still; None: it is not over."""
    end = over(incident)
    return None if end is None else max(0.0, end - began(incident))


def of_lost_steps(job: Job, incident: Incident) -> float | None:
    """Seconds of the steps that its restart threw away; None: there was no restart with a new step."""
    first_step = incident.timeline.first_step
    return None if first_step is None else job.ledger.lost_by(first_step)


def cost(job: Job, incident: Incident, now: float) -> Cost:
    """What it costs as of ``now`` (unix seconds)."""
    if known_until(job, incident, now) is None:
        return Cost(of_lost_steps(job, incident) or 0.0, began(incident))
    return Cost(seconds(job, incident, now), None)


def total(job: Job, incident: Incident) -> float | None:
    """What it has cost the job for good; None: it is not over."""
    took = held_up(incident)
    return None if took is None else took + (of_lost_steps(job, incident) or 0.0)


def seconds(job: Job, incident: Incident, now: float) -> float:
    """What it has cost the job as of ``now`` (unix seconds)."""
    return _stood_still(job, incident, now) + (of_lost_steps(job, incident) or 0.0)


def _stood_still(job: Job, incident: Incident, now: float) -> float:
    until = known_until(job, incident, now)
    return max(0.0, (now if until is None else until) - began(incident))


def of_job(job: Job, since: float, now: float) -> float:
    """What confirmed faults have cost the job since then; time in which several held it up counts once."""
    faults = [each for each in job.incidents if each.confirmed and not each.elective]
    spans = [(max(since, began(each)), began(each) + _stood_still(job, each, now)) for each in faults]
    total, until = sum(of_lost_steps(job, each) or 0.0 for each in faults if (over(each) or now) >= since), since
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def outages(job: Job, now: float) -> list[Outage]:
    """Stretches in which no step completed, the oldest first.

    Before an elective restart steps completed, and in a suspicion they may: it is an outage while none does.
    """
    return joined([found for incident in job.incidents if (found := _outage(job, incident, now)) is not None])


def _outage(job: Job, incident: Incident, now: float) -> Outage | None:
    since, first_step = began(incident), incident.timeline.first_step
    if incident.elective:
        since = incident.timeline.restarted or now
    if first_step is not None:
        until, shown = first_step, incident.confirmed
    elif incident.closed_at is None:
        until = known_until(job, incident, now) or now
        shown = not incident.elective and steps_per_second(job, now) == 0.0
    else:
        until = incident.closed_at if job.ended is None else job.ended.at
        shown = (
            incident.confirmed
            and not incident.elective
            and job.ended is not None
            and job.ended.at <= incident.closed_at
        )
    return Outage(since, until, over=first_step is not None) if shown and until > since else None
