"""What confirms a suspicion and what does not: fresh words, waiting for others, and people who act meanwhile."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, DirectiveKind, VerdictKind
from rankwatch_monitor.core.events import PolicyChanged
from rankwatch_monitor.core.incident_record import Phase


def trained(**changes: object) -> Scene:
    """A job without any configured limit that has run long enough to be known."""
    return Scene(reports_durations=True, **changes).run(40)


def alone(scene: Scene, rank: int, section: str) -> Scene:
    """One rank enters a section between two steps; the others wait for it in the collective of the next step."""
    scene.hang(rank).ranks[rank].stand(scene.now, section)
    return scene


def restarted(scene: Scene) -> bool:
    return bool(scene.directives(DirectiveKind.RESTART))


# Fresh words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [True, False])
def test_the_last_word_before_the_line_broke_proves_nothing(cut: bool) -> None:
    scene = trained().hang(2).until_found().run(3)
    if cut:
        scene.cut(*range(4)).cut_nodes.add("node-0")
    scene.run(90)
    assert scene.incident.confirmed is not cut
    if cut:
        scene.resume().run(10)
        assert scene.incident.phase is Phase.CLOSED
        assert not restarted(scene)


def test_a_hang_that_begins_while_something_else_is_suspected_is_confirmed() -> None:
    scene = trained(ranks=2).hang(1).until_found()
    for rank in (0, 1):  # they move one after the other, so that there is always one past its limit
        scene.run(12)
        scene.ranks[rank].stand(scene.now, "step")
    assert len(scene.job.incidents) == 1
    scene.until(lambda: restarted(scene), within=80)
    assert len(scene.job.incidents) == 1


# People ---------------------------------------------------------------------------------------------------------------


def test_observe_only_that_is_switched_on_meanwhile_is_obeyed() -> None:
    scene = trained().hang(2).until_found().run(20)
    scene.submit(PolicyChanged(scene.job.policy.changed({"observe_only": True})))
    scene.run(90)
    assert scene.incident.confirmed
    assert scene.incident.action is Action.LOG
    assert "observe-only" in scene.incident.action_reason
    assert not restarted(scene)
    scene.submit(PolicyChanged(scene.job.policy.changed({"observe_only": False})))
    scene.until(lambda: restarted(scene), within=10)
    assert len(scene.directives(DirectiveKind.RESTART)) == 1


def test_another_action_that_is_set_meanwhile_is_taken() -> None:
    scene = trained().hang(2).until_found().run(20)
    scene.submit(PolicyChanged(scene.job.policy.changed({"on_hang": "stop"})))
    scene.until(lambda: scene.directives(DirectiveKind.STOP), within=60)
    assert "the policy is to stop" in scene.incident.action_reason
    assert not restarted(scene)


def test_limits_that_are_taken_away_meanwhile_end_the_suspicion_in_true_words() -> None:
    scene = trained().hang(2).until_found().run(20)
    scene.submit(PolicyChanged(scene.job.policy.changed({"learn_timeouts": False})))
    scene.run(3)
    assert scene.incident.phase is Phase.CLOSED
    assert scene.incident.outcome == "its limit was changed; the ranks have not moved"


def test_an_operator_that_asks_for_stacks_meanwhile_does_not_call_off_the_restart() -> None:
    scene = trained().hang(2).until_found().run(20)
    scene.order(Action.CAPTURE)
    scene.run(3)
    assert not scene.incident.confirmed
    assert len(scene.directives(DirectiveKind.CAPTURE)) == 2
    scene.until(lambda: restarted(scene), within=60)
    assert scene.incident.confirmed


def test_stacks_asked_for_of_a_job_that_is_only_observed_confirm_nothing() -> None:
    scene = trained(observe_only=True).hang(2).until_found().run(20)
    scene.order(Action.CAPTURE)
    scene.run(3)
    assert not scene.incident.confirmed
    assert scene.run(60).incident.confirmed
    assert not restarted(scene)


@pytest.mark.parametrize("on_hang", ["restart", "stop"])
def test_a_crash_meanwhile_is_left_to_the_launchers(on_hang: str) -> None:
    scene = trained(on_hang=on_hang).hang(2).until_found().run(20)
    scene.die(2, exit_code=1)
    scene.run(20)
    assert scene.incident.kind is VerdictKind.PROCESS_EXITED
    assert scene.incident.confirmed
    assert {d.kind for d in scene.issued} == {DirectiveKind.CAPTURE}
    assert "by themselves" in scene.incident.action_reason
    scene.launch(attempt=2)
    scene.run(20)
    assert scene.incident.phase is Phase.CLOSED


# Waiting for others ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["checkpointing", "evaluation"])
def test_ranks_that_wait_for_one_that_works_alone_are_no_hang(section: str) -> None:
    scene = alone(trained(), 0, section).run(600)
    assert not any(incident.confirmed for incident in scene.job.incidents)
    scene.resume().run(60)
    assert not restarted(scene)
    assert not any(incident.open for incident in scene.job.incidents)


def test_ranks_that_wait_for_one_that_moves_are_no_hang() -> None:
    scene = alone(trained(), 0, "evaluation")
    for _ in range(120):
        scene.run(5)
        scene.ranks[0].at.enter("step", scene.now)  # its batches are called as everybody's are
    assert not restarted(scene)


def test_one_that_stands_still_while_most_move_waits_for_no_rank() -> None:
    """Workers that do not wait for each other count their steps each by itself."""
    scene = trained().hang(2)
    for _ in range(15):
        scene.run(5)
        for rank in scene.ranks:
            if rank.number != 2:
                rank.stand(scene.now, "step")
    assert restarted(scene)
    assert scene.blamed == {2: "behind"}


def test_a_rank_that_hangs_in_what_it_does_alone_is_found_by_the_limit_of_that() -> None:
    scene = alone(trained(beats=False), 0, "checkpointing").run(1700)
    assert not restarted(scene)
    scene.until(lambda: restarted(scene), within=200)
    assert scene.blamed == {0: "behind"}


def test_a_hang_is_found_although_others_have_gone_on_to_save() -> None:
    scene = trained().hang(2)
    for rank in scene.ranks[:2]:
        rank.at.iteration = rank.reached + 1
        rank.stand(scene.now, "checkpointing")
    scene.until(lambda: restarted(scene), within=80)
    assert scene.blamed == {2: "behind"}


def test_a_hang_between_two_steps_of_an_epoch_is_found() -> None:
    """The section around the steps is new, and may last for hours; but nothing moves in it any more."""
    scene = trained().hang(2)
    scene.ranks[2].at.opened, scene.ranks[2].at.moved_at = {"epoch": scene.now - 300}, scene.now
    scene.until(lambda: restarted(scene), within=80)
    assert scene.blamed == {2: "behind"}


def test_a_stopped_rank_is_not_waited_for() -> None:
    scene = trained().stop(2)
    scene.ranks[2].stand(scene.now, "checkpointing")
    scene.until(lambda: restarted(scene), within=80)
    assert scene.blamed == {2: "stopped"}
