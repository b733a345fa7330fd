"""A launcher's membership in its job: a thread sends its heartbeat and, on one of the launchers, coordinates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from rankwatch.contract.node_checks import CheckResult
from rankwatch_launcher.coordination.coordinator import BUSY_SECONDS, HEARTBEAT_SECONDS, Coordinator
from rankwatch_launcher.coordination.decisions import RestartBudget
from rankwatch_launcher.coordination.links import Connections, links_with_carrier, own_connections
from rankwatch_launcher.coordination.membership import (
    HOST,
    Loss,
    Member,
    MembershipRules,
    NodeProgress,
    Place,
    StopAnswer,
)
from rankwatch_launcher.coordination.store import JobStore
from rankwatch_launcher.log import logger
from rankwatch_launcher.torch_compat import DistError, Store, second_connection, store_port

CHECK_SECONDS: Final = 0.2
"""How often the coordinator checks whether the running attempt was decided to end, or to stop."""
STORE_TIMEOUT_SECONDS: Final = 20.0
"""A store that does not respond for this long, and for the node timeout, is given up, and with it this launch."""


class LauncherCalls(NamedTuple):
    """What the service asks its launcher, and tells it."""

    budget: Callable[[], RestartBudget]
    progress: Callable[[], NodeProgress]
    on_lost: Callable[[Loss, int], None]
    """A node was declared lost, in which attempt."""
    on_store_timeout: Callable[[float, frozenset[str]], None]
    """Called from a separate thread when the store has not responded for the node timeout and no rank here has
    completed anything: with the seconds, and this host's network links that went down."""


class MembershipService:
    """This launcher among those of the job. Public methods are called from the launcher's main thread."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        me: Member,
        rules: MembershipRules,
        calls: LauncherCalls,
        *,
        holds_store: bool = False,
    ) -> None:
        self.me = me.node
        self.holds_store = holds_store
        """Whether the store ends with this launcher."""
        self.store = JobStore(store, run_id)
        """The main thread's connection."""
        self._store = JobStore(second_connection(store), run_id)
        port = store_port(store)
        connections = Connections(port) if holds_store and port is not None else None
        self._coordinator = Coordinator(
            self._store, me.node, rules, budget=calls.budget, on_lost=calls.on_lost, connections=connections
        )
        self._member = replace(me, connections=own_connections(port) if port is not None else ())
        self._links = links_with_carrier()
        self._progress, self._on_store_timeout = calls.progress, calls.on_store_timeout
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._round_at = time.monotonic()
        """When the thread's last round began; every round calls the store."""
        self._thread = threading.Thread(target=self._run, name="rankwatch-members", daemon=True)

    # From the main thread ---------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Register this launcher and start the heartbeat."""
        self.store.register(self._next_heartbeat())
        self._round_at = time.monotonic()
        self._thread.start()
        threading.Thread(target=self._guard, name="rankwatch-guard", daemon=True).start()

    def wait_for_place(self, after: int, failures: tuple[CheckResult, ...] = ()) -> None:
        """Announce that this launcher is ready for an attempt after this one, or the checks that its node fails."""
        self._update(ready_after=after, failures=failures, progress=NodeProgress(), stop_answer=None)

    def take_place(self, place: Place) -> None:
        """Announce that this launcher takes part in the newest attempt."""
        self._coordinator.nodes = max(self._coordinator.nodes, place.group_world_size)
        self._update(ready_after=None)

    def answer_stop(self, number: int, agreed: bool, furthest: int | None) -> None:
        """Answer a proposed stop step, with the ranks' current progress."""
        self._update(stop_answer=StopAnswer(number, agreed, furthest), progress=self._progress())

    def place(self, attempt: int) -> Place | None:
        """This launcher's part in an attempt."""
        return self.store.place(attempt, self.me)

    def excluded(self, latest: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
        """Excluded nodes, those of the latest decision included: (node, host, reason)."""
        nodes = {**latest, **self.store.excluded()}
        members = self.store.members(name for name in nodes if not name.startswith(HOST))
        return tuple((m.node, m.host, nodes[m.node]) for m in members)

    def leave(self, reason: str, *, timeout: float, needed: bool = False) -> None:
        """Announce that this launcher leaves, then wait at most ``timeout`` seconds for the others to leave.

        Only the launcher that holds the store, the coordinator, and one that is ``needed`` wait.
        """
        self._ended.set()
        self._wake.set()
        self._thread.join(5.0)
        with self._lock:
            self._member = replace(self._member, left=reason or "it has ended")
        self.store.write_member(self._next_heartbeat())
        until = time.monotonic() + (timeout if needed or self.holds_store or self._coordinator.leads else 0.0)
        while time.monotonic() < until and self._others_present():
            time.sleep(BUSY_SECONDS)

    def wake(self) -> None:
        """Run the next round at once: a decision is pending."""
        self._wake.set()

    def _others_present(self) -> bool:
        names = [name for name in self.store.member_names() if name != self.me]
        alive = self._coordinator.alive(self.store.members(names), time.monotonic())
        return any(name != self.me for name in alive)

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._rest(self.round())
            except DistError as error:
                # The main thread finds out by itself and logs it.
                logger.debug("the rendezvous store is gone: %s", error)
                self._ended.set()
            except Exception:  # noqa: BLE001  # thread boundary
                # Without a heartbeat this launcher would count as lost, and its healthy ranks be killed.
                logger.exception("a membership round failed; the next one follows")
                self._ended.wait(HEARTBEAT_SECONDS)

    def round(self) -> float:
        """Send one heartbeat and coordinate; return when the next round is due."""
        now = time.monotonic()
        if now - self._round_at > self._coordinator.silent_after / 2:
            self._coordinator.reset_timers(now)  # the store or this process was suspended
        self._round_at = now
        if self._member.ready_after is None:
            self._update(wake=False, progress=self._progress())
        self._store.write_member(self._next_heartbeat())
        self._coordinator.step(time.monotonic())
        return now + self._coordinator.interval

    def _rest(self, until: float) -> None:
        coordinator = self._coordinator
        while (left := until - time.monotonic()) > 0 and not self._wake.wait(min(left, CHECK_SECONDS)):
            if coordinator.leads and not coordinator.busy and coordinator.due():
                break
        self._wake.clear()

    def _guard(self) -> None:
        """Detect a store whose host is frozen or unreachable: a call to it does not return, perhaps never.

        Ranks that complete steps need no store, and those that wait for a peer behind a link that is cut go on when it
        is back: they are left alone for the node timeout since they last completed something.
        """
        seen, checks, still, work, announced = self._round_at, 0, 0, 0, False
        # Checks are counted, not seconds: nothing is wrong while this very process is suspended (Ctrl-Z).
        while not self._ended.wait(1.0):
            if self._round_at != seen:
                if announced:
                    logger.warning("the rendezvous store responds again, after %d s", checks)
                seen, checks, still, announced = self._round_at, 0, 0, False
                continue
            completed = self._progress().work
            checks, still, work = checks + 1, still + 1 if completed == work else 0, completed
            if checks > self._coordinator.silent_after + self._coordinator.interval and not announced:
                announced = True
                logger.warning("the rendezvous store has not responded for %d s; the ranks are left alone", checks)
            limit = max(STORE_TIMEOUT_SECONDS, self._coordinator.node_timeout)
            if still > limit + self._coordinator.interval:
                self._on_store_timeout(float(checks), self._links - links_with_carrier())
                return

    def _update(self, *, wake: bool = True, **changes: Any) -> None:
        with self._lock:
            self._member = replace(self._member, **changes)
        if wake:
            self.wake()

    def _next_heartbeat(self) -> Member:
        with self._lock:
            self._member = replace(self._member, heartbeat=self._member.heartbeat + 1)
            return self._member
