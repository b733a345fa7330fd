"""The thread in each rank that detects hangs and lost ranks, and interrupts the function when an iteration has ended.

How this works
--------------
=========  =========================================  ==========================================================
phase      the function's thread                      this thread
=========  =========================================  ==========================================================
RUNNING    runs the function                          applies the soft timeout; moves the watchdog's deadline
                                                      with the progress; interrupts when the iteration has ended
WAITING    has finished, or is a reserve              no timeout; interrupts too
CLEANUP    has left the function, frees its           nothing: the watchdog's deadline is the barrier timeout
           communication
BETWEEN    agrees on the next iteration               keeps the watchdog from firing
=========  =========================================  ==========================================================

In every phase it sends heartbeats and checks other ranks: the processes of its own host by pid, and by its heartbeat
the next rank in the ring of those that are not lost. A rank that is found dead is recorded as lost; if it was active,
all ranks are interrupted.
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
from rankwatch.inprocess.decision import FailureKind, FailureRecord, IterationPlan
from rankwatch.inprocess.interruption import Interruption
from rankwatch.inprocess.options import WrapperOptions
from rankwatch.inprocess.progress import FunctionProgress, current_step
from rankwatch.inprocess.rank_process import RankProcess, is_dead
from rankwatch.inprocess.watchdog import Watchdog

_log = logging.getLogger("rankwatch")

STOP_TIMEOUT: Final = 5.0
"""Seconds to wait for the thread to end."""


class FunctionPhase(Enum):
    """What the function's thread is doing; see the table above."""

    RUNNING = auto()
    WAITING = auto()
    CLEANUP = auto()
    BETWEEN = auto()


class MonitorThread(threading.Thread):
    """See the header. Created and driven by the thread that runs the function."""

    def __init__(
        self,
        own: RankProcess,
        members: Sequence[RankProcess],
        options: WrapperOptions,
        coordination: Coordination,
        watchdog: Watchdog,
        interruption: Interruption,
    ) -> None:
        super().__init__(name="rankwatch-inprocess", daemon=True)
        self.progress = FunctionProgress()
        self.aborting = False
        """Whether an error that the function raises may be a consequence of the abort."""
        self.interrupted_at = 0.0
        """When the interruption was noticed, on the monotonic clock."""
        self.failure: Exception | None = None
        """Why the thread ended by itself: the store is lost."""
        self.on_abort: Callable[[], None] = _nothing
        self._own, self._members, self._options = own, members, options
        self._coordination, self._watchdog, self._interruption = coordination, watchdog, interruption
        self._neighbours = [m for m in members if m.host == own.host and m.rank != own.rank]
        self._phase, self._plan, self._sockets_before = FunctionPhase.BETWEEN, IterationPlan(-1, ()), frozenset[str]()
        self._lost: dict[int, str] = {}
        self._last_heartbeat: tuple[int, int, float] = (-1, -1, 0.0)
        """Of the next rank in the ring: its rank, its heartbeat count, and when that count was first seen."""
        self._hang_recorded = self._interrupted = False
        self._raised_at = 0.0
        self._stopped = threading.Event()
        self._lock = threading.RLock()

    # Called by the function's thread ----------------------------------------------------------------------------------

    def begin(self, plan: IterationPlan) -> None:
        """Begin an iteration: from now on this thread may interrupt the function."""
        with self._lock:
            self._plan, self._sockets_before = plan, connections.open_sockets()
            self._hang_recorded = self._interrupted = self.aborting = False
            self.progress.begin()
            self._phase = FunctionPhase.RUNNING if self._own.rank in plan.places else FunctionPhase.WAITING
            self._watchdog.set_timeout(self._options.hard_timeout)

    def finish(self) -> None:
        """The function has returned: the soft timeout no longer applies."""
        with self._lock:
            self._phase = FunctionPhase.WAITING

    def begin_cleanup(self) -> None:
        """The function was left: its communication must be freed before the barrier times out."""
        with self._lock:
            self._phase = FunctionPhase.CLEANUP
            self._watchdog.set_timeout(self._options.barrier_timeout)

    def end_cleanup(self) -> None:
        """The communication of the function is freed."""
        with self._lock:
            self._phase = FunctionPhase.BETWEEN
            self._watchdog.set_timeout(self._options.hard_timeout)

    def interrupt_now(self) -> None:
        """Interrupt at once: the iteration was ended by this rank's own failure."""
        with self._lock:
            if not self._interrupted:
                self._interrupt()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join(STOP_TIMEOUT)

    # The thread -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send heartbeats, check, and interrupt until stopped."""
        next_heartbeat = next_check = 0.0
        try:
            while not self._stopped.wait(self._coordination.poll_interval):
                now = time.monotonic()
                if now >= next_heartbeat:
                    self._coordination.send_heartbeat(self._own.rank)
                    next_heartbeat = now + self._options.heartbeat_interval
                if now >= next_check:
                    self._check(now)
                    interval = min(self._options.monitor_thread_interval, self._options.progress_watchdog_interval)
                    next_check = now + interval
                with self._lock:
                    self._act(now)
        except Exception as error:  # noqa: BLE001 - thread boundary; the function must not run on unmonitored
            self.failure = error
            _log.error("in-process restarts end: the coordination store does not answer: %s", error)
            self._unblock()

    def _check(self, now: float) -> None:
        self._check_other_ranks(now)
        with self._lock:
            if self._phase is FunctionPhase.RUNNING and not self._interrupted:
                idle = self.progress.idle_seconds()
                self._watchdog.set_deadline(self.progress.since_ns + int(self._options.hard_timeout * 1e9))
                if idle > self._options.soft_timeout and not self._hang_recorded:
                    self._hang_recorded = True
                    what = f"made no progress for {self._options.soft_timeout:g} s{at_step()}"
                    self._end(FailureRecord(self._own.rank, FailureKind.NO_PROGRESS, what, self.progress.steps))
            elif not self._interrupted or self._phase is FunctionPhase.BETWEEN:
                self._watchdog.set_timeout(self._options.hard_timeout)

    def _check_other_ranks(self, now: float) -> None:
        lost = self._coordination.lost()
        for member in self._neighbours:
            if member.rank not in lost and is_dead(member):
                self._coordination.mark_lost(member.rank, "its process died")
                lost[member.rank] = "its process died"
        ring = [m.rank for m in self._members if m.rank not in lost]
        if self._own.rank in ring and len(ring) > 1:
            successor = ring[(ring.index(self._own.rank) + 1) % len(ring)]
            count = self._coordination.heartbeat_count(successor)
            if (successor, count) != self._last_heartbeat[:2]:
                self._last_heartbeat = (successor, count, now)
            elif now - self._last_heartbeat[2] > self._options.heartbeat_timeout:
                lost[successor] = f"no heartbeat for {self._options.heartbeat_timeout:g} s"
                self._coordination.mark_lost(successor, lost[successor])
        self._lost = lost

    def _act(self, now: float) -> None:
        """Interrupt the function if the iteration has ended, or end the iteration if an active rank is lost."""
        if self._phase in (FunctionPhase.CLEANUP, FunctionPhase.BETWEEN):
            return
        if self._interrupted:
            # The function may have swallowed it, in a bare ``except`` for example; repeat after leaving it time to
            # clean up.
            if now - self._raised_at > (self._options.hard_timeout - self._options.soft_timeout) / 4:
                self._raised_at = now
                self._interruption.interrupt()
            return
        for rank in self._plan.places:
            if rank in self._lost:
                self._end(FailureRecord(rank, FailureKind.GONE, f"is lost: {self._lost[rank]}"))
                break
        if self._own.rank in self._lost or self._coordination.end_status(self._plan.iteration) == INTERRUPTED:
            self._interrupt()

    def _end(self, record: FailureRecord) -> None:
        self._coordination.interrupt(self._plan.iteration, record)

    def _interrupt(self) -> None:
        """Unwind the function, and unblock its waits for other ranks."""
        self._interrupted, self.interrupted_at = True, time.monotonic()
        if self._phase is not FunctionPhase.RUNNING:  # a running function keeps the deadline of its last progress
            self._watchdog.set_timeout(self._options.hard_timeout)
        self._stopped.wait(self._options.last_call_wait)
        with self._interruption.atomic:
            self.aborting, self._raised_at = True, time.monotonic()
            self._interruption.interrupt()
            try:
                self.on_abort()
            except Exception:  # noqa: BLE001 - user code; the collectives must be aborted all the same
                _log.warning("the abort callback raised", exc_info=True)
            abort.abort_collectives(self._sockets_before)

    def _unblock(self) -> None:
        """Like :meth:`_interrupt`, without the store."""
        with self._lock:
            self.aborting = True
            self._interruption.interrupt()
            abort.abort_collectives(self._sockets_before)


def at_step() -> str:
    """Return " in step N"; empty where ``rankwatch.step()`` is not used."""
    step = current_step()
    return "" if step is None else f" in step {step}"


def _nothing() -> None:
    pass
