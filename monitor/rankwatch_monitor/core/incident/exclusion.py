"""Selects the nodes that a restart excludes: those that an order names, or those of the culprits.

An order may exclude any node as long as one remains. The policy may be wrong, so it excludes nodes only

*  if there are culprits and a launcher of Rankwatch runs them,
*  at most :data:`SHARE` of the job's nodes within an hour, and at least one,
*  while another node remains.

Otherwise the ranks are restarted where they are, and ``action_reason`` states why.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from rankwatch.contract.enums import NodeRole
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job

SHARE: Final = 0.05
"""Fraction of a job's nodes that the policy may exclude within :data:`WINDOW`; always at least one node."""
WINDOW: Final = 3600.0


def chosen(job: Job, ranks: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    """The launchers that an order excludes: those of these ranks, and those with these names or hosts.

    Raises:
        ValueError: no rank or node is named, one is unknown, or no node would remain; with a remedy.
    """
    if not ranks and not names:
        raise ValueError("restart_excluding_node needs 'ranks' or 'nodes': which node is to be left out?")
    acting = nodes.acting(job)
    found: list[str] = []
    for rank in ranks:
        of_rank = [name for name, node in acting.items() if rank in node.ranks]
        if not of_rank:
            known = sorted(rank for node in acting.values() for rank in node.ranks)
            there = f"there are {nodes.format_ranks(known)}" if known else "none has been started yet"
            raise ValueError(f"no launcher of job {job.id!r} runs rank {rank}; {there}")
        found += of_rank
    for name in names:
        found += _named(job, name, acting)
    unique = tuple(dict.fromkeys(found))
    if not _remain(job, unique):
        raise ValueError(
            f"without {nodes.titles(job, unique)} job {job.id!r} has no node left to run on, and no spare waits: "
            "order 'restart' or 'stop' instead, or start another launcher first (--spares)"
        )
    return unique


def consequences(job: Job, names: Sequence[str]) -> str:
    """What happens to the ranks of excluded nodes, for ``action_reason``."""
    one = len(names) == 1
    text = f"{'node' if one else 'nodes'} {nodes.titles(job, names)} {'is' if one else 'are'} excluded"
    spares = [name for name in nodes.of_role(job, NodeRole.SPARE) if name not in names][: len(names)]
    if len(spares) == len(names):
        takes = "the spare {} takes its place" if one else "the spares {} take their places"
        return f"{text}; {takes.format(nodes.titles(job, spares))}"
    few = f"only the spare {nodes.titles(job, spares)} waits" if spares else "no spare waits"
    return f"{text}; {few}, so the launchers continue with fewer nodes where that is allowed, or wait for another one"


class Remaining(NamedTuple):
    """What a job has left without some of its nodes."""

    nodes: int
    """Active nodes that are neither excluded nor lost, of how many active ones."""
    of: int
    spares: int
    """Launchers that wait to take a place."""


def remaining(job: Job, host: str) -> Remaining:
    """What the job has left without the nodes of a host."""
    running = [node for node in job.nodes.values() if node.ended is None and node.registration.host != host]
    live = [node.role for node in running if node.lost is None]
    active = sum(node.role is NodeRole.ACTIVE for node in job.nodes.values() if node.ended is None)
    return Remaining(live.count(NodeRole.ACTIVE), active, live.count(NodeRole.SPARE))


def _named(job: Job, name: str, acting: Collection[str]) -> list[str]:
    meant = [n for n, node in job.nodes.items() if name in (n, node.registration.host)]
    found = [n for n in meant if n in acting]
    if found:
        return found
    if not meant:
        there = ", ".join(nodes.title(job, n) for n in list(acting)[: nodes.SHOWN])
        raise ValueError(f"job {job.id!r} has no node {name[:200]!r}; its nodes are {there}")
    node = job.nodes[meant[-1]]
    if node.lost is not None or node.ended is not None:
        raise ValueError(f"node {name!r} has left job {job.id!r} already")
    if node.role is NodeRole.ACTIVE:
        raise ValueError(f"node {name!r} runs no ranks of job {job.id!r}, so there is nothing to restart without it")
    what = "a spare" if node.role is NodeRole.SPARE else "parked"
    raise ValueError(f"node {name!r} is {what} and runs no ranks: there is nothing to restart without it")


def _remain(job: Job, names: Collection[str]) -> bool:
    """Whether a node remains without these."""
    there = {*nodes.acting(job), *nodes.of_role(job, NodeRole.SPARE)}
    return bool(there - set(names))


def by_policy(job: Job, incident: Incident, culprits: Sequence[Culprit], now: float) -> tuple[tuple[str, ...], str]:
    """The launchers that the policy's restart excludes at ``now``, and the reason."""
    acting = nodes.acting(job)
    blamed = {culprit.rank for culprit in culprits}
    names = tuple(name for name, node in acting.items() if node.ranks & blamed)
    if not blamed:
        return (), "no rank is named, so no node is excluded"
    if not names:
        return (), "no launcher runs the ranks that are to blame, so no node is excluded"
    if not _remain(job, names):
        return (), f"no node is excluded, since none would remain without {nodes.titles(job, names)}"
    cap = max(1, int(SHARE * len(acting)))
    used = sum(len(i.exclude) for i in job.incidents if i is not incident and not i.ordered and _lately(i, now))
    if used + len(names) > cap:
        before = f", and {used} {'was' if used == 1 else 'were'} excluded in the last hour" if used else ""
        asked = "this would be one more" if used and len(names) == 1 else f"this would be {len(names)} nodes"
        return (), f"no node is excluded: the cap is {cap} an hour{before}; {asked}"
    return names, consequences(job, names)


def _lately(incident: Incident, now: float) -> bool:
    return now - (incident.timeline.decided or incident.opened_at) < WINDOW
