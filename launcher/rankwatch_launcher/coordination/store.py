"""The launchers' shared state in the rendezvous store: every key, and how it is written.

=====================  ==============================================================================================
``roll``               names of all launchers that ever registered, one a line, in the order of arrival
``member/NODE``        a launcher's :class:`Member`, rewritten with every heartbeat
``coordinator``        the launcher that makes rosters; taken over when its heartbeat stops
``roster/ATTEMPT``     a whole roster; ``place/ATTEMPT/NODE`` is one launcher's part in it
``newest``             number of the newest roster
``waiting``            what the next roster waits for
``excluded``           excluded nodes and hosts, and why
``closed``             the job's :class:`Outcome`, once it is over
``end/ATTEMPT``        the :class:`AttemptDecision` that ends an attempt
``progress``           :class:`JobProgress` over all ended attempts; ``restarts`` counts restarts
``stop/ATTEMPT``       the request to save and stop; ``proposal/ATTEMPT`` is the newest stop step proposed
``fact/NAME``          what one launcher publishes for the others; ``count/NAME`` is a shared counter
=====================  ==============================================================================================

What several launchers may write at once is written by compare-and-set: the first write holds.

The store has no authentication. Where the launchers have a secret in common (``RANKWATCH_RENDEZVOUS_SECRET``), each
record carries an HMAC over its key and content: one that none of them wrote is as if it were not there.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from rankwatch.contract import env
from rankwatch.contract.enums import NodeRole
from rankwatch.contract.messages import read
from rankwatch_launcher.coordination.decisions import (
    RESTART,
    AttemptDecision,
    JobProgress,
    RestartBudget,
    StepRange,
    StopProposal,
    StopRequest,
    within_limits,
)
from rankwatch_launcher.coordination.membership import Member, NodeProgress, Place, Roster, StopAnswer
from rankwatch_launcher.outcome import Outcome
from rankwatch_launcher.torch_compat import DistError, PrefixStore, Store

BATCH: Final = 200
"""Records in one call. torch's store parses an incomplete message again from its beginning whenever more of it arrives,
and serves no other call meanwhile: 12,500 records in one call cost it 0.7 s, in batches 0.02 s."""


_TRIES: Final = 100
"""How often a record that no launcher of the job wrote is replaced."""


class JobStore:
    """One connection's view of the shared state. A connection serves one call at a time: each thread has its own."""

    def __init__(self, store: Store, run_id: str, secret: str | None = None) -> None:
        """``secret``: of all launchers of the job, by default that of the environment; empty: there is none."""
        self._store = PrefixStore(f"rankwatch/{run_id}", store)
        self._secret = (os.environ.get(env.RENDEZVOUS_SECRET, "") if secret is None else secret).encode()
        self._run_id = run_id
        self._obsolete: list[str] = []
        """Keys of the previous roster, deleted when the next one is published."""

    # Launchers --------------------------------------------------------------------------------------------------------

    def register(self, member: Member) -> None:
        """Add a launcher. Its record is written first, so that every name in the roll has one."""
        self.write_member(member)
        self._store.append("roll", f"{member.node}\n")  # type: ignore[attr-defined]  # torch's stubs lack it

    def write_member(self, member: Member) -> None:
        """Replace a launcher's record."""
        self._set(f"member/{member.node}", asdict(member))

    def member_names(self) -> list[str]:
        """All launchers that ever registered."""
        return self._store.get("roll").decode().split()

    def members(self, names: Iterable[str]) -> list[Member]:
        """The launchers' records."""
        keys = [f"member/{name}" for name in names]
        batches = [self._store.multi_get(keys[i : i + BATCH]) for i in range(0, len(keys), BATCH)]
        found = zip(keys, (text for batch in batches for text in batch), strict=True)
        return [_member(json.loads(own)) for key, text in found if (own := self._opened(key, text)) is not None]

    def claim_coordinator(self, me: str, before: str) -> str:
        """Become the coordinator if it still is ``before`` (empty: none); return the coordinator."""
        return self._store.compare_set("coordinator", before, me).decode()

    # Rosters ----------------------------------------------------------------------------------------------------------

    def newest_attempt(self) -> int:
        """Number of the newest roster; 0 before the first."""
        return int(self._store.get("newest")) if self._store.check(["newest"]) else 0

    def roster(self, attempt: int) -> Roster:
        """The roster of an attempt."""
        own = self._opened(f"roster/{attempt}", self._store.get(f"roster/{attempt}"))
        if own is None:
            raise DistError(f"the roster of attempt {attempt} was not written by a launcher of this job")
        return _roster(own)

    def place(self, attempt: int, node: str) -> Place | None:
        """A launcher's part in an attempt; None when it has none."""
        body = self._get(f"place/{attempt}/{node}")
        return read(Place, {**body, "role": NodeRole(body["role"])}) if body is not None else None

    def settle_roster(self, made: Roster) -> Roster:
        """Store a roster unless its attempt has one; return the one that holds.

        Two launchers may take each other for lost and both coordinate for a moment.
        """
        return _roster(self._settle(f"roster/{made.attempt}", json.dumps(asdict(made))))

    def publish_roster(self, roster: Roster, places: Mapping[str, Place], last: Roster | None) -> None:
        """Publish a settled roster. Idempotent: the coordinator that settled it may have died before publishing."""
        self.publish_places(places)
        self._store.set("waiting", "")
        # A coordinator that was suspended here must not overwrite a newer number.
        self._store.compare_set("newest", str(last.attempt) if last is not None else "", str(roster.attempt))
        for key in self._obsolete:
            self._store.delete_key(key)
        self._obsolete = []
        if last is not None:
            nodes = (*last.active, *last.spares, *last.parked)
            self._obsolete = [f"roster/{last.attempt}", *(f"place/{last.attempt}/{node}" for node in nodes)]

    def publish_places(self, places: Mapping[str, Place]) -> None:
        """Write launchers' parts in an attempt."""
        keys = [f"place/{place.attempt}/{node}" for node, place in places.items()]
        bodies = [json.dumps(asdict(place)) for place in places.values()]
        values = [self._sealed(key, body) for key, body in zip(keys, bodies, strict=True)]
        for i in range(0, len(keys), BATCH):
            self._store.multi_set(keys[i : i + BATCH], values[i : i + BATCH])  # type: ignore[attr-defined]  # torch's stubs lack it

    def waiting_reason(self) -> str:
        """What the next roster waits for; empty when unknown."""
        return self._store.get("waiting").decode() if self._store.check(["waiting"]) else ""

    def set_waiting_reason(self, reason: str) -> None:
        """Publish what the next roster waits for."""
        self._store.set("waiting", reason)

    def excluded(self) -> dict[str, str]:
        """Reasons by the name of a node, or of a host with the prefix ``HOST``."""
        return self._get("excluded") or {}

    def set_excluded(self, nodes: Mapping[str, str]) -> None:
        """Replace the excluded nodes and hosts."""
        self._set("excluded", dict(nodes))

    # The end of the job -----------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome | None:
        """How the job ended; None while it runs."""
        own = self._opened("closed", self._store.get("closed")) if self._store.check(["closed"]) else None
        return Outcome.from_json(own) if own is not None else None

    def close(self, outcome: Outcome) -> None:
        """End the job for launchers that wait or come later. The first outcome holds."""
        self._settle("closed", outcome.to_json())

    # The end of an attempt --------------------------------------------------------------------------------------------

    def end_attempt(
        self, attempt: int, proposed: AttemptDecision, *, by: str, budget: RestartBudget, steps: StepRange | None = None
    ) -> AttemptDecision:
        """Decide how an attempt ends, unless that is decided already; return the decision that holds.

        Args:
            attempt: its number.
            proposed: what the launcher wants; a restart becomes a failure beyond the limits.
            by: the launcher's node.
            budget: limits on restarts.
            steps: that the attempt completed; None: unknown.
        """
        progress = self._progress()
        if proposed.counted:
            progress = progress.including(steps, proposed)
        kept = progress.given_back()
        back = len(progress.to_give_back) - len(kept.to_give_back)
        own = within_limits(proposed, budget, self.restarts() - back, kept)
        own = replace(own, by=by, token=secrets.token_hex(8))
        decision = read(AttemptDecision, json.loads(self._settle(f"end/{attempt}", json.dumps(asdict(own)))))
        if decision.token == own.token:
            self._set("progress", asdict(kept))
            self._store.add("restarts", int(decision.verdict == RESTART and decision.counted) - back)
        return decision

    def decision(self, attempt: int) -> AttemptDecision | None:
        """How an attempt ends; None while it runs."""
        body = self._get(f"end/{attempt}")
        return read(AttemptDecision, body) if body is not None else None

    def restarts(self) -> int:
        """Counted restarts so far."""
        return int(self._store.add("restarts", 0))

    def furthest_step(self) -> int | None:
        """The furthest step that any ended attempt is known to have completed."""
        furthest = self._progress().furthest
        return furthest if furthest >= 0 else None

    def attempt_store(self, attempt: int) -> Store:
        """A store for the keys of one attempt."""
        return PrefixStore(f"attempt/{attempt}", self._store)

    def _progress(self) -> JobProgress:
        body = self._get("progress") or {}
        return read(JobProgress, {**body, "to_give_back": tuple(body.get("to_give_back", ()))})

    # Stopping ---------------------------------------------------------------------------------------------------------

    def request_stop(self, attempt: int, request: StopRequest) -> None:
        """Request that all ranks of an attempt save and stop. The first request holds."""
        self._settle(f"stop/{attempt}", json.dumps(asdict(request)))

    def stop_request(self, attempt: int) -> StopRequest | None:
        """The request to save and stop an attempt."""
        body = self._get(f"stop/{attempt}")
        return read(StopRequest, body) if body is not None else None

    def propose_stop(self, attempt: int, proposal: StopProposal) -> None:
        """Publish a stop step (the coordinator only)."""
        self._set(f"proposal/{attempt}", asdict(proposal))

    def stop_proposal(self, attempt: int) -> StopProposal | None:
        """The newest stop step proposed for an attempt."""
        body = self._get(f"proposal/{attempt}")
        return read(StopProposal, {**body, "request": read(StopRequest, body["request"])}) if body is not None else None

    # Facts ------------------------------------------------------------------------------------------------------------

    def publish(self, name: str, value: Mapping[str, Any]) -> None:
        """Publish a fact for the other launchers."""
        self._set(f"fact/{name}", dict(value))

    def find(self, name: str) -> dict[str, Any] | None:
        """A published fact; None when there is none yet."""
        return self._get(f"fact/{name}")

    def count(self, name: str, amount: int = 1) -> int:
        """Add to a shared counter and return it; ``amount`` 0 only reads it."""
        return int(self._store.add(f"count/{name}", amount))

    def _get(self, key: str) -> dict[str, Any] | None:
        if not self._store.check([key]):
            return None
        if (own := self._opened(key, self._store.get(key))) is None:
            return None
        body: dict[str, Any] = json.loads(own)
        return body

    def _set(self, key: str, body: Mapping[str, Any]) -> None:
        self._store.set(key, self._sealed(key, json.dumps(body)))

    def _settle(self, key: str, text: str) -> bytes:
        """Write a record unless a launcher of the job has; return the one that holds."""
        sealed, before = self._sealed(key, text), ""
        for _ in range(_TRIES):
            stored = self._store.compare_set(key, before, sealed)
            if (own := self._opened(key, stored)) is not None:
                return own
            try:
                before = "" if stored == before.encode() else stored.decode()  # the same again: it was deleted
            except UnicodeDecodeError:
                self._store.delete_key(key)
        raise DistError(f"another program writes {key} in the rendezvous store again and again")

    def _sealed(self, key: str, text: str) -> str:
        return f"{self._mac(key, text.encode())} {text}" if self._secret else text

    def _opened(self, key: str, sealed: bytes) -> bytes | None:
        """The content of a record; None if no launcher of the job wrote it."""
        if not self._secret:
            return sealed
        mac, _, text = sealed.partition(b" ")
        return text if hmac.compare_digest(mac, self._mac(key, text).encode()) else None

    def _mac(self, key: str, text: bytes) -> str:
        return hmac.new(self._secret, f"{self._run_id}\0{key}\0".encode() + text, hashlib.sha256).hexdigest()


def _member(body: dict[str, Any]) -> Member:
    progress, answer = body.get("progress") or {}, body.get("stop_answer")
    steps = progress.get("steps")
    nested = {
        "progress": read(NodeProgress, {**progress, "steps": StepRange(**steps) if steps else None}),
        "stop_answer": read(StopAnswer, answer) if answer else None,
        "connections": tuple(body.get("connections") or ()),
    }
    return read(Member, {**body, **nested})


def _roster(text: bytes) -> Roster:
    body = json.loads(text)
    return Roster(body["attempt"], tuple(body["active"]), tuple(body["spares"]), dict(body["parked"]))
