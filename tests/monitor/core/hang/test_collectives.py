"""Sequence numbers of process groups: which ranks have not come, which wait, and when they prove nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwatch.contract.messages import Collective, RankStack
from rankwatch_monitor.core.cause import Call
from rankwatch_monitor.core.hang.collectives import (
    Mismatch,
    WaitingRanks,
    call_of,
    cannot_complete,
    may_miss_one,
    mismatch,
    waiting_ranks,
)
from rankwatch_monitor.core.hang.stacks import GroupProgress, Stacks

WORLD = "default_pg"


def at(sequence: int, *, done: int | None = None, group: str = WORLD, operation: str = "all_reduce") -> Collective:
    """A rank that has entered ``sequence``, which is not completed unless ``done`` reports it."""
    return Collective(group, operation, sequence, sequence - 1 if done is None else done)


def judged(**ranks: list[Collective]) -> WaitingRanks:
    """``r0=[...]``: what each rank reported."""
    stacks = Stacks.of(RankStack(int(name[1:]), 1, "py-spy", collectives=tuple(of)) for name, of in ranks.items())
    return waiting_ranks(stacks.group_progress())


def test_the_rank_that_has_not_entered_is_late() -> None:
    found = judged(r0=[at(58)], r1=[at(57, done=57)], r2=[at(58)], r3=[at(58)])
    assert set(found.late) == {1}
    assert (call_of(found.late[1].missed), found.late[1].waiting) == (Call("all_reduce", 58, "default_pg"), 3)


def test_a_majority_may_be_late() -> None:
    found = judged(r0=[at(58)], r1=[at(57, done=57)], r2=[at(57, done=57)])
    assert set(found.late) == {1, 2}
    assert found.late[1].waiting == 1


def test_a_wider_gap_is_reported() -> None:
    found = judged(r0=[at(58, done=54)], r1=[at(54, done=54)])
    assert (found.late[1].missed.enqueued, found.late[1].newest) == (58, 54)


def test_a_rank_that_waits_for_a_later_one_in_the_same_group_is_not_to_blame() -> None:
    found = judged(r0=[at(58, done=55)], r1=[at(57, done=55)], r2=[at(55, done=55)])
    assert set(found.late) == {2}


@pytest.mark.parametrize("members", [(), (0, 1)])
def test_a_group_that_a_member_has_not_called_in_is_not_entered_by_all(members: tuple[int, ...]) -> None:
    # 1 calls in its pair with 0 for the first time, 0 waits with all others: whoever knows no members cannot tell.
    pair = Collective("pair", "all_reduce", 1, 0, members)
    stacks = Stacks.of(
        RankStack(rank, 1, "py-spy", collectives=(at(57, done=57), pair) if rank == 1 else (at(58),))
        for rank in range(3)
    )
    progress = stacks.group_progress()
    found = waiting_ranks(progress)
    assert set(found.late) == {1}
    assert [each.group for each in found.everywhere] == ([] if members else ["pair"])
    assert cannot_complete(progress, (0, 1, 2)) is bool(members)
    assert not cannot_complete(progress, (0, 1, 2, 3)), "what 3 has entered is not known"


def test_a_rank_that_waits_in_another_group_is_not_to_blame() -> None:
    # 0 waits for 1 in their tensor-parallel group, 1 waits for 3 in the data-parallel one: 3 alone is late.
    found = judged(
        r0=[at(9, group="tp (2)")],
        r1=[at(8, done=8, group="tp (2)"), at(4, group="dp (5)")],
        r3=[at(3, done=3, group="dp (5)")],
    )
    assert set(found.late) == {3}
    assert found.late[3].missed.group == "dp (5)"


def test_groups_go_at_their_own_pace() -> None:
    found = judged(r0=[at(900, group="tp (1)")], r1=[at(900, group="tp (1)")], r2=[at(3, group="tp (2)")])
    assert not found.late


def test_a_rank_that_continued_does_not_wait() -> None:
    # The rank with the higher number was asked later, or has left a broadcast: nothing stands in number 58.
    found = judged(r0=[at(58, done=58)], r1=[at(57, done=57)])
    assert found == WaitingRanks({}, (), ())


def test_a_rank_without_evidence_is_not_accused() -> None:
    assert not judged(r0=[at(58)], r1=[]).late
    assert not judged(r0=[at(58)], r1=[at(3, group="other")]).late


def test_all_in_one_collective_is_nobodys_fault() -> None:
    found = judged(r0=[at(58)], r1=[at(58)])
    assert not found.late
    assert [(f.operation, f.enqueued, f.ranks) for f in found.everywhere] == [("all_reduce", 58, (0, 1))]


def test_a_circle_is_seen_and_names_no_rank() -> None:
    found = judged(
        r0=[at(5, group="a"), at(4, done=4, group="b")],
        r1=[at(4, done=4, group="a"), at(5, group="b")],
    )
    assert not found.late
    assert found.cycle == (0, 1)
    assert [(front.group, front.ranks) for front in found.circle] == [("a", (0,)), ("b", (1,))]


PAIR = "1"


def in_another_order(**flags: bool) -> WaitingRanks:
    """Rank 0 waits for rank 1 in a group of the two, ranks 1 and 2 wait for rank 0 in the world."""

    def world(sequence: int, rank: str, done: int | None = None) -> Collective:
        return replace(at(sequence, done=done), unusual=flags.get(rank, False))

    return judged(
        r0=[world(57, "", done=57), replace(at(58, group=PAIR), unusual=flags.get("r0", False))],
        r1=[world(58, "r1"), at(57, done=57, group=PAIR)],
        r2=[world(58, "r2")],
    )


def test_a_circle_over_two_groups_is_no_fault_of_the_rank_that_most_wait_for() -> None:
    found = in_another_order()
    assert not found.late
    assert found.cycle == (0, 1)
    assert {(front.group, front.ranks) for front in found.circle} == {(PAIR, (0,)), (WORLD, (1, 2))}


def test_in_a_circle_the_rank_is_late_whose_order_differs_from_its_own_past() -> None:
    found = in_another_order(r1=True)
    assert set(found.late) == {1}
    assert found.late[1].reordered
    assert found.late[1].missed.group == PAIR
    assert found.late[1].instead is not None
    assert found.late[1].instead.group == WORLD


def test_an_order_that_all_of_a_circle_changed_names_none() -> None:
    assert in_another_order(r0=True, r1=True).cycle == (0, 1)
    assert in_another_order(r2=True).cycle == (0, 1)


# Different calls under one number -------------------------------------------------------------------------------------


def called(first: int, *calls: str, done: int, group: str = WORLD) -> Collective:
    """A rank that has made these calls, numbered from ``first``, and completed those up to ``done``."""
    return Collective(group, calls[-1].partition(" of ")[0], first + len(calls) - 1, done, (), first, calls)


def differing(**ranks: list[Collective]) -> Mismatch | None:
    stacks = Stacks.of(RankStack(int(name[1:]), 1, "py-spy", collectives=tuple(of)) for name, of in ranks.items())
    return mismatch(Stacks.of_json(stacks.to_json()).group_progress())


REDUCE, OTHER = "all_reduce of 4 Float", "all_reduce of 8 Float"


def test_ranks_in_different_operations_of_one_number_are_a_mismatch() -> None:
    usual = [called(57, REDUCE, REDUCE, done=57)]
    found = differing(r0=usual, r1=[called(57, REDUCE, "barrier", done=57)], r2=usual, r3=usual)
    assert found == Mismatch(
        WORLD, 58, ((REDUCE, (0, 2, 3)), ("barrier", (1,))), has_majority=True, waiting=frozenset({0, 1, 2, 3})
    )


def test_the_number_where_they_part_counts_although_most_ranks_went_on() -> None:
    usual = [called(57, REDUCE, REDUCE, REDUCE, done=58)]
    found = differing(r0=usual, r1=[called(57, REDUCE, OTHER, done=57)], r2=usual)
    assert found is not None
    assert (found.number, found.calls, found.waiting) == (58, ((REDUCE, (0, 2)), (OTHER, (1,))), {1})


def test_before_the_first_completed_collective_they_are_compared_too() -> None:
    found = differing(r0=[called(1, REDUCE, done=-1)], r1=[called(1, "barrier", done=-1)])
    assert found is not None
    assert (found.number, found.has_majority) == (1, False)


def test_half_of_the_ranks_are_no_majority_and_a_rank_of_another_number_counts() -> None:
    late = [called(57, REDUCE, done=57)]
    found = differing(r0=[called(58, REDUCE, done=57)], r1=[called(58, "barrier", done=57)], r2=late, r3=late)
    assert found is not None
    assert not found.has_majority


def test_completed_calls_may_differ() -> None:
    assert differing(r0=[called(1, "gather", REDUCE, done=1)], r1=[called(1, "scatter", REDUCE, done=1)]) is None


def test_unknown_calls_and_other_groups_are_not_compared() -> None:
    assert differing(r0=[called(5, REDUCE, done=4)], r1=[called(5, "", done=4)]) is None
    assert differing(r0=[called(5, REDUCE, done=4)], r1=[called(5, "barrier", done=4, group="tp (2)")]) is None
    assert differing(r0=[at(5)], r1=[at(5, operation="barrier")]) is None


def test_numbers_far_apart_take_no_time() -> None:
    far = 10**15
    assert differing(r0=[called(1, REDUCE, done=-1)], r1=[called(far, "barrier", done=far - 1)]) is None


def test_a_rank_that_waits_elsewhere_while_most_wait_for_it_is_late() -> None:
    usual = [at(58), at(4, done=4, group="pair (1)")]
    found = judged(r0=usual, r1=[at(57, done=57), at(5, group="pair (1)")], r2=usual, r3=usual)
    assert set(found.late) == {1}
    assert found.late[1].instead is not None
    assert (found.late[1].instead.group, found.late[1].instead.enqueued) == ("pair (1)", 5)
    assert not found.cycle


# Whether they can still complete --------------------------------------------------------------------------------------


def stuck(waiting: tuple[int, ...] | None = None, **ranks: list[Collective]) -> bool:
    """``r0=[...]``: what each rank reported; ``waiting``: all live ranks, where not all of them did."""
    stacks = Stacks.of(RankStack(int(name[1:]), 1, "py-spy", collectives=tuple(of)) for name, of in ranks.items())
    return cannot_complete(stacks.group_progress(), waiting or tuple(int(name[1:]) for name in ranks))


def test_different_calls_under_one_number_cannot_complete() -> None:
    assert stuck(r0=[called(58, REDUCE, done=57)], r1=[called(58, "barrier", done=57)])
    assert not stuck(r0=[called(58, REDUCE, done=57)], r1=[called(58, REDUCE, done=57)])


def test_ranks_that_wait_for_each_other_in_two_groups_cannot_complete() -> None:
    # 0 waits for 1 in the first group, and 1 for 0 in the second one: each has not entered the other's collective.
    first, second = "tp (1)", "tp (2)"
    r0, r1 = [at(9, group=first), at(3, done=3, group=second)], [at(8, done=8, group=first), at(4, group=second)]
    assert stuck(r0=r0, r1=r1)
    assert not stuck(r0=r0, r1=[at(9, group=first), at(3, done=3, group=second)]), "both are in the same one"


def test_a_rank_that_is_late_because_it_waits_for_a_message_may_come() -> None:
    late = [at(57, done=57)]
    assert not stuck(r0=[at(58)], r1=late, r2=[at(58)]), "what rank 1 waits for is not known: send or recv"
    assert not stuck((0, 1), r0=[at(58)]), "nor anything of a rank that has reported nothing"
    assert not stuck((0, 1)), "nothing is known at all"


def test_a_collective_that_all_have_entered_may_complete_although_one_is_further() -> None:
    assert not stuck(r0=[at(58, done=57)], r1=[at(58, done=57)])
    assert not stuck(r0=[at(59, done=57)], r1=[at(58, done=57)]), "58 is in transport, 59 was enqueued behind it"
    assert not stuck(r0=[at(59, done=58)], r1=[at(58, done=57)]), "rank 1 has yet to receive its part of 58"


def test_one_group_in_transport_is_enough_to_wait() -> None:
    both = [at(9, group="tp (1)")]
    r2 = [at(3, done=3, group="dp (5)")]
    assert not stuck(r0=[*both, at(4, group="dp (5)")], r1=both, r2=r2)


def test_progress_that_differs_everywhere_is_judged() -> None:
    progress = [
        GroupProgress(f"{group:02}", "barrier", 4000 - i, -1, ((i * (group + 1)) % 1999,), 100 * i, ("a",) * 16)
        for group in range(64)
        for i in range(2000)
    ]
    assert mismatch(progress) is None
    found = waiting_ranks(progress)
    assert found.late or found.cycle


def test_of_two_survivors_the_one_whose_call_was_never_made_before_differs() -> None:
    tie = Mismatch(WORLD, 9, (("all_reduce of 4096", (1,)), ("all_reduce of 1", (2,))), False, frozenset({1, 2}))
    by_past = tie.by_its_past({"all_reduce of 1"})
    assert by_past.has_majority
    assert [ranks for _, ranks in by_past.calls] == [(2,), (1,)]
    for earlier in ((), ("all_reduce of 1", "all_reduce of 4096")):
        assert tie.by_its_past(earlier) == tie


@pytest.mark.parametrize(
    ("progress", "missing"),
    [
        ([], True),
        ([GroupProgress("tp", "all_gather", 4, 3, (0, 1, 2), size=3)], False),
        ([GroupProgress("tp", "all_gather", 4, 3, (0, 1, 2), size=4)], True),
        ([GroupProgress("tp", "all_gather", 4, 3, (0, 1, 2))], True),
        ([GroupProgress("tp", "all_gather", 4, 4, (0, 1, 2), size=4)], False),
    ],
    ids=["nothing is known", "whole", "one is missing", "of unknown size", "complete"],
)
def test_a_rank_that_has_ended_is_missed_only_where_it_may_belong(progress: list[GroupProgress], missing: bool) -> None:
    """A surplus rank that ended in order is not needed by those who go on in a group without it."""
    assert may_miss_one(progress) is missing
