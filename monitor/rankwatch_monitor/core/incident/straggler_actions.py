"""Decides whether stragglers are acted on: each once, within caps, and never when many ranks are slow at once.

A restart that did not help is not repeated, neither on the same node nor on another one. What was only recorded is
decided again when the policy changes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import RESTARTS, Action
from rankwatch_monitor.core.effects import Effect, Slowed
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.ranks import live_ranks
from rankwatch_monitor.core.straggler.findings import Straggler

MANY: Final = 0.1
"""Fraction of the ranks that may be slow at once: of more, no single rank is the cause, and acting would not help."""
FEW: Final = 2
"""Ranks that may always be slow at once; the ranks of one host of several count as one."""
HELPED: Final = 86_400.0
"""Seconds a rank must not have been slow again for its restart to have helped."""


class Due(NamedTuple):
    """Stragglers to be acted on now."""

    stragglers: tuple[Straggler, ...]
    action: Action
    why: str


def due(job: Job, allowed: tuple[Action, str], effects: list[Effect]) -> Due | None:
    """Decide on the undecided stragglers; return those to be acted on, if any.

    Args:
        job: has no open incident.
        allowed: the action that may be taken at all and why, by ``lifecycle.allowed_action``.
        effects: gets a log line for each straggler that is not acted on.
    """
    performance, policy = job.performance, job.policy
    if policy.on_straggler is Action.LOG:
        return None
    performance.reconsider(policy)
    undecided = tuple(s for s in performance.open_stragglers if not s.action_reason)
    if not undecided:
        return None
    action, why = allowed
    if action is Action.STOP and policy.on_straggler in RESTARTS:
        action = Action.LOG  # a slow job is better than none
        why += ", and a slow rank is no reason to end a job"
    if (many := too_many(job)) is not None:
        action, why = Action.LOG, many
    for straggler in undecided:
        in_vain = _in_vain(straggler, performance.stragglers) if action in RESTARTS else None
        performance.decide(straggler, *((Action.LOG, in_vain) if in_vain else (action, why)))
        if straggler.action is Action.LOG:
            text = f"Nothing is done about rank {straggler.rank}: {straggler.action_reason}."
            effects.append(Slowed(straggler, text))
    acted_on = tuple(s for s in undecided if s.action is not Action.LOG)
    return Due(acted_on, action, why) if acted_on else None


def _in_vain(straggler: Straggler, stragglers: list[Straggler]) -> str | None:
    """Why another restart would not help; None: it may. Restarts are few, and crashes and hangs need them."""
    for before in reversed(stragglers):
        if before is straggler or before.action not in RESTARTS or before.ended is None:
            continue
        same_device = bool(straggler.device) and before.device == straggler.device
        if straggler.since - before.ended > HELPED or not (before.rank == straggler.rank or same_device):
            continue
        if before.host == straggler.host:
            return f"it was slow before the restart of attempt {before.attempt} too, so another one would not help"
        return (
            f"rank {before.rank} was slow on {before.host or 'another node'} too, before the restart of attempt "
            f"{before.attempt}, so it is not the node"
        )
    return None


def too_many(job: Job) -> str | None:
    """Why nothing is done while many ranks are slow, in a clause; None while they are few."""
    stragglers = job.performance.open_stragglers
    live_R = live_ranks(job.columns)
    ranks = int(live_R.sum())
    hosts = {s.host or f"rank {s.rank}" for s in stragglers}
    all_hosts = {job.columns.hosts[rank] for rank in np.flatnonzero(live_R)} if len(hosts) == 1 else hosts
    if len(stragglers) <= max(FEW, MANY * ranks) or (len(hosts) == 1 and len(all_hosts) > 1):
        return None
    where = f"on {len(hosts)} hosts " if len(hosts) > 1 else ""
    return f"{len(stragglers)} of {ranks} ranks {where}are slow at once, so no single one is the cause"
