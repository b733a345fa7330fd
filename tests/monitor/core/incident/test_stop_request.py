"""The launchers have asked the ranks to save and stop: kept with its reason, and nothing is ordered."""

from __future__ import annotations

from monitor.core.accounted import STARTUP, Accounted, about
from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, DirectiveKind, ProcessEventKind, VerdictKind
from rankwatch.contract.messages import NodeRegistration
from rankwatch_monitor.core.views import verdict

WHY = "preempted: the launcher on host-0 got SIGTERM"


def stops(scene: Scene) -> Scene:
    for node in scene.nodes:
        scene.event(ProcessEventKind.STOPPING, node, reason=WHY)
    return scene


def test_a_stop_is_an_incident_with_its_reason_and_no_directive() -> None:
    scene = stops(Scene(4, 2).run(10))
    assert scene.incident.kind is VerdictKind.ORDERED
    assert scene.incident.action is Action.SAVE_AND_STOP
    printed = f"The ranks were asked to save and stop: {WHY}."
    assert verdict.job_state(scene.job, scene.now) == ("stopping", printed)
    scene.run(90)
    assert scene.issued == []
    scene.finish(ProcessEventKind.STOPPED, WHY)
    assert scene.state == "stopped"
    assert [c.outcome for c in scene.closings] == [f"the job was stopped: {WHY}"]
    assert scene.printed[0].startswith(printed)


def test_a_long_save_and_ranks_that_end_badly_meanwhile_open_nothing_else() -> None:
    scene = stops(Scene(4, 2).run(10)).hang(1).run(40)
    scene.die(3, signal="SIGTERM")
    scene.run(5)
    assert len(scene.job.incidents) == 1
    assert scene.issued == []


def test_a_hang_that_was_about_to_be_restarted_is_left_to_the_launchers() -> None:
    scene = Scene(4, 1)
    scene.mute_nodes.add("node-0")
    scene.run(10).hang(2).until_found()
    stops(scene).run(90)
    assert scene.incident.kind is VerdictKind.SECTION_OVERRUN
    assert WHY in scene.incident.action_reason
    assert not scene.directives(DirectiveKind.RESTART)
    assert not scene.directives(DirectiveKind.STOP)


def test_an_operators_stop_that_the_launchers_carry_out_stays_the_operators() -> None:
    scene = Scene().run(10)
    scene.ignored.add(DirectiveKind.SAVE_AND_STOP)
    scene.order(Action.SAVE_AND_STOP, "end of the day")
    scene.until(lambda: scene.directives(DirectiveKind.SAVE_AND_STOP))
    stops(scene).run(2)
    assert scene.incident.reason == "An operator ordered save and stop: end of the day."
    assert len(scene.job.incidents) == 1


def test_a_retry_of_the_same_job_resumes_it() -> None:
    scene = stops(Scene(4, 1).run(20))
    scene.run(3).finish(ProcessEventKind.STOPPED, WHY)
    scene.submit(NodeRegistration("node-9", "host-9", 11, 4, "gpt"))
    scene.launch(attempt=1)
    scene.run(10)
    assert scene.state == "running"
    assert scene.job.stopping is None
    assert len(scene.job.incidents) == 1
    stops(scene)
    assert len(scene.job.incidents) == 2, "the next one is an incident of its own"


def test_a_monitor_that_comes_back_meanwhile_states_it_once() -> None:
    scene = stops(Scene(4, 1).run(10)).reload(3)
    stops(scene).run(5)
    assert len(scene.job.incidents) == 1
    assert scene.issued == []


def test_the_time_of_a_stop_is_shutdown_and_that_of_its_steps_is_productive() -> None:
    scene = Accounted(section_timeouts={"step": 300.0}).run(60)
    stops(scene)
    scene.run(10)  # they go on to the agreed step
    scene.busy = True
    scene.run(20)
    scene.finish(ProcessEventKind.STOPPED, WHY)
    scene.run(100)
    assert scene.spent == about(startup=STARTUP, productive=68.5, shutdown=20.0)


def test_the_checkpoint_of_a_stop_is_a_checkpoint() -> None:
    scene = Accounted().run(60)
    stops(scene)
    scene.busy = True
    for rank in scene.ranks:
        rank.stand(scene.now, "checkpointing")
    scene.run(20)
    scene.finish(ProcessEventKind.STOPPED, WHY)
    assert scene.spent["checkpointing"] == about(x=20.0)["x"]
    assert "handling" not in scene.spent
