"""Gives a job that began in memory the past that was stored of it: its database came later than its ranks. Pure.

The ranks have spoken since, so what they told stays: columns, launchers, attempt, what is being judged. What was
stored is older and comes before it. Time between the two is accounted for as while no monitor watched.
"""

from __future__ import annotations

import numpy as np

from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.incident.incident import Incident, Phase
from rankwatch_monitor.core.job import KEPT_DIRECTIVES, KEPT_INCIDENTS, Job
from rankwatch_monitor.core.straggler.detector import KEPT as KEPT_STRAGGLERS
from rankwatch_monitor.core.straggler.state import Performance
from rankwatch_monitor.core.straggler.tables import Table


def join(job: Job, past: Job, usual: Policy) -> list[Incident]:
    """Put ``past`` before what is known of ``job``; return incidents of the past that are closed by that.

    Args:
        job: began in memory.
        past: the same job as it was stored; not used any more afterwards.
        usual: the policy with which a new job begins; what ``job`` has otherwise was said since.
    """
    began, closed = job.created_at, [incident for incident in past.incidents if incident.open]
    job.created_at = past.created_at
    if job.attempt == past.attempt:
        job.attempt_since = past.attempt_since
    now_said, at_first = job.policy.to_json(), usual.to_json()
    job.policy = past.policy.changed({name: value for name, value in now_said.items() if value != at_first[name]})
    for incident in closed:
        incident.phase, incident.closed_at = Phase.CLOSED, began
        incident.outcome = incident.outcome or "the monitor was started anew, without its database"
    job.incidents = [*past.incidents, *job.incidents][-KEPT_INCIDENTS:]
    job.directives = [*past.directives, *job.directives][-KEPT_DIRECTIVES:]
    job.last_incident += past.last_incident
    job.last_directive = max(job.last_directive, past.last_directive)
    for kind, count in past.incident_counts.items():
        job.incident_counts[kind] = job.incident_counts.get(kind, 0) + count
    job.restarts += past.restarts
    job.launches += past.launches
    job.restarting_attempt = max(job.restarting_attempt, past.restarting_attempt)
    _durations(job, past)
    job.ledger = past.ledger
    _performance(job.performance, past.performance)
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


def _performance(performance: Performance, past: Performance) -> None:
    since = performance.history.window()
    performance.history = past.history
    for sample in since:
        performance.history.add(sample)
    for verdict, windows in past.verdicts.items():
        performance.verdicts[verdict] = performance.verdicts.get(verdict, 0) + windows
    for cause, found in past.found.items():
        performance.found[cause] = performance.found.get(cause, 0) + found
    performance.last_straggler += past.last_straggler
    told, earlier = performance.told, past.told
    told.cost_gpu_hours += earlier.cost_gpu_hours
    for straggler in earlier.stragglers:
        straggler.ended = straggler.seen if straggler.ended is None else straggler.ended
    told.stragglers = [*earlier.stragglers, *told.stragglers][-KEPT_STRAGGLERS:]
    _own_best(performance, past)


def _own_best(performance: Performance, past: Performance) -> None:
    """Each device's best is the better of both."""
    rows = {row: past.devices.setdefault(key, len(past.devices)) for key, row in performance.devices.items()}
    for name in ("best", "best_sections"):
        mine, theirs = getattr(performance, name), getattr(past, name)
        theirs.grow(len(past.devices))
        _better(theirs, mine, rows)
        setattr(performance, name, theirs)
    performance.devices = past.devices
    performance.device_R = np.array([rows.get(int(row), -1) for row in performance.device_R], dtype=np.int64)


def _better(best: Table, other: Table, rows: dict[int, int]) -> None:
    """Take the smaller medians of another table in; ``rows`` says which row of it is which here."""
    for column, name in enumerate(other.names):
        if (own := best.index(name)) is not None:
            for row, to in rows.items():
                if row < len(other["median"]):
                    best["median"][to, own] = np.fmin(best["median"][to, own], other["median"][row, column])
