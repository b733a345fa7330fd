"""Whom NCCL's own answers accuse, alone and beside the ranks' own evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import VerdictKind
from rankwatch.contract.messages import Collective, Evidence, RankStack
from rankwatch.contract.nccl_ras import RasCommunicator, RasProcess, RasProgress, RasReport
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.cause import Behind, Disagreed, Launched, NcclBehind, NcclUnreachable, Some
from rankwatch_monitor.core.hang.blame import blame
from rankwatch_monitor.core.hang.nccl import accused
from rankwatch_monitor.core.hang.stacks import Stacks
from rankwatch_monitor.core.hang.verdict import Blame, Culprit, Verdict, Verdicts, culprit_of
from rankwatch_monitor.core.incident_record import Witness
from rankwatch_monitor.core.ranks import RankColumns
from rankwatch_monitor.core.views import nccl_answers
from rankwatch_monitor.core.words.nccl import lines

ADDRESSES = ("10.0.0.1", "10.0.0.2")


def columns(world: int = 8, hosts: int = 2, *, pids: Sequence[int] = ()) -> RankColumns:
    made = RankColumns(world)
    for rank in range(world):
        made.hosts[rank] = f"node{rank * hosts // world}"
        made.pid_R[rank] = pids[rank] if pids else 100 + rank
    return made


def process(
    rank: int, member: int | None = None, *, world: int = 8, pid: int | None = None, dead: bool = False
) -> RasProcess:
    address = ADDRESSES[rank * 2 // world]
    return RasProcess(address, 100 + rank if pid is None else pid, rank if member is None else member, dead)


def group(*classes: tuple[int, Sequence[int]], name: str = "feed", size: int = 8) -> RasCommunicator:
    """A communicator with its classes: operations launched, and the ranks that have."""
    progress = []
    for launched, members in classes:
        listed = tuple(process(rank, rank if size == 8 else at) for at, rank in enumerate(members))
        progress.append(RasProgress({"AllReduce": launched}, len(members), listed))
    return RasCommunicator(name, size, tuple(sorted(progress, key=lambda each: -each.ranks)))


def of(*communicators: RasCommunicator, missing: tuple[RasProcess, ...] = ()) -> RasReport:
    return RasReport("2.28.9", communicators, 3, missing)


def ranks(culprits: Sequence[Culprit]) -> list[int]:
    return [each.rank for each in culprits]


REST = [0, 1, 2, 3, 4, 6, 7]


def test_a_rank_that_launched_less_than_the_others_is_accused() -> None:
    (found,) = accused([of(group((640, REST), (639, [5])))], columns())
    assert (found.rank, found.host) == (5, "node1")
    assert found.cause == NcclBehind("feed", (Launched("AllReduce", 639, 640),), 7)


def test_a_few_that_are_ahead_accuse_nobody() -> None:
    assert accused([of(group((641, [5, 6]), (640, [0, 1, 2, 3, 4, 7])))], columns()) == ()


def test_nothing_is_accused_where_all_are_equally_far() -> None:
    assert accused([of()], columns()) == ()
    assert accused([of(group((640, range(8))))], columns()) == ()
    assert accused([], columns()) == ()


def test_one_that_waits_for_others_elsewhere_is_not_accused() -> None:
    """Rank 1 is behind in its own group because rank 3 is in another."""
    first = group((20, [0]), (19, [1]), size=2)
    second = group((7, [1]), (6, [3]), name="beef", size=2)
    assert ranks(accused([of(first, second)], columns())) == [3]
    circle = group((7, [1]), (6, [0]), name="beef", size=2)
    assert accused([of(first, circle)], columns()) == ()


def test_one_that_launched_other_kinds_than_most_is_accused() -> None:
    usual = RasProgress({"AllGather": 5, "AllReduce": 10}, 7, tuple(process(r) for r in REST))
    other = RasProgress({"AllGather": 6, "AllReduce": 9}, 1, (process(5),))
    (found,) = accused([of(RasCommunicator("feed", 8, (usual, other)))], columns())
    assert (found.rank, found.cause) == (
        5,
        NcclBehind("feed", (Launched("AllGather", 6, 5), Launched("AllReduce", 9, 10)), 7),
    )


def test_a_process_that_does_not_answer_is_accused_before_those_whose_counts_follow() -> None:
    behind = replace(group((640, [0, 1, 2, 3, 4, 7]), (639, [6])), missing=(process(5),))
    found = accused([of(behind, missing=(process(5, -1, dead=True),))], columns())
    assert [(each.rank, each.cause) for each in found] == [(5, NcclUnreachable(dead=True))]


def test_most_of_the_job_that_does_not_answer_is_cut_off_and_accuses_nobody() -> None:
    assert accused([of(missing=tuple(process(r, -1) for r in range(3, 8)))], columns()) == ()


def test_nodes_that_do_not_reach_each_other_accuse_each_other_and_so_nobody() -> None:
    one, other = (of(missing=tuple(process(r, -1) for r in each)) for each in (range(4), range(4, 8)))
    assert len(accused([one], columns())) == 4
    assert accused([one, other], columns()) == ()
    assert accused([one, of()], columns()) == accused([one], columns())


def test_where_ranks_are_not_listed_one_that_may_wait_there_is_not_accused() -> None:
    unlisted = RasCommunicator(
        "beef", 4, (RasProgress({"collective": 9}, 3), RasProgress({"collective": 8}, 1, (process(6, 2),)))
    )
    assert ranks(accused([of(unlisted)], columns())) == [6]
    assert accused([of(group((640, REST), (639, [5])), unlisted)], columns()) == ()
    both = group((640, [0, 1, 2, 3, 4, 5, 7]), (639, [6]))
    assert ranks(accused([of(both, unlisted)], columns())) == [6]


@pytest.mark.parametrize(("pids", "named"), [([100] * 8, []), ([100, 101, 102, 103] * 2, [5]), ([-1] * 8, [])])
def test_pids_that_several_nodes_have_name_a_rank_only_where_its_host_is_known(
    pids: list[int], named: list[int]
) -> None:
    made = columns(pids=pids)
    small = RasCommunicator(
        "beef",
        4,
        (
            RasProgress({"AllReduce": 8}, 3, tuple(process(r, r - 4, pid=pids[r]) for r in (4, 6, 7))),
            RasProgress({"AllReduce": 7}, 1, (process(5, 1, pid=pids[5]),)),
        ),
    )
    assert accused([of(small)], made) == (), "both nodes have such processes"
    made.hosts[4:] = ["10.0.0.2"] * 4
    assert ranks(accused([of(small)], made)) == named


def test_a_member_whose_pid_is_another_process_s_is_not_the_rank_of_that_number() -> None:
    strange = group((640, REST), (639, [5]))
    members = tuple(replace(m, pid=9) for m in strange.progress[1].members)
    strange = replace(strange, progress=(strange.progress[0], replace(strange.progress[1], members=members)))
    assert accused([of(strange)], columns()) == ()


def test_members_and_processes_that_no_job_has_are_passed_over() -> None:
    wild = RasProcess("x" * 64, 2**61, 2**61)
    report = of(
        RasCommunicator("a", 8, (RasProgress({}, 2**61), RasProgress({"b": 1}, 1, (wild,))), (wild,)), missing=(wild,)
    )
    assert accused([report], columns()) == ()
    assert lines(report)


# Beside our own evidence ----------------------------------------------------------------------------------------------


def judged(nccl: Sequence[RasReport], *, position: Sequence[int] = (), exited: int | None = None) -> Blame:
    """The blame in a job of 4 ranks that stand in step 7, by their number of entered collectives if it is known."""
    scene = Scene(ranks=4, launchers=False).run(7).stall()
    made = scene.job.columns
    made.pid_R[:] = [100, 101, 102, 103]
    stacks = Stacks.of(
        RankStack(r, 100 + r, "", collectives=(Collective("pg", "all_reduce", n, min(position), (0, 1, 2, 3)),))
        for r, n in enumerate(position)
    )
    verdicts = [Verdict(VerdictKind.SECTION_OVERRUN, r, "step", 10.0, 11.0, scene.now - 11.0) for r in range(4)]
    if exited is not None:
        verdicts.append(Verdict(VerdictKind.PROCESS_EXITED, exited, None, 0.0, 0.0, scene.now))
    named = accused(nccl, made)
    return blame(made, Verdicts.of(verdicts), stacks, nccl=named)


def four(behind: int) -> RasReport:
    others = tuple(RasProcess("127.0.0.1", 100 + r, r) for r in range(4) if r != behind)
    late = RasProgress({"AllReduce": 6}, 1, (RasProcess("127.0.0.1", 100 + behind, behind),))
    return of(RasCommunicator("feed", 4, (RasProgress({"AllReduce": 7}, 3, others), late)))


def test_it_names_the_rank_where_nothing_else_does() -> None:
    assert judged([]).culprits == ()
    found = judged([four(2)])
    assert (ranks(found.culprits), found.why_none) == ([2], None)
    assert isinstance(found.culprits[0].cause, NcclBehind)


def test_where_both_name_the_same_rank_our_own_cause_is_stated() -> None:
    found = judged([four(2)], position=[5, 5, 4, 5])
    assert ranks(found.culprits) == [2]
    assert not isinstance(found.culprits[0].cause, NcclBehind)


def test_where_they_disagree_nobody_is_named() -> None:
    assert ranks(judged([], position=[5, 5, 4, 5]).culprits) == [2]
    found = judged([four(1)], position=[5, 5, 4, 5])
    assert found.culprits == ()
    assert found.why_none is not None
    assert found.why_none.why == Disagreed(Some((2,), 1), Some((1,), 1))


def test_what_is_known_of_a_process_stands_whatever_nccl_answers() -> None:
    assert ranks(judged([four(1)], exited=3).culprits) == [3]


# As evidence of an incident -------------------------------------------------------------------------------------------


def received(report: RasReport, *, stacks: tuple[RankStack, ...] = (), attempt: int = 1) -> Scene:
    scene = Scene(ranks=4, on_hang="capture").run(10).stall().until_found()
    scene.job.columns.pid_R[:] = [100, 101, 102, 103]
    node = next(iter(scene.job.nodes))
    apply(scene.job, Evidence(node, attempt, scene.incident.id, stacks, ras=report), scene.now)
    return scene


def test_an_answer_is_kept_with_whom_it_accuses_and_one_a_node() -> None:
    scene = received(four(2))
    (answer,) = scene.incident.nccl
    assert (answer.report, answer.accused, answer.host != "") == (four(2), (2,), True)
    apply(scene.job, Evidence(answer.node, 1, scene.incident.id, (), ras=four(1)), scene.now)
    assert [each.accused for each in scene.incident.nccl] == [(1,)]


def test_an_answer_alone_does_not_count_as_the_stacks_of_its_node() -> None:
    scene = Scene(ranks=4, on_hang="capture").run(10).stall().until_found()
    node = next(iter(scene.job.nodes))
    scene.incident.heard_nodes.clear()
    apply(scene.job, Evidence(node, 1, scene.incident.id, (), ras=four(2)), scene.now)
    assert scene.incident.heard_nodes == set()


def test_an_answer_of_another_attempt_accuses_nobody_of_this_one() -> None:
    assert [each.accused for each in received(four(2), attempt=2).incident.nccl] == [()]


@pytest.mark.parametrize(("culprits", "witness"), [([], Witness.OTHERS), ([2], Witness.AGREES), ([1], Witness.OTHERS)])
def test_an_answer_is_shown_beside_whom_the_incident_blames(culprits: list[int], witness: Witness) -> None:
    scene = received(four(2))
    blamed = tuple(culprit_of(scene.job.columns, rank, Behind(0, 3)) for rank in culprits)
    (shown,) = nccl_answers.shown(replace(scene.incident, culprits=blamed))
    assert (shown["accused"], shown["witness"], shown["version"]) == ([2], witness, "2.28.9")
    assert len(shown["lines"]) == 1
    (healthy,) = nccl_answers.shown(received(of()).incident)
    assert (healthy["witness"], len(healthy["lines"])) == (Witness.NOBODY, 1)
