from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from rankwatch.contract.messages import read_text
from rankwatch.inprocess.assignment import FillGaps, KeepWorldSize
from rankwatch.inprocess.decision import (
    FailureKind,
    FailureRecord,
    IterationPlan,
    RestartRules,
    decide,
    is_expendable,
    root_cause,
)

RAISED = FailureRecord(1, FailureKind.RAISED, "raised ValueError")
CUT = FailureRecord(0, FailureKind.COLLECTIVE, "raised RuntimeError")
NODES = ["a", "a", "b", "b"]
PLAN = IterationPlan(0, (0, 1), (2, 3))


@pytest.mark.parametrize(
    ("records", "rank"),
    [
        ([CUT, RAISED], 1),
        ([CUT, RAISED, FailureRecord(0, FailureKind.GONE, "is lost")], 0),
        ([FailureRecord(0, FailureKind.NO_PROGRESS, "", 7), FailureRecord(1, FailureKind.NO_PROGRESS, "", 6)], 1),
        ([FailureRecord(0, FailureKind.NO_PROGRESS, "", 7), CUT], 0),
        ([RAISED, FailureRecord(0, FailureKind.RAISED, "")], 1),
        ([CUT], 0),
    ],
)
def test_what_explains_the_others_is_the_cause(records: list[FailureRecord], rank: int) -> None:
    found = root_cause(records)
    assert found is not None
    assert found.rank == rank


def test_an_exception_restarts_the_same_ranks() -> None:
    after = decide(PLAN, [CUT, RAISED], {}, {}, NODES, RestartRules(KeepWorldSize()))
    assert (after.iteration, after.places, after.reserves, after.abandoned) == (1, (0, 1), (2, 3), "")
    assert (after.cause, after.culprit, after.fault_counts) == ("rank 1 raised ValueError", 1, {1: 1})


def test_a_death_is_the_cause_though_its_victims_spoke_first() -> None:
    after = decide(PLAN, [CUT], {1: "its process died"}, {}, NODES, RestartRules(KeepWorldSize()))
    assert after.cause == "rank 1 is lost: its process died"
    assert (after.places, after.reserves, after.excluded) == ((0, 2), (3,), {1: "its process died"})


def test_the_loss_of_a_reserve_is_no_cause() -> None:
    after = decide(PLAN, [RAISED], {3: "its process died"}, {}, NODES, RestartRules(KeepWorldSize()))
    assert (after.culprit, after.places, after.reserves) == (1, (0, 1), (2,))


def test_with_granularity_node_the_healthy_ranks_of_the_node_go_too() -> None:
    after = decide(PLAN, [RAISED], {}, {1: "sick"}, NODES, RestartRules(KeepWorldSize(), "node"))
    assert after.places == (2, 3)
    assert after.excluded == {1: "sick", 0: "its node a is excluded"}


def test_the_fault_that_is_one_too_many_costs_the_place() -> None:
    rules = RestartRules(KeepWorldSize(), max_rank_faults=1)
    once = decide(PLAN, [RAISED], {}, {}, NODES, rules)
    assert (once.places, once.excluded) == ((0, 1), {})
    twice = decide(once, [RAISED], {}, {}, NODES, rules)
    assert twice.places == (0, 2)
    assert twice.excluded == {1: "it has caused 2 faults, max_rank_faults is 1"}
    assert [rules.exclude_after(each.fault_counts[1]) for each in (once, twice)] == [False, True]
    assert not RestartRules(KeepWorldSize()).exclude_after(9)


def test_no_rank_continues_without_enough_ranks_and_it_states_why() -> None:
    after = decide(IterationPlan(0, (0, 1)), [], {1: "its process died"}, {}, NODES, RestartRules(KeepWorldSize()))
    assert after.abandoned == "without rank 1 too few are left (its process died)"


def test_no_rank_continues_after_the_last_restart() -> None:
    after = decide(IterationPlan(2, (0, 1)), [RAISED], {}, {}, NODES, RestartRules(KeepWorldSize(), max_restarts=2))
    assert after.abandoned == "max_restarts (2) is used up"


def test_a_plan_comes_back_from_the_store_as_it_was() -> None:
    plan = IterationPlan(3, (4, 1), (2,), {0: "dead"}, {0: 2}, "rank 0 died", 0, "")
    assert read_text(IterationPlan, json.dumps(asdict(plan))) == plan


@pytest.mark.parametrize(
    ("plan", "rank", "rules", "can"),
    [
        (IterationPlan(0, (0, 1), (2,)), 0, RestartRules(KeepWorldSize()), True),
        (IterationPlan(0, (0, 1), (2,)), 2, RestartRules(KeepWorldSize()), True),
        (IterationPlan(0, (0, 1)), 0, RestartRules(KeepWorldSize()), False),
        (IterationPlan(0, (0, 1)), 0, RestartRules(FillGaps()), True),
        (IterationPlan(1, (2, 1), (), {0: "it is dead"}), 1, RestartRules(KeepWorldSize()), False),
        (IterationPlan(3, (0, 1), (2,)), 0, RestartRules(KeepWorldSize(), max_restarts=3), False),
        (IterationPlan(0, (0, 1), (2,)), 2, RestartRules(KeepWorldSize(), granularity="node"), False),
    ],
)
def test_a_rank_can_be_lost_while_others_could_take_its_place(
    plan: IterationPlan, rank: int, rules: RestartRules, can: bool
) -> None:
    assert is_expendable(plan, rank, ["a", "b", "b"], rules) is can
