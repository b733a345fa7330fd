from __future__ import annotations

import pytest

from rankwatch.inprocess.assignment import FillGaps, KeepWorldSize
from rankwatch.inprocess.decision import Kind, Plan, Record, Rules, can_lose, cause, decide

RAISED = Record(1, Kind.RAISED, "raised ValueError")
CUT = Record(0, Kind.COLLECTIVE, "raised RuntimeError")
NODES = ["a", "a", "b", "b"]
PLAN = Plan(0, (0, 1), (2, 3))


@pytest.mark.parametrize(
    ("records", "rank"),
    [
        ([CUT, RAISED], 1),
        ([CUT, RAISED, Record(0, Kind.GONE, "is lost")], 0),
        ([Record(0, Kind.NO_PROGRESS, "", 7), Record(1, Kind.NO_PROGRESS, "", 6)], 1),
        ([Record(0, Kind.NO_PROGRESS, "", 7), CUT], 0),
        ([RAISED, Record(0, Kind.RAISED, "")], 1),
        ([CUT], 0),
    ],
)
def test_what_explains_the_others_is_the_cause(records: list[Record], rank: int) -> None:
    found = cause(records)
    assert found is not None
    assert found.rank == rank


def test_an_exception_restarts_the_same_ranks() -> None:
    after = decide(PLAN, [CUT, RAISED], {}, {}, NODES, Rules(KeepWorldSize()))
    assert (after.iteration, after.places, after.reserves, after.gave_up) == (1, (0, 1), (2, 3), "")
    assert (after.cause, after.culprit, after.faults) == ("rank 1 raised ValueError", 1, {1: 1})


def test_a_death_is_the_cause_though_its_victims_spoke_first() -> None:
    after = decide(PLAN, [CUT], {1: "its process died"}, {}, NODES, Rules(KeepWorldSize()))
    assert after.cause == "rank 1 is lost: its process died"
    assert (after.places, after.reserves, after.out) == ((0, 2), (3,), {1: "its process died"})


def test_the_loss_of_a_reserve_is_no_cause() -> None:
    after = decide(PLAN, [RAISED], {3: "its process died"}, {}, NODES, Rules(KeepWorldSize()))
    assert (after.culprit, after.places, after.reserves) == (1, (0, 1), (2,))


def test_with_granularity_node_the_healthy_ranks_of_the_node_go_too() -> None:
    after = decide(PLAN, [RAISED], {}, {1: "sick"}, NODES, Rules(KeepWorldSize(), "node"))
    assert after.places == (2, 3)
    assert after.out == {1: "sick", 0: "its node a is left out"}


def test_the_fault_that_is_one_too_many_costs_the_place() -> None:
    rules = Rules(KeepWorldSize(), max_rank_faults=1)
    once = decide(PLAN, [RAISED], {}, {}, NODES, rules)
    assert (once.places, once.out) == ((0, 1), {})
    twice = decide(once, [RAISED], {}, {}, NODES, rules)
    assert twice.places == (0, 2)
    assert twice.out == {1: "it has caused 2 faults, max_rank_faults is 1"}


def test_nobody_goes_on_without_enough_ranks_and_it_says_why() -> None:
    after = decide(Plan(0, (0, 1)), [], {1: "its process died"}, {}, NODES, Rules(KeepWorldSize()))
    assert after.gave_up == "without rank 1 too few are left (its process died)"


def test_nobody_goes_on_after_the_last_restart() -> None:
    after = decide(Plan(2, (0, 1)), [RAISED], {}, {}, NODES, Rules(KeepWorldSize(), max_restarts=2))
    assert after.gave_up == "max_restarts (2) is used up"


def test_a_plan_comes_back_from_the_store_as_it_was() -> None:
    plan = Plan(3, (4, 1), (2,), {0: "dead"}, {0: 2}, "rank 0 died", 0, "")
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("plan", "rank", "rules", "can"),
    [
        (Plan(0, (0, 1), (2,)), 0, Rules(KeepWorldSize()), True),
        (Plan(0, (0, 1), (2,)), 2, Rules(KeepWorldSize()), True),
        (Plan(0, (0, 1)), 0, Rules(KeepWorldSize()), False),
        (Plan(0, (0, 1)), 0, Rules(FillGaps()), True),
        (Plan(1, (2, 1), (), {0: "it is dead"}), 1, Rules(KeepWorldSize()), False),
        (Plan(3, (0, 1), (2,)), 0, Rules(KeepWorldSize(), max_restarts=3), False),
        (Plan(0, (0, 1), (2,)), 2, Rules(KeepWorldSize(), granularity="node"), False),
    ],
)
def test_a_rank_can_be_lost_while_others_could_take_its_place(plan: Plan, rank: int, rules: Rules, can: bool) -> None:
    assert can_lose(plan, rank, ["a", "b", "b"], rules) is can
