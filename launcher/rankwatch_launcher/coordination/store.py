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
``progress``           :class:`JobProgress` over all ended attempts
``finished/ATTEMPT``   the ranks of all nodes have exited with code 0; ``finished/ATTEMPT/GROUP_RANK``: of one node
``stop/ATTEMPT``       the request to save and stop; ``proposal/ATTEMPT`` is the newest stop step proposed
``fact/NAME``          what one launcher publishes for the others
=====================  ==============================================================================================

What several launchers may write at once is written by compare-and-set: the first write holds.

The store has no authentication. Where the launchers have a secret in common (``RANKWATCH_RENDEZVOUS_SECRET``), each
record carries an HMAC over its key and content: one that none of them wrote is as if it were not there. So is one that
is malformed, with or without a secret. Either is logged once. Whoever reaches the store's port can read all of it, but
for what is hidden with the secret (:meth:`JobStore.hide`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from rankwatch.contract import env
from rankwatch.contract.enums import NodeRole
from rankwatch.contract.messages import read_text
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
from rankwatch_launcher.coordination.membership import Member, Place, Roster
from rankwatch_launcher.log import logger
from rankwatch_launcher.outcome import Outcome
from rankwatch_launcher.torch_compat import DistError, PrefixStore, Store

BATCH: Final = 200
"""Records in one call. torch's store parses an incomplete message again from its beginning whenever more of it arrives,
and serves no other call meanwhile: 12,500 records in one call cost it 0.7 s, in batches 0.02 s."""


_TRIES: Final = 100
"""How often a record that no launcher of the job wrote is replaced."""
_MOST_NOTICES: Final = 100
"""Records that are logged as ignored, at most."""

T = TypeVar("T")


class JobStore:
    """One connection's view of the shared state. A connection serves one call at a time: each thread has its own."""

    def __init__(self, store: Store, run_id: str, secret: str | None = None) -> None:
        """``secret``: of all launchers of the job, by default that of the environment; empty: there is none."""
        self._store = PrefixStore(f"rankwatch/{run_id}", store)
        self._secret = (os.environ.get(env.RENDEZVOUS_SECRET, "") if secret is None else secret).encode()
        self._run_id = run_id
        self._obsolete: list[str] = []
        """Keys of the previous roster, deleted when the next one is published."""
        self._noticed: set[str] = set()
        """Keys whose records were logged as ignored."""

    # Launchers --------------------------------------------------------------------------------------------------------

    def register(self, member: Member) -> None:
        """Add a launcher. Its record is written first, so that every name in the roll has one."""
        self.write_member(member)
        line = self._sealed("roll", member.node)
        self._store.append("roll", f"{line}\n")  # type: ignore[attr-defined]  # torch's stubs lack it

    def write_member(self, member: Member) -> None:
        """Replace a launcher's record."""
        self._set(f"member/{member.node}", asdict(member))

    def member_names(self) -> list[str]:
        """All launchers that ever registered."""
        lines = self._store.get("roll").splitlines() if self._store.check(["roll"]) else []
        found = (self._opened("roll", line, bytes.decode) for line in lines)
        return [name for name in dict.fromkeys(found) if name]

    def members(self, names: Iterable[str]) -> list[Member]:
        """The launchers' records."""
        keys = [f"member/{name}" for name in names]
        found = []
        for i in range(0, len(keys), BATCH):
            batch = keys[i : i + BATCH]
            if not self._store.check(batch):  # torch waits for a key that is not there
                batch = [key for key in batch if self._store.check([key])]
            for key, sealed in zip(batch, self._store.multi_get(batch) if batch else [], strict=True):
                member = self._opened(key, sealed, _of(Member))
                if member is not None and key == f"member/{member.node}":
                    found.append(member)
        return found

    def claim_coordinator(self, me: str, before: str) -> str:
        """Become the coordinator if it still is ``before`` (empty: none); return the coordinator."""
        return self._exchange("coordinator", me, bytes.decode, before)

    # Rosters ----------------------------------------------------------------------------------------------------------

    def newest_attempt(self) -> int:
        """Number of the newest roster; 0 before the first."""
        return self._get("newest", _number) or 0

    def roster(self, attempt: int) -> Roster:
        """The roster of an attempt; where it cannot be read, as the launchers' parts have it."""
        made = self._get(f"roster/{attempt}", _of(Roster))
        if made is not None and made.attempt == attempt:
            return made
        parts = {name: part for name in self.member_names() if (part := self.place(attempt, name)) is not None}
        active = sorted((part.group_rank, name) for name, part in parts.items() if part.role is NodeRole.ACTIVE)
        spares = tuple(name for name, part in parts.items() if part.role is NodeRole.SPARE)
        parked = {name: part.reason for name, part in parts.items() if part.role is NodeRole.PARKED}
        return Roster(attempt, tuple(name for _, name in active), spares, parked)

    def place(self, attempt: int, node: str) -> Place | None:
        """A launcher's part in an attempt; None when it has none."""
        return self._get(f"place/{attempt}/{node}", _of(Place))

    def settle_roster(self, made: Roster) -> Roster:
        """Store a roster unless its attempt has one; return the one that holds.

        Two launchers may take each other for lost and both coordinate for a moment.
        """
        return self._exchange(f"roster/{made.attempt}", json.dumps(asdict(made)), _of(Roster))

    def publish_roster(self, roster: Roster, places: Mapping[str, Place], last: Roster | None) -> None:
        """Publish a settled roster. Idempotent: the coordinator that settled it may have died before publishing."""
        self.publish_places(places)
        self.set_waiting_reason("")
        # A coordinator that was suspended here must not overwrite a newer number.
        self._exchange("newest", str(roster.attempt), _number, str(last.attempt) if last is not None else "")
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
        return self._get("waiting", bytes.decode) or ""

    def set_waiting_reason(self, reason: str) -> None:
        """Publish what the next roster waits for."""
        self._store.set("waiting", self._sealed("waiting", reason))

    def excluded(self) -> dict[str, str]:
        """Reasons by the name of a node, or of a host with the prefix ``HOST``."""
        found = self._get("excluded", _of(_Excluded))
        return dict(found.nodes) if found is not None else {}

    def set_excluded(self, nodes: Mapping[str, str]) -> None:
        """Replace the excluded nodes and hosts."""
        self._set("excluded", {"nodes": dict(nodes)})

    # The end of the job -----------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome | None:
        """How the job ended; None while it runs."""
        return self._get("closed", _of(Outcome))

    def close(self, outcome: Outcome) -> None:
        """End the job for launchers that wait or come later. The first outcome holds."""
        self._exchange("closed", json.dumps(asdict(outcome)), _of(Outcome))

    # The end of an attempt --------------------------------------------------------------------------------------------

    def end_attempt(
        self, attempt: int, proposed: AttemptDecision, *, by: str, budget: RestartBudget, steps: StepRange | None = None
    ) -> AttemptDecision:
        """Decide how an attempt ends, unless that is decided already; return the decision that holds.

        Args:
            proposed: what the launcher wants; a restart becomes a failure beyond the limits.
            steps: that the attempt completed; None: unknown.
        """
        progress = self._progress()
        if proposed.counted:
            progress = progress.including(steps, proposed)
        kept = progress.given_back()
        back = len(progress.to_give_back) - len(kept.to_give_back)
        own = within_limits(proposed, budget, progress.restarts - back, kept)
        own = replace(own, by=by, token=secrets.token_hex(8))
        decision = self._exchange(f"end/{attempt}", json.dumps(asdict(own)), _of(AttemptDecision))
        if decision.token == own.token:
            counted = int(decision.verdict == RESTART and decision.counted)
            self._set("progress", asdict(replace(kept, restarts=progress.restarts + counted - back)))
        return decision

    def decision(self, attempt: int) -> AttemptDecision | None:
        """How an attempt ends; None while it runs."""
        return self._get(f"end/{attempt}", _of(AttemptDecision))

    def restarts(self) -> int:
        """Counted restarts so far."""
        return self._progress().restarts

    def furthest_step(self) -> int | None:
        """The furthest step that any ended attempt is known to have completed."""
        furthest = self._progress().furthest
        return furthest if furthest >= 0 else None

    def attempt_store(self, attempt: int) -> Store:
        """A store for the keys of one attempt."""
        return PrefixStore(f"attempt/{attempt}", self._store)

    def _progress(self) -> JobProgress:
        return self._get("progress", _of(JobProgress)) or JobProgress()

    # The ranks' success -----------------------------------------------------------------------------------------------

    def finish(self, attempt: int, group_rank: int) -> None:
        """Publish that the ranks of one node have exited with code 0."""
        self._set(f"finished/{attempt}/{group_rank}", {})

    def all_finished(self, attempt: int, group_rank: int, running: list[int]) -> bool:
        """Whether the ranks of all nodes have exited with code 0.

        ``running``: group ranks that are not known to have, which only group rank 0 looks for. It tells the others:
        what thousands of launchers poll must be small.
        """
        if group_rank == 0:
            while running and self._get(f"finished/{attempt}/{running[-1]}", _of(_Finished)) is not None:
                running.pop()
            if not running:
                self._set(f"finished/{attempt}", {})
        return self._get(f"finished/{attempt}", _of(_Finished)) is not None

    # Stopping ---------------------------------------------------------------------------------------------------------

    def request_stop(self, attempt: int, request: StopRequest) -> None:
        """Request that all ranks of an attempt save and stop. The first request holds."""
        self._exchange(f"stop/{attempt}", json.dumps(asdict(request)), _of(StopRequest))

    def stop_request(self, attempt: int) -> StopRequest | None:
        """The request to save and stop an attempt."""
        return self._get(f"stop/{attempt}", _of(StopRequest))

    def propose_stop(self, attempt: int, proposal: StopProposal) -> None:
        """Publish a stop step (the coordinator only)."""
        self._set(f"proposal/{attempt}", asdict(proposal))

    def stop_proposal(self, attempt: int) -> StopProposal | None:
        """The newest stop step proposed for an attempt."""
        return self._get(f"proposal/{attempt}", _of(StopProposal))

    # Facts ------------------------------------------------------------------------------------------------------------

    def publish(self, name: str, value: Mapping[str, Any]) -> None:
        """Publish a fact for the other launchers."""
        self._set(f"fact/{name}", dict(value))

    def find(self, name: str, shape: type[T]) -> T | None:
        """A published fact; None when there is none yet."""
        return self._get(f"fact/{name}", _of(shape))

    def hide(self, text: str) -> str:
        """A text of a fact that only launchers with the secret can read; without one it stays as it is."""
        salt = secrets.token_hex(16)
        return f"{salt} {self._masked(salt, text.encode()).hex()}" if self._secret and text else text

    def reveal(self, hidden: str) -> str:
        """The text that was hidden; empty if it was not, with this secret."""
        salt, _, masked = hidden.partition(" ")
        try:
            return self._masked(salt, bytes.fromhex(masked)).decode() if self._secret else hidden
        except ValueError:
            return ""

    # Records ----------------------------------------------------------------------------------------------------------

    def _get(self, key: str, decode: Callable[[bytes], T]) -> T | None:
        return self._opened(key, self._store.get(key), decode) if self._store.check([key]) else None

    def _set(self, key: str, body: Mapping[str, Any]) -> None:
        self._store.set(key, self._sealed(key, json.dumps(body)))

    def _exchange(self, key: str, text: str, decode: Callable[[bytes], T], before: str = "") -> T:
        """Write a record in place of ``before`` (empty: none), or of what none is; return the one that holds."""
        sealed, expected = self._sealed(key, text), self._sealed(key, before) if before else ""
        for _ in range(_TRIES):
            stored = self._store.compare_set(key, expected, sealed)
            if stored and (held := self._opened(key, stored, decode)) is not None:
                return held
            try:
                expected = "" if stored == expected.encode() else stored.decode()  # the same again: it was deleted
            except UnicodeDecodeError:
                self._store.delete_key(key)
                expected = ""
        raise DistError(f"another program writes {key} in the rendezvous store again and again")

    def _sealed(self, key: str, text: str) -> str:
        return f"{self._mac(key, text.encode())} {text}" if self._secret else text

    def _opened(self, key: str, sealed: bytes, decode: Callable[[bytes], T]) -> T | None:
        """The content of a record; None if no launcher of the job wrote it, or if it is malformed."""
        mac, _, text = sealed.partition(b" ") if self._secret else (b"", b"", sealed)
        why = "no launcher of this job wrote it"
        if not self._secret or hmac.compare_digest(mac, self._mac(key, text).encode()):
            try:
                return decode(text)
            except ValueError as error:
                why = str(error)
        if key not in self._noticed and len(self._noticed) < _MOST_NOTICES:
            self._noticed.add(key)
            logger.warning("the record %s in the rendezvous store is ignored: %s", key, why)
        return None

    def _mac(self, key: str, text: bytes) -> str:
        return hmac.new(self._secret, f"{self._run_id}\0{key}\0".encode() + text, hashlib.sha256).hexdigest()

    def _masked(self, salt: str, data: bytes) -> bytes:
        # No record has an empty key, so no HMAC in the store is one that the mask is made of.
        mask = hashlib.shake_256(self._mac("", salt.encode()).encode()).digest(len(data))
        return bytes(a ^ b for a, b in zip(data, mask, strict=True))


@dataclass(frozen=True, slots=True)
class _Excluded:
    nodes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Finished:
    pass


def _of(shape: type[T]) -> Callable[[bytes], T]:
    return partial(read_text, shape)


def _number(text: bytes) -> int:
    if not 0 <= (number := int(text)) < 1 << 31:
        raise ValueError("it is no number of an attempt")
    return number
