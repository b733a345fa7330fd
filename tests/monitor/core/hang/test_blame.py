"""Which rank is to blame, in one-sided and in even scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from monitor.core.scene import LOADING, REDUCING, TORCH, Scene
from rankwatch.contract.enums import (
    CulpritClass,
    DirectiveKind,
    LimitSource,
    ProcessEventKind,
    ProcessState,
    RankState,
    VerdictKind,
)
from rankwatch.contract.messages import Collective, Frame, NodeObservation, ProcessEvent, RankObservation, RankStack
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.cause import (
    AllAlike,
    Behind,
    Call,
    Cause,
    Circle,
    DifferentCalls,
    Exited,
    Made,
    NodeSilent,
    NotEntered,
    OtherCall,
    PastLimit,
    Some,
    StacksFollow,
    Unnamed,
)
from rankwatch_monitor.core.hang.blame import blame, exit_of
from rankwatch_monitor.core.hang.stacks import Stacks, waits_for_peers
from rankwatch_monitor.core.hang.verdict import Blame, Culprit, Verdict, Verdicts
from rankwatch_monitor.core.ranks import ALIVE, EXITED, UNINTERRUPTIBLE, RankColumns
from rankwatch_monitor.core.words.causes import exited

C = TypeVar("C", bound=Cause)


def why_none(judged: Blame) -> Unnamed:
    assert judged.why_none is not None
    return judged.why_none


def cause_of(kind: type[C], culprits: Sequence[Culprit]) -> C:
    """The cause of the first culprit."""
    cause = culprits[0].cause
    assert isinstance(cause, kind)
    return cause


def place_of(made: Made) -> tuple[str, str, int]:
    """Operation, file and line of a call."""
    assert made.site is not None
    return made.operation, made.site.file.rpartition("/")[2], made.site.line


def test_a_stopped_process_is_named_before_anything_else() -> None:
    scene = Scene(on_hang="capture").run(10).stop(1).until_found()
    assert scene.blamed == {1: "stopped"}
    assert scene.rank_state(1) is RankState.STOPPED
    assert "stopped by a signal" in scene.incident.reason


def test_a_rank_that_holds_its_gil_is_named() -> None:
    scene = Scene(on_hang="capture").run(10).hold_gil(3).until_found()
    assert scene.blamed == {3: "gil_held"}
    assert "GIL" in scene.incident.reason
    assert "rank 3" in scene.incident.reason.lower()


@pytest.mark.parametrize(("process", "named"), [(ALIVE, True), (EXITED, False), (UNINTERRUPTIBLE, False)])
def test_only_a_process_that_can_run_holds_its_gil(process: int, named: bool) -> None:
    scene = Scene(launchers=False).run(10).stall()
    columns = scene.job.columns
    columns.process_R[:] = (ALIVE, ALIVE, process, ALIVE)
    columns.liveness_tick_R[2] = columns.last_heard_R[2] - 4.0
    verdicts = Verdicts.of([Verdict(VerdictKind.SECTION_OVERRUN, 0, "step", 10.0, 11.0, scene.now - 11.0)])
    holding = [c.rank for c in blame(columns, verdicts, Stacks()).culprits if c.kind is CulpritClass.GIL_HELD]
    assert holding == ([2] if named else [])


@pytest.mark.parametrize(("ranks", "named"), [((0, 1), [0, 1]), ((0, 1, 2), []), ((0, 1, 2, 3), [])])
def test_where_most_ranks_lost_their_tick_at_once_none_of_them_is_to_blame(
    ranks: tuple[int, ...], named: list[int]
) -> None:
    """They were suspended; or a call that waits for another rank holds the GIL."""
    scene = Scene(launchers=False).run(10).stall()
    columns = scene.job.columns
    columns.process_R[:] = ALIVE
    columns.liveness_tick_R[:] = columns.last_heard_R
    for rank in ranks:
        columns.liveness_tick_R[rank] -= 60.0
    verdicts = Verdicts.of([Verdict(VerdictKind.SECTION_OVERRUN, 0, "step", 10.0, 11.0, scene.now - 11.0)])
    holding = [c.rank for c in blame(columns, verdicts, Stacks()).culprits if c.kind is CulpritClass.GIL_HELD]
    assert holding == named


@pytest.mark.parametrize(("source", "named"), [(LimitSource.LEARNED, [0]), (LimitSource.FIRST_TIME, [])])
def test_the_first_rank_past_a_limit_that_ranks_do_not_know_is_not_named(source: LimitSource, named: list[int]) -> None:
    scene = Scene(launchers=False).run(10).stall()
    scene.job.columns.last_progress_R[:] = scene.job.columns.last_heartbeat_R[:] = scene.now - 59.9
    verdict = Verdict(VerdictKind.SECTION_OVERRUN, 0, "step", 60.0, 60.2, scene.now - 60.2, source)
    assert [c.rank for c in blame(scene.job.columns, Verdicts.of([verdict]), Stacks()).culprits] == named


@pytest.mark.parametrize("fault", ["stop", "hold_gil"])
def test_a_rank_that_is_back_within_its_limit_raises_nothing(fault: str) -> None:
    scene = Scene().run(10)
    getattr(scene, fault)(2)
    assert scene.run(8).resume().run(60).quiet()
    assert scene.rank_state(2) is RankState.RUNNING


def test_a_host_cut_off_after_a_living_pulse_is_silent_not_holding_its_gil() -> None:
    # The launcher spoke for a rank a last time, its pulse was fresh; then the whole host disappeared.
    scene = Scene(hosts=2, silence_timeout=30.0, section_timeouts={"step": None}).run(10)
    rank = scene.ranks[3]
    seen = RankObservation(
        3, rank.identity.pid, ProcessState.ALIVE, pulse_age=0.2, beats=rank.at.beats, iteration=rank.at.iteration
    )
    scene.now += 0.1
    scene.submit(NodeObservation("node-1", 1, (seen,)))
    scene.cut_host(1).until_found()
    assert set(scene.blamed.values()) == {"host_silent"}
    assert set(scene.blamed) <= {2, 3}


def test_a_silent_host_is_named_with_all_its_ranks() -> None:
    scene = Scene(ranks=8, hosts=2, silence_timeout=5.0, section_timeouts={"step": None})
    scene.run(10).cut_host(1).until_found()
    assert scene.blamed == dict.fromkeys((4, 5, 6, 7), "host_silent")
    silent = cause_of(NodeSilent, scene.incident.culprits)
    assert (silent.host, silent.ranks) == ("host-1", 4)


def test_two_ranks_behind_are_both_named() -> None:
    scene = Scene(ranks=8, launchers=False).run(10).hang(2).hang(5)
    scene.ranks[2].at.progress = 0
    scene.run(11)
    assert scene.blamed == {2: "behind", 5: "behind"}
    assert cause_of(Behind, scene.incident.culprits).waiting == 6
    assert "likewise rank 5" in scene.incident.reason


@pytest.mark.parametrize(("iterations", "named"), [((9, 10, 10, 10), [0]), ((9, 9, 10, 10), []), ((9, 9, 9, 10), [])])
def test_without_stacks_only_a_minority_is_behind(iterations: tuple[int, ...], named: list[int]) -> None:
    scene = Scene(launchers=False).run(30).stall()
    columns = scene.job.columns
    columns.iteration_R[:], columns.progress_R[:] = iterations, 0
    verdicts = Verdicts.of(
        [Verdict(VerdictKind.SECTION_OVERRUN, r, "step", 10.0, 11.0, scene.now - 11.0) for r in range(4)]
    )
    assert [culprit.rank for culprit in blame(columns, verdicts, Stacks()).culprits] == named


def test_a_rank_that_left_with_code_0_is_named_when_all_others_wait() -> None:
    """NCCL's kernels wait on within a node; gloo's calls fail, which is an incident of its own."""
    scene = Scene(on_hang="capture").run(10).stall().die(3, exit_code=0).until_found()
    scene.until(lambda: scene.blamed)
    assert scene.blamed == {3: "dead"}
    assert scene.incident.culprits[0][:3] == (3, "host-0", Exited(0, early=True))


def test_ranks_that_have_ended_are_not_named_when_they_are_the_majority() -> None:
    scene = Scene(on_hang="capture").run(10).stall()
    for rank in (1, 2, 3):
        scene.die(rank, exit_code=0)
    scene.until_found().run(20)
    assert scene.incident.stacks.groups()
    assert not set(scene.blamed) & {1, 2, 3}


@pytest.mark.parametrize(("shed", "named"), [(False, 1), (True, 0)])
def test_a_report_from_before_the_hang_makes_no_culprit_while_reports_are_refused(shed: bool, named: int) -> None:
    """Rank 0 hangs in step 99. The last report of rank 1 is older: it was in step 90 when the others were, too."""
    scene = Scene(launchers=False).run(30).hang(0)
    columns, now = scene.job.columns, scene.now
    columns.iteration_R[:], columns.progress_R[:] = (99, 90, 100, 100), 0
    columns.last_update_R[:] = (now, now - 20.0, now, now)
    columns.last_progress_R[:] = (now - 11.0, now - 21.0, now - 10.0, now - 10.0)
    verdicts = Verdicts.of([Verdict(VerdictKind.SECTION_OVERRUN, 0, "step", 10.0, 11.0, now - 11.0)])
    culprits = blame(columns, verdicts, Stacks(), shed=shed).culprits
    assert [c.rank for c in culprits] == [named]
    if shed:
        assert culprits[0].cause == Behind(1, 2)


@pytest.mark.parametrize(("shed", "named"), [(False, 1), (True, 2)])
def test_a_job_whose_reports_are_refused_is_judged_by_what_is_current(shed: bool, named: int) -> None:
    scene = Scene(ranks=4, hosts=4, launchers=False, silence_timeout=None).run(30)
    scene.hang(2)
    columns = scene.job.columns
    if shed:
        scene.job.shed_at = scene.now
    scene.cut(1)
    columns.iteration_R[1] -= 10
    columns.last_update_R[1] = columns.sections_updated_R[1] = scene.now - 25.0
    scene.until_found()
    assert scene.blamed == {named: "behind"}


@pytest.mark.parametrize(("shed", "named"), [(False, [0]), (True, [])])
def test_the_first_whose_report_is_taken_are_not_blamed_while_those_of_others_are_refused(
    shed: bool, named: list[int]
) -> None:
    scene = Scene(launchers=False).run(30).stall().run(9)
    verdicts = Verdicts.of([Verdict(VerdictKind.SECTION_OVERRUN, 0, "step", 10.0, 11.0, scene.now - 11.0)])
    assert [c.rank for c in blame(scene.job.columns, verdicts, Stacks(), shed=shed).culprits] == named


def test_a_rank_past_its_limit_is_blamed_while_reports_are_refused_if_the_others_go_on() -> None:
    scene = Scene(launchers=False, reports_durations=True).run(30)
    verdicts = Verdicts.of([Verdict(VerdictKind.SECTION_OVERRUN, 0, "step", 10.0, 11.0, scene.now - 11.0)])
    assert [c.rank for c in blame(scene.job.columns, verdicts, Stacks(), shed=True).culprits] == [0]


def test_a_symmetric_stall_names_no_rank_and_states_why() -> None:
    scene = Scene().run(10).stall()
    scene.until_found()
    assert scene.blamed == {}
    assert "same place" in scene.incident.reason
    assert "no rank is named" in scene.incident.reason
    assert [scene.rank_state(r) for r in range(4)] == [RankState.HUNG] * 4


def test_what_the_stacks_may_correct_is_not_stated_before_they_are_there() -> None:
    scene = Scene().run(10).stall()
    scene.ignored.add(DirectiveKind.CAPTURE)
    scene.until_found()
    assert scene.incident.provisional
    assert scene.incident.why_none == Unnamed(StacksFollow())
    scene.until(lambda: scene.directives(DirectiveKind.RESTART))
    assert scene.incident.why_none is not None
    assert scene.incident.why_none.why == AllAlike()
    assert not scene.incident.provisional


def test_the_first_cause_that_is_stated_is_the_one_that_the_stacks_show() -> None:
    scene = Scene().run(10).stall()
    scene.ignored.add(DirectiveKind.CAPTURE)
    scene.until_found()
    begun = scene.now
    called = tuple(in_call(r, *(("barrier", 50) if r == 1 else REDUCED)) for r in range(4))
    scene.send_evidence("node-0", stacks=called, directive=scene.issued[0].id)
    scene.judge()
    assert scene.blamed == {1: "behind"}
    assert place_of(cause_of(OtherCall, scene.incident.culprits).made) == ("barrier", "train.py", 50)
    assert (len(scene.directives(DirectiveKind.RESTART)), scene.now) == (1, begun), "and nothing waits any longer"
    assert not [printed for printed in scene.printed if "same place" in printed]


def test_ranks_that_entered_the_next_step_a_moment_before_another_left_the_last_are_not_to_blame() -> None:
    """Rank 0 stands between two steps, outside all sections, while the others wait for it in the next step."""
    columns, now = Scene(reports_durations=True).run(40).job.columns, 2_000_000.0
    columns.progress_R[:], columns.last_progress_R[:] = 0, now - 3.0
    verdicts = Verdicts.of(
        [Verdict(VerdictKind.SECTION_OVERRUN, rank, "step", 3.0, 3.0, now - 3.0) for rank in (1, 2, 3)]
    )
    columns.last_progress_R[0] = now - 2.99
    assert blame(columns, verdicts, Stacks()).culprits == ()
    columns.last_progress_R[0] = now - 0.5
    assert [culprit.rank for culprit in blame(columns, verdicts, Stacks()).culprits] == [1, 2, 3], "rank 0 goes on"


def test_in_a_stalled_job_the_last_step_that_began_blames_no_rank() -> None:
    columns, now = Scene(reports_durations=True).run(40).job.columns, 2_000_000.0
    columns.progress_R[3] -= 1
    verdicts = Verdicts.of([Verdict(VerdictKind.STALLED, rank, None, 60.0, 60.0, now - 60.0) for rank in range(4)])
    assert blame(columns, verdicts, Stacks(), capturing=True).culprits == ()


def test_a_rank_alone_past_its_limit_is_named_although_all_count_alike() -> None:
    scene = Scene(launchers=False).run(10)
    scene.hang(2, ahead=0)
    for rank in scene.ranks:
        if rank.number != 2:
            rank.at.opened = {}
    scene.run(12)
    assert scene.blamed == {2: "behind"}
    assert scene.incident.culprits[0].cause == PastLimit("within")


def test_a_single_rank_is_named() -> None:
    scene = Scene(ranks=1, launchers=False).run(10).hang(0).run(11)
    assert scene.blamed == {0: "behind"}
    assert "only rank" in scene.incident.reason


def test_the_last_rank_alive_is_not_called_the_only_one() -> None:
    scene = Scene(ranks=2).run(10).die(1, exit_code=0)
    scene.hang(0).until_found()
    assert 0 in scene.blamed
    assert PastLimit("none") not in [each.cause for each in scene.incident.culprits]


def test_waiting_ranks_are_shown_as_waiting_and_the_culprit_as_hung() -> None:
    scene = Scene(launchers=False).run(10).hang(2).run(12)
    assert [str(scene.rank_state(r)) for r in range(4)] == ["waiting", "waiting", "hung", "waiting"]


# Counts alone ---------------------------------------------------------------------------------------------------------


def test_a_rank_that_counts_more_does_not_make_culprits_of_the_others() -> None:
    # Rank 0 opens sections of its own (logging, checkpoints), so its progress is always ahead.
    scene = Scene(launchers=False).run(10).stall()
    scene.ranks[0].at.progress = 5
    scene.run(11)
    assert scene.blamed == {}


def test_stacks_find_the_culprit_among_ranks_that_count_differently() -> None:
    scene = Scene(on_hang="capture").run(10).hang(2)
    scene.ranks[0].at.progress = 5
    for rank in (1, 3):
        scene.ranks[rank].at.progress = 0
    scene.until_found().run(1)
    assert scene.blamed == {2: "behind"}


def test_stacks_overrule_counts() -> None:
    # Rank 1 counts less for a reason of its own and waits like the others; rank 3 is the one that does not.
    scene = Scene(on_hang="capture").run(10).hang(3)
    scene.ranks[1].at.progress, scene.ranks[3].at.progress = 0, 1
    scene.until_found().run(1)
    assert scene.blamed == {3: "behind"}
    assert "load_batch" in scene.incident.reason
    assert "train.py:41" in scene.incident.reason


def test_stacks_that_all_wait_leave_a_stall_without_a_name() -> None:
    scene = Scene(on_hang="capture").run(10).stall().until_found().run(2)
    assert scene.incident.stacks
    assert scene.blamed == {}


# Two ranks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stuck", [0, 1])
def test_in_a_world_of_two_the_stacks_identify_the_culprit(stuck: int) -> None:
    scene = Scene(ranks=2, on_hang="capture").run(10).hang(stuck).until_found().run(1)
    assert scene.blamed == {stuck: "behind"}
    assert "the other rank waits" in scene.incident.reason


@pytest.mark.parametrize("fault", ["stop", "hold_gil"])
def test_in_a_world_of_two_process_states_identify_the_culprit(fault: str) -> None:
    scene = Scene(ranks=2, on_hang="capture").run(10)
    getattr(scene, fault)(1)
    scene.until_found()
    assert set(scene.blamed) == {1}


def test_in_a_world_of_two_without_stacks_no_false_place_is_reported() -> None:
    # One rank is a whole step behind the other: whoever is named, they are not "stuck in the same place".
    scene = Scene(ranks=2, launchers=False).run(10).hang(1)
    scene.ranks[0].at.iteration = scene.ranks[0].reached + 1
    scene.run(11)
    assert 0 not in scene.blamed
    assert "same place" not in scene.incident.reason


def test_a_healthy_world_of_two_raises_nothing() -> None:
    assert Scene(ranks=2).run(200).quiet()


# A bare stage: columns, verdicts and evidence as they would be ------------------------------------------------------


def columns_of(size: int, hosts: int = 1) -> RankColumns:
    """Ranks that have all come equally far and all speak."""
    columns = RankColumns(size)
    columns.reported_R[:] = True
    columns.process_R[:] = ALIVE
    columns.iteration_R[:] = 10
    columns.progress_R[:] = 1
    for rank in range(size):
        columns.hosts[rank] = f"host-{rank * hosts // size}"
    return columns


def overrun(*ranks: int, kind: VerdictKind = VerdictKind.SECTION_OVERRUN, elapsed: float = 62.0) -> Verdicts:
    return Verdicts.of(Verdict(kind, rank, "step", 10.0, elapsed, 0.0) for rank in ranks)


def taken(*stands: tuple[Frame, ...], numbers: Sequence[int] = (), waiting: int = 0) -> Stacks:
    """Stacks of ranks 0, 1, ...; those whose number in the world's group is ``waiting`` wait there."""
    stacks = Stacks()
    for rank, frames in enumerate(stands):
        reported = numbers[rank : rank + 1]
        collectives = [Collective("default_pg", "all_reduce", n, n - (n == waiting)) for n in reported]
        stacks.add(RankStack(rank, 100 + rank, "py-spy", frames, collectives=tuple(collectives)))
    return stacks


def blamed(columns: RankColumns, verdicts: Verdicts, stacks: Stacks, without_stacks: Sequence[str] = ()) -> Blame:
    return blame(columns, verdicts, stacks, without_stacks=without_stacks)


# Collectives ----------------------------------------------------------------------------------------------------------


def test_the_rank_that_has_not_entered_the_collective_is_named() -> None:
    stacks = taken(REDUCING, LOADING, REDUCING, REDUCING, numbers=[58, 57, 58, 58], waiting=58)
    judged = blamed(columns_of(4), overrun(0, 1, 2, 3), stacks)
    assert [(c.rank, c.kind) for c in judged.culprits] == [(1, CulpritClass.BEHIND)]
    not_entered = cause_of(NotEntered, judged.culprits)
    assert (not_entered.call, not_entered.waiting) == (Call("all_reduce", 58, "default_pg"), 3)


def test_a_majority_that_has_not_entered_is_named_and_counts_do_not_overrule_it() -> None:
    columns = columns_of(4)
    columns.progress_R[0] = 0
    stacks = taken(REDUCING, LOADING, LOADING, LOADING, numbers=[58, 57, 57, 57], waiting=58)
    assert {c.rank for c in blamed(columns, overrun(0, 1, 2, 3), stacks).culprits} == {1, 2, 3}


def test_of_two_that_have_not_entered_the_one_that_waits_elsewhere_is_not_named() -> None:
    # Rank 1 receives from rank 2 point to point, which no sequence number shows.
    receiving = (Frame("recv", TORCH, 2400), *LOADING)
    stacks = taken(REDUCING, receiving, LOADING, numbers=[58, 57, 57], waiting=58)
    assert [c.rank for c in blamed(columns_of(3), overrun(0, 1, 2), stacks).culprits] == [2]


def test_a_late_rank_that_waits_leaves_the_blame_to_one_that_stands_outside() -> None:
    # Only rank 1 is late, but its stack waits for a peer; rank 3, which is in no group with it, does not.
    receiving = (Frame("recv", TORCH, 2400), *LOADING)
    stacks = taken(REDUCING, receiving, REDUCING, LOADING, numbers=[58, 57, 58], waiting=58)
    judged = blamed(columns_of(4), overrun(0, 1, 2, 3), stacks)
    assert [c.rank for c in judged.culprits] == [3]
    assert "load_batch" in judged.culprits[0].reason


def test_a_late_rank_that_waits_for_its_own_device_is_named_when_no_stack_is_outside() -> None:
    stacks = taken(REDUCING, (Frame("synchronize", TORCH, 1),), REDUCING, numbers=[58, 57, 58], waiting=58)
    assert [c.rank for c in blamed(columns_of(3), overrun(0, 1, 2), stacks).culprits] == [1]


def test_sequence_numbers_speak_without_any_stack() -> None:
    stacks = taken((), (), (), numbers=[58, 57, 58], waiting=58)
    assert [c.rank for c in blamed(columns_of(3), overrun(0, 1, 2), stacks).culprits] == [1]


def test_a_rank_that_has_ended_is_not_accused_of_being_late() -> None:
    columns = columns_of(3)
    columns.shut_down_R[1] = True
    stacks = taken(REDUCING, (), REDUCING, numbers=[58, 57, 58], waiting=58)
    assert blamed(columns, overrun(0, 2), stacks).culprits == ()


def test_all_in_the_same_collective_names_no_rank_and_states_which() -> None:
    stacks = taken(REDUCING, REDUCING, numbers=[58, 58], waiting=58)
    judged = blamed(columns_of(2), overrun(0, 1), stacks)
    assert judged.culprits == ()
    assert why_none(judged).why == AllAlike(Call("all_reduce", 58, "default_pg"))


def test_without_numbers_the_function_is_reported() -> None:
    judged = blamed(columns_of(2), overrun(0, 1), taken(REDUCING, REDUCING))
    assert why_none(judged).why == AllAlike(function="all_reduce")


@pytest.mark.parametrize(("thread", "placed"), [(7, True), (8, False), (0, True)])
def test_the_place_of_a_call_is_that_of_the_thread_that_made_it_or_none(thread: int, placed: bool) -> None:
    site = Frame("train", "/me/train.py", 12)
    stacks = Stacks()
    for rank in range(4):
        odd = rank == 1
        calls = ("barrier" if odd else "all_reduce",)
        made = Collective("0", calls[0], 5, 4, (), 5, calls, thread=thread if odd else 7)
        frames = (*REDUCING[:1], replace(site, line=99 if odd else 12))
        stacks.add(RankStack(rank, 1, "py-spy", frames, collectives=(made,), thread=7))
    (culprit,) = blamed(columns_of(4), overrun(0, 1, 2, 3), stacks).culprits
    assert culprit.rank == 1
    assert ("train.py:99" in culprit.reason) is placed
    assert "train.py:12" in culprit.reason


def test_ranks_that_wait_for_each_other_are_reported_and_no_rank_is_named() -> None:
    stacks = Stacks()
    for rank, (a, b) in enumerate([(5, 4), (4, 5)]):
        reported = (Collective("a", "all_reduce", a, 4), Collective("b", "broadcast", b, 4))
        stacks.add(RankStack(rank, 1, "py-spy", REDUCING, collectives=reported))
    judged = blamed(columns_of(2), overrun(0, 1), stacks)
    assert judged.culprits == ()
    circle = why_none(judged).why
    assert isinstance(circle, Circle)
    assert circle.ranks == Some.of([0, 1])
    assert (Call("broadcast", 5, "b"), Some.of([1])) in circle.waits


def in_call(rank: int, call: str, line: int, *, done: int = 132, group: str = "default_pg") -> RankStack:
    """A rank in collective 133, called at a line of its script."""
    operation = call.partition(" of ")[0]
    frames = (Frame(operation, TORCH, 2800), Frame("wrapper", TORCH, 80), Frame("train", "/srv/user/train.py", line))
    collective = Collective(group, operation, 133, done, (), 133, (call,))
    return RankStack(rank, 100 + rank, "py-spy", frames, collectives=(collective,))


def of_calls(*calls: tuple[str, int]) -> Stacks:
    return Stacks.of(in_call(rank, *call) for rank, call in enumerate(calls))


REDUCED = ("all_reduce of 4 Float", 41)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            ("barrier", 50),
            "it is in 'barrier' called at train.py:50, while 3 ranks are in 'all_reduce' called at train.py:41, "
            "both as number 133 of group 'default_pg'",
        ),
        (
            ("all_reduce of 8 Float", 41),
            "it is in 'all_reduce' of 8 Float values called at train.py:41, while 3 ranks are in 'all_reduce' of 4 "
            "Float values called at train.py:41, both as number 133 of group 'default_pg'",
        ),
        (
            ("all_reduce of 4 Float", 57),
            "it entered 'all_reduce' number 133 of group 'default_pg' at train.py:57, while 3 ranks entered it at "
            "train.py:41, so they are in different places of the program",
        ),
    ],
    ids=["operation", "size", "call site"],
)
def test_the_rank_whose_collective_differs_is_named(other: tuple[str, int], words: str) -> None:
    judged = blamed(columns_of(4), overrun(0, 1, 2, 3), of_calls(REDUCED, other, REDUCED, REDUCED))
    assert [(c.rank, c.kind, c.reason) for c in judged.culprits] == [(1, CulpritClass.BEHIND, words)]


def test_the_rank_that_is_left_in_a_call_of_another_size_is_named() -> None:
    stacks = of_calls(REDUCED, ("all_reduce of 8 Float", 41), REDUCED, REDUCED)
    for rank in (0, 2, 3):
        stacks.add(replace(in_call(rank, *REDUCED, done=133), frames=LOADING))
    judged = blamed(columns_of(4), overrun(1), stacks)
    assert [c.rank for c in judged.culprits] == [1]
    other = cause_of(OtherCall, judged.culprits)
    assert place_of(other.made) == ("all_reduce", "train.py", 41)
    assert (other.made.size, other.ranks) == ("8 Float", 3)
    assert (other.made.waits, other.usual.waits) == (True, False), "what the others have left is over"


@pytest.mark.parametrize("behind", [False, True])
def test_without_a_majority_the_mismatch_is_stated_and_no_rank_named(behind: bool) -> None:
    columns = columns_of(2)
    columns.progress_R[1] -= behind
    judged = blamed(columns, overrun(0, 1), of_calls(REDUCED, ("barrier", 50)))
    assert judged.culprits == ()
    different = why_none(judged).why
    assert isinstance(different, DifferentCalls)
    assert (different.group, different.number) == ("default_pg", 133)
    calls = [(made.operation, ranks) for made, ranks in different.calls]
    assert calls == [("all_reduce", Some.of([0])), ("barrier", Some.of([1]))]


def test_lines_of_two_and_two_name_no_rank() -> None:
    judged = blamed(columns_of(4), overrun(0, 1, 2, 3), of_calls(REDUCED, (REDUCED[0], 57), REDUCED, (REDUCED[0], 57)))
    assert judged.culprits == ()
    assert isinstance(why_none(judged).why, AllAlike)


def test_a_rank_that_waits_in_another_group_is_named_with_that_group() -> None:
    stacks = of_calls(REDUCED, REDUCED, REDUCED, REDUCED)
    stray = in_call(1, "all_reduce of 4 Float", 77, group="pair (1)")
    world = Collective("default_pg", "all_reduce", 132, 132)
    stacks.add(replace(stray, collectives=(*stray.collectives, world)))
    judged = blamed(columns_of(4), overrun(0, 1, 2, 3), stacks)
    assert [c.rank for c in judged.culprits] == [1]
    cause = cause_of(NotEntered, judged.culprits)
    assert (cause.call, cause.waiting, cause.newest) == (Call("all_reduce", 133, "default_pg"), 3, 132)
    assert (cause.instead, cause.reordered) == (Call("all_reduce", 133, "pair (1)"), False)
    assert cause.site is not None
    assert cause.site.line == 77


def test_of_ranks_behind_by_count_those_that_wait_are_not_named() -> None:
    columns = columns_of(6)
    columns.progress_R[[1, 2]] = 0
    stands = [REDUCING] * 6
    stands[2] = LOADING
    judged = blamed(columns, overrun(*range(6)), taken(*stands))
    assert [c.rank for c in judged.culprits] == [2]
    assert cause_of(Behind, judged.culprits).waiting == 5


# Nodes and devices ----------------------------------------------------------------------------------------------------


def test_a_node_that_could_not_be_asked_is_mentioned_and_not_accused() -> None:
    stacks = taken(REDUCING, REDUCING, numbers=[58, 58], waiting=58)
    judged = blamed(columns_of(4, hosts=2), overrun(0, 1, 2, 3), stacks, without_stacks=["host-1"])
    assert judged.culprits == ()
    assert why_none(judged).why == AllAlike(Call("all_reduce", 58, "default_pg"), answered=True)
    assert why_none(judged).unanswered == ("host-1",)


def test_a_rank_that_is_late_is_named_although_a_node_could_not_be_asked() -> None:
    stacks = taken(REDUCING, LOADING, numbers=[58, 57], waiting=58)
    judged = blamed(columns_of(4, hosts=2), overrun(0, 1, 2, 3), stacks, without_stacks=["host-1"])
    assert [c.rank for c in judged.culprits] == [1]


def test_progress_names_a_rank_of_a_node_that_could_not_be_asked() -> None:
    columns = columns_of(4, hosts=2)
    columns.progress_R[3] = 0
    judged = blamed(columns, overrun(0, 1, 2, 3), taken(REDUCING, REDUCING), without_stacks=["host-1"])
    assert [c.rank for c in judged.culprits] == [3]


def test_a_lost_node_is_one_incident() -> None:
    verdicts = overrun(4, 5, 6, 7, kind=VerdictKind.NODE_LOST)
    judged = blamed(columns_of(8, hosts=2), verdicts, Stacks())
    assert {c.rank: c.kind for c in judged.culprits} == dict.fromkeys((4, 5, 6, 7), CulpritClass.HOST_SILENT)
    words = "neither the launcher nor the 4 ranks of host-1 reported for 62.0 s"
    assert {c.reason for c in judged.culprits} == {words}


@pytest.mark.parametrize("known", ["from its launcher", "from its stack"])
def test_a_rank_stuck_in_the_kernel_past_a_limit_names_its_node(known: str) -> None:
    columns, stacks = columns_of(4, hosts=2), taken(REDUCING, REDUCING, LOADING, REDUCING)
    if known == "from its launcher":
        columns.process_R[2] = UNINTERRUPTIBLE
    else:
        stacks.add(RankStack(2, 1, "py-spy", LOADING, process_state=ProcessState.UNINTERRUPTIBLE))
    judged = blamed(columns, overrun(0, 1, 2, 3), stacks)
    assert [(c.rank, c.kind, c.host) for c in judged.culprits] == [(2, CulpritClass.DEVICE_OR_NETWORK, "host-1")]
    assert "state D" in judged.culprits[0].reason
    assert "host-1" in judged.culprits[0].reason


def test_a_rank_that_reads_a_file_within_its_limit_is_not_stuck_in_the_kernel() -> None:
    columns = columns_of(4)
    columns.process_R[2] = UNINTERRUPTIBLE
    stacks = taken(REDUCING, LOADING, REDUCING, REDUCING)
    assert {c.rank for c in blamed(columns, overrun(0, 1, 3), stacks).culprits} == {1}


def test_a_file_system_that_stalls_all_nodes_is_no_ones_fault() -> None:
    columns = columns_of(4, hosts=2)
    columns.process_R[:] = UNINTERRUPTIBLE
    judged = blamed(columns, overrun(0, 1, 2, 3), Stacks())
    assert judged.culprits == ()
    assert (why_none(judged).asleep, why_none(judged).live) == (4, 4)


# Deaths ---------------------------------------------------------------------------------------------------------------


def test_deaths_of_different_kinds_are_not_called_alike() -> None:
    scene = Scene(hosts=2, launchers=True).run(10)
    job, now = scene.job, scene.now
    for rank, words in ((2, {"signal": "SIGKILL", "age": 2.0}), (0, {"exit_code": 1, "age": 0.5})):
        node = scene.ranks[rank].node
        from_launcher = process_exit(node, rank, **words)  # type: ignore[arg-type]
        apply(job, from_launcher, now)
    scene.judge()
    reason = scene.incident.reason
    assert set(scene.blamed) >= {2}
    assert "Rank 2" in reason, "the first to die is spoken of first"
    assert "SIGKILL; likewise rank 0" not in reason
    assert "code 1; likewise rank 2" not in reason
    assert scene.incident.timeline.since == pytest.approx(now - 2.0)


def process_exit(node: str, rank: int, **how: object) -> ProcessEvent:
    return ProcessEvent(node, ProcessEventKind.EXITED, 1, rank=rank, **how)  # type: ignore[arg-type]


def test_a_death_outweighs_a_stopped_peer() -> None:
    scene = Scene().run(10).stop(1).run(1).die(3, signal="SIGKILL")
    assert scene.blamed == {3: "dead"}


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (1, "", "exited with code 1"),
        (1, "ValueError: no data", "exited with code 1: ValueError: no data"),
        (-9, "", "was killed by SIGKILL"),
        (-5, "", "was killed by SIGTRAP"),
        (-34, "", "was killed by signal 34"),
    ],
)
def test_exit_words(code: int, message: str, words: str) -> None:
    columns = RankColumns(2)
    columns.exit_code_R[1] = code
    if message:
        columns.exit_messages[1] = message
    assert exited(exit_of(columns, 1).code, exit_of(columns, 1).message) == words


def test_frames_of_the_scene_are_what_they_pretend_to_be() -> None:
    assert waits_for_peers(REDUCING)
    assert not waits_for_peers(LOADING)
