"""Which attempt of a job counts when messages disagree about it.

One message must not hide a job: from the moment at which a higher attempt counts, all reports of the real ranks are
stale.

=============================  ======================================================================================
a higher attempt is claimed by  and counts
=============================  ======================================================================================
a rank, launchers run ranks    never: attempts come from the launchers
a rank, without launchers      at once, up to :data:`LARGEST_JUMP` ahead; else once most ranks of its world claim it
a launcher that ran ranks      at once
any other launcher             at once if no other runs ranks; else up to :data:`LARGEST_JUMP` ahead
=============================  ======================================================================================

A launcher that has started nothing and starts a rank that others run, or one of an earlier attempt, begins another
launch, whose attempts count from 1.

An attempt or launch that counts without being real is corrected: the processes of the attempt before go on reporting,
which those of an attempt that was replaced cannot. Once most of them have (:data:`.stale.SUSTAINED` times each, and
their launchers run nothing newer), that attempt is restored as it was, and claims of newcomers are distrusted for
:data:`DISTRUST` seconds. It is kept for that as long as :data:`KEPT_FOR`, or until all its launchers have gone on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rankwatch.contract.enums import NodeRole
from rankwatch_monitor.core import liveness, nodes
from rankwatch_monitor.core.events import RankIdentity
from rankwatch_monitor.core.job import Job, Node
from rankwatch_monitor.core.ranks import EXITED
from rankwatch_monitor.core.stale import SUSTAINED, Previous

LARGEST_JUMP: Final = 16
"""Attempts that the monitor may have missed while it was away or its senders were cut off."""
DISTRUST: Final = 600.0
KEPT_FOR: Final = 300.0
"""Seconds of an attempt after which the one before cannot be restored."""
CHECK_INTERVAL: Final = 1.0
"""Seconds between two comparisons of all claims."""
TROUBLE: Final = "Reports are ignored: they name another attempt or process than the one that runs."
"""Without numbers: it is a label of a metric."""


def rank_may_begin(job: Job, identity: RankIdentity, now: float) -> bool:
    """Whether a rank's report of a higher attempt begins that attempt; else it is a stale report."""
    if any(_running(job)):
        return False
    near = identity.attempt <= job.attempt + LARGEST_JUMP or not job.ever_instrumented
    return near and now >= job.distrust_until


def launcher_may_begin(job: Job, name: str, attempt: int, now: float) -> bool:
    """Whether a launcher's message of a higher attempt begins that attempt; else it is ignored."""
    node = job.nodes.get(name)
    if node is not None and (node.ranks or node.former):
        return True
    if all(other is node for other in _running(job)):
        return True
    return attempt <= job.attempt + LARGEST_JUMP and now >= job.distrust_until


def dispute(job: Job, identity: RankIdentity, now: float) -> bool:
    """Count a stale report; whether its attempt now counts after all."""
    previous, stale = job.previous, job.stale
    if previous is not None and _survives(previous, identity):
        stale.survive(identity.rank, now)
        if 2 * stale.surviving <= previous.reporters or now - stale.checked < CHECK_INTERVAL:
            return False
        stale.checked = now
        if 2 * _survivors(job, previous) <= previous.reporters:
            return False
        job.restore_previous(now)
        job.distrust_until = now + DISTRUST
        return True
    stale.add(identity, now, len(job.columns))
    if identity.rank not in stale.claims or stale.claims[identity.rank].reports < SUSTAINED:
        return False
    if 2 * job.stale.sustained[identity.attempt] <= max(identity.world_size, identity.rank + 1) or any(_running(job)):
        return False
    job.begin_attempt(identity.attempt, now, identity.world_size)
    job.stale.forget()
    return True


def settle(job: Job, rank: int, now: float) -> None:
    """A rank of the current attempt reported."""
    job.stale.withdraw(rank)
    if now - job.attempt_since > KEPT_FOR:
        job.previous = None


def release(job: Job) -> None:
    """Drop what is kept of the attempt before, once all its launchers have gone on to newer ranks.

    Then nothing can restore it, and no exit of its ranks is still to come. Thousands are looked at in each evaluation
    only once nearly all have: the first that has not ends the look.
    """
    previous = job.previous
    if previous is None or not all(_gone_on(job, previous, name) for name, ranks in previous.ranks.items() if ranks):
        return
    if sum(map(len, previous.ranks.values())) >= previous.reporters:
        job.previous = None


def replaced(job: Job, attempt: int) -> bool:
    """Whether an attempt is over, and nothing is kept to return to it."""
    return attempt < job.attempt and job.previous is None


def _gone_on(job: Job, previous: Previous, name: str) -> bool:
    """Whether a launcher of the previous attempt runs a newer one, or is parked and will run none."""
    node = job.nodes.get(name)
    return node is not None and (node.attempt > previous.attempt or node.role is NodeRole.PARKED)


def _running(job: Job) -> Iterator[Node]:
    """Launchers that run ranks now. Of thousands the first is found without a look at the others.

    After a restart thousands of ranks may report before their launchers have stated what they started.
    """
    taking_part = (
        n for n in job.nodes.values() if n.role is NodeRole.ACTIVE and n.ranks and not n.departed(job.attempt)
    )
    live = (node for node in taking_part if node.ended is None and not liveness.node_silent(job, node))
    first = next(live, None)
    if first is not None:
        yield first
        yield from live
        return
    yield from (n for n in nodes.acting(job).values() if n.ranks and not liveness.node_silent(job, n))


def _survives(previous: Previous, identity: RankIdentity) -> bool:
    """Whether a report is of a process that owned its rank in the previous attempt."""
    known = identity.attempt == previous.attempt and identity.rank < len(previous.columns)
    return known and bool(identity.instance) and previous.columns.instances[identity.rank] == identity.instance


def _survivors(job: Job, previous: Previous) -> int:
    """How many processes of the previous attempt go on reporting, under launchers that run nothing newer."""
    columns, count = previous.columns, 0
    for rank, reports in job.stale.survivors.items():
        launcher = job.nodes.get(columns.launchers[rank])
        replaced = launcher is not None and launcher.attempt > previous.attempt
        count += reports >= SUSTAINED and columns.process_R[rank] != EXITED and not replaced
    return count
