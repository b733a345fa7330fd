"""A launcher's place among the launchers of its job, kept up on a thread of its own: it says that it lives, and one of
them, the coordinator, makes the rosters.

What a round of the thread does
-------------------------------
beat (say what this launcher is) -> lead? -> hear all -> the running attempt: lost? left? to be stopped? joined? /
the next attempt: a roster, or what it waits for. About once a second, ten times while something is being agreed on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rankwatch_launcher.agent import reasons
from rankwatch_launcher.agent.torch_compat import DistError, Store
from rankwatch_launcher.coordination import decisions
from rankwatch_launcher.coordination.attempt_log import Ledger
from rankwatch_launcher.coordination.decisions import Budget, Proposal, Reached, StopRequest
from rankwatch_launcher.coordination.membership import Member, Place, Roll, Roster, Rules
from rankwatch_launcher.coordination.store import HOST, Board, Closed
from rankwatch_launcher.log import logger

BEAT_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.2
"""How often the coordinator looks whether the running attempt was ruled to end, or is to be stopped."""
BUSY_SECONDS: Final = 0.1
"""The pace while a roster is being made or a stop step agreed on."""
STORE_SECONDS: Final = 20.0
"""A store that has not answered for so long is given up, and with it this launch."""
NODES_A_SECOND: Final = 2000
"""Beats that one store should take in a second: with more nodes than that, each beats more seldom."""
DOUBT_BEATS: Final = 2.5
"""So many beats in which nothing changed tell a new coordinator, or one that asks, that nothing will."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the ranks of this node are, as its slots say."""

    reached: Reached | None = None
    pace: float = 0.0
    """Steps a second of the fastest; 0: not known."""
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
        on_deaf: Callable[[], None],
        holds_store: bool = False,
    ) -> None:
        """``on_deaf`` is called from a thread of its own when the store has not answered for ``STORE_SECONDS``."""
        self.me = me.node
        self.rules = rules
        self.holds_store = holds_store
        """Whether the store ends with this launcher."""
        self._member = me
        self._budget, self._standing, self._on_lost, self._on_deaf = budget, standing, on_lost, on_deaf
        connection = store.clone()  # type: ignore[attr-defined]  # torch's stubs lack it
        self.board = Board(store, run_id)
        """For the main thread."""
        self._board = Board(connection, run_id)
        self._ledger = Ledger(connection, run_id)
        self._roll = Roll(rules)
        self._lock = threading.Lock()
        self._nudge = threading.Event()
        self._ended = threading.Event()
        self._turn = time.monotonic()
        """When the thread last began a round: each asks the store."""
        self._roster: Roster | None = None
        self._excluded: dict[str, str] = {}
        self._stop_since: float | None = None
        """When the request to stop the running attempt was first seen."""
        self._told: set[tuple[str, int]] = set()
        """Nodes of which it was said that they are lost, and in which attempt."""
        self._listen_until = 0.0
        """A new coordinator hears who is there before it decides anything."""
        self._coordinator = ""
        self._coordinates = False
        self._nodes = 1
        self._gathering = False
        self._thread = threading.Thread(target=self._run, name="rankwatch-members", daemon=True)

    # From the main thread ---------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Enter the roll and begin to beat."""
        self.board.enter(self._next_beat())
        self._turn = time.monotonic()
        self._thread.start()
        threading.Thread(target=self._guard, name="rankwatch-guard", daemon=True).start()

    def wait_for_place(self, after: int) -> None:
        """Say that this launcher is ready for an attempt after this one."""
        self._say(after=after, first=None, iteration=None, pace=0.0, follows_stop_step=False, answer=None)

    def take_place(self, place: Place) -> None:
        """Say that it runs the newest attempt."""
        self._nodes = max(self._nodes, place.group_world_size)
        self._say(after=None)

    def answer(self, number: int, agreed: bool, furthest: int | None) -> None:
        """Answer a proposed stop step, with how far the ranks are now."""
        self._say(answer=(number, agreed, furthest), **self._now())

    def place(self, attempt: int) -> Place | None:
        """This launcher's part in an attempt."""
        return self.board.place(attempt, self.me)

    def close(self, closed: Closed) -> None:
        """The job is over."""
        self.board.close(closed)

    def excluded(self, lately: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
        """Nodes that were excluded, by the newest ruling too: name, host and why."""
        nodes = {**lately, **self.board.excluded()}
        members = self.board.members(name for name in nodes if not name.startswith(HOST))
        return tuple((m.node, m.host, nodes[m.node]) for m in members)

    def leave(self, reason: str, *, patience: float, needed: bool = False) -> None:
        """Say that this launcher goes; then wait until the others have gone, for ``patience`` seconds at most.

        Only who holds the store does, the coordinator, and whoever is ``needed``.
        """
        self._ended.set()
        self._nudge.set()
        self._thread.join(5.0)
        with self._lock:
            self._member = replace(self._member, left=reason or "it has ended")
        self.board.write(self._next_beat())
        until = time.monotonic() + (patience if needed or self.holds_store or self._coordinates else 0.0)
        while time.monotonic() < until and self._others_here():
            time.sleep(BUSY_SECONDS)

    def nudge(self) -> None:
        """Look at once: something is to be decided."""
        self._nudge.set()

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._round()
            except DistError as error:
                # The main thread finds that out by itself, and says so.
                logger.debug("the rendezvous store has gone: %s", error)
                self._ended.set()
            except Exception:  # noqa: BLE001  # the boundary of a thread that must go on
                # Without a beat this launcher would be taken for lost, and its healthy ranks be ended.
                logger.exception("one round among the launchers has failed; the next one follows")
                self._ended.wait(BEAT_SECONDS)

    def _round(self) -> None:
        now = time.monotonic()
        if now - self._turn > self._patience() / 2:
            self._roll.excuse(now)  # the store was held up, or this process was: nobody else's fault
        self._turn = now
        if self._member.after is None:
            self._say(nudge=False, **self._now())
        self._board.write(self._next_beat())
        if self._leads():
            self._coordinate(time.monotonic())
        self._rest(now + self._pause())

    def _now(self) -> dict[str, Any]:
        """How far the ranks are, as facts of a :class:`Member`."""
        now = self._standing()
        first, iteration = (now.reached.first, now.reached.iteration) if now.reached is not None else (None, None)
        return {
            "first": first,
            "iteration": iteration,
            "pace": now.pace,
            "follows_stop_step": now.follows_stop_step,
        }

    def _guard(self) -> None:
        """A call to a store whose machine is frozen or cut off never returns, so others must see to the end."""
        seen, looks = self._turn, 0
        # Looks are counted, not seconds: nothing is amiss while this very process is stopped, by Ctrl-Z for example.
        while not self._ended.wait(1.0):
            seen, looks = (seen, looks + 1) if self._turn == seen else (self._turn, 0)
            if looks > STORE_SECONDS + self._pause():
                self._on_deaf()
                return

    def _pause(self) -> float:
        return self._slower() * (BUSY_SECONDS if self._gathering else BEAT_SECONDS)

    def _patience(self) -> float:
        """Seconds of silence after which a launcher is lost: never less than three beats."""
        return max(self.rules.node_timeout, 3 * self._slower() * BEAT_SECONDS)

    def _slower(self) -> float:
        """By how much so many nodes stretch everything."""
        return max(1.0, self._nodes / NODES_A_SECOND)

    def _rest(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not self._nudge.wait(min(left, LOOK_SECONDS)):
            if self._coordinates and not self._gathering and self._due():
                break
        self._nudge.clear()

    def _due(self) -> bool:
        """Whether the running attempt needs the coordinator at once."""
        attempt = self._roster.attempt if self._roster is not None else 0
        return self._ledger.ruling(attempt) is not None or self._ledger.stop_request(attempt) is not None

    def _say(self, *, nudge: bool = True, **changes: Any) -> None:
        with self._lock:
            self._member = replace(self._member, **changes)
        if nudge:
            self._nudge.set()

    def _next_beat(self) -> Member:
        with self._lock:
            self._member = replace(self._member, beat=self._member.beat + 1)
            return self._member

    def _leads(self) -> bool:
        """Whether this launcher is the coordinator; takes over from one whose beat stands still."""
        now = time.monotonic()
        self._coordinator = self._board.claim(self._coordinator or self.me, self._coordinator)
        if self._coordinator != self.me:
            (leader,) = self._board.members([self._coordinator])
            self._roll.hear([leader], now)
            if leader.left or self._roll.silence(leader.node, now) > self._patience():
                self._coordinator = self._board.claim(self.me, leader.node)
        leads = self._coordinator == self.me
        if leads and not self._coordinates:
            self._take_over(now)
        self._coordinates = leads
        return leads

    def _take_over(self, now: float) -> None:
        self._excluded = self._board.excluded()
        if newest := self._board.newest():
            self._roster = self._board.roster(newest)
            # Who died under the coordinator before has not been heard to be silent yet.
            self._hear(now)
            self._roll.doubt(now, DOUBT_BEATS * BEAT_SECONDS)
            self._listen_until = now + DOUBT_BEATS * BEAT_SECONDS + BUSY_SECONDS

    # The coordinator --------------------------------------------------------------------------------------------------

    def _coordinate(self, now: float) -> None:
        self._hear(now)
        roster = self._roster
        ruling = self._ledger.ruling(roster.attempt) if roster is not None else None
        if ruling is not None:
            self._exclude(ruling.exclude, now)
        self._gathering = True
        if now < self._listen_until:
            return
        if roster is not None and ruling is None:
            self._gathering = self._attend(roster, now)
        elif self._board.closed() is not None:
            self._gathering = False
        elif ruling is None or ruling.verdict == decisions.RESTART:
            self._tell_lost(roster, now)
            self._make_roster(roster, ruling.avoid if ruling else None, now)

    def _hear(self, now: float) -> None:
        names = self._board.names()
        # Whoever has left for good says nothing new.
        known = [self._roll.member(name) for name in names]
        here = [name for name, member in zip(names, known, strict=True) if member is None or not member.left]
        self._nodes = max(1, len(here))
        self._roll.rules = replace(self.rules, node_timeout=self._patience())
        self._roll.hear(self._board.members(here), now)

    def _attend(self, roster: Roster, now: float) -> bool:
        """Look after a running attempt; return whether something is being agreed on, so that it is looked at often."""
        request = self._ledger.stop_request(roster.attempt)
        missing = self._tell_lost(roster, now)
        # A launcher whose ranks have all ended well leaves only after all others have arrived at the same point.
        if not missing and self._board.closed() is None:
            missing = next((reasons.node_left(m.node, m.host, m.left) for m in self._roll.gone(roster)), "")
        if missing and request is None:
            self._end(roster, missing)
            return True
        if request is not None:
            if missing:  # its ranks will not save with the others; these will, or are ended by their grace
                logger.debug("while saving: %s", missing)
            self._agree(roster, request, now)
            return True
        for member in self._roll.newcomers(roster, self._excluded, now):
            self._end(roster, reasons.node_joins(member.node, member.host), counted=False, fault=False)
            return True
        self._place(replace(roster, **self._roll.latecomers(roster, self._excluded, now)))
        return False

    def _agree(self, roster: Roster, request: StopRequest, now: float) -> None:
        """Propose a step after which all ranks stop, and a later one when a rank had passed it already."""
        if self._stop_since is None:
            self._stop_since = now
        before = self._ledger.proposal(roster.attempt)
        if before is None:
            self._ledger.propose(roster.attempt, Proposal(0, None, request))
            return
        if before.number > 0 and not self._roll.refused(roster, before.number):
            return
        step = self._roll.stop_step(roster) if self._roll.told(roster) else None
        # Somebody may be busy, or its ranks about to make their first step.
        if step is not None or now - self._stop_since > DOUBT_BEATS * BEAT_SECONDS:
            self._ledger.propose(roster.attempt, Proposal(before.number + 1, step, request))

    def _place(self, roster: Roster) -> None:
        """Tell launchers that came while the attempt runs what they are."""
        new = {*roster.spares, *roster.parked} - {*self._roster.spares, *self._roster.parked} if self._roster else set()
        if new:
            self._roster = roster
            self._board.tell({node: place for node, place in self._roll.places(roster).items() if node in new})

    def _end(self, roster: Roster, reason: str, *, counted: bool = True, fault: bool = True) -> None:
        self._ledger.end_attempt(
            roster.attempt,
            decisions.RESTART,
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
            reason = reasons.node_lost(member.node, member.host, self._roll.silence(member.node, now))
            first = first or reason
            if roster is not None and (member.node, roster.attempt) not in self._told:
                self._told.add((member.node, roster.attempt))
                self._on_lost(member, roster.attempt, reason)
        return first

    def _exclude(self, nodes: Mapping[str, str], now: float) -> None:
        new = {node: why for node, why in nodes.items() if node not in self._excluded}
        if not new:
            return
        self._excluded |= new
        for node, why in new.items():
            member = self._roll.member(node)
            # A launcher that is started anew there has another name; with more than one on a host, only this one goes.
            if member and not [m for m in self._roll.alive(now).values() if m.host == member.host and m.node != node]:
                self._excluded[f"{HOST}{member.host}"] = why
        self._board.exclude(self._excluded)

    def _make_roster(self, last: Roster | None, avoid: str | None, now: float) -> None:
        made = self._roll.gather(last, self._excluded, now, avoid=avoid)
        if isinstance(made, str):
            self._board.say_waiting(made)
            return
        self._roster, self._stop_since = self._board.settle(made), None
        self._board.publish(self._roster, self._roll.places(self._roster), last)

    def _others_here(self) -> bool:
        names = [name for name in self.board.names() if name != self.me]
        now = time.monotonic()
        self._roll.hear(self.board.members(names), now)
        return any(name != self.me for name in self._roll.alive(now))
