"""Verdicts on jobs that nobody watched: scenes of what was seen, each trouble with twins that must not be named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from monitor.diagnose.scenes import JOB, at, call, locked, report, seen, sleeps, stands, trains, usage, works
from rankwatch.contract.diagnosis import Called, SeenExit, SeenRank, ThreadStack
from rankwatch.contract.enums import CulpritClass, ProcessState, Proof, WaitKind
from rankwatch.contract.messages import Collective, Frame, Wait
from rankwatch_monitor.core.cause import DifferentCalls, OtherCall
from rankwatch_monitor.diagnose.judge import MAX_RANKS, Judged, Verdict, judge


def of(*ranks: SeenRank, exits: Sequence[SeenExit] = (), silent: Sequence[str] = ()) -> Judged:
    (judged,) = judge([report(*ranks, exits=exits)], silent)
    return judged


def named(judged: Judged) -> list[int]:
    return [culprit.rank for culprit in judged.culprits]


def test_a_rank_that_nothing_can_wake_is_named_while_the_others_stand() -> None:
    judged = of(stands(0), locked(1), stands(2), stands(3))
    assert (judged.verdict, named(judged), judged.decision.proof) == (Verdict.TROUBLE, [1], Proof.STILL)
    assert judged.incident is not None
    assert judged.incident.confirmed
    assert judged.advice is not None
    assert judged.advice.rule == "no_launcher"


def test_while_the_others_go_on_it_is_not() -> None:
    judged = of(trains(0), locked(1), trains(2), trains(3))
    assert (judged.verdict, named(judged)) == (Verdict.UNKNOWN, [])


def test_a_stopped_rank_is_named() -> None:
    stopped = seen(1, at(), usage(), state=ProcessState.STOPPED)
    judged = of(stands(0), stopped, stands(2), stands(3))
    assert (judged.verdict, named(judged), judged.culprits[0].kind) == (Verdict.TROUBLE, [1], CulpritClass.STOPPED)


def test_where_all_are_stopped_nobody_is_named() -> None:
    judged = of(*(seen(rank, at(), usage(), state=ProcessState.STOPPED) for rank in range(4)))
    assert (judged.verdict, named(judged), judged.decision.proof) == (Verdict.TROUBLE, [], Proof.SUSPENDED)


@pytest.mark.parametrize("odd", [works, sleeps])
def test_one_that_works_or_may_wake_is_waited_for_and_not_accused(odd: object) -> None:
    judged = of(odd(0), stands(1), stands(2), stands(3))  # type: ignore[operator]
    assert (judged.verdict, named(judged)) == (Verdict.UNKNOWN, [0])
    assert judged.incident is not None
    assert not judged.incident.confirmed
    assert judged.advice is not None
    assert judged.advice.rule == "look_again"


def test_nor_is_it_named_where_another_rank_was_not_seen_or_has_ended() -> None:
    assert named(of(works(0), stands(1), stands(2))) == []
    gone = SeenExit(JOB, 3, code=0)
    assert named(of(works(0), stands(1), stands(2), exits=[gone])) == []


def test_nor_where_a_process_has_no_stack_as_one_that_is_ending() -> None:
    ending = seen(3, (), usage(main_cpu=4.0, same_stack=None))
    assert named(of(works(0), stands(1), stands(2), ending)) == []
    assert named(of(stands(0), stands(1), stands(2), ending)) == []


def test_nor_where_most_ranks_work() -> None:
    judged = of(works(0), works(1), works(2), stands(3))
    assert (judged.verdict, named(judged)) == (Verdict.UNKNOWN, [])


def test_a_job_that_trains_is_healthy_although_every_look_found_it_in_a_collective() -> None:
    judged = of(*map(trains, range(4)))
    assert (judged.verdict, judged.incident, judged.advice) == (Verdict.HEALTHY, None, None)


def test_a_job_that_computes_is_healthy() -> None:
    assert of(*map(works, range(4))).verdict is Verdict.HEALTHY


def test_ranks_that_sleep_at_one_line_again_and_again_and_hear_of_nobody_are_not_called_healthy() -> None:
    def polls(rank: int, io_bytes: int = 0) -> SeenRank:
        return seen(rank, at("retry"), usage(wakeups=60, io_bytes=io_bytes, wait=Wait(WaitKind.TIMED)))

    assert of(*map(polls, range(4))).verdict is Verdict.UNKNOWN
    assert of(*(polls(rank, 4000) for rank in range(4))).verdict is Verdict.HEALTHY


def test_with_a_rank_that_was_not_read_it_is_not_called_healthy() -> None:
    unread = seen(3, (), usage(same_stack=None), error="Permission denied")
    assert of(works(0), works(1), works(2), unread).verdict is Verdict.UNKNOWN


def test_where_all_stand_nobody_is_named() -> None:
    judged = of(*map(stands, range(4)))
    assert (judged.verdict, named(judged)) == (Verdict.UNKNOWN, [])
    elsewhere = of(stands(0), stands(1), stands(2), stands(3, name="barrier", line=50))
    assert (elsewhere.verdict, named(elsewhere)) == (Verdict.UNKNOWN, [])


def of_all(rank: int, name: str = "all_reduce", **more: int) -> SeenRank:
    return replace(stands(rank, name=name, **more), called=Called(of_all=True))


def test_by_their_arguments_the_one_in_another_call_of_all_ranks_is() -> None:
    judged = of(of_all(0), of_all(1), of_all(2), of_all(3, "barrier", line=50))
    assert (judged.verdict, named(judged)) == (Verdict.TROUBLE, [3])
    cause = judged.culprits[0].cause
    assert isinstance(cause, OtherCall)
    assert (cause.made.operation, cause.usual.operation, cause.ranks, cause.number) == ("barrier", "all_reduce", 3, 0)
    assert cause.made.site is not None
    assert cause.made.site.line == 50


def test_of_as_many_in_one_call_as_in_the_other_nobody_is_named_and_the_job_hangs() -> None:
    judged = of(of_all(0), of_all(1), of_all(2, "barrier"), of_all(3, "barrier"))
    assert (judged.verdict, named(judged)) == (Verdict.TROUBLE, [])
    assert judged.incident is not None
    assert judged.incident.why_none is not None
    assert isinstance(judged.incident.why_none.why, DifferentCalls)


@pytest.mark.parametrize(
    "odd",
    [
        stands(3, name="barrier"),  # of a group, maybe
        of_all(3, line=50),  # the same call at another line completes
        replace(trains(3), called=Called(of_all=True)),
    ],
)
def test_where_the_calls_may_complete_nobody_is(odd: SeenRank) -> None:
    judged = of(of_all(0), of_all(1), of_all(2), odd)
    assert (judged.verdict, named(judged)) == (Verdict.UNKNOWN, [])


def test_nor_where_most_are_in_a_call_that_a_rank_may_leave_before_the_others() -> None:
    judged = of(of_all(0, "barrier"), *(of_all(rank, "broadcast") for rank in (1, 2, 3)))
    assert (judged.verdict, named(judged)) == (Verdict.UNKNOWN, [])
    half = of(of_all(0), of_all(1), of_all(2, "broadcast"), of_all(3, "broadcast"))
    assert (half.verdict, named(half)) == (Verdict.UNKNOWN, [])


def test_of_ranks_in_one_call_it_is_said_whose_names_a_group() -> None:
    judged = of(of_all(0), of_all(1), of_all(2), stands(3))
    assert (judged.verdict, named(judged)) == (Verdict.UNKNOWN, [])
    assert "ranks 0-2 in all_reduce() of all ranks called at" in judged.reason
    assert "rank 3 in all_reduce() called at" in judged.reason


def message(rank: int, name: str, peer: int, **more: Any) -> SeenRank:
    return replace(stands(rank, name=name, **more), called=Called(of_all=True, peer=peer))


def of_group(rank: int, size: int, place: int, name: str = "all_reduce", group: str = "pair") -> SeenRank:
    return replace(stands(rank, name=name, line=60), called=Called(group=group, size=size, place=place))


def in_all(rank: int, world: int = 4) -> SeenRank:
    """In a collective of all ranks, of a version of torch whose process groups are laid out as they are read."""
    return replace(stands(rank), called=Called(of_all=True, size=world, place=rank))


CIRCLES = [
    ([of_all(0), of_all(2), of_all(3), message(1, "recv", 0)], [[0, 2, 3], [1]]),
    ([message(rank, "recv", (rank + 1) % 4) for rank in range(4)], [[0], [1], [2]]),
    ([message(0, "send", 1), message(1, "send", 0), in_all(2), in_all(3)], [[2, 3], [0], [1]]),
    ([in_all(0), in_all(2), in_all(3), of_group(1, 2, 1)], [[0, 2, 3], [1]]),
    ([of_group(0, 2, 0), *(of_group(rank, 4, rank, group="all_ranks") for rank in (1, 2, 3))], [[1, 2, 3], [0]]),
    ([of_group(0, 2, 0), of_group(1, 2, 0, group="other"), in_all(2), in_all(3)], [[2, 3], [0], [1]]),
    ([of_all(0), of_all(2), of_all(3), of_group(1, 0, -1, "barrier", "")], [[0, 2, 3], [1]]),
]


@pytest.mark.parametrize(("ranks", "places"), CIRCLES)
def test_of_ranks_that_wait_for_each_other_it_is_said_which_stand_where(
    ranks: list[SeenRank], places: list[list[int]]
) -> None:
    judged = of(*ranks)
    assert (judged.verdict, named(judged)) == (Verdict.TROUBLE, [])
    assert judged.incident is not None
    assert judged.incident.why_none is not None
    why = judged.incident.why_none.why
    assert isinstance(why, DifferentCalls)
    assert [list(ranks.first) for _, ranks in why.calls] == places
    assert any(made.among is not None for made, _ in why.calls)


WORKER = ThreadStack("worker", (Frame("upload", "/src/train.py", 70),))
TIMER = ThreadStack("timer", (Frame("wait", "/usr/lib/python3.11/threading.py", 331),))


@pytest.mark.parametrize(
    "ranks",
    [
        [message(0, "send", 1), message(1, "recv", 0), in_all(2), in_all(3)],  # the message may be large
        [message(0, "send", 1), message(1, "recv", -1), in_all(2), in_all(3)],  # from any rank
        [in_all(0), in_all(2), in_all(3), of_group(1, 4, 1)],  # the group of all ranks, by its name
        [of_all(0), of_all(2), of_all(3), of_group(1, 0, -1)],  # perhaps that
        [of_group(0, 2, 0), of_group(1, 2, 1), in_all(2), in_all(3)],  # a whole group
        [of_group(0, 0, -1), of_group(1, 0, -1), of_all(2), of_all(3)],  # perhaps one
        [of_group(rank, 4, rank) for rank in range(4)],
        # Another version of torch, which has other things where the sizes were read:
        [replace(of_all(rank), called=Called(of_all=True, size=9, place=rank)) for rank in (0, 2, 3)]
        + [of_group(1, 2, 1)],
        [in_all(0), in_all(2), in_all(3), message(1, "recv", 0, threads=(WORKER,))],  # it may make the missing call
        [in_all(0), in_all(2), in_all(3), replace(message(1, "recv", 0), called=None)],
    ],
)
def test_nor_is_a_circle_of_calls_that_may_complete(ranks: list[SeenRank]) -> None:
    judged = of(*ranks)
    assert (judged.verdict, named(judged)) == (Verdict.UNKNOWN, [])


def used(rank: SeenRank, **more: Any) -> SeenRank:
    assert rank.stack.usage is not None
    return replace(rank, stack=replace(rank.stack, usage=replace(rank.stack.usage, **more)))


@pytest.mark.parametrize("more", [{"io_bytes": 1000}, {"gpu": True}])
def test_nor_of_ranks_that_transfer_something_or_have_a_gpu(more: dict[str, Any]) -> None:
    ranks = [in_all(0), in_all(2), in_all(3), message(1, "recv", 0, threads=(TIMER,))]
    assert of(*ranks).verdict is Verdict.TROUBLE
    assert of(*ranks[:3], used(ranks[3], **more)).verdict is Verdict.UNKNOWN


def test_of_ranks_whose_numbers_nothing_tells_it_is_said_which_process_is_meant() -> None:
    ranks = [stands(0), locked(1), stands(2), stands(3)]
    judged = of(*(replace(each, guessed=True) for each in ranks))
    assert named(judged) == [1]
    assert "numbered in the order of their start: rank 1 is process 101." in judged.reason
    assert "process 101" not in of(*ranks).reason


def test_nor_while_a_rank_was_not_seen() -> None:
    judged = of(of_all(0), of_all(1), of_all(2, "barrier"))
    assert (judged.verdict, named(judged)) == (Verdict.UNKNOWN, [])


def test_by_flight_recorders_the_one_that_called_something_else_is() -> None:
    def position(operation: str) -> tuple[Collective, ...]:
        return (Collective("default_pg", operation, 7, 6, (0, 1, 2, 3), 7, (operation,)),)

    ranks = [stands(rank, collectives=position("barrier" if rank == 3 else "all_reduce")) for rank in range(4)]
    judged = of(*ranks)
    assert (judged.verdict, named(judged)) == (Verdict.TROUBLE, [3])
    assert named(of(*(stands(rank, collectives=position("all_reduce")) for rank in range(4)))) == []


def test_a_rank_that_left_with_code_0_is_named_while_all_others_stand() -> None:
    judged = of(stands(0), stands(1), stands(2), exits=[SeenExit(JOB, 3)])
    assert (judged.verdict, named(judged), judged.culprits[0].kind) == (Verdict.TROUBLE, [3], CulpritClass.DEAD)
    assert of(works(0), works(1), works(2), exits=[SeenExit(JOB, 3)]).culprits == ()


def crash(rank: int, age: float, code: int | None = 1, message: str = "", attempt: int = 0) -> SeenExit:
    return SeenExit(JOB, rank, 100 + rank, attempt, age, code, message)


def test_the_process_that_ended_first_is_named_and_not_those_that_its_launcher_ended() -> None:
    ends = [crash(1, 3.0, 1, "ValueError: no data"), crash(0, 2.9, -15), crash(2, 2.9, -9)]
    judged = of(*(replace(works(rank), attempt=1, age=2.0) for rank in range(4)), exits=ends)
    assert (judged.verdict, named(judged)) == (Verdict.TROUBLE, [1])
    assert judged.incident is not None
    assert judged.incident.culprits[0].kind is CulpritClass.DEAD


def test_nor_one_that_only_lost_its_connection() -> None:
    lost = crash(0, 3.1, 1, "RuntimeError: Connection closed by peer")
    assert named(of(exits=[lost, crash(1, 3.0, 1, "ValueError: no data")])) == [1]
    judged = of(exits=[lost])
    assert (judged.verdict, named(judged)) == (Verdict.TROUBLE, [])


def test_how_a_process_ended_may_be_unknown() -> None:
    again = [replace(works(rank), attempt=1, age=2.0) for rank in range(4)]
    judged = of(*again, exits=[crash(1, 3.0, None)])
    assert (judged.verdict, named(judged)) == (Verdict.TROUBLE, [])
    gone = of(exits=[crash(rank, 3.0, None) for rank in (2, 3)])
    assert (gone.verdict, gone.advice) == (Verdict.UNKNOWN, None)


def test_what_the_oom_killer_ended_is_named_unless_another_failed() -> None:
    assert named(of(exits=[crash(2, 3.0, -9), crash(0, 2.0, -15)])) == [2]
    assert named(of(exits=[crash(2, 3.0, -9), crash(0, 2.0, 1, "ValueError: no data")])) == [0]


def test_a_job_that_ends_as_it_should_is_not_in_trouble() -> None:
    ended = [crash(rank, 1.0, 0) for rank in (0, 1)]
    assert of(works(2), works(3), exits=ended).verdict is not Verdict.TROUBLE


def test_ranks_that_are_restarted_again_and_again_are_in_trouble() -> None:
    young = [replace(works(rank), attempt=3, age=4.0) for rank in range(4)]
    assert of(*young).verdict is Verdict.TROUBLE
    assert of(*(replace(each, age=900.0) for each in young)).verdict is Verdict.HEALTHY
    assert of(*(replace(each, attempt=1) for each in young)).verdict is Verdict.HEALTHY


def test_reports_of_several_nodes_are_one_job() -> None:
    first = report(stands(0), stands(1), host="n0")
    judged = judge([first, report(locked(2), stands(3), host="n1")])
    assert [(each.verdict, named(each)) for each in judged] == [(Verdict.TROUBLE, [2])]
    assert judged[0].culprits[0].host == "n1"
    (half,) = judge([first])
    assert (half.verdict, half.unseen, named(half)) == (Verdict.UNKNOWN, (2, 3), [])


def test_jobs_are_judged_apart() -> None:
    other = [replace(works(rank, world=2), job="b:1") for rank in (0, 1)]
    judged = judge([report(stands(0), locked(1), stands(2), stands(3), *other)])
    assert [(each.name, each.verdict) for each in judged] == [(JOB, Verdict.TROUBLE), ("b:1", Verdict.HEALTHY)]


def test_a_node_that_did_not_answer_keeps_a_job_from_being_called_healthy() -> None:
    assert of(*map(works, range(4)), silent=["n9"]).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("claimed", [{"rank": 1 << 60}, {"world_size": 1 << 60}, {"rank": MAX_RANKS}])
def test_a_job_that_claims_more_ranks_than_there_is_room_for_is_left_out(claimed: dict[str, int]) -> None:
    large = [replace(works(0), job=f"large {number}", **claimed) for number in range(3)]
    assert [each.name for each in judge([report(*map(works, range(4)), *large, replace(works(1), rank=-5))])] == [JOB]
    half = [replace(works(0), job=f"half {number}", world_size=MAX_RANKS // 2) for number in range(4)]
    assert sum(each.job.world_size for each in judge([report(*map(works, range(4)), *half)])) <= MAX_RANKS


def test_what_another_user_calls_by_the_same_name_is_another_job() -> None:
    own = [replace(each, user=1000) for each in (stands(0), locked(1), stands(2), stands(3))]
    planted = [replace(works(rank), user=1001, attempt=99) for rank in range(4)]
    found = judge([report(*own, *planted)])
    assert [(each.verdict, len(each.ranks)) for each in found] == [(Verdict.TROUBLE, 4), (Verdict.HEALTHY, 4)]


def test_only_the_job_that_is_asked_for_is_judged() -> None:
    other = [replace(works(rank, world=2), job="b:1") for rank in (0, 1)]
    assert [each.name for each in judge([report(*map(works, range(4)), *other)], only="b:1")] == ["b:1"]


def test_a_rank_alone_that_nothing_wakes_hangs() -> None:
    assert of(locked(0, world=1)).verdict is Verdict.TROUBLE
    timed = seen(0, at("poll"), usage(wait=Wait(WaitKind.TIMED)), world=1)
    assert of(timed).verdict is Verdict.UNKNOWN


def test_one_look_decides_nothing() -> None:
    once = replace(usage(), looks=1, seconds=0.0, same_stack=0.0)
    judged = of(*(seen(rank, call(), once) for rank in range(4)))
    assert (judged.verdict, named(judged)) == (Verdict.UNKNOWN, [])


def test_of_ranks_that_may_not_be_read_nothing_is_said_to_end_and_nobody_is_to_look_again() -> None:
    (judged,) = judge([report(*(seen(rank, (), usage(wait=Wait(WaitKind.UNKNOWN))) for rank in range(4)))])
    assert (judged.verdict, judged.decision.proof, judged.advice) == (Verdict.UNKNOWN, Proof.UNDECIDED, None)


def commands(judged: Judged) -> list[str]:
    assert judged.advice is not None
    return [step.command for step in judged.advice.steps if step.command]


def test_what_to_do_has_the_command_that_ends_the_job_or_wakes_it() -> None:
    ranks = [stands(0), locked(1), stands(2), stands(3)]
    assert commands(of(*(replace(each, launcher_pid=77) for each in ranks))) == ["kill 77"]
    assert commands(of(*(replace(each, launcher_pid=77, slurm_job="4711") for each in ranks))) == ["scancel 4711"]
    assert commands(of(*(replace(each, launcher_pid=77, slurm_job="1; rm x") for each in ranks))) == ["kill 77"]
    assert commands(of(*ranks)) == []
    stopped = seen(1, at(), usage(wait=Wait(WaitKind.STOPPED)), state=ProcessState.STOPPED)
    assert commands(of(stands(0), stopped, stands(2), stands(3)))[0] == "kill -CONT 101"
    every = [seen(rank, at(), usage(wait=Wait(WaitKind.STOPPED)), state=ProcessState.STOPPED) for rank in range(4)]
    assert commands(of(*every))[0] == "kill -CONT 100 101 102 103"
