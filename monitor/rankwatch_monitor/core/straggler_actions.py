"""Whether a straggler is acted on: once, within caps, and never when many ranks are slow at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rankwatch.wire.vocabulary import Action
from rankwatch_monitor.core.effects import Effect, Slowed
from rankwatch_monitor.core.incident import RESTARTS
from rankwatch_monitor.core.scores import Straggler
from rankwatch_monitor.core.signals import present

if TYPE_CHECKING:
    from rankwatch_monitor.core.state import Job

MANY: Final = 0.1
"""Part of the ranks that may be slow at once: of more, no single rank is the cause, and acting would not help."""
FEW: Final = 2
"""So many may always be, and the ranks of one host count as one."""


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
        straggler.action, straggler.action_reason = action, why
    if action is Action.LOG:
        effects.extend(Slowed(s, f"Nothing is done about rank {s.rank}: {why}.") for s in undecided)
        return None
    return Due(undecided, action, why)


def _too_many(job: Job) -> str | None:
    """Why nothing is done while many ranks are slow; None while they are few."""
    slow = job.performance.told.open_stragglers
    ranks = int(present(job).sum())
    hosts = {s.host or f"rank {s.rank}" for s in slow}
    if len(slow) <= max(FEW, MANY * ranks) or len(hosts) == 1:
        return None
    return f"{len(slow)} of {ranks} ranks on {len(hosts)} hosts are slow at once, so no single one is the cause"
