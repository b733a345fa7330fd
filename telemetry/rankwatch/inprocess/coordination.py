"""What the ranks tell each other about restarts, through a store that none of their own deaths takes away.

How this works
--------------
The store is the launcher's where it offers one (``TORCHELASTIC_USE_AGENT_STORE``), else that of a process which rank 0
starts (:mod:`rankwatch.inprocess.store_host`). Keys that begin with ``I/`` belong to iteration I:

================  ==================================================================================================
member/R          who rank R is, written once
plan/I            who trains in iteration I; the first proposal counts
lost              who is dead, one line each, added by whoever noticed
I/records         what befell whom, one line each
I/end             ``done`` or ``interrupted``; the first word counts, so that all agree how an iteration ended
I/completed       how many ranks have finished the function
I/finished        which, one line each
I/back            who came back after an interruption, and how it is, one line each
I/master          where the first rank of iteration I holds the store of the process groups
beat/R            counts the heartbeats of rank R
================  ==================================================================================================
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final, TypeVar

from rankwatch.inprocess import store_host
from rankwatch.inprocess.decision import Kind, Plan, Record
from rankwatch.inprocess.members import Member
from rankwatch.inprocess.state import InProcessError

T = TypeVar("T")

DONE: Final = b"done"
INTERRUPTED: Final = b"interrupted"
LOOK_EVERY: Final = 0.05
"""Seconds between two looks at a key; a job of thousands of ranks looks less often, so that the store keeps up."""
LOOKS_A_SECOND: Final = 20_000
"""What one store is asked by all ranks together, at most."""


class Coordination:
    """One connection to the store. Each thread has its own, since a connection answers one question at a time."""

    def __init__(self, host: str, port: int, prefix: str, world: int, timeout: float) -> None:
        """Connect.

        Raises:
            InProcessError: nobody answers within the timeout, in seconds.
        """
        distributed: Any = importlib.import_module("torch.distributed")
        try:
            client = distributed.TCPStore(
                host, port, None, False, timeout=timedelta(seconds=timeout), wait_for_workers=False
            )
        except RuntimeError as error:
            raise InProcessError(f"no coordination store answers at {host}:{port}: {error}") from error
        self._store = distributed.PrefixStore(prefix, client)
        self.look_every = max(LOOK_EVERY, world / LOOKS_A_SECOND)

    # Who is there -----------------------------------------------------------------------------------------------------

    def register(self, member: Member) -> None:
        """Say who this process is."""
        self._store.set(f"member/{member.rank}", member.to_json())

    def members(self, world: int, timeout: float) -> list[Member]:
        """All processes, once they have registered.

        Raises:
            InProcessError: some have not within the timeout.
        """
        keys = [f"member/{rank}" for rank in range(world)]
        if not self._until(lambda: self._store.check(keys), timeout):
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            raise InProcessError(f"{len(missing)} of {world} ranks did not start within {timeout:g} s: {missing[:8]}")
        return [Member(**json.loads(self._store.get(key))) for key in keys]

    def beat(self, rank: int) -> None:
        """Say that a rank lives."""
        self._store.add(f"beat/{rank}", 1)
        self._store.add(store_host.BEATS, 1)

    def beats(self, rank: int) -> int:
        """How often a rank has said so."""
        return int(self._store.add(f"beat/{rank}", 0))

    def lose(self, rank: int, why: str) -> None:
        """Say that a rank is gone for good; twice does no harm."""
        self._append(store_host.LOST, {"rank": rank, "why": why})

    def lost(self) -> dict[int, str]:
        """Who is gone, and why, as the first one said who noticed."""
        found: dict[int, str] = {}
        for line in self._lines(store_host.LOST):
            found.setdefault(line["rank"], line["why"])
        return found

    # One iteration ----------------------------------------------------------------------------------------------------

    def interrupt(self, iteration: int, record: Record) -> bytes:
        """End an iteration because of this, unless it has ended already; return how it has ended."""
        self._append(f"{iteration}/records", asdict(record))
        return self._end(iteration, INTERRUPTED)

    def complete(self, iteration: int, rank: int, of: int) -> None:
        """Say that this rank has finished the function; the last one ends the iteration."""
        self._append(f"{iteration}/finished", {"rank": rank})
        if self._store.add(f"{iteration}/completed", 1) >= of:
            self._end(iteration, DONE)

    def completed(self, iteration: int) -> set[int]:
        """Who has finished the function."""
        return {line["rank"] for line in self._lines(f"{iteration}/finished")}

    def ended(self, iteration: int) -> bytes:
        """How an iteration has ended; empty: it has not."""
        key = f"{iteration}/end"
        return bytes(self._store.get(key)) if self._store.check([key]) else b""

    def until_ended(self, iteration: int, timeout: float | None) -> bytes:
        """Wait for the end of an iteration; empty when the timeout has passed."""
        return self._until(lambda: self.ended(iteration), timeout) or b""

    def records(self, iteration: int) -> list[Record]:
        """What befell whom, the first one first."""
        return [Record(**{**line, "kind": Kind(line["kind"])}) for line in self._lines(f"{iteration}/records")]

    # Between two ------------------------------------------------------------------------------------------------------

    def come_back(self, iteration: int, rank: int, unfit: str) -> None:
        """Say that this rank has left the function, and why it may not go on, if so."""
        self._append(f"{iteration}/back", {"rank": rank, "unfit": unfit})

    def back(self, iteration: int) -> dict[int, str]:
        """Who came back, and why it may not go on; empty: it may."""
        return {line["rank"]: line["unfit"] for line in self._lines(f"{iteration}/back")}

    def propose(self, plan: Plan) -> None:
        """Propose an iteration; the first proposal counts."""
        self._store.compare_set(f"plan/{plan.iteration}", "", plan.to_json())

    def plan(self, iteration: int) -> Plan | None:
        """What was agreed on for an iteration."""
        key = f"plan/{iteration}"
        return Plan.from_json(self._store.get(key)) if self._store.check([key]) else None

    def offer_master(self, iteration: int, address: str, port: int) -> None:
        """Say where the process groups of an iteration meet."""
        self._store.set(f"{iteration}/master", f"{address} {port}")

    def master(self, iteration: int) -> tuple[str, str] | None:
        """Where the process groups of an iteration meet: address and port."""
        key = f"{iteration}/master"
        if not self._store.check([key]):
            return None
        address, _, port = self._store.get(key).decode().partition(" ")
        return address, port

    def say_goodbye(self, rank: int, world: int) -> None:
        """This rank asks nothing more."""
        self._append(store_host.GOODBYES, {"rank": rank})
        self._store.set(store_host.RANKS, str(world))

    # ------------------------------------------------------------------------------------------------------------------

    def _end(self, iteration: int, how: bytes) -> bytes:
        return bytes(self._store.compare_set(f"{iteration}/end", "", how.decode()))

    def _append(self, key: str, line: dict[str, Any]) -> None:
        self._store.append(key, json.dumps(line) + "\n")

    def _lines(self, key: str) -> list[dict[str, Any]]:
        if not self._store.check([key]):
            return []
        return [json.loads(line) for line in self._store.get(key).decode().splitlines()]

    def _until(self, condition: Callable[[], T], timeout: float | None) -> T | None:
        """The first true value of a condition; None when there is none in time."""
        # Not the store's own wait(): it writes two lines to stderr for each that times out.
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (found := condition()):
            if deadline is not None and time.monotonic() > deadline:
                return None
            time.sleep(self.look_every)
        return found
