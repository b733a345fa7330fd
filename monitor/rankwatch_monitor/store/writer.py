"""The thread that writes: one transaction for whatever has queued up, so that the loop never waits for a disk.

How this works
--------------
Rows go through :class:`.rows.Backlog`: taken from the queue, written, and removed from it once they are committed. When
the database does not take them they stay there, the newest state of each, and are tried again every second, so that
what happened meanwhile is stored once the database is back. One row that is at fault itself is left out and said.

Who waits for a commit (``then``) learns of it on this thread. A monitor that has the database for its own does not
wait for one that is away, since a hang must be ended also with the disk full: ``then`` is called once the database has
refused, or has not answered for :data:`STUCK` seconds. A monitor that shares it (``fence`` is set) may not act without
it: there ``then`` is called after a commit or never, and rows of jobs that are not its own are not written at all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from operator import itemgetter
from typing import Final

from rankwatch_monitor.store import retention
from rankwatch_monitor.store.db_errors import Kind, Trouble, is_own_fault, trouble_of
from rankwatch_monitor.store.fence import Fence
from rankwatch_monitor.store.locks import HeldError
from rankwatch_monitor.store.rows import Backlog, Unit, write
from rankwatch_monitor.store.session import DamagedError, Session

log = logging.getLogger("rankwatch.store")

QUEUE_LIMIT: Final = 100_000
"""Rows that may wait for the disk; beyond that the oldest state of a row is not worth its memory."""
BATCH: Final = 1_000
"""Rows of one transaction."""
RETRY: Final = 1.0
"""Seconds until a database that refused is tried again."""
CHECK: Final = 3.0
"""Seconds after which a connection that is not used is looked after."""
STUCK: Final = 6.0
"""Seconds without an answer after which nobody waits for it any more; SQLite itself waits 5 s for a lock."""


class Writer:
    """Owns the session; everything else may be called on any thread and returns at once, unless it says otherwise."""

    def __init__(self, session: Session) -> None:
        self.errors = 0
        """Rows that were refused since the database last worked."""
        self.lost = 0
        """Rows that will never be written: there were too many, or they were at fault themselves."""
        self.fenced = 0
        """Rows that were not written, since their job is another monitor's."""
        self.trouble: Trouble | None = None
        self.fence: Fence | None = None
        self.late = not session.is_open
        """What was stored before this monitor started is not known to it yet, so nothing is written over it."""
        self.damaged = False
        self.on_open: Callable[[], None] = lambda: None
        """Called on the thread when the database was opened for the first time there."""
        self._session = session
        self._opened = session.is_open
        self._backlog = Backlog()
        self._inbox: deque[Unit] = deque()
        self._forgotten: set[str] = set()
        self._flushes: list[threading.Event] = []
        self._changed = threading.Condition()
        self._closing = False
        self._retry_at = 0.0
        self._check_at = 0.0
        self._busy_since: float | None = None
        self._in_flight: list[Unit] = []
        self._retention: retention.Task | None = None
        self._thread = threading.Thread(target=self._run, name="rankwatch-store", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Rows that are not written yet."""
        return len(self._inbox) + len(self._backlog)

    @property
    def silent_for(self) -> float:
        """Seconds for which the database has not answered, once they are too many; else 0."""
        since = self._busy_since
        elapsed = time.monotonic() - since if since is not None else 0.0
        return elapsed if elapsed > STUCK else 0.0

    def put(self, unit: Unit) -> None:
        """Queue a unit; beyond the limit it is lost and counted."""
        with self._changed:
            taken = len(self._inbox) < QUEUE_LIMIT and not self._closing
            if taken:
                self._inbox.append(unit)
                self._changed.notify()
            else:
                self.errors += 1
                self.lost += 1
        if not taken:
            self._pass_on([unit])
        elif self.silent_for:
            self._pass_on([*self._in_flight, *list(self._inbox)])

    def doubt(self, trouble: Trouble) -> None:
        """Take note of what went wrong in reading: writing tries again, and reads first what is there."""
        self.trouble, self._opened, self.late = trouble, False, True
        self.damaged = self.damaged or trouble.kind is Kind.DAMAGED

    def go_on(self) -> None:
        """What was stored before is known: write from now on."""
        with self._changed:
            self.late, self._retry_at = False, 0.0
            self._changed.notify()

    def forget(self, job_id: str) -> None:
        """Never write what still waits of a job: another monitor has had it since, and what it wrote is newer."""
        with self._changed:
            self._inbox = deque(unit for unit in self._inbox if unit.job_id != job_id)
            self._forgotten.add(job_id)
            self._changed.notify()

    def retain(self, older_than: float, held: Collection[str]) -> None:
        """Have what is older removed, bit by bit."""
        with self._changed:
            self._retention = retention.Task(older_than, frozenset(held))
            self._changed.notify()

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued so far was written or refused; False when that took too long."""
        done = threading.Event()
        with self._changed:
            self._flushes.append(done)
            self._changed.notify()
        return done.wait(timeout)

    def close(self, timeout: float) -> None:
        """Write what is queued, if the database takes it within ``timeout`` seconds, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        if left := self.waiting:
            log.error("%d rows could not be written before the end: %s", left, self.trouble or "no answer")

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            closing, flushes = self._gather()
            try:
                self._round(must=bool(flushes) or closing)
            except Exception:
                # The thread must live on, whatever a driver makes of a broken disk.
                self.errors += 1
                self._retry_at = time.monotonic() + RETRY
                log.exception("the store's thread met what it did not expect")
            for done in flushes:
                done.set()
            if closing:
                self._session.close()
                return

    def _gather(self) -> tuple[bool, list[threading.Event]]:
        """Wait until there is something to do, and take what has queued up."""
        with self._changed:
            if not (self._inbox or self._flushes or self._closing):
                self._changed.wait(self._pause())
            if self._forgotten:  # before what came in since: that is of the time after
                self._backlog.remove([unit for unit in self._backlog if unit.job_id in self._forgotten])
                self._forgotten.clear()
            for _ in range(len(self._inbox)):
                self._backlog.add(self._inbox.popleft())
            flushes, self._flushes = self._flushes, []
            closing = self._closing
        if too_many := self._backlog.shrink(QUEUE_LIMIT):
            self.lost += len(too_many)
            self._pass_on(too_many)
        return closing, flushes

    def _pause(self) -> float:
        now = time.monotonic()
        if self._retention is not None and self.trouble is None:
            return 0.01
        due = self._retry_at if len(self._backlog) or self.trouble is not None else self._check_at
        return min(max(due - now, 0.01), CHECK)

    def _round(self, *, must: bool) -> None:
        if self.damaged:
            self._refuse(list(self._backlog))
            self.lost += len(self._backlog)
            self._backlog = Backlog()
            return
        if self.trouble is not None and not must and time.monotonic() < self._retry_at:
            self._refuse(list(self._backlog))
            return
        if self.late:
            self._attempt([])
            self._retry_at = time.monotonic() + RETRY
            if self.late:
                self._refuse(list(self._backlog))
                return
        if len(self._backlog) or self.trouble is not None:
            while self._attempt(self._backlog.first(BATCH)):
                if not len(self._backlog):
                    break
        elif time.monotonic() >= self._check_at:
            self._attempt([])
        if self._retention is not None and self.trouble is None and not self._inbox:
            self._remove_some()

    def _attempt(self, units: list[Unit]) -> bool:
        """Write units, or look after the connection when there are none; False when the database does not work."""
        self._check_at = time.monotonic() + CHECK
        try:
            self._in_flight, self._busy_since = units, time.monotonic()
            try:
                written = self._write(units)
            finally:
                self._in_flight, self._busy_since = [], None
        except Exception as error:  # noqa: BLE001 - the writer's thread must live on; drivers raise errors of their own
            if self._session.is_open and units and is_own_fault(error):
                if len(units) > 1:
                    # One row that cannot be written must not cost the others of its batch.
                    return all(self._attempt([unit]) for unit in units)
                self._leave_out(units[0], error)
                return True
            self._fail(error)
            return False
        self._backlog.remove(units)
        self._works()
        self._tell(written)
        return True

    def _write(self, units: list[Unit]) -> list[Unit]:
        self._session.open()
        if not self._opened:
            self.on_open()
            self._opened = True
        if not units:
            self._session.check()
            return []
        with self._session.transaction() as connection:
            written = units
            if self.fence is not None:
                jobs = {unit.job_id for unit in units if unit.job_id is not None}
                ours = self.fence.held(connection, jobs) if jobs else set()
                written = [unit for unit in units if unit.job_id is None or unit.job_id in ours]
            write(connection, written)
        if self.fence is not None:
            self.fenced += sum(1 for unit in units for _ in unit.flat()) - sum(1 for u in written for _ in u.flat())
        return written

    def _works(self) -> None:
        if len(self._backlog) or self.late:
            return
        if self.trouble is not None:
            lost = f"; {self.lost} rows were lost since the start" if self.lost else ""
            log.info("the database works again, and what had waited is written%s", lost)
            self.trouble = None
        self.errors = 0

    def _fail(self, error: Exception) -> None:
        if isinstance(error, HeldError):
            trouble = Trouble(Kind.LOCKED, str(error), "until then this monitor goes on in memory")
        elif isinstance(error, (ValueError, DamagedError)):
            kind = Kind.DAMAGED if isinstance(error, DamagedError) else Kind.OTHER
            trouble = trouble_of(error, self._session.engine.url)._replace(kind=kind)
        else:
            trouble = trouble_of(error, self._session.engine.url)
        self._session.drop()
        self._retry_at = time.monotonic() + RETRY
        if self.trouble is None or self.trouble.kind is not trouble.kind:
            log.error("the database refuses (%s); the monitor goes on in memory", trouble)
        self.trouble = trouble
        self.damaged = trouble.kind is Kind.DAMAGED
        self._refuse(list(self._backlog))

    def _refuse(self, units: Iterable[Unit]) -> None:
        for unit in units:
            if not unit.refused:
                unit.refused = True
                self.errors += sum(1 for _ in unit.flat())
                self._pass_on([unit])

    def _leave_out(self, unit: Unit, error: Exception) -> None:
        self._backlog.remove([unit])
        self.errors += 1
        self.lost += 1
        log.error("a row of %s cannot be stored and is left out: %s", unit.table.name, error)
        self._pass_on([unit])

    def _remove_some(self) -> None:
        task = self._retention
        assert task is not None
        try:
            with self._session.transaction() as connection:
                done = task.remove_some(connection)
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("old rows are not removed for now: %s", trouble_of(error, self._session.engine.url))
            self._session.drop()
            done = True
        with self._changed:
            if done and self._retention is task:
                self._retention = None
                if task.jobs:
                    log.info("%d jobs were removed that nobody had heard of for long", task.jobs)

    def _pass_on(self, units: Iterable[Unit]) -> None:
        """Tell those who wait that no more is waited for, where that is allowed."""
        if self.fence is None:
            self._tell(units)

    def _tell(self, units: Iterable[Unit]) -> None:
        """Call what waits for units, each once, in the order in which they came."""
        thens: list[tuple[int, Callable[[], None]]] = []
        with self._changed:
            for row in (row for unit in units for row in unit.flat()):
                thens += row.thens
                row.thens = []
        for _, then in sorted(thens, key=itemgetter(0)):
            try:
                then()
            except Exception:
                self.errors += 1
                log.exception("what waited for a row failed")
