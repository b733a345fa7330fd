"""When the stacks of incidents are reduced to what is shown of them, and what an incident takes then."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np

from rankwatch.contract.enums import VerdictKind
from rankwatch.contract.messages import Collective, Frame, RankStack
from rankwatch_monitor.core.hang.stacks import Stacks
from rankwatch_monitor.core.hang.verdict import union
from rankwatch_monitor.core.incident.state_machine import (
    Closed,
    Diagnosis,
    EvidenceReceived,
    StacksTaken,
    transition,
)
from rankwatch_monitor.core.incident_record import SETTLED_AFTER, Ended, Incident, Phase, settle


def stack(rank: int) -> RankStack:
    return RankStack(rank, 100 + rank, "py-spy", (Frame("load_batch", "/srv/me/data.py", 7),))


def incident(name: str, closed_at: float | None) -> Incident:
    over = Phase.DETECTED if closed_at is None else Phase.CLOSED
    made = Incident(name, "job", VerdictKind.SECTION_OVERRUN, 1, 0.0, "it hangs", phase=over, closed_at=closed_at)
    made.stacks.add(stack(0))
    return made


def test_stacks_are_settled_once_an_incident_is_over_and_no_more_of_them_arrive() -> None:
    earlier, over, running = incident("1", 50.0), incident("2", 100.0), incident("3", None)
    transition(over, EvidenceReceived("node-1", (stack(1),), 120.0), 120.0)
    settle([earlier, over, running], 100.0 + SETTLED_AFTER)
    assert [each.stacks.settled for each in (earlier, over, running)] == [True, False, False]
    settle([earlier, over, running], 120.0 + SETTLED_AFTER)
    assert [each.stacks.settled for each in (earlier, over, running)] == [True, True, False]
    assert over.stacks == Stacks.of([stack(0), stack(1)])


def test_stacks_that_arrive_after_all_are_kept_and_settled_again() -> None:
    over = incident("1", 100.0)
    settle([over], 200.0)
    transition(over, EvidenceReceived("node-1", (stack(1),), 210.0), 210.0)
    settle([over], 211.0)
    assert not over.stacks.settled
    settle([over], 210.0 + SETTLED_AFTER)
    assert over.stacks.settled
    assert list(over.stacks) == [0, 1]


def held(root: Incident) -> tuple[int, int]:
    """Objects that only an incident refers to, and their bytes; types, functions and constants are shared."""
    seen, left = dict[int, object](), [root]
    while left:
        each: Any = left.pop()
        if id(each) in seen or isinstance(each, type | Enum):
            continue
        seen[id(each)] = each
        left += gc.get_referents(each)
    return len(seen), sum(map(sys.getsizeof, seen.values()))


def hang(ranks: int) -> Incident:
    """An incident of a job of so many ranks, from the verdict to the minute after the last stacks."""
    opened = Diagnosis(VerdictKind.SECTION_OVERRUN, "it hangs", affected=union(np.arange(ranks)))
    made = Incident("1", "job", VerdictKind.SECTION_OVERRUN, 1, 0.0, "", phase=Phase.CAPTURING)
    for node in range(ranks // 8):
        group = (Collective("world", "all_reduce", 7, 6), Collective(f"tp ({node})", "all_reduce", 9, 9))
        stacks = tuple(replace(stack(rank), collectives=group) for rank in range(8 * node, 8 * node + 8))
        transition(made, EvidenceReceived(f"node-{node}", stacks, 1.0), 1.0)
    transition(made, StacksTaken(opened), 2.0)
    transition(made, Closed(3.0, Ended.WENT_ON, "it went on"), 3.0)
    settle([made], 3.0 + SETTLED_AFTER)
    return made


def test_an_incident_that_is_over_takes_the_same_memory_whatever_the_number_of_ranks() -> None:
    small, large = hang(64), hang(4096)
    assert (len(small.affected), len(large.affected), len(large.stacks)) == (64, 4096, 4096)
    assert len(large.stacks.group_progress()) == 1 + 4096 // 8
    (objects, size), (few, least) = held(large), held(small)
    assert objects <= few + 8, "as many objects, but for a few integers"
    assert size <= least + 4 * 4096
