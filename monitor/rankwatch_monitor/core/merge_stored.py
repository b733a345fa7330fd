"""Merges the stored history of a job into one that began in memory, before its past was read. Pure.

Live state wins: columns, launchers, attempt, the window and the incident being evaluated. Stored history is older and
goes before it. Time between the two is accounted for as time without a monitor.
"""

from __future__ import annotations

from typing import Final

from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.incident.state_machine import Closed, transition
from rankwatch_monitor.core.incident_record import Ended, Incident
from rankwatch_monitor.core.job import KEPT_DIRECTIVES, KEPT_INCIDENTS, Job

UNSEEN: Final = "the monitor watched the job again before it had read its history"


def join(job: Job, past: Job, usual: Policy) -> list[Incident]:
    """Put ``past`` before the state of ``job``; return incidents of the past that this closes.

    Args:
        job: began in memory.
        past: the same job as it was stored; not to be used afterwards.
        usual: the default policy of a new job; settings of ``job`` that differ from it are newer than ``past``.
    """
    began, closed = job.created_at, [incident for incident in past.incidents if incident.open]
    job.created_at = past.created_at
    if job.attempt == past.attempt:
        job.attempt_since = past.attempt_since
    current, defaults = job.policy.to_json(), usual.to_json()
    job.policy = past.policy.changed({name: value for name, value in current.items() if value != defaults[name]})
    for incident in closed:
        transition(
            incident,
            Closed(
                began,
                incident.ended or Ended.UNSEEN,
                incident.outcome or UNSEEN,
            ),
            began,
        )
    job.incidents = [*past.incidents, *job.incidents][-KEPT_INCIDENTS:]
    job.directives = [*past.directives, *job.directives][-KEPT_DIRECTIVES:]
    job.last_incident += past.last_incident
    job.last_directive = max(job.last_directive, past.last_directive)
    for kind, count in past.incident_counts.items():
        job.incident_counts[kind] = job.incident_counts.get(kind, 0) + count
    job.restarts += past.restarts
    job.given_back += past.given_back
    job.launches += past.launches
    job.restarting_attempt = max(job.restarting_attempt, past.restarting_attempt)
    _durations(job, past)
    job.ledger = past.ledger
    job.performance.merge_stored(past.performance)
    job.trends.merge_stored(past.trends)
    return closed


def _durations(job: Job, past: Job) -> None:
    durations, earlier = job.durations, past.durations
    for name, observed in earlier.sections.items():
        durations.add_longest(name, observed.longest, first=observed.first)
        durations.add_runs(name, observed.count)
    durations.add_idle(earlier.idle_longest)
    durations.resumed |= earlier.resumed
    if not durations.loaded:
        durations.load(earlier.loaded)
