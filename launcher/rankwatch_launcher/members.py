"""A launcher's place among the launchers of its job, kept up on a thread of its own: it says that it lives, and one of
them, the coordinator, makes the rosters.

In the store
------------
=====================  ==============================================================================================
``roll``               names of all launchers that ever came, one a line, in the order of their arrival
``member/NODE``        what a launcher says of itself, written anew about once a second
``coordinator``        whose word counts; taken over when its beat stands still
``roster/ATTEMPT``     the whole roster; ``place/ATTEMPT/NODE`` what one launcher needs to know of it
``newest``             number of the newest roster
``waiting``            what the next roster waits for, in words
``closed``             the job is over, and how
=====================  ==============================================================================================
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from rankwatch_launcher import agreements, reasons
from rankwatch_launcher.agreements import Budget, Proposal, Reached, StopRequest
from rankwatch_launcher.ledger import Ledger
from rankwatch_launcher.log import logger
from rankwatch_launcher.membership import Member, Place, Roll, Roster, Rules
from rankwatch_launcher.torch_seams import DistError, PrefixStore, Store

BEAT_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.2
"""How often the coordinator looks whether the running attempt was ruled to end, or is to be stopped."""
BUSY_SECONDS: Final = 0.1
"""The pace while a roster is being made or a stop step agreed on."""
NODES_A_SECOND: Final = 2000
"""Beats that one store should take in a second: with more nodes than that, each beats more seldom."""


@dataclass(frozen=True, slots=True)
class Closed:
    """How the job is over, for whoever still waits or comes later."""

    state: str
    """``finished``, ``failed``, ``stopped`` or ``preempted``."""
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the ranks of this node are, as its slots say."""

    reached: Reached | None = None
    follows_stop_step: bool = False


class Members:
    """This launcher among all of them. Public methods are called from the launcher's main thread."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        me: Member,
        rules: Rules,
        *,
        budget: Callable[[], Budget],
        standing: Callable[[], Standing],
        on_lost: Callable[[Member, int, str], None],
    ) -> None:
        self.me = me.node
        self.rules = rules
        self._member = me
        self._budget = budget
        self._standing = standing
        self._on_lost = on_lost
        connection = store.clone()  # type: ignore[attr-defined]  # torch's stubs lack it
        self._store = PrefixStore(f"rankwatch/{run_id}", store)
        self._thread_store = PrefixStore(f"rankwatch/{run_id}", connection)
        self._ledger = Ledger(connection, run_id)
        self._roll = Roll(rules)
        self._lock = threading.Lock()
        self._nudge = threading.Event()
        self._ended = threading.Event()
        self._roster: Roster | None = None
        self._excluded: dict[str, str] = {}
        self._stop_since: float | None = None
        """When the request to stop the running attempt was first seen."""
        self._told: set[str] = set()
        self._coordinator = ""
        self._coordinates = False
        self._nodes = 1
        self._gathering = False
        self._thread = threading.Thread(target=self._run, name="rankwatch-members", daemon=True)

    # From the main thread ---------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Enter the roll and begin to beat."""
        self._write(self._store)
        self._store.append("roll", f"{self.me}\n")  # type: ignore[attr-defined]  # torch's stubs lack it
        self._thread.start()

    def wait_for_place(self, after: int) -> None:
        """Say that this launcher is ready for an attempt after this one."""
        self._say(after=after, first=None, iteration=None, follows_stop_step=False, answer=None)

    def take_place(self) -> None:
        """Say that it runs the newest attempt."""
        self._say(after=None)

    def answer(self, number: int, agreed: bool, furthest: int | None) -> None:
        """Answer a proposed stop step."""
        self._say(answer=(number, agreed, furthest))

    def newest(self) -> int:
        """Number of the newest roster; 0 before the first."""
        return int(self._store.get("newest")) if self._store.check(["newest"]) else 0

    def place(self, attempt: int) -> Place | None:
        """This launcher's part in an attempt; None when it was not there to be given one."""
        key = f"place/{attempt}/{self.me}"
        return Place(**json.loads(self._store.get(key))) if self._store.check([key]) else None

    def waiting(self) -> str:
        """What the next roster waits for; empty when it is not known."""
        return self._store.get("waiting").decode() if self._store.check(["waiting"]) else ""

    def closed(self) -> Closed | None:
        """How the job is over; None while it goes on."""
        return Closed(**json.loads(self._store.get("closed"))) if self._store.check(["closed"]) else None

    def close(self, closed: Closed) -> None:
        """The job is over: spares may go, and nobody begins anew. What was said first holds."""
        self._store.compare_set("closed", "", json.dumps(asdict(closed)))

    def excluded(self) -> tuple[tuple[str, str, str], ...]:
        """Nodes that were excluded: name, host and why."""
        nodes = json.loads(self._store.get("excluded")) if self._store.check(["excluded"]) else {}
        names = [name for name in nodes if not name.startswith("host:")]
        members = map(_member, self._store.multi_get([f"member/{name}" for name in names]) if names else ())
        return tuple((m.node, m.host, nodes[m.node]) for m in members)

    def leave(self, reason: str, *, patience: float, needed: bool = False) -> None:
        """Say that this launcher goes; then wait until the others have gone, for ``patience`` seconds at most.

        Only the coordinator does, near to which the store is, and whoever is ``needed``.
        """
        self._ended.set()
        self._nudge.set()
        self._thread.join(5.0)
        with self._lock:
            self._member = replace(self._member, left=reason or "it has ended")
        self._write(self._store)
        until = time.monotonic() + (patience if needed or self._coordinates else 0.0)
        while time.monotonic() < until and self._others_here(self._store):
            time.sleep(BUSY_SECONDS)

    def nudge(self) -> None:
        """Look at once: something is to be decided."""
        self._nudge.set()

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                now = time.monotonic()
                self._beat()
                if self._leads():
                    self._coordinate(now)
                self._rest(now + self._pause())
        except DistError as error:
            # The main thread finds that out by itself, and says so.
            logger.debug("the rendezvous store has gone: %s", error)

    def _pause(self) -> float:
        return max(1.0, self._nodes / NODES_A_SECOND) * (BUSY_SECONDS if self._gathering else BEAT_SECONDS)

    def _rest(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not self._nudge.wait(min(left, LOOK_SECONDS)):
            if self._coordinates and not self._gathering and self._due():
                break
        self._nudge.clear()

    def _due(self) -> bool:
        """Whether the running attempt needs the coordinator at once."""
        attempt = self._roster.attempt if self._roster is not None else 0
        store = self._ledger
        return store.ruling(attempt) is not None or store.stop_request(attempt) is not None

    def _beat(self) -> None:
        if self._member.after is None:
            now = self._standing()
            first, iteration = (now.reached.first, now.reached.iteration) if now.reached else (None, None)
            self._say(nudge=False, first=first, iteration=iteration, follows_stop_step=now.follows_stop_step)
        self._write(self._thread_store)

    def _say(self, *, nudge: bool = True, **changes: Any) -> None:
        with self._lock:
            self._member = replace(self._member, **changes)
        if nudge:
            self._nudge.set()

    def _write(self, store: Store) -> None:
        with self._lock:
            self._member = replace(self._member, beat=self._member.beat + 1)
            text = json.dumps(asdict(self._member))
        store.set(f"member/{self.me}", text)

    def _leads(self) -> bool:
        """Whether this launcher is the coordinator; takes over from one whose beat stands still."""
        store, now = self._thread_store, time.monotonic()
        self._coordinator = store.compare_set("coordinator", self._coordinator, self._coordinator or self.me).decode()
        if self._coordinator != self.me:
            leader = _member(store.get(f"member/{self._coordinator}"))
            self._roll.hear([leader], now)
            if leader.left or self._roll.silence(leader.node, now) > self.rules.node_timeout:
                self._coordinator = store.compare_set("coordinator", leader.node, self.me).decode()
        leads = self._coordinator == self.me
        if leads and not self._coordinates:
            self._take_over()
        self._coordinates = leads
        return leads

    def _take_over(self) -> None:
        store = self._thread_store
        if store.check(["newest"]):
            self._roster = _roster(store.get(f"roster/{int(store.get('newest'))}"))
        if store.check(["excluded"]):
            self._excluded = json.loads(store.get("excluded"))

    def _coordinate(self, now: float) -> None:
        self._hear(now)
        roster, ruling = self._roster, None
        if roster is not None:
            ruling = self._ledger.ruling(roster.attempt)
        self._gathering = roster is None or ruling is not None
        if roster is not None and ruling is None:
            self._gathering = self._attend(roster, now)
        elif self._thread_store.check(["closed"]):
            self._gathering = False
        elif ruling is None or ruling.verdict == agreements.RESTART:
            if ruling is not None:
                self._exclude(ruling.exclude, now)
                self._tell_lost(roster, now)
            self._make_roster(roster, ruling.avoid if ruling else None, now)

    def _hear(self, now: float) -> None:
        store = self._thread_store
        names = store.get("roll").decode().split()
        self._nodes = len(names)
        # Whoever has left for good says nothing new.
        known = [self._roll.member(name) for name in names]
        here = [name for name, member in zip(names, known, strict=True) if member is None or not member.left]
        if here:
            self._roll.hear(map(_member, store.multi_get([f"member/{name}" for name in here])), now)

    def _attend(self, roster: Roster, now: float) -> bool:
        """Look after a running attempt; return whether something is being agreed on, so that it is looked at often."""
        self._roll.note_pace(roster, now)
        for member in self._roll.lost(roster, now):
            reason = self._tell_lost(roster, now)
            self._end(roster, reason or reasons.node_lost(member.node, member.host, self._silence(member, now)))
            return True
        # A launcher whose ranks have all ended well leaves only after all others have arrived at the same point.
        for member in self._roll.gone(roster):
            if not self._thread_store.check(["closed"]):
                self._end(roster, reasons.node_left(member.node, member.host, member.left))
                return True
        request = self._ledger.stop_request(roster.attempt)
        if request is not None:
            self._agree(roster, request, now)
            return True
        for member in self._roll.newcomers(roster, now):
            self._end(roster, reasons.node_joins(member.node, member.host), counted=False, fault=False)
            return True
        self._place(replace(roster, **self._roll.latecomers(roster, self._excluded, now)))
        return False

    def _agree(self, roster: Roster, request: StopRequest, now: float) -> None:
        """Propose a step after which all ranks stop, and a later one when a rank had passed it already."""
        if self._stop_since is None:
            self._stop_since = now
        before = self._ledger.proposal(roster.attempt)
        if before is not None and not self._roll.refused(roster, before.number):
            return
        step = self._roll.stop_step(roster)
        # What is known of the ranks may be a beat old: they may have made their first step since.
        if step is not None or now - self._stop_since > 2.5 * BEAT_SECONDS:
            self._ledger.propose(roster.attempt, Proposal(before.number + 1 if before else 1, step, request))

    def _place(self, roster: Roster) -> None:
        """Tell launchers that came while the attempt runs what they are."""
        new = {*roster.spares, *roster.parked} - {*self._roster.spares, *self._roster.parked} if self._roster else set()
        if new:
            self._roster = roster
            places = self._roll.places(roster)
            self._thread_store.multi_set(  # type: ignore[attr-defined]  # torch's stubs lack it
                [f"place/{roster.attempt}/{node}" for node in new], [json.dumps(asdict(places[node])) for node in new]
            )

    def _end(self, roster: Roster, reason: str, *, counted: bool = True, fault: bool = True) -> None:
        self._ledger.end_attempt(
            roster.attempt,
            agreements.RESTART,
            reason,
            by=self.me,
            budget=self._budget(),
            counted=counted,
            fault=fault,
            reached=self._roll.reached(roster),
        )

    def _tell_lost(self, roster: Roster | None, now: float) -> str:
        """Say of every launcher that is lost that it is, once; return the first reason."""
        first = ""
        for member in self._roll.lost(roster, now) if roster is not None else ():
            reason = reasons.node_lost(member.node, member.host, self._silence(member, now))
            first = first or reason
            if roster is not None and member.node not in self._told:
                self._told.add(member.node)
                self._on_lost(member, roster.attempt, reason)
        return first

    def _silence(self, member: Member, now: float) -> float:
        return self._roll.silence(member.node, now)

    def _exclude(self, nodes: Mapping[str, str], now: float) -> None:
        new = {node: why for node, why in nodes.items() if node not in self._excluded}
        if not new:
            return
        self._excluded |= new
        for node, why in new.items():
            member = self._roll.member(node)
            # A launcher that is started anew there has another name; with more than one on a host, only this one goes.
            if member and not [m for m in self._roll.alive(now).values() if m.host == member.host and m.node != node]:
                self._excluded[f"host:{member.host}"] = why
        self._thread_store.set("excluded", json.dumps(self._excluded))

    def _make_roster(self, last: Roster | None, avoid: str | None, now: float) -> None:
        store = self._thread_store
        made = self._roll.gather(last, self._excluded, now, avoid=avoid)
        if isinstance(made, str):
            store.set("waiting", made)
            return
        # Two launchers may take each other for dead and both be coordinator for a moment: the first roster holds.
        written = store.compare_set(f"roster/{made.attempt}", "", json.dumps(asdict(made)))
        # Whoever made it may have died before it told the others, so the places follow from the roster that holds.
        self._roster, self._stop_since = _roster(written), None
        places = self._roll.places(self._roster)
        keys = [f"place/{self._roster.attempt}/{node}" for node in places]
        words = [json.dumps(asdict(place)) for place in places.values()]
        store.multi_set(keys, words)  # type: ignore[attr-defined]  # torch's stubs lack it
        store.set("waiting", "")
        store.set("newest", str(self._roster.attempt))

    def _others_here(self, store: Store) -> bool:
        names = [name for name in store.get("roll").decode().split() if name != self.me]
        now = time.monotonic()
        self._roll.hear(map(_member, store.multi_get([f"member/{name}" for name in names]) if names else ()), now)
        return any(name != self.me for name in self._roll.alive(now))


def _member(text: bytes) -> Member:
    body = json.loads(text)
    known = {f.name: body[f.name] for f in fields(Member) if f.name in body}
    if known.get("answer") is not None:
        number, agreed, furthest = known["answer"]
        known["answer"] = (number, agreed, furthest)
    return Member(**known)


def _roster(text: bytes) -> Roster:
    body = json.loads(text)
    return Roster(body["attempt"], tuple(body["active"]), tuple(body["spares"]), dict(body["parked"]))
