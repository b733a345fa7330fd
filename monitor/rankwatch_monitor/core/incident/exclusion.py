"""Selects the nodes that a restart excludes: those that an order names, or those of the culprits.

An order may exclude any node as long as one remains. The policy may be wrong, so it excludes nodes only

*  if there are culprits and a launcher of Rankwatch runs them,
*  at most :data:`SHARE` of the job's nodes within an hour, and at least one,
*  while as many nodes remain as the launchers need (``--nnodes``); at least one, where that is not known.

Otherwise the ranks are restarted where they are, and ``action_reason`` states why.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from rankwatch.cli.formatting import capital, count
from rankwatch.contract.enums import NodeRole
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job

SHARE: Final = 0.05
"""Fraction of a job's nodes that the policy may exclude within :data:`WINDOW`; always at least one node."""
WINDOW: Final = 3600.0
REMEDY: Final = "first start a launcher on another node, or start the job again with fewer"
"""Where too few nodes would remain."""


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
    left = without(job, names)
    if left.too_few:
        follows = f"the launchers wait for another one: {left.needs}"
    elif left.min_nodes:
        follows = f"the launchers continue with {count(left.usable, 'node')}: {left.needs}"
    else:
        follows = "the launchers continue with fewer nodes where that is allowed, or wait for another one"
    return f"{text}; {few}, so {follows}"


class Remaining(NamedTuple):
    """What a job has left without some of its nodes. The page words a choice of nodes in the same way."""

    nodes: int
    """Active nodes that are neither excluded nor lost, of how many active ones."""
    of: int
    spares: int
    """Launchers that wait to take a place."""
    min_nodes: int = 0
    """Nodes without which no attempt starts; 0: unknown."""

    @property
    def usable(self) -> int:
        """Nodes that the next attempt can have."""
        return self.nodes + self.spares

    @property
    def too_few(self) -> bool:
        """Whether the next attempt is known not to start until another launcher comes."""
        return self.usable < self.min_nodes

    @property
    def clause(self) -> str:
        """``3 of 4 nodes remain, and no spare``."""
        spares = count(self.spares, "spare") if self.spares else "no spare"
        return f"{self.nodes} of {count(self.of, 'node')} remain, and {spares}"

    @property
    def needs(self) -> str:
        """``the job needs at least 2 (--nnodes)``, ``the job may run on 2 or more``."""
        if self.too_few:
            return f"the job needs at least {self.min_nodes} (--nnodes)"
        return f"the job may run on {self.min_nodes} or more"

    @property
    def sentence(self) -> str:
        """What follows for the next attempt, as far as it is known."""
        if self.too_few:
            return f"{self.clause}; {self.needs}: {REMEDY}."
        if not self.nodes or self.usable >= self.of:
            return f"{self.clause}."
        if self.min_nodes:
            return f"{self.clause}; {self.needs}."
        return f"{self.clause}: the job goes on if it may run on {self.usable}, else waits."

    def obstacle(self, which: str) -> str:
        """What to do before a restart without ``which``, and why, as a sentence; empty: nothing."""
        return f"{capital(REMEDY)}{self.too_few_without(which)}." if self.too_few else ""

    def too_few_without(self, which: str) -> str:
        """Why a restart without ``which`` needs another node first, from its punctuation on."""
        return f": without {which}, {self.clause}; {self.needs}"


def without(job: Job, names: Collection[str]) -> Remaining:
    """What the job has left without some launchers."""
    running = {name: node for name, node in job.nodes.items() if node.ended is None}
    live = [node.role for name, node in running.items() if node.lost is None and name not in names]
    active = sum(node.role is NodeRole.ACTIVE for node in running.values())
    needed = max((node.registration.min_nodes for node in running.values()), default=0)
    return Remaining(live.count(NodeRole.ACTIVE), active, live.count(NodeRole.SPARE), needed)


def remaining(job: Job, *hosts: str) -> Remaining:
    """What the job has left without the nodes of some hosts."""
    return without(job, {name for name, node in job.nodes.items() if node.registration.host in hosts})


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


def permitted(job: Job, rank: int) -> Remaining | None:
    """What a restart without a rank's node leaves; None: the policy does not permit it, or launchers cannot."""
    if job.policy.observe_only or job.restarts >= job.restart_budget:
        return None
    try:
        return without(job, chosen(job, [rank], ()))
    except ValueError:
        return None


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
    if (left := without(job, names)).too_few:
        return (), f"no node is excluded: without {nodes.titles(job, names)}, {left.clause}; {left.needs}"
    cap = max(1, int(SHARE * len(acting)))
    used = sum(len(i.exclude) for i in job.incidents if i is not incident and not i.ordered and _lately(i, now))
    if used + len(names) > cap:
        before = f", and {used} {'was' if used == 1 else 'were'} excluded in the last hour" if used else ""
        asked = "this would be one more" if used and len(names) == 1 else f"this would be {len(names)} nodes"
        return (), f"no node is excluded: the cap is {cap} an hour{before}; {asked}"
    return names, consequences(job, names)


def _lately(incident: Incident, now: float) -> bool:
    return now - (incident.timeline.decided or incident.opened_at) < WINDOW
