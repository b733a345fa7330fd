"""What all launchers of a job agree on, kept in the rendezvous store: how each attempt ended, the restart budget.

How an attempt ends
-------------------
Whoever sees an attempt fail first writes a :class:`Ruling` for it with one compare-and-set; everyone else finds that
ruling and follows it. So all launchers restart or all stop, for the same reason in the same words, and one restart is
counted however many launchers noticed the failure.

What bounds restarts
--------------------
A counted restart is taken from the budget (``max_restarts``); one that only regroups nodes is not counted. And an
attempt that got no further than an earlier one is a cycle without progress: after ``max_no_progress`` of them in a row
the job is given up with exit code 93, since starting it again would not help. Steps that are counted from 0 in every
attempt may be the script's own count since its last checkpoint; of those, only the very same step once more counts.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rankwatch_launcher.agent import reasons
from rankwatch_launcher.agent.torch_compat import PrefixStore, Store
from rankwatch_launcher.coordination.decisions import FAIL, RESTART, Budget, Proposal, Reached, Ruling, StopRequest
from rankwatch_launcher.job.outcome import CODE_DO_NOT_REQUEUE, CODE_FAILED, STOPPED


class Ledger:
    """The job's facts in the rendezvous store. Calls go over a connection of their own and are made from one thread."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = PrefixStore(f"rankwatch/{run_id}", store)

    def end_attempt(
        self,
        attempt: int,
        verdict: str,
        reason: str,
        *,
        by: str,
        budget: Budget,
        counted: bool = True,
        incident: str | None = None,
        fault: bool = True,
        reached: Reached | None = None,
        code: int = CODE_FAILED,
        exclude: Mapping[str, str] | None = None,
        avoid: str | None = None,
        state: str = STOPPED,
    ) -> Ruling:
        """Rule how an attempt ends, unless that is ruled already; return the ruling that holds.

        A ``restart`` becomes ``fail`` when it is ``counted`` and the budget is used up, or when too many attempts in a
        row have got no further than this one has (None: not known).
        """
        used = self.restarts() + (1 if counted and verdict == RESTART else 0)
        best, vain, last = self._progress()
        if counted and reached is not None:
            in_vain = reached.iteration <= best if reached.first > 0 else reached.iteration == last
            best, vain, last = max(best, reached.iteration), vain + 1 if in_vain else 0, reached.iteration
        if verdict == RESTART and counted and 0 < budget.max_no_progress <= vain:
            verdict, used, code = FAIL, used - 1, CODE_DO_NOT_REQUEUE
            reason = reasons.no_progress(reason, vain, best)
        elif verdict == RESTART and counted and used > budget.max_restarts:
            verdict, used = FAIL, used - 1
            reason = reasons.out_of_budget(reason, budget.max_restarts)
        token = secrets.token_hex(8)
        own = Ruling(
            verdict,
            reason,
            by,
            used,
            budget.max_restarts,
            incident,
            fault,
            token,
            code,
            dict(exclude or {}),
            state,
            avoid,
        )
        ruling = _ruling(self._store.compare_set(_end(attempt), "", json.dumps(asdict(own))))
        if ruling.token == own.token:
            self._store.set("progress", json.dumps([best, vain, last]))
            if counted and verdict == RESTART:
                self._store.add("restarts", 1)
        return ruling

    def furthest(self) -> int | None:
        """The furthest step that any attempt that has ended is known to have completed."""
        best, _, _ = self._progress()
        return best if best >= 0 else None

    def _progress(self) -> tuple[int, int, int]:
        """The furthest step of any attempt, the attempts in a row that were in vain, the last one's furthest step."""
        if not self._store.check(["progress"]):
            return -1, 0, -1
        best, vain, last = json.loads(self._store.get("progress"))
        return int(best), int(vain), int(last)

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

    def find(self, name: str) -> dict[str, Any] | None:
        """A fact that another launcher has published; None while there is none."""
        if not self._store.check([f"fact/{name}"]):
            return None
        found: dict[str, Any] = json.loads(self._store.get(f"fact/{name}"))
        return found

    def count(self, name: str, amount: int = 1) -> int:
        """Add to a counter and return it; ``amount`` 0 reads it."""
        return int(self._store.add(f"count/{name}", amount))

    # Stopping ---------------------------------------------------------------------------------------------------------

    def ask_to_stop(self, attempt: int, request: StopRequest) -> None:
        """Ask for all ranks of an attempt to save and stop; whoever asked first is followed."""
        self._store.compare_set(f"stop/{attempt}", "", json.dumps(asdict(request)))

    def stop_request(self, attempt: int) -> StopRequest | None:
        """Who asked the ranks of an attempt to save and stop, if anybody did."""
        if not self._store.check([f"stop/{attempt}"]):
            return None
        return StopRequest(**json.loads(self._store.get(f"stop/{attempt}")))

    def propose(self, attempt: int, proposal: Proposal) -> None:
        """The coordinator: tell all launchers of a stop step."""
        self._store.set(f"proposal/{attempt}", json.dumps(asdict(proposal)))

    def proposal(self, attempt: int) -> Proposal | None:
        """The newest stop step that was proposed for an attempt."""
        if not self._store.check([f"proposal/{attempt}"]):
            return None
        body = json.loads(self._store.get(f"proposal/{attempt}"))
        return Proposal(body["number"], body["step"], StopRequest(**body["request"]))

    def attempt_store(self, attempt: int) -> Store:
        """A store that no other attempt writes to."""
        return PrefixStore(f"attempt/{attempt}", self._store)


def _end(attempt: int) -> str:
    return f"end/{attempt}"


def _ruling(text: bytes) -> Ruling:
    return Ruling(**json.loads(text))
