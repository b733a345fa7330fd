"""Scenes in which something comes late, again, or not at all, and the job must neither be harmed nor forgotten."""

from __future__ import annotations

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, DirectiveKind, ProcessEventKind, ProcessState, VerdictKind
from rankwatch.contract.messages import NodeObservation, NodeRegistration, ProcessEvent, RankObservation
from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.incident_record import Phase


def register(scene: Scene, node: str) -> None:
    scene.submit(NodeRegistration(node=node, host=f"host-of-{node}", launcher_pid=1, local_world_size=4))


def test_a_job_launched_again_after_its_launcher_was_killed_counts_from_one() -> None:
    scene = Scene().run(10)
    scene.launch(attempt=3)
    scene.run(10).hang(2).until_found()
    register(scene, "node-new")
    scene.submit(ProcessEvent("node-new", ProcessEventKind.STARTED, attempt=1, rank=0, pid=7, world_size=4))
    assert scene.job.attempt == 1
    assert list(scene.job.nodes) == ["node-new"], "the launchers before it are gone"
    assert scene.job.open_incident is None
    assert scene.job.incidents[-1].outcome == "the job was launched again"


def relaunch(scene: Scene) -> None:
    register(scene, "node-new")
    scene.submit(ProcessEvent("node-new", ProcessEventKind.STARTED, attempt=1, rank=0, pid=7, world_size=4))
    scene.judge()


def test_a_launch_that_died_whole_and_was_relaunched_leaves_an_incident() -> None:
    scene = Scene().run(10)
    heard = scene.now
    scene.now += 20.0
    relaunch(scene)
    (incident,) = scene.job.incidents
    assert (incident.kind, incident.attempt, incident.timeline.since) == (VerdictKind.PROCESS_EXITED, 1, heard)
    assert (incident.outcome, incident.open) == ("the job was launched again", False)
    scene.judge()
    assert len(scene.job.incidents) == 1


def test_so_it_does_where_its_monitor_died_with_it() -> None:
    scene = Scene().run(10)
    heard = scene.now
    scene.now += 20.0
    scene.reload()
    relaunch(scene)
    (incident,) = scene.job.incidents
    assert (incident.timeline.since, incident.open) == (heard, False)


def test_a_launch_that_ended_as_its_launcher_said_leaves_none() -> None:
    scene = Scene().run(10)
    scene.submit(ProcessEvent(next(iter(scene.job.nodes)), ProcessEventKind.FAILED, attempt=1))
    scene.job.incidents.clear()
    relaunch(scene)
    assert scene.job.incidents == []


def test_a_launcher_of_the_running_job_that_states_it_again_changes_nothing() -> None:
    scene = Scene().run(10)
    scene.launch(attempt=3)
    scene.run(5)
    scene.submit(ProcessEvent("node-0", ProcessEventKind.STARTED, attempt=2, rank=0, pid=7, world_size=4))
    assert scene.job.attempt == 3
    assert scene.quiet()


def test_what_was_only_recorded_is_acted_on_once_it_can_be() -> None:
    scene = Scene(observe_only=True).run(10).hang(2).until_found().run(3)
    assert scene.incident.action is Action.LOG
    scene.job.policy = scene.job.policy.changed({"observe_only": False})
    scene.until(lambda: scene.directives(DirectiveKind.RESTART))
    assert scene.incident.action is Action.RESTART


def test_an_order_to_stop_holds_for_the_attempt_that_began_meanwhile() -> None:
    scene = Scene(capture_deadline=20.0).run(10)
    scene.ignored.add(DirectiveKind.CAPTURE)
    scene.order(Action.STOP)
    scene.launch(attempt=2)
    scene.run(1)
    (stop,) = scene.directives(DirectiveKind.STOP)
    assert stop.attempt == 2


def test_a_job_that_is_gone_is_lost_and_gets_no_more_directives() -> None:
    scene = Scene(silence_timeout=30.0).run(10).hang(2)
    scene.ignored.update({DirectiveKind.RESTART})
    scene.until_found().run(3)
    assert scene.incident.phase is Phase.ACTING
    scene.cut_host(0)
    scene.run(100)
    issued = len(scene.issued)
    scene.run(600)
    assert scene.state == "lost"
    assert len(scene.issued) == issued


def test_an_observation_that_waited_on_its_way_reports_nothing_about_now() -> None:
    scene = Scene().run(10)
    seen = RankObservation(
        rank=2,
        pid=1,
        process_state=ProcessState.ALIVE,
        pulse_age=0.1,
        iteration=5,
        open_sections={"step": 500.0},
        uses_sections=True,
    )
    scene.submit(NodeObservation("node-0", scene.attempt, (seen,), age=12.0))
    scene.run(1)
    assert scene.quiet()
    scene.submit(NodeObservation("node-0", scene.attempt, (seen,), age=0.1))
    assert [v.rank for v in verdicts_of(scene.job, scene.now)] == [2]
