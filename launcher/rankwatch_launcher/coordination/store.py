"""What the launchers of a job write for each other to see, in the rendezvous store.

=====================  ==============================================================================================
``roll``               names of all launchers that ever came, one a line, in the order of their arrival
``member/NODE``        what a launcher says of itself, written anew about once a second
``coordinator``        whose word counts; taken over when its beat stands still
``roster/ATTEMPT``     the whole roster; ``place/ATTEMPT/NODE`` what one launcher needs to know of it
``newest``             number of the newest roster
``waiting``            what the next roster waits for, in words
``excluded``           nodes, and hosts, that take no part any more, and why
``closed``             the job is over, and how
=====================  ==============================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields

from rankwatch_launcher.agent.torch_compat import PrefixStore, Store
from rankwatch_launcher.coordination.membership import Member, Place, Roster

HOST = "host:"
"""Prefix of those names in ``excluded`` that are hosts."""


@dataclass(frozen=True, slots=True)
class Closed:
    """How the job is over, for whoever still waits or comes later."""

    state: str
    """``finished``, ``failed``, ``stopped`` or ``preempted``."""
    code: int
    reason: str


class Board:
    """One connection's view of it; each thread has one of its own, since a connection does one thing at a time."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = PrefixStore(f"rankwatch/{run_id}", store)
        self._past: list[str] = []
        """Keys of the roster before the newest: nobody needs them once another one is made."""

    # Launchers --------------------------------------------------------------------------------------------------------

    def write(self, member: Member) -> None:
        """Say what this launcher is now."""
        self._store.set(f"member/{member.node}", json.dumps(asdict(member)))

    def enter(self, member: Member) -> None:
        """Come among the launchers."""
        self.write(member)  # first: whoever finds the name in the roll finds this too
        self._store.append("roll", f"{member.node}\n")  # type: ignore[attr-defined]  # torch's stubs lack it

    def names(self) -> list[str]:
        """All launchers that ever came."""
        return self._store.get("roll").decode().split()

    def members(self, names: Iterable[str]) -> list[Member]:
        """What these launchers last said."""
        keys = [f"member/{name}" for name in names]
        return [_member(text) for text in self._store.multi_get(keys)] if keys else []

    def claim(self, me: str, before: str) -> str:
        """Be the coordinator if it still is ``before`` (empty: nobody); return who is."""
        return self._store.compare_set("coordinator", before, me).decode()

    # Rosters ----------------------------------------------------------------------------------------------------------

    def newest(self) -> int:
        """Number of the newest roster; 0 before the first."""
        return int(self._store.get("newest")) if self._store.check(["newest"]) else 0

    def roster(self, attempt: int) -> Roster:
        """The whole of one."""
        return _roster(self._store.get(f"roster/{attempt}"))

    def place(self, attempt: int, node: str) -> Place | None:
        """One launcher's part in an attempt; None when it was not there to be given one."""
        key = f"place/{attempt}/{node}"
        return Place(**json.loads(self._store.get(key))) if self._store.check([key]) else None

    def settle(self, made: Roster) -> Roster:
        """Put up a roster; return the one that holds for its attempt, which may be another coordinator's.

        Two launchers may take each other for dead and both be coordinator for a moment: the first roster holds.
        """
        return _roster(self._store.compare_set(f"roster/{made.attempt}", "", json.dumps(asdict(made))))

    def publish(self, roster: Roster, places: Mapping[str, Place], last: Roster | None) -> None:
        """Tell everybody in a roster that settled of their places.

        Whoever made it may have died before this, so every coordinator does it for the roster that holds.
        """
        self.tell(places)
        self._store.set("waiting", "")
        # A coordinator that was frozen here must not put an old number over a newer one.
        self._store.compare_set("newest", str(last.attempt) if last is not None else "", str(roster.attempt))
        for key in self._past:
            self._store.delete_key(key)
        self._past = []
        if last is not None:
            everybody = (*last.active, *last.spares, *last.parked)
            self._past = [f"roster/{last.attempt}", *(f"place/{last.attempt}/{node}" for node in everybody)]

    def tell(self, places: Mapping[str, Place]) -> None:
        """Tell launchers of their places."""
        keys = [f"place/{place.attempt}/{node}" for node, place in places.items()]
        words = [json.dumps(asdict(place)) for place in places.values()]
        self._store.multi_set(keys, words)  # type: ignore[attr-defined]  # torch's stubs lack it

    def waiting(self) -> str:
        """What the next roster waits for; empty when it is not known."""
        return self._store.get("waiting").decode() if self._store.check(["waiting"]) else ""

    def say_waiting(self, words: str) -> None:
        """Say what the next roster waits for."""
        self._store.set("waiting", words)

    # The job ----------------------------------------------------------------------------------------------------------

    def excluded(self) -> dict[str, str]:
        """Reasons by the name of a node, or of a host with :data:`HOST` before it."""
        found: dict[str, str] = json.loads(self._store.get("excluded")) if self._store.check(["excluded"]) else {}
        return found

    def exclude(self, nodes: Mapping[str, str]) -> None:
        """Replace what is excluded."""
        self._store.set("excluded", json.dumps(dict(nodes)))

    def closed(self) -> Closed | None:
        """How the job is over; None while it goes on."""
        return Closed(**json.loads(self._store.get("closed"))) if self._store.check(["closed"]) else None

    def close(self, closed: Closed) -> None:
        """The job is over: spares may go, and nobody begins anew. What was said first holds."""
        self._store.compare_set("closed", "", json.dumps(asdict(closed)))


def _member(text: bytes) -> Member:
    body = json.loads(text)
    known = {f.name: body[f.name] for f in fields(Member) if f.name in body}
    if known.get("answer") is not None:
        number, agreed, furthest = known["answer"]
        known["answer"] = (number, agreed, furthest)
    return Member(**known)


def _roster(text: bytes) -> Roster:
    body = json.loads(text)
    return Roster(body["attempt"], tuple(body["active"]), tuple(body["spares"]), dict(body["parked"]))
