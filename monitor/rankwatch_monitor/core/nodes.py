"""The launchers of a job: who runs ranks, who waits as a spare, who was parked, who has left.

How this works
--------------
A launcher registers once and says what its role is whenever that changes. Only those that take part are asked for
stacks, given orders and waited for when the job ends:

=============================================  ========================================================================
a launcher that                                takes part
=============================================  ========================================================================
runs ranks of the attempt                      yes
is active and has started none yet             as long as nobody has
is a spare, or parked                          no, unless there is nobody else
was lost, or has left in an earlier attempt    no
=============================================  ========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rankwatch.contract import ft_state
from rankwatch.contract.enums import NodeRole
from rankwatch.contract.messages import NodeObservation, NodeRegistration
from rankwatch_monitor.core.facts import Node

if TYPE_CHECKING:
    from rankwatch_monitor.core.job import Job

KEPT_GONE: Final = 64
"""Launchers that have left or were lost and are still shown: a job of many restarts must not grow for ever."""
SHOWN: Final = 8
"""Nodes or ranks that a sentence names."""


def register(job: Job, registration: NodeRegistration, now: float) -> None:
    """Take in what a launcher says of itself when it begins, and again after every broken line."""
    known = job.nodes.get(registration.node)
    # What a person changed since a launcher registered first stays.
    told_before = any(node.registration.policy == registration.policy for node in job.nodes.values())
    before = known.registration.policy if known is not None else {}
    news = {name: value for name, value in registration.policy.items() if name not in before or before[name] != value}
    policy = job.policy if told_before else job.policy.changed(news)
    if job.ended is not None and known is None:
        job.begin_run(now)
    fresh = Node(registration, now, registration.attempt, known.ranks if known else set())
    if known is not None and known.registration.launcher_pid == registration.launcher_pid:
        fresh.role, fresh.role_reason = known.role, known.role_reason
        fresh.lost, fresh.former = known.lost, known.former
    job.nodes[registration.node] = fresh
    if registration.job_name:
        job.name = registration.job_name
    if registration.ft_state:
        job.durations.load(ft_state.read(registration.ft_state))
    job.policy = policy
    if registration.attempt > job.attempt:
        job.begin_attempt(registration.attempt, now)


def heard(job: Job, observation: NodeObservation, now: float) -> None:
    """Take in that a launcher lives, and its role."""
    if (node := job.nodes.get(observation.node)) is not None:
        node.seen = now
        role = NodeRole(observation.role), observation.role_reason
        if role != (node.role, node.role_reason):
            node.role, node.role_reason = role
            job.nodes_version += 1


def turn(job: Job) -> None:
    """A new attempt begins: no launcher has started a rank of it yet, and those that left long ago are forgotten."""
    for node in job.nodes.values():
        if node.ranks:
            node.former, node.ranks = node.ranks, set()
    left = [name for name, node in job.nodes.items() if gone(job, node)]
    for name in left[:-KEPT_GONE]:
        del job.nodes[name]


def gone(job: Job, node: Node) -> bool:
    """Whether a launcher has no part in the job any more: it was lost, or it ended in an earlier attempt."""
    return node.lost is not None or (node.ended is not None and node.ended.attempt < job.attempt)


def taking_part(job: Job) -> list[Node]:
    """Launchers that the job consists of now; see above."""
    there = [node for node in job.nodes.values() if not gone(job, node)]
    active = [node for node in there if node.role is NodeRole.ACTIVE]
    return (
        [node for node in active if node.ranks]
        or [node for node in active if not _silent(job, node)]
        or active
        or there
        or list(job.nodes.values())
    )


def _silent(job: Job, node: Node) -> bool:
    """Others were heard, and it was not, for longer than the limit. It asks what to do every few seconds."""
    silence = job.policy.silence_timeout
    return silence is not None and node.ended is None and job.last_heard - node.seen > silence


def of_role(job: Job, role: NodeRole) -> dict[str, Node]:
    """Launchers of a role that are there, by name."""
    return {
        name: node
        for name, node in job.nodes.items()
        if node.role is role and node.ended is None and node.lost is None and not _silent(job, node)
    }


def counts(job: Job) -> dict[NodeRole, int]:
    """How many launchers there are of each role; none once the job has ended."""
    return {role: 0 if job.ended is not None else len(of_role(job, role)) for role in NodeRole}


def title(job: Job, name: str) -> str:
    """What people call a node: its host, or the launcher's own name where several share the host."""
    node = job.nodes.get(name)
    if node is None:
        return name
    host = node.registration.host
    alike = sum(1 for other in job.nodes.values() if other.registration.host == host)
    return host if host and alike == 1 else name


def titles(job: Job, names: Sequence[str]) -> str:
    """``host-1``, ``host-1 and host-3``, ``host-1, host-3 and 7 more``."""
    shown = [title(job, name) for name in names[:SHOWN]]
    if len(names) > SHOWN:
        return f"{', '.join(shown)} and {len(names) - SHOWN} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def rank_words(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 2, 3``, ``ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more``."""
    known = sorted(ranks)
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"rank{'' if len(known) == 1 else 's'} {', '.join(map(str, known[:SHOWN]))}{more}"
