"""A person's orders, and the agreed stop step."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import AckState, Action, DirectiveKind, ProcessEventKind, VerdictKind
from rankwatch.contract.intervals import STOP_MARGIN_STEPS

CAPTURE, RESTART, STOP, SAVE_AND_STOP = (
    DirectiveKind.CAPTURE,
    DirectiveKind.RESTART,
    DirectiveKind.STOP,
    DirectiveKind.SAVE_AND_STOP,
)


def furthest(scene: Scene) -> int:
    return max(r.reached for r in scene.ranks)


# Orders on a healthy job ----------------------------------------------------------------------------------------------


def test_an_order_is_an_entry_in_the_ledger_with_its_reason() -> None:
    scene = Scene().run(10)
    scene.order(Action.RESTART, "new data on the disk")
    scene.until(lambda: scene.closings)
    assert scene.incident.kind is VerdictKind.ORDERED
    assert scene.incident.reason == "An operator ordered restart: new data on the disk."
    assert scene.blamed == {}
    assert [d.kind for d in scene.issued] == [CAPTURE, RESTART]
    assert scene.job.attempt == 2
    assert scene.state == "running"


def test_an_ordered_capture_takes_stacks_and_is_over() -> None:
    scene = Scene().run(10)
    scene.order(Action.CAPTURE)
    assert scene.state == "running"
    scene.run(3)
    assert [d.kind for d in scene.issued] == [CAPTURE]
    assert "stacks of 4 ranks" in scene.closings[0].outcome
    assert len(scene.incident.stacks) == 4


def test_an_ordered_stop_ends_the_job() -> None:
    scene = Scene().run(10)
    scene.order(Action.STOP, "enough")
    scene.run(3)
    assert [d.kind for d in scene.issued] == [CAPTURE, STOP]
    assert scene.state == "stopped"
    assert len(scene.closings) == 1


def test_an_order_is_obeyed_although_the_policy_only_observes_or_the_budget_is_used_up() -> None:
    for policy in ({"observe_only": True}, {"max_restarts": 0}, {"detection": False}):
        scene = Scene(**policy).run(10)  # type: ignore[arg-type]
        scene.order(Action.RESTART)
        scene.run(3)
        assert len(scene.directives(RESTART)) == 1, policy


def test_an_order_without_a_launcher_is_closed_with_words() -> None:
    scene = Scene(launchers=False).run(10)
    scene.order(Action.RESTART)
    assert scene.issued == []
    assert "no launcher" in scene.closings[0].outcome


def test_an_order_to_a_job_that_has_ended_is_closed_once() -> None:
    scene = Scene().run(10)
    scene.finish()
    scene.order(Action.RESTART)
    scene.run(5)
    assert len(scene.closings) == 1
    assert scene.issued == []


# Orders during an incident --------------------------------------------------------------------------------------------


def test_an_order_joins_the_open_incident() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found()
    scene.order(Action.RESTART, "I saw it")
    scene.until(lambda: scene.closings)
    assert scene.incident.kind is VerdictKind.SECTION_OVERRUN
    assert scene.incident.action is Action.RESTART
    assert "I saw it" in scene.incident.action_reason
    assert scene.job.attempt == 2


def test_an_order_is_carried_out_although_the_ranks_go_on_meanwhile() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found()
    scene.order(Action.STOP, "shut it down")
    scene.resume().run(5)
    assert len(scene.directives(STOP)) == 1
    assert scene.state == "stopped"


@pytest.mark.parametrize(("action", "kind"), [(Action.STOP, STOP), (Action.SAVE_AND_STOP, SAVE_AND_STOP)])
def test_an_order_during_a_recovery_is_carried_out(action: Action, kind: DirectiveKind) -> None:
    scene = Scene().run(10).hang(2)
    scene.until(lambda: scene.job.attempt == 2)
    scene.order(action, "enough of this")
    scene.run(12)
    assert len(scene.directives(kind)) == 1
    assert scene.directives(kind)[0].attempt == 2
    assert scene.state == "stopped"


def test_an_order_that_cannot_be_carried_out_does_not_close_the_hang() -> None:
    scene = Scene(launchers=False).run(10).hang(2).until_found()
    scene.order(Action.CAPTURE)
    scene.run(10)
    assert len(scene.job.incidents) == 1, "one hang is one incident"
    assert scene.incident.open


def test_an_ordered_capture_does_not_call_off_the_restart_by_policy() -> None:
    scene = Scene()
    scene.mute_nodes.add("node-0")
    scene.run(10).hang(2).until_found()
    scene.order(Action.CAPTURE, "curious")
    scene.run(20)
    assert len(scene.directives(RESTART)) == 1


def test_a_hang_during_an_ordered_capture_is_found_afterwards() -> None:
    scene = Scene(capture_deadline=20.0)
    scene.mute_nodes.add("node-0")
    scene.run(10).hang(2).run(5)
    scene.order(Action.CAPTURE)
    scene.run(26)
    assert [i.kind for i in scene.job.incidents] == [VerdictKind.ORDERED, VerdictKind.SECTION_OVERRUN]


# The agreed stop step -------------------------------------------------------------------------------------------------


def test_the_stop_step_lies_ahead_of_every_rank_by_the_pace() -> None:
    scene = Scene().run(40)
    scene.order(Action.SAVE_AND_STOP)
    scene.until(lambda: scene.directives(SAVE_AND_STOP))
    step = scene.directives(SAVE_AND_STOP)[0].stop_step
    # One step a second: three seconds of margin and two steps.
    assert step == furthest(scene) + 3 + STOP_MARGIN_STEPS
    assert scene.incident.stop_step == step
    scene.until(lambda: scene.state == "stopped", within=10)
    assert scene.directives(STOP) == []
    assert len(scene.closings) == 1


def test_a_job_without_steps_gets_a_stop_step_all_the_same() -> None:
    scene = Scene(steps=False).run(10)
    scene.order(Action.SAVE_AND_STOP)
    scene.run(2)
    step = scene.directives(SAVE_AND_STOP)[0].stop_step
    assert step is not None
    assert step >= 0


def test_a_step_that_was_passed_is_moved_further_ahead() -> None:
    scene = Scene()
    scene.ignored.add(SAVE_AND_STOP)
    scene.run(40)
    scene.order(Action.SAVE_AND_STOP)
    scene.run(1)
    first = scene.directives(SAVE_AND_STOP)[0]
    assert first.stop_step is not None
    passed = first.stop_step + 7
    scene.ack(first, AckState.REFUSED, max_iteration=passed)
    second = scene.directives(SAVE_AND_STOP)[1]
    assert second.stop_step is not None
    assert second.stop_step > passed
    assert second.id > first.id
    assert scene.incident.stop_step == second.stop_step
    # A late refusal of the first one is about a step that nothing waits for any more.
    scene.ack(first, AckState.REFUSED, max_iteration=passed + 1)
    assert len(scene.directives(SAVE_AND_STOP)) == 2


def test_an_agreement_that_reports_how_far_the_ranks_are_is_no_refusal() -> None:
    scene = Scene()
    scene.ignored.add(SAVE_AND_STOP)
    scene.run(40)
    scene.order(Action.SAVE_AND_STOP)
    scene.run(1)
    scene.ack(scene.directives(SAVE_AND_STOP)[0], AckState.DONE, max_iteration=furthest(scene))
    scene.run(1)
    assert len(scene.directives(SAVE_AND_STOP)) == 1


def test_a_stop_step_that_is_never_reached_becomes_a_stop() -> None:
    scene = Scene(stop_deadline=15.0, section_timeouts={"step": None})
    scene.run(40)
    scene.order(Action.SAVE_AND_STOP, "end of the day")
    scene.run(1).hang(1).run(16)
    assert [d.kind for d in scene.issued] == [CAPTURE, SAVE_AND_STOP, STOP]
    assert "15 s" in scene.incident.action_reason
    assert scene.state == "stopped"


def test_a_stop_step_in_time_needs_no_stop() -> None:
    scene = Scene(stop_deadline=15.0).run(40)
    scene.order(Action.SAVE_AND_STOP)
    scene.run(60)
    assert scene.directives(STOP) == []
    assert scene.state == "stopped"


def test_refusals_do_not_push_the_deadline_away_for_ever() -> None:
    scene = Scene(stop_deadline=15.0)
    scene.ignored.add(SAVE_AND_STOP)
    scene.run(40)
    scene.order(Action.SAVE_AND_STOP)
    for _ in range(30):
        scene.run(1)
        if scene.directives(STOP):
            break
        newest = scene.directives(SAVE_AND_STOP)[-1]
        scene.ack(newest, AckState.REFUSED, max_iteration=(newest.stop_step or 0) + 1)
    assert scene.directives(STOP)


def test_a_job_that_finishes_before_its_stop_step_is_finished() -> None:
    scene = Scene().run(40)
    scene.order(Action.SAVE_AND_STOP)
    scene.run(2)
    scene.finish(ProcessEventKind.FINISHED)
    assert scene.state == "finished"
    assert scene.closings[0].outcome == "the job finished"
