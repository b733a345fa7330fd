"""Plans and faults: what makes no sense is refused with words."""

from __future__ import annotations

from typing import Any

import pytest

from support.simulator.plan import Fault, FaultKind, Plan, parse_fault


def test_a_fault_is_read_from_text() -> None:
    expected = Fault(FaultKind.HANG, (3, 5), 40, "checkpointing", attempt=2, seconds=1.5)
    assert parse_fault("kind=hang, rank=3+5,step=40,section=checkpointing,attempt=2,seconds=1.5") == expected
    assert parse_fault("kind=stall") == Fault(FaultKind.STALL)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs its kind"),
        ("rank=3", "needs its kind"),
        ("kind=sleepy", "kind of a fault: it must be one of hang"),
        ("kind=hang,rnk=3", "'rnk=3' is none of kind, rank"),
        ("kind=hang,rank=x", "rank of a fault: it must be a whole number"),
        ("kind=hang,section=lunch", "section of a fault: it must be one of setup"),
        ("kind=hang,seconds=-1", "seconds of a fault"),
        ("kind=hang,seconds=soon", "seconds of a fault"),
        ("hang", "a fault is written"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_fault(text)


@pytest.mark.parametrize(
    ("habits", "words"),
    [
        ({"world": 2, "nodes": 3}, "2 ranks cannot run on 3 nodes"),
        ({"nodes": 0}, "cannot run on 0 nodes"),
        ({"interval": 0.0}, "interval must be above 0"),
        ({"seconds": float("inf")}, "seconds must be above 0"),
        ({"checkpoint": -1.0}, "checkpoint must not be below 0"),
        ({"faults": (Fault(FaultKind.HANG, (16,)),)}, "no rank 16 among 16"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(habits: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Plan(**habits).checked()


def test_ranks_are_spread_over_nodes_in_blocks() -> None:
    plan = Plan(world=7, nodes=3)
    assert [plan.node_of(rank) for rank in range(7)] == [0, 0, 0, 1, 1, 2, 2]
