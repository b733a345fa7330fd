"""What follows an interruption: whose fault it was, who goes on, or why nobody does. Pure.

How this works
--------------
All ranks that are left come back and say how they are. What they have recorded meanwhile tells the cause; of several
records the first line counts that any of them fits, since most of the others follow from it:

1. a rank is gone            its process died, was killed, or left
2. a rank raised             but not one whose collective merely failed: that is what the others see of 1. and 2.
3. a rank made no progress   of several the one that had come least far
4. a collective failed
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from rankwatch.inprocess.assignment import Assign, Situation, with_their_nodes


class Kind(StrEnum):
    """What a rank says went wrong; in the order in which they explain each other."""

    GONE = "gone"
    RAISED = "raised"
    NO_PROGRESS = "no_progress"
    COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Record:
    """What befell one rank, known by its initial rank. ``what`` follows "rank N" in a sentence."""

    rank: int
    kind: Kind
    what: str
    progress: int = 0
    """How far it had come in this iteration."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One iteration: who trains, who waits, who is out; all by initial rank."""

    iteration: int
    places: tuple[int, ...]
    reserves: tuple[int, ...] = ()
    out: Mapping[int, str] = field(default_factory=dict)
    """Who takes no part any more, and why."""
    faults: Mapping[int, int] = field(default_factory=dict)
    """How many faults each rank has caused."""
    cause: str = ""
    """Why the iteration before was interrupted: one sentence without its full stop."""
    culprit: int | None = None
    gave_up: str = ""
    """Why nobody goes on; empty: they do."""

    def to_json(self) -> str:
        """Return it as text for the store."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read what :meth:`to_json` wrote."""
        raw = json.loads(text)
        raw["places"], raw["reserves"] = tuple(raw["places"]), tuple(raw["reserves"])
        raw["out"] = {int(rank): why for rank, why in raw["out"].items()}
        raw["faults"] = {int(rank): count for rank, count in raw["faults"].items()}
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a decision depends on beside the ranks themselves."""

    assign: Assign
    granularity: str = "rank"
    max_rank_faults: int | None = None
    max_restarts: int | None = None


def cause(records: Sequence[Record]) -> Record | None:
    """The record that explains the others; None without records."""
    for kind in Kind:
        found = [record for record in records if record.kind is kind]
        if kind is Kind.NO_PROGRESS and found:
            return min(found, key=lambda record: (record.progress, record.rank))
        if found:
            return found[0]
    return None


def decide(
    plan: Plan,
    records: Sequence[Record],
    lost: Mapping[int, str],
    unfit: Mapping[int, str],
    nodes: Sequence[str],
    rules: Rules,
) -> Plan:
    """Return the plan of the next iteration.

    Args:
        plan: of the iteration that was interrupted.
        records: what befell whom in it, the first one first.
        lost: who is dead or has not come back, and why.
        unfit: who came back and may not go on, and why.
        nodes: by initial rank.
        rules: what the wrapper was told.
    """
    # A death may be noticed only after its victims have said that their collective failed.
    gone = [Record(rank, Kind.GONE, f"is lost: {lost[rank]}") for rank in plan.places if rank in lost]
    why = cause([*records, *gone])
    faults = dict(plan.faults)
    out = {**plan.out, **unfit, **lost}
    if why is not None:
        faults[why.rank] = faults.get(why.rank, 0) + 1
        limit = rules.max_rank_faults
        if limit is not None and faults[why.rank] > limit:
            out.setdefault(why.rank, f"it has caused {faults[why.rank]} faults, max_rank_faults is {limit}")
    for rank in with_their_nodes(out, nodes, rules.granularity):
        out.setdefault(rank, f"its node {nodes[rank]} is left out")
    said = f"rank {why.rank} {why.what}" if why is not None else "the iteration was interrupted"
    culprit = why.rank if why is not None else None
    iteration = plan.iteration + 1
    after = rules.assign(Situation(plan.places, plan.reserves, frozenset(out)))
    gave_up = ""
    if rules.max_restarts is not None and iteration > rules.max_restarts:
        gave_up = f"max_restarts ({rules.max_restarts}) is used up"
    elif after is None:
        missing = sorted(rank for rank in out if rank in plan.places)
        gave_up = f"without {_ranks(missing)} too few are left ({'; '.join(out[rank] for rank in missing[:3])})"
    places, reserves = (after.places, after.reserves) if after is not None else ((), ())
    return Plan(iteration, places, reserves, out, faults, said, culprit, gave_up)


def can_lose(plan: Plan, rank: int, nodes: Sequence[str], rules: Rules) -> bool:
    """Whether the others would go on if the process of ``rank`` ended now."""
    if plan.gave_up or (rules.max_restarts is not None and plan.iteration >= rules.max_restarts):
        return False
    lost = with_their_nodes({*plan.out, rank}, nodes, rules.granularity)
    return rules.assign(Situation(plan.places, plan.reserves, lost)) is not None


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
