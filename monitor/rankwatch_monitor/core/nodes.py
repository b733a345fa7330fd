"""The launchers of a job: which run ranks, which are spares or parked, which have departed.

A launcher registers once and reports its role whenever that changes. Only launchers that take part are asked for
stacks, sent directives and waited for when the job ends:

=============================================  ========================================================================
a launcher that                                takes part
=============================================  ========================================================================
runs ranks of the attempt                      yes
is active and has started no rank yet          while no launcher has
is a spare, or parked                          no, unless it is the only kind left
was lost, or has ended in an earlier attempt   no
=============================================  ========================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from rankwatch.cli.formatting import listed
from rankwatch.contract import ft_state
from rankwatch.contract.enums import NodeRole
from rankwatch.contract.messages import NodeObservation, NodeRegistration
from rankwatch.contract.node_checks import CheckName, failed
from rankwatch_monitor.core import liveness
from rankwatch_monitor.core.job import Job, Node

SHOWN: Final = 8
"""Nodes or ranks that a sentence lists."""


def register(job: Job, registration: NodeRegistration, now: float) -> None:
    """Apply a launcher's registration, which it sends when it starts and again after every broken connection."""
    known = job.nodes.get(registration.node)
    # A policy change of a person since the first registration stays in force.
    same_policy = any(node.registration.policy == registration.policy for node in job.nodes.values())
    before = known.registration.policy if known is not None else {}
    changes = {
        name: value for name, value in registration.policy.items() if name not in before or before[name] != value
    }
    policy = job.policy if same_policy else job.policy.changed(changes)
    if job.ended is not None and known is None:
        job.begin_run(now)
    kept = replace(registration, ft_state={}, **_shared(job, registration))
    fresh = Node(kept, now, registration.attempt, known.ranks if known else set())
    if known is not None and known.registration.launcher_pid == registration.launcher_pid:
        fresh.role, fresh.role_reason = known.role, known.role_reason
        fresh.lost, fresh.former = known.lost, known.former
    job.nodes[registration.node] = fresh
    if registration.job_name:
        job.name = registration.job_name
    if registration.ft_state:
        job.durations.load(ft_state.read(registration.ft_state))
    job.policy = policy


def _shared(job: Job, registration: NodeRegistration) -> dict[str, Any]:
    """Facts and checks of a registration, or the equal ones of the launcher that came last: they differ little."""
    last = next(reversed(job.nodes.values()), None)
    before = last.registration if last is not None else registration
    return {
        "facts": before.facts if before.facts == registration.facts else registration.facts,
        "checks": before.checks if before.checks == registration.checks else registration.checks,
    }


def forget_idle(job: Job) -> bool:
    """Forget the launcher without ranks that has been silent for longest; False: there is none."""
    idle = [n for n in job.nodes.values() if not n.ranks and not n.former and liveness.node_silent(job, n)]
    if idle:
        del job.nodes[min(idle, key=lambda node: node.seen).registration.node]
    return bool(idle)


def observe(job: Job, observation: NodeObservation, now: float) -> None:
    """Note that a launcher is alive, and its role."""
    if (node := job.nodes.get(observation.node)) is not None:
        node.seen = now
        role = NodeRole(observation.role), observation.role_reason
        if role != (node.role, node.role_reason):
            node.role, node.role_reason = role
            job.nodes_version += 1


def taking_part(job: Job) -> list[Node]:
    """Launchers that the job consists of now; see the table above."""
    present = [node for node in job.nodes.values() if not node.departed(job.attempt)]
    active = [node for node in present if node.role is NodeRole.ACTIVE]
    return (
        [node for node in active if node.ranks]
        or [node for node in active if not liveness.node_silent(job, node)]
        or active
        or present
        or list(job.nodes.values())
    )


def acting(job: Job) -> dict[str, Node]:
    """Launchers that take part and have not ended, by name: those that can carry out a directive."""
    return {node.registration.node: node for node in taking_part(job) if node.ended is None}


def any_acting(job: Job) -> bool:
    """Whether there is one that can carry out a directive. Of thousands of launchers the first one answers it."""
    active = (node for node in job.nodes.values() if node.role is NodeRole.ACTIVE and node.ranks)
    return any(node.ended is None and not node.departed(job.attempt) for node in active) or bool(acting(job))


def end_is_awaited(job: Job, now: float) -> bool:
    """Whether launchers that are still heard will report how the job ends: ranks that crash shut down, too."""
    silence = job.policy.silence_timeout or liveness.REGISTRATION_SECONDS
    return any_acting(job) and now - max(job.last_heard, job.silence_since) <= silence


def of_role(job: Job, role: NodeRole) -> dict[str, Node]:
    """Live launchers of a role, by name."""
    return {
        name: node
        for name, node in job.nodes.items()
        if node.role is role and node.ended is None and node.lost is None and not liveness.node_silent(job, node)
    }


def counts(job: Job) -> dict[NodeRole, int]:
    """Live launchers by role; 0 once the job has ended."""
    return {role: 0 if job.ended is not None else len(of_role(job, role)) for role in NodeRole}


def failing(job: Job) -> dict[CheckName, int]:
    """Live launchers whose node fails a check, by its name, zeros too; none of a job whose nodes are not checked."""
    live = [node for role in NodeRole for node in of_role(job, role).values()] if job.ended is None else []
    if not any(node.registration.checks for node in live):
        return {}
    names = Counter(each.name for node in live for each in failed(node.registration.checks))
    return {name: names[name] for name in CheckName}


def title(job: Job, name: str) -> str:
    """How a node is shown: its host, or the launcher's name where several share the host."""
    node = job.nodes.get(name)
    if node is None:
        return name
    host = node.registration.host
    alike = sum(1 for other in job.nodes.values() if other.registration.host == host)
    return host if host and alike == 1 else name


def titles(job: Job, names: Sequence[str]) -> str:
    """``host-1``, ``host-1 and host-3``, ``host-1, host-3 and 7 more``."""
    return listed([*(title(job, name) for name in names[:SHOWN]), *names[SHOWN:]], SHOWN)


def format_ranks(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 2, 3``, ``ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more``."""
    known = sorted(ranks)
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"rank{'' if len(known) == 1 else 's'} {', '.join(map(str, known[:SHOWN]))}{more}"


def places(job: Job) -> dict[str, tuple[str, ...]]:
    """Where the hosts are that run ranks of the job, or did: their labels, the widest first."""
    took_part = (node for node in job.nodes.values() if node.ranks or node.former or node.lost is not None)
    return {node.registration.host: node.registration.topology for node in took_part}
