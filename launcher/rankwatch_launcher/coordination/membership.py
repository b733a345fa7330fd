"""Group membership: which launchers take part in an attempt. Pure: launchers' records in, rosters out.

How launchers become a group
----------------------------
Every launcher rewrites a :class:`Member` about itself with each heartbeat; one of them, the coordinator, reads them all
into a :class:`MembershipView` and makes the rosters.

=============  =====================================================================================================
a launcher is  when
=============  =====================================================================================================
alive          its heartbeat changed within ``node_timeout`` seconds on the coordinator's own clock
busy           it is active in the newest roster and not ready for the next one: it runs ranks, or ends them
ready          it is alive and waits for an attempt
parked         a decision has excluded it, or its host; or its node fails a check
active         the newest roster gives it a group rank
spare          it was ready, and the group was full
lost           it is active and not alive
=============  =====================================================================================================

A new roster is made once no launcher is busy, and none that checks its node has yet to check it for this attempt while
it is needed. Active launchers keep their order; free places go to ready launchers, by
their preferred rank (``--node-rank``, the scheduler's node number), then by arrival. In the first roster nodes of one
place (rack, switch, NVLink domain) get neighbouring group ranks; later a gap goes to a node of its former one's place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from rankwatch.contract.enums import NodeRole
from rankwatch.contract.intervals import agreed_stop_step
from rankwatch.contract.node_checks import CheckResult, unfit
from rankwatch.contract.topology import shared
from rankwatch_launcher.coordination.decisions import StepRange

HOST: Final = "host:"
"""Prefix of excluded names that are hosts."""
LOOP_SECONDS: Final = 0.2
"""How often a launcher whose ranks run polls the store, while there are few of them."""
MAX_POLLS_PER_SECOND: Final = 5000
"""Polls that one store should answer in a second: with more launchers, each polls less often."""


def poll_seconds(launchers: int) -> float:
    """The least time between two polls of the store by one of so many launchers."""
    return launchers / MAX_POLLS_PER_SECOND


def poll_delay(launchers: int) -> float:
    """Seconds by which each of so many launchers polls more rarely than one of few."""
    return max(0.0, poll_seconds(launchers) - LOOP_SECONDS)


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """Progress of the ranks of one node in the current attempt, as its slots show it."""

    steps: StepRange | None = None
    """None: no rank reports steps."""
    steps_per_second: float = 0.0
    """Of the fastest rank; 0: unknown."""
    follows_stop_step: bool = False
    """Every rank calls ``rankwatch.should_stop()``."""
    work: int = 0
    """Changes with everything that a rank completes: a step, a section, ``progress()``; without these, while it
    computes."""


@dataclass(frozen=True, slots=True)
class StopAnswer:
    """A launcher's answer to a proposed stop step."""

    number: int
    """Of the proposal; 0 only asked for the current step."""
    agreed: bool
    """Every rank of the node will see the step in time."""
    furthest: int | None
    """The furthest step completed on the node."""


@dataclass(frozen=True, slots=True)
class Member:
    """One launcher's record."""

    node: str
    host: str
    local_world_size: int
    role: str = "default"
    """The role of its ranks (torchrun's ``--role``)."""
    preferred_rank: int | None = None
    """The group rank it prefers."""
    heartbeat: int = 0
    ready_after: int | None = None
    """It waits for an attempt after this one; None while it takes part in one."""
    left: str = ""
    """Why it left; empty while it is present."""
    progress: NodeProgress = NodeProgress()
    stop_answer: StopAnswer | None = None
    topology: tuple[str, ...] = ()
    """Where its node is (:mod:`rankwatch.contract.topology`)."""
    checks: bool = False
    """It checks its node before each attempt, also while it is a spare."""
    failures: tuple[CheckResult, ...] = ()
    """The checks that its node fails."""
    connections: tuple[str, ...] = ()
    """Its ends of its connections to the store (:mod:`~rankwatch_launcher.coordination.links`)."""


@dataclass(frozen=True, slots=True)
class MembershipRules:
    """The size of a group and the timeouts of membership, in seconds."""

    min_nodes: int
    max_nodes: int
    node_timeout: float = 180.0
    """How long a launcher may be out of sight, and no rank complete anything, before it is lost."""
    last_call: float = 30.0
    """How long a first attempt with ``min_nodes`` launchers waits for more."""
    by_topology: bool = True
    """Nodes of one place get neighbouring group ranks; False: each has the one that was given to it."""
    silent_after: float = 6.0
    """A launcher whose heartbeat has not changed for this long is out of sight. One that has ended is lost then."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The launchers of one attempt."""

    attempt: int
    active: tuple[str, ...]
    """Nodes in the order of their group rank."""
    spares: tuple[str, ...] = ()
    parked: Mapping[str, str] = field(default_factory=dict)
    """Excluded nodes, and why."""


@dataclass(frozen=True, slots=True)
class Place:
    """One launcher's part in a roster."""

    attempt: int
    role: NodeRole
    reason: str = ""
    group_rank: int = -1
    group_world_size: int = 0
    first_rank: int = -1
    """Global rank of its local rank 0."""
    world_size: int = 0
    first_role_rank: int = -1
    role_world_size: int = 0


class MembershipView:
    """The coordinator's view of all launchers. ``now`` is its monotonic clock, in seconds."""

    def __init__(self, rules: MembershipRules) -> None:
        self.rules = rules
        self._members: dict[str, Member] = {}
        self._changed_at: dict[str, float] = {}
        """When each heartbeat last changed."""
        self._ended: frozenset[str] = frozenset()
        """Launchers that are known to have ended."""
        self._worked_at = -math.inf
        """When the ranks of some node last completed something."""
        self._enough_since: float | None = None

    def update(self, members: Iterable[Member], now: float) -> None:
        """Take in the launchers' current records."""
        for member in members:
            known = self._members.get(member.node)
            if known is None or known.heartbeat != member.heartbeat:
                self._changed_at[member.node] = now
            if known is not None and known.progress.work != member.progress.work:
                self._worked_at = now
            self._members[member.node] = member

    def member(self, node: str) -> Member | None:
        """A launcher's last known record."""
        return self._members.get(node)

    def alive(self, now: float) -> dict[str, Member]:
        """Launchers that are present and not silent, in the order of arrival."""
        limit = self.silent_after
        return {n: m for n, m in self._members.items() if not m.left and self.silence(n, now) <= limit}

    @property
    def silent_after(self) -> float:
        """Seconds of silence after which a launcher is out of sight."""
        return min(self.rules.silent_after, self.rules.node_timeout)

    def set_ended(self, nodes: Iterable[str]) -> None:
        """Take in which launchers are known to have ended, without a word."""
        self._ended = frozenset(nodes)

    def has_ended(self, node: str) -> bool:
        """Whether a launcher is known to have ended."""
        return node in self._ended

    def silence(self, node: str, now: float) -> float:
        """Seconds since a launcher's heartbeat last changed."""
        return now - self._changed_at.get(node, now)

    def reset_timers(self, now: float, *, remaining: float | None = None) -> None:
        """Restart every silence timer, after a time in which no heartbeat could be read.

        With ``remaining``, launchers whose heartbeat does not change within that many seconds are lost: for a new
        coordinator, which does not know how long they have been silent.
        """
        at = now if remaining is None else now - self.silent_after + remaining
        self._changed_at = dict.fromkeys(self._changed_at, at)

    def out_of_sight(self, roster: Roster, now: float) -> list[Member]:
        """Active launchers that are silent: they have ended, or their host is dead, frozen or cut off."""
        alive = self.alive(now)
        return [m for m in self._active(roster) if not m.left and m.node not in alive]

    def lost(self, roster: Roster, now: float) -> list[Member]:
        """Of these the ones that have ended, or have not come back while no rank completed anything.

        Ranks on a cut link wait for each other and go on when it is back; those that complete steps need no one.
        """
        return [
            m
            for m in self.out_of_sight(roster, now)
            if m.node in self._ended or min(self.silence(m.node, now), now - self._worked_at) > self.rules.node_timeout
        ]

    def cut_off(self, roster: Roster, me: str, now: float) -> bool:
        """Whether the coordinator rather than the others is cut off: it sees none of several, and none has ended."""
        others = [m for m in self._active(roster) if m.node != me and not m.left]
        return (
            len(others) > 1
            and not any(m.node in self._ended for m in others)
            and not ({m.node for m in others} & self.alive(now).keys())
        )

    def departed(self, roster: Roster) -> list[Member]:
        """Active launchers that have left."""
        return [m for m in self._active(roster) if m.left]

    def newcomers(self, roster: Roster, excluded: Mapping[str, str], now: float) -> list[Member]:
        """Waiting launchers for which a running attempt has free places."""
        free = self.rules.max_nodes - len(roster.active)
        return [m for m in self._waiting(roster, now) if not _barred(m, excluded)][: max(0, free)]

    def with_latecomers(self, roster: Roster, excluded: Mapping[str, str], now: float) -> Roster:
        """The roster with launchers that came during its attempt as spares, or parked."""
        waiting = self._waiting(roster, now)
        barred = {m.node: _barred(m, excluded) for m in waiting}
        fit = {m.node for m in waiting if not barred[m.node]}  # also those that fail their checks no more
        spares_before, parked_before = set(roster.spares), set(roster.parked)
        parked = {node: why for node, why in roster.parked.items() if node not in fit}
        parked |= {
            node: why for node, why in barred.items() if why and node not in parked_before and node not in spares_before
        }
        spares = tuple(m.node for m in waiting if m.node in fit and m.node not in spares_before)
        return replace(roster, spares=roster.spares + spares, parked=parked)

    def _active(self, roster: Roster) -> list[Member]:
        return [m for node in roster.active if (m := self._members.get(node)) is not None]

    def _waiting(self, roster: Roster, now: float) -> list[Member]:
        active = set(roster.active)
        return [m for m in self.alive(now).values() if m.ready_after is not None and m.node not in active]

    # Rosters ----------------------------------------------------------------------------------------------------------

    def next_roster(
        self, last: Roster | None, excluded: Mapping[str, str], now: float, *, avoid: str | None = None
    ) -> Roster | str:
        """Make the next roster, or return what it waits for.

        Args:
            excluded: reasons by name of node, or by ``host:NAME`` for all launchers of a host.
            now: the coordinator's clock.
            avoid: a node to replace if another is available; otherwise all ranks move to other nodes.
        """
        alive = self.alive(now)
        attempt = last.attempt if last is not None else 0
        busy = [n for n in (last.active if last else ()) if n in alive and (alive[n].ready_after or -1) < attempt]
        if busy:
            checking = " or checking the node" if any(alive[n].checks for n in busy) else ""
            return f"{_names(alive[n] for n in busy)} {'is' if len(busy) == 1 else 'are'} still ending ranks{checking}"
        parked = {n: why for n, m in alive.items() if (why := _barred(m, excluded))}
        ready = [m for n, m in alive.items() if m.ready_after is not None and n not in parked]
        # A spare was checked when its attempt began: it is again before it steps in, if it is to.
        spares_before = set(last.spares if last is not None else ())
        stale = {m.node: m for m in ready if m.checks and m.node in spares_before and (m.ready_after or 0) < attempt}
        others = [m for m in ready if m.node not in stale and m.node != avoid]
        if stale and len(others) < self.rules.max_nodes:
            return _being_checked(stale.values())
        if len(ready) < self.rules.min_nodes:
            self._enough_since = None
            return self._too_few(ready, last, parked, now)
        if self._enough_since is None:
            self._enough_since = now
        last_call = attempt == 0 and len(ready) < self.rules.max_nodes
        if last_call and now - self._enough_since < self.rules.last_call:
            return f"{len(ready)} nodes are ready, enough; waiting for up to {self.rules.max_nodes} until the last call"
        places = {n: m.topology for n, m in self._members.items()} if self.rules.by_topology else {}
        order = _ordered([m for m in ready if m.node not in stale], [*stale.values()], last, avoid, places)
        size = min(len(order), self.rules.max_nodes)
        if nearer := [m for m in order[:size] if m.node in stale]:
            return _being_checked(nearer)
        self._enough_since = None
        if last is None:
            order[:size] = _together(order[:size], places)
        spares = tuple(m.node for m in order[size:])
        return Roster(attempt + 1, tuple(m.node for m in order[:size]), spares, parked)

    def places(self, roster: Roster) -> dict[str, Place]:
        """Every launcher's part in a roster: ranks are numbered through the group, and through each role."""
        active = [self._members[node] for node in roster.active]
        world_size = sum(m.local_world_size for m in active)
        role_sizes: dict[str, int] = {}
        for member in active:
            role_sizes[member.role] = role_sizes.get(member.role, 0) + member.local_world_size
        places, first_rank, first_role_rank = {}, 0, dict.fromkeys(role_sizes, 0)
        for group_rank, member in enumerate(active):
            places[member.node] = Place(
                roster.attempt,
                NodeRole.ACTIVE,
                group_rank=group_rank,
                group_world_size=len(active),
                first_rank=first_rank,
                world_size=world_size,
                first_role_rank=first_role_rank[member.role],
                role_world_size=role_sizes[member.role],
            )
            first_rank += member.local_world_size
            first_role_rank[member.role] += member.local_world_size
        why = f"the job has its {len(active)} nodes; this one replaces the next that fails"
        places |= {node: Place(roster.attempt, NodeRole.SPARE, why) for node in roster.spares}
        return places | {node: Place(roster.attempt, NodeRole.PARKED, why) for node, why in roster.parked.items()}

    def _too_few(self, ready: Sequence[Member], last: Roster | None, parked: Mapping[str, str], now: float) -> str:
        missing = self.rules.min_nodes - len(ready)
        text = f"{len(ready)} of at least {self.rules.min_nodes} nodes are ready; waiting for {missing} more"
        if last is not None and (lost := self.out_of_sight(last, now)):
            text += f", since {_names(lost)} {_was(len(lost))} lost"
        barred = [m for m in self._members.values() if m.node in parked]
        if excluded := [m for m in barred if not m.failures]:
            text += f", since {_names(excluded)} {_was(len(excluded))} excluded"
        for member in [m for m in barred if m.failures][:3]:
            text += f"; {_names([member])} takes no part: {unfit(member.failures)}"
        return text

    # Progress and stop steps ------------------------------------------------------------------------------------------

    def steps(self, roster: Roster) -> StepRange | None:
        """The steps an attempt has completed; None when no rank reports steps."""
        steps = [m.progress.steps for m in self._active(roster) if m.progress.steps is not None]
        return StepRange(min(s.first for s in steps), max(s.furthest for s in steps)) if steps else None

    def all_answered(self, roster: Roster) -> bool:
        """Whether every active launcher has reported its ranks' current step since a stop was requested."""
        return all((m := self._members.get(node)) is not None and m.stop_answer is not None for node in roster.active)

    def stop_step(self, roster: Roster) -> int | None:
        """A step ahead of all ranks after which they can stop; None when some rank would not follow it."""
        members, steps = self._active(roster), self.steps(roster)
        if steps is None or len(members) < len(roster.active):
            return None
        if not all(m.progress.follows_stop_step for m in members):
            return None
        passed = [m.stop_answer.furthest for m in members if m.stop_answer and m.stop_answer.furthest is not None]
        speed = max(m.progress.steps_per_second for m in members)
        # The steps are from the launchers' last poll, and each sees the proposal with its next one.
        delay = 2 * poll_delay(len(roster.active))
        return agreed_stop_step(max([steps.furthest, *passed]), speed, delay=delay)

    def stop_refused(self, roster: Roster, number: int) -> bool:
        """Whether a proposed stop step came too late for some launcher."""
        answers = [m.stop_answer for m in self._active(roster)]
        return any(a is not None and a.number == number and not a.agreed for a in answers)


# Reasons --------------------------------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """A node that ends an attempt, and why it does."""

    member: Member
    why: str
    state: str = "lost"

    @property
    def text(self) -> str:
        """The reason of the attempt's end."""
        return f"node {self.member.node} on {self.member.host} is {self.state}: {self.why}"


def loss_by_silence(member: Member, silence: float, *, ended: bool = False) -> Loss:
    """The loss of a node whose launcher is silent."""
    closed = ", and its connections are closed" if ended else ""
    return Loss(member, f"no heartbeat of its launcher for {silence:.1f} s{closed}")


def loss_by_cut(member: Member, silence: float, links: Iterable[str]) -> Loss:
    """The loss of the coordinator's own node, which is cut off from all others."""
    why = f"its network link is down ({', '.join(sorted(links))})" if links else "no other node can be reached from it"
    return Loss(member, f"{why}, for {silence:.1f} s", "cut off")


def out_of_sight_notice(member: Member, silence: float) -> str:
    """What is said of a launcher that may come back."""
    return (
        f"node {member.node} on {member.host} has been out of sight for {silence:.0f} s: its host, or the network to "
        "it, does not respond; the ranks are left alone"
    )


def _ordered(
    ready: Sequence[Member],
    later: Sequence[Member],
    last: Roster | None,
    avoid: str | None,
    places: Mapping[str, tuple[str, ...]],
) -> list[Member]:
    """Formerly active launchers in their order with newcomers in the gaps, then the others.

    ``places``: where nodes are, of those that left too. A newcomer of the place of the node that left a gap fills it;
    one of ``later``, which are still being checked, only if it is nearer than all others.
    """
    by_name = {m.node: m for m in ready}
    arrival = {m.node: i for i, m in enumerate(ready)}
    before = last.active if last is not None else ()

    def key(member: Member) -> tuple[float, int]:
        return (math.inf if member.preferred_rank is None else member.preferred_rank, arrival[member.node])

    formerly_active = set(before)
    newcomers = [*sorted((m for m in ready if m.node not in formerly_active), key=key), *later]
    if avoid in by_name and newcomers:
        kept = [None if node == avoid else by_name.get(node) for node in before]
    else:
        kept = [by_name.get(node) for node in before]
        if avoid in by_name:  # no other node is available: every group rank moves on by one
            kept = kept[-1:] + kept[:-1]
    queue = list(newcomers)
    order = [member or _nearest(queue, places.get(node, ()), places) for node, member in zip(before, kept, strict=True)]
    rest = [*queue, *([by_name[avoid]] if avoid in by_name and newcomers else [])]
    return [m for m in order if m is not None] + rest


def _being_checked(members: Collection[Member]) -> str:
    return f"{_names(members)} {'is' if len(members) == 1 else 'are'} being checked"


def _together(members: Sequence[Member], places: Mapping[str, tuple[str, ...]]) -> list[Member]:
    """Members with those of one place behind its first, on each level."""
    first: dict[tuple[str, ...], int] = {}
    for position, member in enumerate(members):
        path = places.get(member.node, ())
        for level in range(len(path)):
            first.setdefault(path[: level + 1], position)

    def key(item: tuple[int, Member]) -> tuple[int, ...]:
        position, member = item
        path = places.get(member.node, ())
        return (*(first[path[: level + 1]] for level in range(len(path))), position)

    return [member for _, member in sorted(enumerate(members), key=key)]


def _nearest(queue: list[Member], place: Sequence[str], places: Mapping[str, tuple[str, ...]]) -> Member | None:
    """Take the first of those that share the narrowest place; None: there is nobody."""
    if not queue:
        return None
    found = max(queue, key=lambda member: shared(place, places.get(member.node, ())))
    queue.remove(found)
    return found


def _barred(member: Member, excluded: Mapping[str, str]) -> str:
    """Why a launcher takes no part: it is excluded, or its node fails a check; empty: it may."""
    return _excluded(member, excluded) or (unfit(member.failures) if member.failures else "")


def _excluded(member: Member, excluded: Mapping[str, str]) -> str:
    return excluded.get(member.node, "") or excluded.get(f"{HOST}{member.host}", "")


def _names(members: Iterable[Member]) -> str:
    names = [f"node {m.node} on {m.host}" for m in members]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _was(count: int) -> str:
    return "was" if count == 1 else "were"
