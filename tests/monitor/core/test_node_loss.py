"""A lost node is named at once, also when its loss first looked like a crash; a crash that came first stays one."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import DirectiveKind, ProcessEventKind, RankState, VerdictKind
from rankwatch.contract.messages import NodeRegistration
from rankwatch_monitor.core.incident_record import Ended
from rankwatch_monitor.core.job import NodeLoss
from rankwatch_monitor.core.node_loss import UNSTATED, causes

WHY = "it has sent no reports launcher for 15 s"


def lose(scene: Scene, node: str = "node-1", by: str = "node-0", **more: object) -> Scene:
    scene.event(ProcessEventKind.NODE_LOST, by, lost_node=node, reason=WHY, **more)
    return scene


@pytest.mark.parametrize(("late", "explains"), [(0.2, True), (0.3, False)])
def test_the_last_message_of_a_lost_node_may_arrive_a_moment_after_what_its_loss_caused(
    late: float, explains: bool
) -> None:
    job = Scene(4, 2).run(10).job
    began = job.last_heard
    job.nodes["node-1"].lost = NodeLoss(job.attempt, (2, 3), began + late, WHY)
    assert bool(causes(job, job.attempt, (), began)) is explains


def test_a_lost_node_is_named_at_once_with_its_ranks() -> None:
    scene = Scene(4, 2).run(10).cut_host(1)
    scene.run(3)
    assert not scene.job.incidents, "nothing was reported yet, and the limit for silence is far"
    lose(scene)
    assert scene.incident.kind is VerdictKind.NODE_LOST
    assert scene.incident.reason == f"Node host-1 is lost with ranks 2, 3: {WHY}."
    assert scene.blamed == {2: "host_silent", 3: "host_silent"}
    assert [scene.rank_state(rank) for rank in (2, 3)] == [RankState.DEAD] * 2
    assert scene.incident.timeline.since == scene.now - 3
    assert "launchers" in scene.incident.action_reason
    scene.run(70)
    assert scene.issued == [], "the launchers act on it by themselves"
    assert len(scene.job.incidents) == 1


@pytest.mark.parametrize("reason", ["node-7 is lost: so is this one", ""])
def test_the_node_is_named_with_the_whole_reason(reason: str) -> None:
    scene = Scene(4, 2).run(10).cut_host(1)
    scene.event(ProcessEventKind.NODE_LOST, lost_node="node-1", reason=reason)
    assert scene.incident.reason == f"Node host-1 is lost with ranks 2, 3: {reason or UNSTATED}."


def test_its_healthy_twin_raises_nothing() -> None:
    assert Scene(4, 2).run(90).quiet()


def test_the_crash_that_follows_from_a_lost_node_is_called_by_its_cause() -> None:
    scene = Scene(4, 2).run(10).cut_host(1)
    scene.die(0, exit_code=1, message="Connection closed by peer")
    assert scene.incident.kind is VerdictKind.PROCESS_EXITED
    scene.run(2)
    lose(scene)
    assert scene.incident.kind is VerdictKind.NODE_LOST
    assert scene.blamed == {2: "host_silent", 3: "host_silent"}
    assert scene.incident.reason == (
        f"Node host-1 is lost with ranks 2, 3: {WHY}; after that, rank 0 on host-0 exited with code 1"
        ": Connection closed by peer."
    )
    assert scene.printed[-1] == scene.incident.reason
    printed = len(scene.printed)
    lose(scene, by="node-0")
    assert len(scene.printed) == printed, "every launcher reports it, and it is shown once"


def test_a_loss_that_is_reported_when_the_next_attempt_runs_already_renames_its_incident() -> None:
    scene = Scene(4, 2).run(10).cut_host(1)
    scene.die(0, exit_code=1, message="Connection closed by peer")
    scene.run(1)
    scene.submit(NodeRegistration("node-2", "host-2", 10, 2, "gpt"))
    scene.event(ProcessEventKind.RESTARTING, "node-0", reason="rank 0 crashed")
    for rank in range(4):
        node = f"node-{0 if rank < 2 else 2}"
        scene.event(ProcessEventKind.STARTED, node, attempt=2, rank=rank, pid=900 + rank, world_size=4)
    assert scene.job.attempt == 2
    assert scene.incident.open
    lose(scene, attempt=2)
    assert scene.incident.kind is VerdictKind.NODE_LOST
    assert scene.blamed == {2: "host_silent", 3: "host_silent"}
    assert scene.incident.reason.startswith(f"Node host-1 is lost with ranks 2, 3: {WHY}; after that, rank 0 on host-0")
    assert scene.incident.open, "it is over with the first new step"


def test_a_crash_before_the_loss_keeps_its_name() -> None:
    scene = Scene(4, 2).run(10)
    scene.die(0, exit_code=1, message="ValueError: no data")
    scene.run(2)  # node-1 reports meanwhile
    scene.cut_host(1)
    lose(scene)
    assert scene.incident.kind is VerdictKind.PROCESS_EXITED
    assert scene.blamed == {0: "dead"}


def test_a_crash_on_the_node_itself_was_reported_by_its_launcher_and_keeps_its_name() -> None:
    scene = Scene(4, 2).run(10).die(2, signal="SIGKILL").cut_host(1)
    lose(scene)
    assert scene.incident.kind is VerdictKind.PROCESS_EXITED
    assert scene.blamed == {2: "dead"}


def test_a_hang_for_want_of_a_lost_node_is_left_to_the_launchers() -> None:
    scene = Scene(4, 2, on_hang="capture").run(10).cut_host(1)
    scene.mute_nodes.add("node-0")
    scene.until_found()
    assert scene.incident.kind is VerdictKind.SECTION_OVERRUN
    lose(scene)
    assert scene.incident.kind is VerdictKind.NODE_LOST
    scene.run(30)
    assert not scene.directives(DirectiveKind.RESTART)


def test_several_lost_nodes_are_all_named() -> None:
    scene = Scene(6, 3).run(10).cut_host(1).cut_host(2)
    lose(scene)
    lose(scene, "node-2")
    assert set(scene.blamed) == {2, 3, 4, 5}
    assert "Node host-1 is lost" in scene.incident.reason
    assert "node host-2 is lost" in scene.incident.reason


def test_a_lost_node_outlives_a_restart_of_the_monitor() -> None:
    scene = Scene(4, 2).run(10).cut_host(1)
    lose(scene)
    scene.reload(2)
    lost = scene.job.nodes["node-1"].lost
    assert lost is not None
    assert (lost.ranks, lost.reason) == ((2, 3), WHY)
    scene.run(5)
    assert scene.incident.kind is VerdictKind.NODE_LOST


def test_a_node_that_is_unknown_or_that_has_ended_is_not_lost() -> None:
    scene = Scene(4, 2).run(10)
    lose(scene, "node-7")
    scene.event(ProcessEventKind.FINISHED, "node-1")
    lose(scene, "node-1")
    assert scene.quiet()


def test_a_job_whose_node_is_lost_ends_with_the_others() -> None:
    scene = Scene(4, 2).run(10).cut_host(1)
    lose(scene)
    scene.event(ProcessEventKind.FAILED, "node-0", reason="no node takes the place of host-1")
    assert scene.state == "failed"
    assert not scene.incident.open


@pytest.mark.parametrize("known", [{"section_timeouts": {}}, {"sections": False}], ids=["no limits", "steps alone"])
@pytest.mark.parametrize("cut_first", [True, False])
def test_a_host_that_is_cut_off_as_the_monitor_is_restarted_is_found_and_named(
    cut_first: bool, known: dict[str, object]
) -> None:
    scene = Scene(4, 2, **known).run(60)
    if cut_first:
        scene.cut_host(1).reload(5)
    else:
        scene.reload(5).cut_host(1)
    reloaded = scene.now
    scene.until_found(70)
    assert scene.incident.kind is VerdictKind.NODE_LOST
    assert scene.blamed == {2: "host_silent", 3: "host_silent"}
    assert scene.now - reloaded > 60, "silence counts from the restart"
    scene.until(lambda: scene.directives(DirectiveKind.RESTART), 120)
    scene.until(lambda: not scene.incident.open)
    assert len(scene.job.incidents) == 1


def test_a_hang_found_after_the_restart_of_the_monitor_names_the_host_of_which_nothing_was_heard() -> None:
    scene = Scene(4, 2, reports_durations=True).run(60).cut_host(1).reload(5)
    scene.mute_nodes.add("node-0")  # no stacks
    scene.until(lambda: scene.job.incidents and scene.blamed, 70)
    assert scene.blamed == {2: "host_silent", 3: "host_silent"}


def test_a_host_that_only_the_restarted_monitor_does_not_reach_is_never_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(4, 2, section_timeouts={}).run(60).reload(5).cut_host(1)
    monkeypatch.setattr(scene, "_blocked", lambda: False)
    scene.run(900)
    assert scene.incident.kind is VerdictKind.NODE_LOST
    assert scene.incident.open, "it is said"
    assert not scene.directives(DirectiveKind.RESTART), "the other ranks complete steps, and need its ranks for that"


@pytest.mark.parametrize("unheard", [(), (2, 3)], ids=["all report", "a launcher is enough"])
def test_a_restarted_monitor_that_hears_of_every_host_raises_nothing(unheard: tuple[int, ...]) -> None:
    scene = Scene(4, 2, section_timeouts={}).run(60).reload(5).cut(*unheard)
    assert not scene.run(120).job.incidents


def test_ranks_that_are_heard_again_have_not_gone_on_before_they_make_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(4, 2, section_timeouts={}).run(60).cut_host(1).until_found(100).run(5)
    assert scene.incident.kind is VerdictKind.NODE_LOST
    with monkeypatch.context() as still:
        still.setattr(scene, "_blocked", lambda: True)
        scene.resume().run(3)
    assert scene.incident.ended is Ended.HEARD
    assert scene.incident.closed_at is not None


def test_ranks_that_worked_while_they_were_silent_have_gone_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(4, 2, section_timeouts={}).run(60).cut_host(1)
    monkeypatch.setattr(scene, "_blocked", lambda: False)
    scene.until_found(100).resume().run(3)
    assert scene.incident.ended is Ended.WENT_ON


STORE_LOST = "the rendezvous store has not responded for 200 s; no rank here made progress, so they have been killed"


def test_ranks_whose_launcher_has_failed_alone_run_no_more() -> None:
    scene = Scene(4, 2, section_timeouts={}).run(60).cut(2, 3)
    scene.event(ProcessEventKind.FAILED, "node-1", reason=STORE_LOST)
    scene.cut_host(1).run(9)
    assert not scene.job.incidents, "the others may fail for the same"
    scene.run(2)
    assert scene.incident.kind is VerdictKind.NODE_LOST
    assert scene.blamed == {2: "host_silent", 3: "host_silent"}
    assert [scene.rank_state(rank) for rank in (2, 3)] == [RankState.DEAD] * 2
    assert scene.state != "running"
    assert not scene.directives(DirectiveKind.RESTART), "the launchers act by themselves"


@pytest.mark.parametrize("cause", ["rank 2 exited with code 17", ""])
def test_a_job_that_fails_on_all_nodes_loses_none(cause: str) -> None:
    scene = Scene(4, 2, section_timeouts={}).run(60).cut(*range(4))
    scene.event(ProcessEventKind.FAILED, "node-1", reason=STORE_LOST, cause=cause)
    scene.run(3)
    scene.event(ProcessEventKind.FAILED, "node-0", reason=STORE_LOST, cause=cause)
    assert not scene.run(60).job.incidents
    assert scene.state == "failed"
