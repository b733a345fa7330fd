"""What all launchers of a job agree on, kept in the rendezvous store: attempts, how each ended, the restart budget.

How an attempt ends
-------------------
Whoever sees an attempt fail first writes a :class:`Ruling` for it with one compare-and-set; everyone else finds that
ruling and follows it. So all launchers restart or all stop, for the same reason in the same words, and one restart is
counted however many launchers noticed the failure.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rankwatch_launcher import reasons
from rankwatch_launcher.torch_seams import PrefixStore, Store

RESTART: Final = "restart"
FAIL: Final = "fail"
STOP: Final = "stop"

_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Ruling:
    """How one attempt of the whole job ended, and why."""

    verdict: str
    """``restart``, ``fail`` (no restart left) or ``stop`` (by order)."""
    reason: str
    by: str
    """The node that ruled."""
    used: int
    """Restarts used, this one included."""
    max_restarts: int
    incident: str | None = None
    fault: bool = True
    """Something went wrong, so that evidence is worth taking; False when nodes only regroup."""
    token: str = ""


class Ledger:
    """The job's facts in the rendezvous store. Calls go over a connection of their own and are made from one thread."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = PrefixStore(f"rankwatch/{run_id}", store)

    def next_attempt(self) -> int:
        """Take the next attempt number; they ascend, gaps are allowed."""
        return int(self._store.add("attempt", 1))

    def end_attempt(
        self,
        attempt: int,
        verdict: str,
        reason: str,
        *,
        by: str,
        max_restarts: int,
        counted: bool = True,
        incident: str | None = None,
        fault: bool = True,
    ) -> Ruling:
        """Rule how an attempt ends, unless that is ruled already; return the ruling that holds.

        A ``restart`` becomes ``fail`` when it is ``counted`` and the budget is used up.
        """
        used = self.restarts() + (1 if counted and verdict == RESTART else 0)
        if verdict == RESTART and counted and used > max_restarts:
            verdict, used = FAIL, used - 1
            reason = reasons.out_of_budget(reason, max_restarts)
            counted = False
        own = Ruling(verdict, reason, by, used, max_restarts, incident, fault, secrets.token_hex(8))
        ruling = _ruling(self._store.compare_set(_end(attempt), "", json.dumps(asdict(own))))
        if ruling.token == own.token and counted and verdict == RESTART:
            self._store.add("restarts", 1)
        return ruling

    def restarts(self) -> int:
        """Restarts that were counted so far."""
        return int(self._store.add("restarts", 0))

    def ruling(self, attempt: int) -> Ruling | None:
        """How an attempt was ruled to end, or None while it goes on."""
        if not self._store.check([_end(attempt)]):
            return None
        return _ruling(self._store.get(_end(attempt)))

    def publish(self, name: str, value: Mapping[str, Any]) -> None:
        """Make a fact known to the other launchers."""
        self._store.set(f"fact/{name}", json.dumps(dict(value)))

    def find(self, name: str, timeout: float) -> dict[str, Any] | None:
        """Wait for a fact that another launcher publishes; None when it does not come in time."""
        until = time.monotonic() + timeout
        while not self._store.check([f"fact/{name}"]):
            if time.monotonic() > until:
                return None
            time.sleep(_POLL_SECONDS)
        found: dict[str, Any] = json.loads(self._store.get(f"fact/{name}"))
        return found

    def count(self, name: str, amount: int = 1) -> int:
        """Add to a counter and return it; ``amount`` 0 reads it."""
        return int(self._store.add(f"count/{name}", amount))

    def attempt_store(self, attempt: int) -> Store:
        """A store that no other attempt writes to."""
        return PrefixStore(f"attempt/{attempt}", self._store)


def _end(attempt: int) -> str:
    return f"end/{attempt}"


def _ruling(text: bytes) -> Ruling:
    return Ruling(**json.loads(text))
