"""Whether a straggler is acted on: once, within caps, and never when many ranks are slow at once. Pure.

A restart that did not help is not repeated, neither on the same node nor on another one. What was only recorded is
decided on anew when the policy changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import Action
from rankwatch_monitor.core.effects import Effect, Slowed
from rankwatch_monitor.core.incident.incident import RESTARTS
from rankwatch_monitor.core.straggler.scores import Straggler
from rankwatch_monitor.core.straggler.signals import present

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job

MANY: Final = 0.1
"""Part of the ranks that may be slow at once: of more, no single rank is the cause, and acting would not help."""
FEW: Final = 2
"""So many may always be, and the ranks of one host of several count as one."""
HELPED: Final = 86_400.0
"""Seconds for which a rank must not have been slow again for its restart to have helped."""


class Due(NamedTuple):
    """Stragglers that are to be acted on now."""

    stragglers: tuple[Straggler, ...]
    action: Action
    why: str


def due(job: Job, allowed: tuple[Action, str], effects: list[Effect]) -> Due | None:
    """The stragglers to act on as the policy says, if any; each is decided on once.

    Args:
        job: the job, which has no open incident.
        allowed: what may be done at all and why, by :func:`.decide.allowed_action`.
        effects: gets a word about those that are not acted on, and why.
    """
    if job.policy.on_straggler is Action.LOG:
        return None
    _reconsider(job)
    undecided = tuple(s for s in job.performance.told.open_stragglers if not s.action_reason)
    if not undecided:
        return None
    action, why = allowed
    if action is Action.STOP and job.policy.on_straggler in RESTARTS:
        action = Action.LOG  # a job that is slow is better than one that is over
        why += ", and a slow rank is no reason to end a job"
    if (many := _too_many(job)) is not None:
        action, why = Action.LOG, many
    for straggler in undecided:
        in_vain = _in_vain(job, straggler) if action in RESTARTS else None
        straggler.action, straggler.action_reason = (Action.LOG, in_vain) if in_vain else (action, why)
        if straggler.action is Action.LOG:
            said = f"Nothing is done about rank {straggler.rank}: {straggler.action_reason}."
            effects.append(Slowed(straggler, said))
    acted_on = tuple(s for s in undecided if s.action is not Action.LOG)
    return Due(acted_on, action, why) if acted_on else None


def _reconsider(job: Job) -> None:
    """Decide anew on those that were only recorded, when the policy is another one: a person may have lifted a ban."""
    performance = job.performance
    if performance.decided_under is not None and performance.decided_under != job.policy:
        for straggler in performance.told.open_stragglers:
            if straggler.action is Action.LOG:
                straggler.action_reason = ""
    performance.decided_under = job.policy


def _in_vain(job: Job, straggler: Straggler) -> str | None:
    """Why another restart would not help; None: it may. Restarts are few, and crashes and hangs need them."""
    for before in reversed(job.performance.told.stragglers):
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


def _too_many(job: Job) -> str | None:
    """Why nothing is done while many ranks are slow; None while they are few."""
    slow = job.performance.told.open_stragglers
    ranks = int(present(job).sum())
    hosts = {s.host or f"rank {s.rank}" for s in slow}
    there = {job.columns.hosts[rank] for rank in np.flatnonzero(present(job))} if len(hosts) == 1 else hosts
    if len(slow) <= max(FEW, MANY * ranks) or (len(hosts) == 1 and len(there) > 1):
        return None
    where = f"on {len(hosts)} hosts " if len(hosts) > 1 else ""
    return f"{len(slow)} of {ranks} ranks {where}are slow at once, so no single one is the cause"
