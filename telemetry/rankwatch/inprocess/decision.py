"""Plans the iteration after an interruption: the cause, the ranks that continue, or why none can. Pure.

After an interruption every surviving rank checks in. The faults recorded meanwhile are explained by one root cause:
the first line of this list that any record matches, since the later ones are usually consequences of it.

1. a rank is gone            its process died, was killed, or exited
2. a rank raised             anything but the failure of a collective, which is how ranks see cases 1 and 2 elsewhere
3. a rank made no progress   if several, the one with the least progress
4. a collective failed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rankwatch.inprocess.assignment import Assign, Situation, with_node_mates


class FailureKind(StrEnum):
    """What went wrong on a rank, causes before their consequences."""

    GONE = "gone"
    RAISED = "raised"
    NO_PROGRESS = "no_progress"
    COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """One fault of one rank, by its initial rank. ``what`` follows "rank N" in a sentence."""

    rank: int
    kind: FailureKind
    what: str
    progress: int = 0
    """Progress of the rank in this iteration."""


@dataclass(frozen=True, slots=True)
class IterationPlan:
    """The roles of all ranks in one iteration, by initial rank."""

    iteration: int
    places: tuple[int, ...]
    """The active ranks: ``places[active rank]``."""
    reserves: tuple[int, ...] = ()
    excluded: Mapping[int, str] = field(default_factory=dict)
    """Ranks that take no part any more, and why."""
    fault_counts: Mapping[int, int] = field(default_factory=dict)
    """Faults that each rank has caused so far."""
    cause: str = ""
    """Why the previous iteration was interrupted: a sentence without its full stop."""
    culprit: int | None = None
    abandoned: str = ""
    """Why no rank continues; empty if they do."""

    def fits(self, iteration: int, world: int) -> bool:
        """Whether it can be the plan of an iteration in a job of ``world`` ranks."""
        order = (*self.places, *self.reserves)
        ranks = {*order, *self.excluded, *self.fault_counts}
        known = all(0 <= rank < world for rank in ranks) and len(set(order)) == len(order)
        return known and self.iteration == iteration and bool(self.places or self.abandoned)


@dataclass(frozen=True, slots=True)
class RestartRules:
    """The options of the wrapper that a decision depends on."""

    assign: Assign
    granularity: str = "rank"
    max_rank_faults: int | None = None
    max_restarts: int | None = None

    def exclude_after(self, faults: int) -> bool:
        """Whether a rank that has caused so many faults is excluded for them."""
        return self.max_rank_faults is not None and faults > self.max_rank_faults


def root_cause(records: Sequence[FailureRecord]) -> FailureRecord | None:
    """Return the record that explains the others; None without records."""
    for kind in FailureKind:
        found = [record for record in records if record.kind is kind]
        if kind is FailureKind.NO_PROGRESS and found:
            return min(found, key=lambda record: (record.progress, record.rank))
        if found:
            return found[0]
    return None


def decide(
    plan: IterationPlan,
    records: Sequence[FailureRecord],
    lost: Mapping[int, str],
    unfit: Mapping[int, str],
    nodes: Sequence[str],
    rules: RestartRules,
) -> IterationPlan:
    """Return the plan of the next iteration.

    Args:
        plan: of the interrupted iteration.
        records: its faults, the earliest first.
        lost: ranks that are dead or did not check in, and why.
        unfit: ranks that checked in and may not continue, and why.
        rules: the wrapper's options.
    """
    # A death may be noticed only after its victims have recorded that their collective failed.
    gone = [FailureRecord(rank, FailureKind.GONE, f"is lost: {lost[rank]}") for rank in plan.places if rank in lost]
    fault = root_cause([*records, *gone])
    counts = dict(plan.fault_counts)
    excluded = {**plan.excluded, **unfit, **lost}
    if fault is not None:
        counts[fault.rank] = counts.get(fault.rank, 0) + 1
        if rules.exclude_after(number := counts[fault.rank]):
            why = f"it has caused {number} faults, max_rank_faults is {rules.max_rank_faults}"
            excluded.setdefault(fault.rank, why)
    for rank in with_node_mates(excluded, nodes, rules.granularity):
        excluded.setdefault(rank, f"its node {nodes[rank]} is excluded")
    cause = f"rank {fault.rank} {fault.what}" if fault is not None else "the iteration was interrupted"
    culprit = fault.rank if fault is not None else None
    iteration = plan.iteration + 1
    assigned = rules.assign(Situation(plan.places, plan.reserves, frozenset(excluded)))
    abandoned = ""
    if rules.max_restarts is not None and iteration > rules.max_restarts:
        abandoned = f"max_restarts ({rules.max_restarts}) is used up"
    elif assigned is None:
        missing = sorted(rank for rank in excluded if rank in plan.places)
        reasons = "; ".join(excluded[rank] for rank in missing[:3])
        abandoned = f"without {_ranks(missing)} too few are left ({reasons})"
    places, reserves = (assigned.places, assigned.reserves) if assigned is not None else ((), ())
    return IterationPlan(iteration, places, reserves, excluded, counts, cause, culprit, abandoned)


def is_expendable(plan: IterationPlan, rank: int, nodes: Sequence[str], rules: RestartRules) -> bool:
    """Whether the other ranks would continue if the process of ``rank`` ended now."""
    if plan.abandoned or (rules.max_restarts is not None and plan.iteration >= rules.max_restarts):
        return False
    lost = with_node_mates({*plan.excluded, rank}, nodes, rules.granularity)
    return rules.assign(Situation(plan.places, plan.reserves, lost)) is not None


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
