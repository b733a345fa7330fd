"""Who takes part in an attempt. Pure: what launchers say of themselves goes in, a roster or a reason to wait comes out.

How launchers become a group
----------------------------
Every launcher writes a :class:`Member` about itself into the store, again and again; one of them, the coordinator,
reads them all and asks a :class:`Roll` what follows.

=============  =====================================================================================================
a launcher is  when
=============  =====================================================================================================
alive          its beat has changed within ``node_timeout`` seconds of the coordinator's own clock
busy           it is in the newest roster and does not wait for the next one yet: it runs ranks, or ends them
ready          it is alive and waits for an attempt
parked         a ruling has excluded it, or its host
active         the newest roster gives it a group rank
spare          it was ready, and there was no place left
lost           it is active and not alive
=============  =====================================================================================================

A new roster is made once nobody is busy. Who was active keeps its order; places that became free go to whoever is
ready, in the order of their wishes (``--node-rank``, the scheduler's node number), then of their arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankwatch.contract.intervals import agreed_stop_step
from rankwatch_launcher.coordination.decisions import Reached


@dataclass(frozen=True, slots=True)
class Member:
    """What one launcher says of itself."""

    node: str
    host: str
    local_world_size: int
    role: str = "default"
    """The role of its ranks, as torchrun's ``--role``."""
    wish: int | None = None
    """The group rank it would like."""
    beat: int = 0
    after: int | None = None
    """It waits for an attempt after this one; None while it runs one."""
    left: str = ""
    """Why it has left for good; empty while it is there."""
    first: int | None = None
    iteration: int | None = None
    """The first and the furthest step that a rank here has completed in this attempt."""
    pace: float = 0.0
    """Steps a second of its fastest rank in this attempt; 0: not known."""
    follows_stop_step: bool = False
    """All its ranks ask ``rankwatch.should_stop()``."""
    answer: tuple[int, bool, int | None] | None = None
    """To a proposed stop step: its number (0 only asks how far the ranks are), whether every rank here will see it in
    time, and the furthest step here."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How many launchers make a group, and how long things may take, in seconds."""

    min_nodes: int
    max_nodes: int
    node_timeout: float = 6.0
    last_call: float = 30.0
    """How long a first attempt with ``min_nodes`` launchers waits for more."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Who takes part in one attempt."""

    attempt: int
    active: tuple[str, ...]
    """Names of nodes in the order of their group rank."""
    spares: tuple[str, ...] = ()
    parked: Mapping[str, str] = field(default_factory=dict)
    """Excluded nodes, and why."""


@dataclass(frozen=True, slots=True)
class Place:
    """One launcher's part in a roster."""

    attempt: int
    role: str
    """``active``, ``spare`` or ``parked``."""
    reason: str = ""
    group_rank: int = -1
    group_world_size: int = 0
    first_rank: int = -1
    """Global rank of its local rank 0."""
    world_size: int = 0
    first_role_rank: int = -1
    role_world_size: int = 0


class Roll:
    """All that the coordinator has heard of the launchers. ``now`` is its monotonic clock, in seconds."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._members: dict[str, Member] = {}
        self._heard: dict[str, float] = {}
        """When each beat was last seen to change."""
        self._enough_since: float | None = None

    def hear(self, members: Iterable[Member], now: float) -> None:
        """Take what all launchers say now."""
        for member in members:
            known = self._members.get(member.node)
            if known is None or known.beat != member.beat:
                self._heard[member.node] = now
            self._members[member.node] = member

    def member(self, node: str) -> Member | None:
        """What a launcher last said."""
        return self._members.get(node)

    def alive(self, now: float) -> dict[str, Member]:
        """The launchers that are there, in the order of their arrival."""
        return {
            n: m for n, m in self._members.items() if not m.left and self.silence(n, now) <= self.rules.node_timeout
        }

    def excuse(self, now: float) -> None:
        """Nothing could be heard for a while, so nobody's silence until now counts."""
        self._heard = dict.fromkeys(self._heard, now)

    def doubt(self, now: float, seconds: float) -> None:
        """Whoever is not heard of within so many seconds is lost: how long they have been silent is not known."""
        self._heard = dict.fromkeys(self._heard, now - self.rules.node_timeout + seconds)

    def silence(self, node: str, now: float) -> float:
        """Seconds since a launcher's beat last changed."""
        return now - self._heard.get(node, now)

    def lost(self, roster: Roster, now: float) -> list[Member]:
        """Active launchers of which nothing is heard any more."""
        here = self.alive(now)
        members = (self._members.get(node) for node in roster.active)
        return [m for m in members if m is not None and not m.left and m.node not in here]

    def gone(self, roster: Roster) -> list[Member]:
        """Active launchers that have left."""
        members = (self._members.get(node) for node in roster.active)
        return [m for m in members if m is not None and m.left]

    def newcomers(self, roster: Roster, excluded: Mapping[str, str], now: float) -> list[Member]:
        """Launchers that wait although there is room for them beside a running attempt."""
        room = self.rules.max_nodes - len(roster.active)
        return [m for m in self._waiting(roster, now) if not _excluded(m, excluded)][: max(0, room)]

    def latecomers(self, roster: Roster, excluded: Mapping[str, str], now: float) -> dict[str, Any]:
        """The spares and the parked nodes of a roster, with those that came while its attempt runs."""
        new = [m for m in self._waiting(roster, now) if m.node not in {*roster.spares, *roster.parked}]
        parked = {m.node: why for m in new if (why := _excluded(m, excluded))}
        spares = tuple(m.node for m in new if m.node not in parked)
        return {"spares": roster.spares + spares, "parked": {**roster.parked, **parked}}

    def _waiting(self, roster: Roster, now: float) -> list[Member]:
        return [m for m in self.alive(now).values() if m.after is not None and m.node not in roster.active]

    # Rosters ----------------------------------------------------------------------------------------------------------

    def gather(
        self, last: Roster | None, excluded: Mapping[str, str], now: float, *, avoid: str | None = None
    ) -> Roster | str:
        """Make the next roster, or say what is waited for.

        Args:
            last: the newest roster there was.
            excluded: reasons by name of node, or by ``host:NAME`` for all launchers of a host.
            now: the coordinator's clock.
            avoid: a node to be spared if another one can take its place; otherwise all ranks move to other nodes.
        """
        here = self.alive(now)
        attempt = last.attempt if last is not None else 0
        busy = [n for n in (last.active if last else ()) if n in here and (here[n].after or -1) < attempt]
        if busy:
            return f"{_named(here[n] for n in busy)} {_is(len(busy))} still ending its ranks"
        parked = {n: why for n, m in here.items() if (why := _excluded(m, excluded))}
        ready = [m for n, m in here.items() if m.after is not None and n not in parked]
        if len(ready) < self.rules.min_nodes:
            self._enough_since = None
            return self._too_few(ready, last, parked, now)
        if self._enough_since is None:
            self._enough_since = now
        last_call = attempt == 0 and len(ready) < self.rules.max_nodes
        if last_call and now - self._enough_since < self.rules.last_call:
            return f"{len(ready)} nodes are here, enough; up to {self.rules.max_nodes} may come within the last call"
        self._enough_since = None
        order = _ordered(ready, last, avoid)
        size = min(len(order), self.rules.max_nodes)
        spares = tuple(m.node for m in order[size:])
        return Roster(attempt + 1, tuple(m.node for m in order[:size]), spares, parked)

    def places(self, roster: Roster) -> dict[str, Place]:
        """Everybody's part in a roster: ranks are counted through the group, and through each role."""
        active = [self._members[node] for node in roster.active]
        world_size = sum(m.local_world_size for m in active)
        role_sizes: dict[str, int] = {}
        for member in active:
            role_sizes[member.role] = role_sizes.get(member.role, 0) + member.local_world_size
        places, first, of_role = {}, 0, dict.fromkeys(role_sizes, 0)
        for group_rank, member in enumerate(active):
            places[member.node] = Place(
                roster.attempt,
                "active",
                "",
                group_rank,
                len(active),
                first,
                world_size,
                of_role[member.role],
                role_sizes[member.role],
            )
            first += member.local_world_size
            of_role[member.role] += member.local_world_size
        why = f"the job has its {len(active)} nodes; this one takes the place of the next that fails"
        places |= {node: Place(roster.attempt, "spare", why) for node in roster.spares}
        return places | {node: Place(roster.attempt, "parked", reason) for node, reason in roster.parked.items()}

    def _too_few(self, ready: Sequence[Member], last: Roster | None, parked: Mapping[str, str], now: float) -> str:
        missing = self.rules.min_nodes - len(ready)
        text = f"{len(ready)} of at least {self.rules.min_nodes} nodes are here; waiting for {missing} more"
        if last is not None and (lost := self.lost(last, now)):
            text += f", since {_named(lost)} {'was' if len(lost) == 1 else 'were'} lost"
        if parked:
            were = "was" if len(parked) == 1 else "were"
            text += f", since {_named(m for m in self._members.values() if m.node in parked)} {were} excluded"
        return text

    # Stopping ---------------------------------------------------------------------------------------------------------

    def furthest(self, roster: Roster) -> int | None:
        """The furthest step that any rank has completed, as told."""
        told = [m.iteration for n in roster.active if (m := self._members.get(n)) and m.iteration is not None]
        return max(told, default=None)

    def reached(self, roster: Roster) -> Reached | None:
        """How far an attempt has come, as told; None when no rank counts steps."""
        members = [m for n in roster.active if (m := self._members.get(n)) is not None]
        first = [m.first for m in members if m.first is not None]
        furthest = self.furthest(roster)
        return Reached(min(first), furthest) if first and furthest is not None else None

    def told(self, roster: Roster) -> bool:
        """Whether every launcher has said how far its ranks are, since it was asked for a stop."""
        return all((m := self._members.get(node)) is not None and m.answer is not None for node in roster.active)

    def stop_step(self, roster: Roster) -> int | None:
        """A step ahead of all ranks, after which they can stop; None when some rank would not follow it."""
        members = [self._members.get(node) for node in roster.active]
        furthest = self.furthest(roster)
        if furthest is None or not all(m is not None and m.follows_stop_step for m in members):
            return None
        passed = [m.answer[2] for m in members if m and m.answer and m.answer[2] is not None]
        pace = max(m.pace for m in members if m is not None)
        return agreed_stop_step(max([furthest, *passed]), pace)

    def refused(self, roster: Roster, number: int) -> bool:
        """Whether a launcher has found that a proposed stop step comes too late."""
        answers = [m.answer for n in roster.active if (m := self._members.get(n)) is not None]
        return any(a is not None and a[0] == number and not a[1] for a in answers)


def _ordered(ready: Sequence[Member], last: Roster | None, avoid: str | None) -> list[Member]:
    """Those who were active in their order, with newcomers in the gaps; then the others."""
    by_name = {m.node: m for m in ready}
    arrival = {m.node: i for i, m in enumerate(ready)}
    before = last.active if last is not None else ()

    def key(member: Member) -> tuple[float, int]:
        return (math.inf if member.wish is None else member.wish, arrival[member.node])

    newcomers = sorted((m for m in ready if m.node not in before), key=key)
    if avoid in by_name and newcomers:
        kept = [None if node == avoid else by_name.get(node) for node in before]
    else:
        kept = [by_name.get(node) for node in before]
        if avoid in by_name:  # nobody can take its place, so everybody moves on by one
            kept = kept[-1:] + kept[:-1]
    queue = iter(newcomers)
    order = [member or next(queue, None) for member in kept]
    rest = [*queue, *([by_name[avoid]] if avoid in by_name and newcomers else [])]
    return [m for m in order if m is not None] + rest


def _excluded(member: Member, excluded: Mapping[str, str]) -> str:
    return excluded.get(member.node, "") or excluded.get(f"host:{member.host}", "")


def _named(members: Iterable[Member]) -> str:
    names = [f"node {m.node} on {m.host}" for m in members]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
