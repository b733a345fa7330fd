"""The thread in each rank that notices what goes wrong, tells the others, and interrupts the function.

How this works
--------------
=========  ================================================  =====================================================
phase      the rank                                          the thread
=========  ================================================  =====================================================
RUNNING    runs the function                                 soft timeout; moves the watchdog's deadline with the
                                                             progress; interrupts when the iteration has ended so
WAITING    has finished, or is a reserve                     no timeout; interrupts all the same
LEAVING    has left the function, takes down what it left    nothing: the watchdog's deadline is the barrier's
BETWEEN    agrees with the others on the next iteration      keeps the watchdog at rest
=========  ================================================  =====================================================

In every phase it beats, and looks after others: all processes of its host by their pids, and by its heartbeat the
next rank in the ring of those that are left. Whoever is found dead is said to be lost, and if it trained that
interrupts all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from rankwatch.inprocess import abort, connections
from rankwatch.inprocess.coordination import INTERRUPTED, Coordination
from rankwatch.inprocess.decision import Kind, Plan, Record
from rankwatch.inprocess.guard import Guard
from rankwatch.inprocess.interruption import Interruption
from rankwatch.inprocess.members import Member, is_dead
from rankwatch.inprocess.options import Options
from rankwatch.inprocess.progress import Progress, iteration_of_rankwatch

_log = logging.getLogger("rankwatch")

STOPS_WITHIN: Final = 5.0
"""Seconds for the thread to end when it is told to."""


class Phase(Enum):
    """What the thread of the function does."""

    RUNNING = auto()
    WAITING = auto()
    LEAVING = auto()
    BETWEEN = auto()


class Watcher(threading.Thread):
    """See the header. Made and told by the thread that runs the function."""

    def __init__(
        self,
        own: Member,
        members: Sequence[Member],
        options: Options,
        coordination: Coordination,
        guard: Guard,
        interruption: Interruption,
    ) -> None:
        super().__init__(name="rankwatch-inprocess", daemon=True)
        self.progress = Progress()
        self.aborting = False
        """What the function raises from now on may be the abort's doing."""
        self.noticed = 0.0
        """When the interruption was noticed, on the monotonic clock."""
        self.failure: Exception | None = None
        """Why the thread ended of itself: the store is gone."""
        self.on_abort: Callable[[], None] = _nothing
        self._own, self._members, self._options = own, members, options
        self._coordination, self._guard, self._interruption = coordination, guard, interruption
        self._neighbours = [m for m in members if m.host == own.host and m.rank != own.rank]
        self._phase, self._plan, self._before = Phase.BETWEEN, Plan(-1, ()), frozenset[str]()
        self._lost: dict[int, str] = {}
        self._heard: tuple[int, int, float] = (-1, -1, 0.0)
        self._said_hung = self._interrupted = False
        self._struck = 0.0
        self._over = threading.Event()
        self._lock = threading.RLock()

    # Told by the thread of the function -------------------------------------------------------------------------------

    def begin(self, plan: Plan) -> None:
        """An iteration begins: from now on this thread may interrupt it."""
        with self._lock:
            self._plan, self._before = plan, connections.open_now()
            self._said_hung = self._interrupted = self.aborting = False
            self.progress.begin()
            self._phase = Phase.RUNNING if self._own.rank in plan.places else Phase.WAITING
            self._guard.give(self._options.hard_timeout)

    def wait(self) -> None:
        """The function has returned; the others may take their time."""
        with self._lock:
            self._phase = Phase.WAITING

    def leave(self) -> None:
        """The function was left; what it had opened is to be taken down before the others go on without this rank."""
        with self._lock:
            self._phase = Phase.LEAVING
            self._guard.give(self._options.barrier_timeout)

    def rest(self) -> None:
        """What the function had opened is taken down."""
        with self._lock:
            self._phase = Phase.BETWEEN
            self._guard.give(self._options.hard_timeout)

    def interrupt_now(self) -> None:
        """The iteration has ended by this rank's own failure: do not wait for the next look."""
        with self._lock:
            if not self._interrupted:
                self._interrupt()

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join(STOPS_WITHIN)

    # The thread -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Look until told to stop."""
        beat = look = 0.0
        try:
            while not self._over.wait(self._coordination.look_every):
                now = time.monotonic()
                if now >= beat:
                    self._coordination.beat(self._own.rank)
                    beat = now + self._options.heartbeat_interval
                if now >= look:
                    self._look(now)
                    look = now + min(self._options.monitor_thread_interval, self._options.progress_watchdog_interval)
                with self._lock:
                    self._act(now)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread; the function must not run on unwatched
            self.failure = error
            _log.error("in-process restarts end: the coordination store does not answer: %s", error)
            self._leave_alone()

    def _look(self, now: float) -> None:
        """Look after this rank and the others."""
        self._look_after_others(now)
        with self._lock:
            if self._phase is Phase.RUNNING and not self._interrupted:
                idle = self.progress.look()
                self._guard.until(self.progress.since_ns + int(self._options.hard_timeout * 1e9))
                if idle > self._options.soft_timeout and not self._said_hung:
                    self._said_hung = True
                    what = f"made no progress for {self._options.soft_timeout:g} s{at_step()}"
                    self._end(Record(self._own.rank, Kind.NO_PROGRESS, what, self.progress.steps))
            elif not self._interrupted or self._phase is Phase.BETWEEN:
                self._guard.give(self._options.hard_timeout)

    def _look_after_others(self, now: float) -> None:
        known = self._coordination.lost()
        for member in self._neighbours:
            if member.rank not in known and is_dead(member):
                self._coordination.lose(member.rank, "its process died")
                known[member.rank] = "its process died"
        ring = [m.rank for m in self._members if m.rank not in known]
        if self._own.rank in ring and len(ring) > 1:
            after = ring[(ring.index(self._own.rank) + 1) % len(ring)]
            beats = self._coordination.beats(after)
            if (after, beats) != self._heard[:2]:
                self._heard = (after, beats, now)
            elif now - self._heard[2] > self._options.heartbeat_timeout:
                known[after] = f"no heartbeat for {self._options.heartbeat_timeout:g} s"
                self._coordination.lose(after, known[after])
        self._lost = known

    def _act(self, now: float) -> None:
        """Interrupt where the iteration was ended, or end it where it must be."""
        if self._phase in (Phase.LEAVING, Phase.BETWEEN):
            return
        if self._interrupted:
            # Swallowed, by a bare ``except`` perhaps. Not at once: what unwinds may have to tidy up.
            if now - self._struck > (self._options.hard_timeout - self._options.soft_timeout) / 4:
                self._struck = now
                self._interruption.strike()
            return
        for rank in self._plan.places:
            if rank in self._lost:
                why = self._lost[rank]
                self._end(Record(rank, Kind.GONE, f"is lost: {why}"))
                break
        if self._own.rank in self._lost or self._coordination.ended(self._plan.iteration) == INTERRUPTED:
            self._interrupt()

    def _end(self, record: Record) -> None:
        self._coordination.interrupt(self._plan.iteration, record)

    def _interrupt(self) -> None:
        """Unwind the function, and unblock what waits for other ranks."""
        self._interrupted, self.noticed = True, time.monotonic()
        if self._phase is not Phase.RUNNING:  # else it has what is left of the time since it last came further
            self._guard.give(self._options.hard_timeout)
        self._over.wait(self._options.last_call_wait)
        with self._interruption.atomic:
            self.aborting, self._struck = True, time.monotonic()
            self._interruption.strike()
            try:
                self.on_abort()
            except Exception:  # noqa: BLE001 - a person's code; the rest must happen
                _log.warning("abort raised", exc_info=True)
            abort.abort_collectives(self._before)

    def _leave_alone(self) -> None:
        with self._lock:
            self.aborting = True
            self._interruption.strike()
            abort.abort_collectives(self._before)


def at_step() -> str:
    """Where the rank is, as the end of a sentence; empty where nobody counts steps."""
    step = iteration_of_rankwatch()
    return "" if step is None else f" in step {step}"


def _nothing() -> None:
    pass
