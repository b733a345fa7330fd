"""What the ranks share about restarts, in a store that survives the death of any rank.

The store is the launcher's where it offers one (``TORCHELASTIC_USE_AGENT_STORE``), else that of a process started by
rank 0 (:mod:`rankwatch.inprocess.store_server`). Keys that begin with ``I/`` belong to iteration I:

================  ==================================================================================================
member/R          the process of rank R, written once
plan/I            the plan of iteration I; the first proposal wins
lost              ranks that are dead, one line each, appended by the rank that noticed
I/records         faults, one line each
I/end             ``done`` or ``interrupted``; the first value wins, so that all ranks agree
I/completed       count of ranks that have finished the function
I/finished        these ranks, one line each
I/back            ranks that have checked in after an interruption, and whether they are fit, one line each
I/master          address and port of the process groups' store
beat/R            count of the heartbeats of rank R
================  ==================================================================================================
"""

from __future__ import annotations

import importlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final, TypeVar

from rankwatch.contract.messages import read_text
from rankwatch.inprocess import store_server
from rankwatch.inprocess.decision import FailureRecord, IterationPlan
from rankwatch.inprocess.rank_process import RankProcess
from rankwatch.inprocess.state import InProcessError
from rankwatch.inprocess.store_server import RankLine

_log = logging.getLogger("rankwatch")

T = TypeVar("T")
L = TypeVar("L", RankLine, FailureRecord)

DONE: Final = b"done"
INTERRUPTED: Final = b"interrupted"
POLL_INTERVAL: Final = 0.05
"""Seconds between two reads of a key. Longer in jobs of thousands of ranks, to bound the load of the store."""
MAX_READS_PER_SECOND: Final = 20_000
"""Reads of all ranks together."""


class Coordination:
    """One connection to the store. Not thread-safe: each thread has its own."""

    def __init__(self, host: str, port: int, prefix: str, world: int, timeout: float) -> None:
        """Connect.

        Raises:
            InProcessError: there is no store at this address; ``timeout`` in seconds.
        """
        distributed: Any = importlib.import_module("torch.distributed")
        try:
            client = distributed.TCPStore(
                host, port, None, False, timeout=timedelta(seconds=timeout), wait_for_workers=False
            )
        except RuntimeError as error:
            raise InProcessError(f"no coordination store answers at {host}:{port}: {error}") from error
        self._store = distributed.PrefixStore(prefix, client)
        self._world = world
        self._noticed: set[str] = set()
        """Keys of which something was logged as ignored."""
        self.poll_interval = max(POLL_INTERVAL, world / MAX_READS_PER_SECOND)

    # Membership -------------------------------------------------------------------------------------------------------

    def register(self, member: RankProcess) -> None:
        """Publish this process."""
        self._store.set(f"member/{member.rank}", json.dumps(asdict(member)))

    def deregister(self, rank: int, world: int) -> None:
        """Record that this rank no longer needs the store."""
        self._append(store_server.FINISHED, RankLine(rank))
        self._store.set(store_server.WORLD_SIZE, str(world))

    def members(self, world: int, timeout: float) -> list[RankProcess]:
        """Return all processes, once they have registered.

        Raises:
            InProcessError: some have not within the timeout, or what is there is none.
        """
        keys = [f"member/{rank}" for rank in range(world)]
        if not self._until(lambda: self._store.check(keys), timeout):
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            raise InProcessError(f"{len(missing)} of {world} ranks did not start within {timeout:g} s: {missing[:8]}")
        try:
            found = [read_text(RankProcess, self._store.get(key)) for key in keys]
        except ValueError as error:
            raise InProcessError(f"a process in the coordination store is malformed: {error}") from None
        if [member.rank for member in found] != list(range(world)):
            raise InProcessError("the processes in the coordination store have the ranks of others")
        return found

    def send_heartbeat(self, rank: int) -> None:
        """Count one heartbeat of a rank."""
        self._store.add(f"beat/{rank}", 1)
        self._store.add(store_server.HEARTBEATS, 1)

    def heartbeat_count(self, rank: int) -> int:
        """Return the number of heartbeats of a rank."""
        return int(self._store.add(f"beat/{rank}", 0))

    def mark_lost(self, rank: int, why: str) -> None:
        """Record that a rank is gone for good. Idempotent."""
        self._append(store_server.LOST, RankLine(rank, why))

    def lost(self) -> dict[int, str]:
        """Return the lost ranks and why; the first reason recorded wins."""
        found: dict[int, str] = {}
        for line in self._lines(store_server.LOST, RankLine):
            found.setdefault(line.rank, line.why)
        return found

    # One iteration ----------------------------------------------------------------------------------------------------

    def interrupt(self, iteration: int, record: FailureRecord) -> None:
        """Record a fault, and end the iteration unless it has ended already."""
        self._append(f"{iteration}/records", record)
        self._end(iteration, INTERRUPTED)

    def complete(self, iteration: int, rank: int, of: int) -> None:
        """Record that this rank has finished the function; the last one ends the iteration."""
        self._append(f"{iteration}/finished", RankLine(rank))
        if self._store.add(f"{iteration}/completed", 1) >= of:
            self._end(iteration, DONE)

    def completed(self, iteration: int) -> set[int]:
        """Return the ranks that have finished the function."""
        return {line.rank for line in self._lines(f"{iteration}/finished", RankLine)}

    def end_status(self, iteration: int) -> bytes:
        """Return ``DONE`` or ``INTERRUPTED``; empty if the iteration has not ended."""
        key = f"{iteration}/end"
        if not self._store.check([key]):
            return b""
        return DONE if self._store.get(key) == DONE else INTERRUPTED

    def wait_for_end(self, iteration: int, timeout: float | None) -> bytes:
        """Wait for the end of an iteration and return its status; empty after the timeout."""
        return self._until(lambda: self.end_status(iteration), timeout) or b""

    def records(self, iteration: int) -> list[FailureRecord]:
        """Return the faults of an iteration, the earliest first."""
        return self._lines(f"{iteration}/records", FailureRecord)

    # Between two iterations -------------------------------------------------------------------------------------------

    def check_in(self, iteration: int, rank: int, unfit: str) -> None:
        """Record that this rank has left the function; ``unfit``: why it may not continue, or empty."""
        self._append(f"{iteration}/back", RankLine(rank, unfit))

    def checked_in(self, iteration: int) -> dict[int, str]:
        """Return the ranks that have checked in, and why each may not continue, or empty."""
        return {line.rank: line.why for line in self._lines(f"{iteration}/back", RankLine)}

    def propose(self, plan: IterationPlan) -> None:
        """Propose an iteration; the first proposal wins."""
        self._store.compare_set(f"plan/{plan.iteration}", "", json.dumps(asdict(plan)))

    def plan(self, iteration: int) -> IterationPlan | None:
        """Return the plan of an iteration, once there is one.

        Raises:
            InProcessError: it is none. No rank can replace it, so the processes end and are started again.
        """
        key = f"plan/{iteration}"
        if not self._store.check([key]):
            return None
        try:
            found = read_text(IterationPlan, self._store.get(key))
        except ValueError as error:
            raise InProcessError(f"the plan of iteration {iteration} is malformed: {error}") from None
        if not found.fits(iteration, self._world):
            raise InProcessError(f"the plan of iteration {iteration} is for other ranks than the job has")
        return found

    def publish_master(self, iteration: int, address: str, port: int) -> None:
        """Publish MASTER_ADDR and MASTER_PORT of an iteration."""
        self._store.set(f"{iteration}/master", f"{address} {port}")

    def master(self, iteration: int) -> tuple[str, str] | None:
        """Return MASTER_ADDR and MASTER_PORT of an iteration, once they are published.

        Raises:
            InProcessError: they are none.
        """
        key = f"{iteration}/master"
        if not self._store.check([key]):
            return None
        address, _, port = self._store.get(key).decode(errors="replace").partition(" ")
        if not (address and address.isascii() and address.isprintable() and port.isascii() and port.isdigit()):
            raise InProcessError(f"the address of iteration {iteration} in the coordination store is malformed")
        return address, port

    # ------------------------------------------------------------------------------------------------------------------

    def _end(self, iteration: int, status: bytes) -> None:
        self._store.compare_set(f"{iteration}/end", "", status.decode())

    def _append(self, key: str, line: RankLine | FailureRecord) -> None:
        self._store.append(key, json.dumps(asdict(line)) + "\n")

    def _lines(self, key: str, shape: type[L]) -> list[L]:
        """Those about ranks that the job has."""
        found = store_server.lines(self._store, key, shape, self._ignored)
        return [line for line in found if 0 <= line.rank < self._world]

    def _ignored(self, key: str) -> None:
        if key not in self._noticed:
            self._noticed.add(key)
            _log.warning("lines of %s in the coordination store are malformed, and ignored", key)

    def _until(self, condition: Callable[[], T], timeout: float | None) -> T | None:
        """Return the first true value of a condition; None after the timeout."""
        # Not the store's own wait(): it writes two lines to stderr for each timeout.
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (found := condition()):
            if deadline is not None and time.monotonic() > deadline:
                return None
            time.sleep(self.poll_interval)
        return found
