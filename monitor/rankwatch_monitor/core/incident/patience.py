"""Patience: how long a suspicion that nothing proves is left alone: as long as a restart would cost.

Whoever waits exactly as long as a restart costs never loses more than twice as much as with hindsight (the ski-rental
problem: Karlin et al., "Competitive snoopy caching", 1988).

=====================  =================================================================================================
it lasts               seconds
=====================  =================================================================================================
at least               ``confirmation_window``, and twice that where the kernel shows that the wait may end by itself
by the cost            training since the last save that is known of this attempt, else since its first step, and the
                       time that this attempt took to its first step
after the same place   four times as long: a restart did not help before
until a known end      where the kernel tells when the wait ends, not before that; one that sleeps anew polls
at most                ``longest_patience``, from when the suspicion began
=====================  =================================================================================================
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import Proof
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.hang import proof
from rankwatch_monitor.core.incident_record import Incident, Standstill
from rankwatch_monitor.core.job import Job

MAY_END_FACTOR: Final = 2.0
SAME_PLACE_FACTOR: Final = 4.0
AFTER_ITS_END: Final = 15.0
"""Seconds that ranks have after the known end of a wait to make progress, and for that to be reported."""


class Patience(NamedTuple):
    """How long a suspicion is left alone, and why."""

    seconds: float
    cost: float | None = None
    """Of a restart, in seconds; None: not known, no step has completed."""
    attempts: int = 0
    """Earlier attempts that stood at the same place."""


def patience(job: Job, incident: Incident, begun: float) -> Patience:
    """How long to wait from ``begun`` on, in unix seconds, before a suspicion is acted on."""
    policy, cost = job.policy, restart_cost(job, incident)
    attempts = attempts_here(job, incident)
    seconds = policy.confirmation_window * (MAY_END_FACTOR if incident.proof == Proof.MAY_END else 1.0)
    seconds = max(seconds, cost or 0.0) * (SAME_PLACE_FACTOR if attempts else 1.0)
    ends = [each.until for each in incident.waits if each.until is not None and not each.again]
    if ends and incident.proof == Proof.MAY_END:
        seconds = max(seconds, max(ends) + AFTER_ITS_END - begun)
    return Patience(min(seconds, longest(policy)), cost, attempts)


def longest(policy: Policy) -> float:
    """The bound on all patience, in seconds."""
    return max(policy.longest_patience, policy.confirmation_window)


def restart_cost(job: Job, incident: Incident) -> float | None:
    """Seconds that a restart loses: training since the last save, and the time to the first new step; None: unknown."""
    first = job.columns.first_step_R
    if not len(first) or np.isnan(first).all():
        return None
    begun, saved = float(np.nanmin(first)), job.ledger.checkpoint
    kept = max(begun, saved.at) if saved is not None else begun
    since = incident.opened_at if incident.timeline.since is None else incident.timeline.since
    return max(0.0, since - kept) + max(0.0, begun - job.attempt_since)


def standstill_of(incident: Incident) -> Standstill:
    """Where the ranks of an incident stand, in terms that are the same in the next attempt."""
    ranks = tuple(sorted(culprit.rank for culprit in incident.culprits))
    wait = next((each.wait for each in incident.waits if each.rank in ranks), None)
    frame = proof.own_frame(ranks[0], incident.stacks.groups()) if ranks else None
    kind = "" if wait is None else str(wait.kind)
    where = "" if frame is None else f"{frame.function} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})"
    return Standstill(incident.attempt, ranks, incident.furthest_iteration, incident.section, where, kind)


def attempts_here(job: Job, incident: Incident) -> int:
    """Earlier attempts of this run that stood at the same place and were restarted."""
    if not job.standstills:
        return 0
    here = standstill_of(incident)
    place = (here.ranks, here.section, here.where, here.wait)  # whatever step that was in
    before = (each for each in job.standstills if each.attempt < incident.attempt)
    return len({each.attempt for each in before if (each.ranks, each.section, each.where, each.wait) == place})
