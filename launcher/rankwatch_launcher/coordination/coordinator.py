"""The coordinator's part of membership: one launcher makes the rosters and watches the running attempt. No threads.

What a step does
----------------
claim -> read all heartbeats -> the running attempt: node lost? node left? stop requested? node joined? -> the next
attempt: a roster, or what it waits for.

Any launcher may coordinate: when the coordinator's heartbeat stops, the first to notice takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rankwatch_launcher.coordination.decisions import (
    RESTART,
    AttemptDecision,
    RestartBudget,
    StopProposal,
    StopRequest,
)
from rankwatch_launcher.coordination.links import Connections, links_with_carrier
from rankwatch_launcher.coordination.membership import (
    HOST,
    Loss,
    Member,
    MembershipRules,
    MembershipView,
    Roster,
    loss_by_cut,
    loss_by_silence,
    out_of_sight_notice,
    poll_delay,
)
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.log import logger

HEARTBEAT_SECONDS: Final = 1.0
BUSY_SECONDS: Final = 0.1
"""Interval of steps while a roster is being made or a stop step agreed on."""
MAX_HEARTBEATS_PER_SECOND: Final = 2000
"""Heartbeats that one store should take in a second: with more nodes, each launcher's interval is longer."""
SETTLE_SECONDS: Final = 2.5 * HEARTBEAT_SECONDS
"""A launcher that is alive changes its record within this time, unless heartbeats are rarer since there are many."""


class Coordinator:
    """Makes rosters while this launcher coordinates. Call :meth:`step` from one thread; ``now`` is monotonic."""

    def __init__(
        self,
        store: JobStore,
        me: str,
        rules: MembershipRules,
        *,
        budget: Callable[[], RestartBudget],
        on_lost: Callable[[Loss, int], None],
        connections: Connections | None = None,
    ) -> None:
        """``on_lost`` is called once for each lost launcher, with the attempt.

        ``connections``: of the launcher that holds the store, which coordinates: it cannot be cut off from the store,
        and its kernel knows which launchers have ended.
        """
        self.me = me
        self.leads = False
        """Whether this launcher coordinates."""
        self.busy = False
        """Whether the next step is due within ``BUSY_SECONDS``: a roster or a stop step is pending."""
        self.nodes = rules.min_nodes
        """Launchers that are present, or expected."""
        self._store, self._rules, self._budget, self._on_lost = store, rules, budget, on_lost
        self._view = MembershipView(rules)
        self._coordinator = ""
        self._roster: Roster | None = None
        self._excluded: dict[str, str] = {}
        self._stop_since: float | None = None
        """When the request to stop the running attempt was first seen."""
        self._reported: set[tuple[str, int]] = set()
        """Lost nodes that were reported, and in which attempt."""
        self._connections = connections
        self._links = links_with_carrier()
        self._out_of_sight: dict[str, float] = {}
        """Launchers that were announced to be out of sight, and since when they are."""
        self._decide_after = 0.0
        """A new coordinator first finds out which launchers are alive."""

    @property
    def interval(self) -> float:
        """Seconds between two steps."""
        return self._stretch * (BUSY_SECONDS if self.busy else HEARTBEAT_SECONDS)

    @property
    def node_timeout(self) -> float:
        """Seconds out of sight and without progress after which a launcher is lost."""
        return max(self._rules.node_timeout, self.silent_after)

    @property
    def silent_after(self) -> float:
        """Seconds of silence after which a launcher is out of sight: at least three heartbeats."""
        return max(min(self._rules.silent_after, self._rules.node_timeout), 3 * self._stretch * HEARTBEAT_SECONDS)

    @property
    def _stretch(self) -> float:
        return max(1.0, self.nodes / MAX_HEARTBEATS_PER_SECOND)

    def step(self, now: float) -> None:
        """Coordinate if this launcher is the coordinator, else check that the coordinator is alive."""
        self._claim(now)
        if self.leads:
            self._coordinate(now)

    def reset_timers(self, now: float) -> None:
        """Restart the silence timers: no heartbeat could be read for a while."""
        self._view.reset_timers(now)

    def alive(self, members: Iterable[Member], now: float) -> list[str]:
        """Take in records of launchers; return the names of those that are alive."""
        self._view.update(members, now)
        return list(self._view.alive(now))

    def due(self) -> bool:
        """Whether the running attempt needs a step at once: it was decided to end, or to stop."""
        attempt = self._roster.attempt if self._roster is not None else 0
        return self._store.decision(attempt) is not None or self._store.stop_request(attempt) is not None

    # Leadership -------------------------------------------------------------------------------------------------------

    def _claim(self, now: float) -> None:
        self._coordinator = self._store.claim_coordinator(self._coordinator or self.me, self._coordinator)
        if self._coordinator != self.me:
            found = self._store.members([self._coordinator])
            self._view.update(found, now)
            gone = any(member.left for member in found) or self._view.member(self._coordinator) is None
            silent = gone or self._view.silence(self._coordinator, now) > self.silent_after
            if silent or self._connections is not None:
                self._coordinator = self._store.claim_coordinator(self.me, self._coordinator)
        leads = self._coordinator == self.me
        if leads and not self.leads:
            self._take_over(now)
        self.leads = leads

    def _take_over(self, now: float) -> None:
        self._excluded = self._store.excluded()
        if newest := self._store.newest_attempt():
            self._roster = self._store.roster(newest)
            # How long launchers have been silent is unknown: those that died under the last coordinator are lost soon.
            self._read_members(now)
            settle = self._stretch * SETTLE_SECONDS
            self._view.reset_timers(now, remaining=settle)
            self._decide_after = now + settle + BUSY_SECONDS

    # Coordination -----------------------------------------------------------------------------------------------------

    def _coordinate(self, now: float) -> None:
        self._read_members(now)
        roster = self._roster
        decision = self._store.decision(roster.attempt) if roster is not None else None
        if decision is not None:
            self._exclude(decision.exclude, now)
        self.busy = True
        if now < self._decide_after:
            return
        if roster is not None and decision is None:
            self.busy = self._watch_attempt(roster, now)
        elif self._store.outcome() is not None:
            self.busy = False
        elif decision is None or decision.verdict == RESTART:
            if roster is not None:  # the attempt is over: nothing is left to wait for
                self._report_lost(roster, self._view.out_of_sight(roster, now), now)
            self._make_roster(roster, decision.avoid if decision else None, now)

    def _read_members(self, now: float) -> None:
        names = self._store.member_names()
        # The record of a launcher that has left does not change any more.
        known = [self._view.member(name) for name in names]
        present = [name for name, member in zip(names, known, strict=True) if member is None or not member.left]
        self.nodes = max(self._rules.min_nodes, len(present))
        self._view.rules = replace(self._rules, node_timeout=self.node_timeout, silent_after=self.silent_after)
        members = self._store.members(present)
        self._view.update(members, now)
        if self._connections is not None:
            silent = any(self._view.silence(member.node, now) > self.silent_after for member in members)
            if silent or None in known:
                self._view.set_ended(self._connections.ended(members))

    def _watch_attempt(self, roster: Roster, now: float) -> bool:
        """Watch a running attempt; return whether an agreement is pending."""
        request = self._store.stop_request(roster.attempt)
        self._announce_out_of_sight(roster, now)
        missing = self._report_lost(roster, self._view.lost(roster, now), now)
        # A launcher whose ranks all succeeded leaves only after all others have reached the same point.
        if not missing and self._store.outcome() is None:
            missing = next((f"node {m.node} on {m.host} has left: {m.left}" for m in self._view.departed(roster)), "")
        if missing and request is None:
            self._end_attempt(roster, AttemptDecision(RESTART, missing))
            return True
        if request is not None:
            if missing:  # the ranks of the other nodes still save, or are killed after the grace period
                logger.debug("during a graceful stop: %s", missing)
            self._agree_on_stop(roster, request, now)
            return True
        for member in self._view.newcomers(roster, self._excluded, now):
            why = f"node {member.node} on {member.host} waits to join"
            self._end_attempt(roster, AttemptDecision(RESTART, why, counted=False, fault=False))
            return True
        self._place_latecomers(roster, now)
        return False

    def _agree_on_stop(self, roster: Roster, request: StopRequest, now: float) -> None:
        """Propose a step after which all ranks stop, and a later one when a rank has already passed it."""
        if self._stop_since is None:
            self._stop_since = now
        before = self._store.stop_proposal(roster.attempt)
        if before is None:
            self._store.propose_stop(roster.attempt, StopProposal(0, None, request))
            return
        if before.number > 0 and not self._view.stop_refused(roster, before.number):
            return
        step = self._view.stop_step(roster) if self._view.all_answered(roster) else None
        # A launcher may be busy, or its ranks about to complete their first step.
        if step is not None or now - self._stop_since > SETTLE_SECONDS + 2 * poll_delay(len(roster.active)):
            self._store.propose_stop(roster.attempt, StopProposal(before.number + 1, step, request))

    def _place_latecomers(self, roster: Roster, now: float) -> None:
        extended = self._view.with_latecomers(roster, self._excluded, now)
        new = {*extended.spares} - {*roster.spares} | {*extended.parked} - {*roster.parked}
        if new:
            self._roster = extended
            places = self._view.places(extended)
            self._store.publish_places({node: place for node, place in places.items() if node in new})

    def _end_attempt(self, roster: Roster, decision: AttemptDecision) -> None:
        steps = self._view.steps(roster)
        self._store.end_attempt(roster.attempt, decision, by=self.me, budget=self._budget(), steps=steps)

    def _announce_out_of_sight(self, roster: Roster, now: float) -> None:
        """Log each launcher that goes out of sight, and that comes back, once."""
        for node in self._out_of_sight.keys() & self._view.alive(now).keys():
            logger.warning("node %s is in sight again, after %.0f s", node, now - self._out_of_sight.pop(node))
        for member in self._view.out_of_sight(roster, now):
            if member.node not in self._out_of_sight and not self._view.has_ended(member.node):
                silence = self._view.silence(member.node, now)
                self._out_of_sight[member.node] = now - silence
                logger.warning("%s", out_of_sight_notice(member, silence))

    def _report_lost(self, roster: Roster, lost: Sequence[Member], now: float) -> str:
        """Report each lost launcher once; return the first reason."""
        first: Loss | None = None
        down = self._links - links_with_carrier() if lost else frozenset()
        if lost and (me := self._view.member(self.me)) and (down or self._view.cut_off(roster, self.me, now)):
            silence = min(self._view.silence(member.node, now) for member in lost)
            if not any(self._view.has_ended(member.node) for member in lost):
                return self._report(loss_by_cut(me, silence, down), roster.attempt).text
        for member in lost:
            ended = self._view.has_ended(member.node)
            loss = self._report(
                loss_by_silence(member, self._view.silence(member.node, now), ended=ended), roster.attempt
            )
            first = first or loss
        return "" if first is None else first.text

    def _report(self, loss: Loss, attempt: int) -> Loss:
        if (loss.member.node, attempt) not in self._reported:
            self._reported.add((loss.member.node, attempt))
            self._on_lost(loss, attempt)
        return loss

    def _exclude(self, nodes: Mapping[str, str], now: float) -> None:
        new = {node: why for node, why in nodes.items() if node not in self._excluded}
        if not new:
            return
        self._excluded |= new
        for node, why in new.items():
            member = self._view.member(node)
            # A launcher restarted on the host has another name; with several on a host, only the named one is excluded.
            others = [m for m in self._view.alive(now).values() if member and m.host == member.host and m.node != node]
            if member and not others:
                self._excluded[f"{HOST}{member.host}"] = why
        self._store.set_excluded(self._excluded)

    def _make_roster(self, last: Roster | None, avoid: str | None, now: float) -> None:
        made = self._view.next_roster(last, self._excluded, now, avoid=avoid)
        if isinstance(made, str):
            self._store.set_waiting_reason(made)
            return
        self._roster, self._stop_since = self._store.settle_roster(made), None
        self._store.publish_roster(self._roster, self._view.places(self._roster), last)
