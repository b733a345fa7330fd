"""What is done about a hang: by policy, within budgets, evidence first; and how an incident ends."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.core.scene import LOADING, Scene
from rankwatch.contract.enums import AckState, Action, DirectiveKind, ProcessEventKind, VerdictKind
from rankwatch.contract.messages import Collective, NodeRegistration, RankStack
from rankwatch_monitor.core.events import PolicyChanged
from rankwatch_monitor.core.incident_record import Phase, Withheld
from rankwatch_monitor.core.views.headline import headline

CAPTURE, RESTART, STOP, SAVE_AND_STOP = (
    DirectiveKind.CAPTURE,
    DirectiveKind.RESTART,
    DirectiveKind.STOP,
    DirectiveKind.SAVE_AND_STOP,
)
TELL = DirectiveKind.TELL


# From hang to restart -------------------------------------------------------------------------------------------------


def test_a_hang_is_captured_then_restarted_then_over() -> None:
    scene = Scene().run(12).hang(2).until_found()
    found = scene.now
    scene.until(lambda: scene.closings)
    incident = scene.incident
    assert [d.kind for d in scene.issued] == [CAPTURE, RESTART]
    assert {d.incident_id for d in scene.issued} == {incident.id}
    assert {d.attempt for d in scene.issued} == {1}
    assert [d.id for d in scene.issued] == [1, 2]
    assert incident.action is Action.RESTART
    assert incident.phase is Phase.CLOSED
    assert scene.blamed == {2: "behind"}
    times = incident.timeline
    assert times.since == pytest.approx(found - 11.0)
    assert times.detected == times.decided == found
    order = [times.since, times.detected, times.captured, times.restarted, times.first_step]
    assert None not in order
    assert order == sorted(order)  # type: ignore[type-var]
    assert scene.state == "running"
    assert scene.job.attempt == 2
    assert scene.job.restarts == 1


def test_the_steps_lost_are_those_done_twice() -> None:
    scene = Scene(checkpoint=5).run(14).hang(2)
    reached = scene.ranks[0].at.iteration
    scene.until(lambda: scene.closings)
    first = scene.ranks[0].at.first_iteration
    assert reached is not None
    assert first is not None
    assert scene.incident.steps_lost == reached + 1 - first > 0
    assert f"step {first}" in scene.incident.outcome
    assert f"{scene.incident.steps_lost} steps were lost" in scene.incident.outcome


def test_one_lost_step_is_reported_in_the_singular() -> None:
    scene = Scene(checkpoint=1).run(10).hang(2)
    scene.until(lambda: scene.job.attempt == 2)
    for rank in scene.ranks:
        rank.resumed -= 1  # the checkpoint is one step old
    scene.until(lambda: scene.closings)
    assert scene.incident.steps_lost == 1
    assert "1 steps" not in scene.incident.outcome


def test_a_healthy_restart_by_the_launchers_opens_nothing() -> None:
    scene = Scene().run(10)
    scene.restart("membership changed")
    assert scene.run(60).quiet()
    assert scene.job.attempt == 2
    assert scene.job.restarts == 1


def test_the_reason_travels_with_every_directive() -> None:
    scene = Scene().run(10).hang(2).until_found().run(1)
    assert scene.issued[-1].reason == scene.incident.reason
    assert "Rank 2" in scene.issued[-1].reason


def test_the_restart_states_why_that_action() -> None:
    scene = Scene().run(10).hang(2).until_found()
    assert scene.incident.action_reason == "the policy is to restart"
    assert scene.incident.action_reason in scene.printed[0]


# Evidence -------------------------------------------------------------------------------------------------------------


def test_the_deadline_of_a_capture_passes_without_evidence() -> None:
    scene = Scene(capture_deadline=5.0)
    scene.ignored.add(CAPTURE)
    scene.run(10).hang(2).until_found()
    scene.run(4)
    assert scene.directives(RESTART) == []
    scene.run(1)
    assert len(scene.directives(RESTART)) == 1
    assert scene.incident.timeline.captured is None


def test_evidence_of_both_nodes_is_awaited() -> None:
    scene = Scene(hosts=2, capture_deadline=5.0)
    scene.mute_nodes.add("node-1")
    scene.ignored.add(RESTART)
    scene.run(10).hang(2).until_found().run(2)
    assert scene.incident.heard_nodes == {"node-0"}
    assert scene.directives(RESTART) == []
    scene.send_evidence("node-1")
    assert len(scene.directives(RESTART)) == 1
    assert sorted(scene.incident.stacks) == [0, 1, 2, 3]


def test_a_node_that_is_lost_is_not_waited_for() -> None:
    scene = Scene(ranks=8, hosts=2, silence_timeout=9.0, capture_deadline=30.0, section_timeouts={"step": None})
    scene.run(10).cut_host(1).until_found()
    scene.until(lambda: scene.directives(DirectiveKind.RESTART), within=5)
    assert scene.job.incidents[0].kind is VerdictKind.NODE_LOST


def test_a_node_that_stays_mute_delays_the_restart_no_longer_than_the_deadline() -> None:
    scene = Scene(hosts=2, capture_deadline=5.0)
    scene.mute_nodes.add("node-1")
    scene.ignored.add(RESTART)
    scene.run(10).hang(2).until_found().run(5)
    assert len(scene.directives(RESTART)) == 1
    assert sorted(scene.incident.stacks) == [0, 1]
    assert scene.incident.timeline.captured is not None


def test_a_launcher_without_ranks_is_not_waited_for() -> None:
    # A spare registered, but it runs nothing whose stack could be taken.
    scene = Scene()
    scene.submit(NodeRegistration("spare", "host-9", 10, 4, "gpt"))
    scene.ignored.add(RESTART)
    scene.run(10).hang(2).until_found().run(1)
    assert len(scene.directives(RESTART)) == 1


def test_the_same_evidence_twice_changes_nothing() -> None:
    scene = Scene(hosts=2)
    scene.mute_nodes |= {"node-0", "node-1"}
    scene.run(10).hang(2).until_found()
    scene.send_evidence("node-0")
    scene.send_evidence("node-0")
    assert scene.incident.heard_nodes == {"node-0"}
    assert scene.directives(RESTART) == []


def test_evidence_for_an_unknown_incident_changes_nothing() -> None:
    scene = Scene(hosts=2)
    scene.mute_nodes |= {"node-0", "node-1"}
    scene.run(10).hang(2).until_found()
    scene.send_evidence("node-0", "job-0-99")
    assert not scene.incident.stacks


def test_stacks_that_could_not_be_had_count_as_an_answer() -> None:
    scene = Scene()
    scene.ignored |= {CAPTURE, RESTART}
    scene.run(10).hang(2).until_found()
    scene.send_evidence("node-0", stacks=(RankStack(2, 1, "", error="py-spy: permission denied"),))
    assert len(scene.directives(RESTART)) == 1


def test_ranks_that_go_on_while_their_stacks_are_taken_are_left_alone() -> None:
    scene = Scene(capture_deadline=30.0)
    scene.ignored.add(CAPTURE)
    scene.run(10).hang(2).until_found().resume().run(2)
    scene.send_evidence("node-0")
    assert [c.outcome for c in scene.closings] == ["the ranks went on by themselves"]
    assert scene.directives(RESTART) == []
    assert scene.state == "running"


# Policies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{}, {"section_timeouts": {}, "reports_durations": True}], ids=["hang", "suspicion"])
def test_policy_log_takes_stacks_and_only_records(limits: dict[str, Any]) -> None:
    scene = Scene(on_hang="log", **limits).run(60).hang(2).until_found().run(90)
    assert [d.kind for d in scene.issued] == [CAPTURE] + [TELL] * (2 if limits else 1)
    assert bool(scene.issued[0].watch) is bool(limits), "a suspicion is looked at"
    assert len(scene.incident.stacks) == 4
    assert scene.incident.action is Action.LOG
    assert "only records" in scene.incident.action_reason
    assert scene.state == "hung"
    assert headline(scene.incident).startswith("Rank 2 on host-0 hangs in load_batch")
    assert len(scene.printed) <= 3, "opened, confirmed, found by its stack: stated once each, not at every tick"
    scene.resume().run(2)
    assert len(scene.closings) == 1


@pytest.mark.parametrize(
    ("scene", "why", "issued"),
    [
        (Scene(on_hang="log", observe_only=True), Withheld.OBSERVE_ONLY, [TELL]),
        (Scene(on_hang="log", launchers=False), Withheld.NO_LAUNCHER, []),
    ],
    ids=["observe-only", "no launcher"],
)
def test_policy_log_leaves_the_ranks_alone_where_none_can_or_may_ask_them(
    scene: Scene, why: Withheld, issued: list[DirectiveKind]
) -> None:
    scene.run(10).hang(2).until_found().run(30)
    assert ([d.kind for d in scene.issued], len(scene.incident.stacks), scene.state) == (issued, 0, "hung")
    assert scene.incident.withheld is why
    assert len(scene.printed) == 1, "stated once, not at every tick"


def test_policy_log_goes_on_when_no_launcher_sends_stacks() -> None:
    scene = Scene(on_hang="log").run(10)
    scene.ignored.add(CAPTURE)
    scene.hang(2).until_found().run(30)
    assert (scene.incident.phase, scene.incident.timeline.captured) == (Phase.DETECTED, None)
    assert [d.kind for d in scene.issued] == [CAPTURE, TELL]


def test_a_policy_that_becomes_restart_is_carried_out_after_stacks_were_taken() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found().run(5)
    scene.submit(PolicyChanged(scene.job.policy.changed({"on_hang": "restart"})))
    scene.run(5)
    assert [d.kind for d in scene.issued] == [CAPTURE, TELL, CAPTURE, RESTART]


def test_policy_capture_takes_stacks_and_leaves_the_ranks_alone() -> None:
    scene = Scene(on_hang="capture").run(10).hang(2).until_found().run(60)
    assert [d.kind for d in scene.issued] == [CAPTURE, TELL]
    assert len(scene.incident.stacks) == 4
    assert scene.incident.open
    scene.resume().run(2)
    assert len(scene.closings) == 1


def test_policy_stop_ends_the_job() -> None:
    scene = Scene(on_hang="stop").run(10).hang(2).until_found().run(2)
    assert [d.kind for d in scene.issued] == [CAPTURE, STOP]
    assert scene.state == "stopped"
    assert len(scene.closings) == 1
    assert "stopped" in scene.incident.outcome


def test_policy_save_and_stop_falls_back_to_stop_when_the_ranks_cannot() -> None:
    scene = Scene(on_hang="save_and_stop", stop_deadline=20.0).run(10).hang(2).until_found().run(19)
    assert [d.kind for d in scene.issued] == [CAPTURE, SAVE_AND_STOP]
    scene.run(4)
    assert [d.kind for d in scene.issued] == [CAPTURE, SAVE_AND_STOP, STOP]
    assert "20 s" in scene.incident.action_reason
    assert scene.state == "stopped"


def test_observe_only_never_acts() -> None:
    scene = Scene(observe_only=True).run(10).hang(2).until_found().run(60)
    assert [d.kind for d in scene.issued] == [TELL]
    assert scene.incident.action is Action.LOG
    assert "observe-only" in scene.incident.action_reason
    assert scene.blamed == {2: "behind"}


def test_without_a_launcher_the_log_reports_it() -> None:
    scene = Scene(launchers=False).run(10).hang(2).until_found().run(60)
    assert scene.issued == []
    assert "no launcher" in scene.incident.action_reason
    assert "only be watched" in scene.printed[0]


def test_the_restart_budget_is_kept() -> None:
    scene = Scene(max_restarts=2)
    for restarts in (1, 2):
        scene.run(10).hang(2).until(lambda restarts=restarts: scene.job.restarts == restarts)  # type: ignore[misc]
        scene.until(lambda: scene.job.open_incident is None)
    scene.run(10).hang(2).until(lambda: scene.state == "failed")
    assert len(scene.directives(RESTART)) == 2
    assert [stop.no_restart for stop in scene.directives(STOP)] == ["used_up"]
    last = scene.job.incidents[-1]
    assert last.action is Action.STOP
    assert "restart budget is used up (2 of 2)" in last.action_reason


def test_no_restarts_allowed_means_stop_at_once() -> None:
    scene = Scene(max_restarts=0).run(10).hang(2).until_found().run(2)
    assert scene.directives(RESTART) == []
    assert [stop.no_restart for stop in scene.directives(STOP)] == ["not_allowed"]
    assert scene.state == "failed"


@pytest.mark.parametrize("ordered", [True, False])
def test_a_stop_that_was_wanted_is_no_failure(ordered: bool) -> None:
    scene = Scene(max_restarts=0, on_hang="log" if ordered else "stop").run(10)
    if ordered:
        scene.order(Action.STOP)
    else:
        scene.hang(2)
    scene.until(lambda: scene.job.ended is not None)
    assert [stop.no_restart for stop in scene.directives(STOP)] == [""]
    assert scene.state == "stopped"


@pytest.mark.parametrize("reason", ["ordered", ""])
def test_a_restart_of_several_nodes_counts_once(reason: str) -> None:
    scene = Scene(ranks=4, hosts=2).run(10)
    scene.restart(reason)
    assert scene.job.restarts == 1


# How an incident ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["log", "capture"])
def test_what_is_only_recorded_is_told_with_its_culprit_at_the_consoles(policy: str) -> None:
    scene = Scene(on_hang=policy).run(10).hang(2).until_found().run(30)
    (told,) = scene.directives(TELL)
    assert (told.suspected, told.incident_id) == (False, scene.incident.id)
    assert told.reason == scene.incident.reason
    assert [d.kind for d in scene.issued] == [CAPTURE, TELL]


def test_a_suspicion_that_is_only_recorded_is_told_and_told_again_when_it_is_confirmed() -> None:
    limits = {"section_timeouts": {}, "confirmation_window": 60.0}
    scene = Scene(on_hang="log", reports_durations=True, **limits).run(60).hang(2).until_found(200)
    scene.until(lambda: scene.job.incidents[-1].confirmed, 300)
    assert [told.suspected for told in scene.directives(TELL)] == [True, False]


def test_a_monitor_that_comes_back_knows_the_hosts_of_ranks_that_report_no_more() -> None:
    scene = Scene(4, hosts=2).run(10).stop(3).reload(20)
    assert scene.job.columns.hosts == ["host-0", "host-0", "host-1", "host-1"]
    scene.until_found()
    assert {culprit.host for culprit in scene.incident.culprits} == {"host-1"}


def test_an_incident_goes_on_by_itself() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found().run(5).resume().run(2)
    assert [c.outcome for c in scene.closings] == ["the ranks went on by themselves"]
    assert scene.incident.closed_at is not None
    assert scene.state == "running"
    scene.run(60)
    assert len(scene.job.incidents) == 1


def test_a_second_hang_is_a_second_incident_with_an_id_of_its_own() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found().resume().run(5)
    scene.hang(1).until(lambda: len(scene.job.incidents) == 2)
    first, second = scene.job.incidents
    assert first.id != second.id
    assert scene.blamed == {1: "behind"}


def test_ids_stay_unique_when_old_incidents_have_left_memory() -> None:
    scene = Scene(ranks=1, on_hang="log", section_timeouts={"step": 2.0})
    ids = []
    for _ in range(205):
        scene.run(2).hang(0).until(lambda: scene.job.open_incident, within=9).resume()
        ids.append(scene.job.incidents[-1].id)
        scene.closings.clear()
        scene.until(lambda: scene.job.open_incident is None, within=9)
    assert len(set(ids)) == len(ids)


def test_trouble_again_before_the_first_step_is_a_new_incident() -> None:
    scene = Scene().run(10).hang(2)
    scene.until(lambda: scene.job.attempt == 2)
    scene.until(lambda: scene.ranks[0].starts_in <= 0, within=5)
    scene.die(1, signal="SIGKILL")
    scene.run(1)
    first, second = scene.job.incidents
    assert "before its first step" in first.outcome or "resumed at step" in first.outcome
    assert second.kind is VerdictKind.PROCESS_EXITED
    assert second.attempt == 2


def test_a_crash_before_the_first_step_closes_the_recovery() -> None:
    scene = Scene().run(10).hang(2)
    scene.until(lambda: scene.job.attempt == 2)
    scene.die(1, signal="SIGKILL").run(1)
    first, second = scene.job.incidents
    assert "before its first step" in first.outcome
    assert first.timeline.first_step is None
    assert second.open


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        (ProcessEventKind.FINISHED, "finished", "the job finished"),
        (ProcessEventKind.FAILED, "failed", "the job failed: too many crashes"),
        (ProcessEventKind.STOPPED, "stopped", "the job was stopped: preempted"),
    ],
)
def test_the_end_of_the_job_closes_its_incident(kind: ProcessEventKind, state: str, words: str) -> None:
    reason = words.partition(": ")[2]
    scene = Scene(on_hang="log").run(10).hang(2).until_found()
    scene.finish(kind, reason)
    assert scene.state == state
    assert [c.outcome for c in scene.closings] == [words]
    assert scene.run(100).closings[1:] == []


def test_a_job_of_two_nodes_ends_when_both_have() -> None:
    scene = Scene(hosts=2).run(10)
    scene.event(ProcessEventKind.FINISHED, "node-0")
    assert scene.state == "running"
    scene.event(ProcessEventKind.FAILED, "node-1", reason="exit code 1")
    assert scene.state == "failed"
    assert scene.quiet()


def test_a_node_that_was_replaced_does_not_keep_the_job_from_finishing() -> None:
    scene = Scene(hosts=2).run(10)
    # node-1's machine is gone; node-2 takes its ranks in the next attempt.
    scene.submit(NodeRegistration("node-2", "host-2", 10, 2, "gpt", attempt=1))
    scene.launch(attempt=2)
    scene.job.nodes["node-1"].ranks.clear()
    for rank in (2, 3):
        scene.event(ProcessEventKind.STARTED, "node-2", rank=rank, pid=900 + rank, world_size=4)
    scene.run(10)
    scene.event(ProcessEventKind.FINISHED, "node-0")
    scene.event(ProcessEventKind.FINISHED, "node-2")
    assert scene.state == "finished"


def test_detection_switched_off_during_an_incident_does_not_state_that_the_ranks_went_on() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found()
    scene.submit(PolicyChanged(scene.job.policy.changed({"detection": False})))
    scene.run(2)
    assert len(scene.closings) == 1
    assert "went on" not in scene.incident.outcome


def test_ranks_that_all_fall_silent_after_an_alarm_are_not_reported_to_have_gone_on() -> None:
    scene = Scene(launchers=False, silence_timeout=30.0).run(10).cut(2).until_found()
    scene.cut(0, 1, 2, 3).run(120)
    assert "went on" not in scene.incident.outcome


def test_a_job_that_counts_no_steps_recovers_with_its_heartbeats() -> None:
    scene = Scene(steps=False).run(10).hang(2)
    scene.until(lambda: scene.job.attempt == 2).run(65)
    assert scene.state == "running"
    assert len(scene.closings) == 1
    assert scene.incident.steps_lost is None


def test_a_job_that_counted_steps_has_recovered_when_it_counts_again_however_long_it_takes() -> None:
    """Ranks of real jobs import, load and compile for minutes before they report, or before their first step."""
    scene = Scene().run(10).hang(2)
    scene.startup = 300
    scene.until(lambda: scene.job.attempt == 2).run(290)
    assert (scene.state, scene.job.instrumented) == ("restarting", False)
    scene.busy = True
    scene.run(200)
    assert (scene.state, scene.job.instrumented) == ("restarting", True), scene.incident.outcome
    scene.busy = False
    scene.run(3)
    assert scene.state == "running"
    assert "attempt 2 resumed at step" in scene.incident.outcome
    assert scene.incident.timeline.first_step is not None


def test_that_a_job_counts_steps_outlives_an_attempt_that_comes_to_none_and_the_monitor() -> None:
    scene = Scene().run(10).hang(2)
    scene.startup = 100
    scene.until(lambda: scene.job.attempt == 2).run(5)
    scene.die(1, signal="SIGKILL").run(1)
    scene.restart("a rank crashed")
    scene.reload().run(80)
    assert (scene.job.attempt, scene.state) == (3, "restarting"), scene.job.incidents[-1].outcome
    scene.run(40)
    assert (scene.state, scene.job.counts_steps) == ("running", True)
    assert "attempt 3 resumed at step" in scene.job.incidents[-1].outcome


def test_another_run_may_count_no_steps() -> None:
    scene = Scene().run(10)
    scene.finish()
    scene.run(1)
    scene.job.begin_run(scene.now)
    assert not scene.job.ever_instrumented
    assert not scene.job.counts_steps


# What launchers answer ------------------------------------------------------------------------------------------------


def test_an_answer_to_another_directive_changes_nothing() -> None:
    scene = Scene()
    scene.ignored.add(RESTART)
    scene.run(10).hang(2).until_found().run(1)
    scene.ack(scene.issued[0], AckState.FAILED, detail="too late")
    assert scene.incident.outcome == ""


def test_a_refused_restart_leaves_its_words() -> None:
    scene = Scene()
    scene.ignored.add(RESTART)
    scene.run(10).hang(2).until_found().run(1)
    scene.ack(scene.directives(RESTART)[0], AckState.REFUSED, detail="the store is gone")
    assert "the store is gone" in scene.incident.outcome


def test_a_refused_restart_whose_ranks_go_on_does_not_stay_open_for_ever() -> None:
    scene = Scene()
    scene.ignored.add(RESTART)
    scene.run(10).hang(2).until_found().run(1)
    scene.ack(scene.directives(RESTART)[0], AckState.REFUSED, detail="the store is gone")
    scene.resume().run(60)
    assert len(scene.closings) == 1
    assert scene.state == "running"


# Crashes --------------------------------------------------------------------------------------------------------------


def test_a_crash_is_left_to_the_launchers() -> None:
    scene = Scene().run(10).die(1, signal="SIGKILL")
    assert scene.issued == []
    assert scene.incident.action is Action.RESTART
    assert "launchers" in scene.incident.action_reason
    assert scene.state == "restarting"
    scene.restart("rank 1 was killed")
    scene.run(5)
    assert scene.issued == []
    assert len(scene.closings) == 1
    assert scene.incident.timeline.restarted is not None
    assert scene.state == "running"


def test_a_crash_is_left_to_the_launchers_even_when_only_observed() -> None:
    scene = Scene(observe_only=True).run(10).die(1, signal="SIGKILL")
    assert scene.issued == []
    scene.restart()
    scene.run(5)
    assert len(scene.closings) == 1


@pytest.mark.parametrize(
    ("signal", "calls", "named"),
    [
        ("SIGABRT", (8, 4, 4), {1: "behind"}),
        ("SIGABRT", (4, 4, 4), {0: "dead"}),
        ("SIGKILL", (8, 4, 4), {0: "dead"}),
    ],
    ids=["mismatch", "no mismatch", "a kill explains itself"],
)
def test_an_abort_is_blamed_on_the_survivor_whose_collective_differs(
    signal: str, calls: tuple[int, ...], named: dict[int, str]
) -> None:
    # gloo aborts the process that receives more than it expects; the launchers restart before their stacks arrive.
    scene = Scene(hosts=2).run(10).die(0, signal=signal)
    found = tuple(
        RankStack(rank, 100 + rank, "py-spy", (), collectives=(_entered(calls[rank - 1]),)) for rank in (1, 2, 3)
    )
    scene.restart("rank 0 was killed")
    nodes = {node: tuple(s for s in found if scene.ranks[s.rank].node == node) for node in scene.nodes}
    (first, early), (last, late) = nodes.items()
    scene.send_evidence(first, stacks=early, attempt=1)
    scene.judge()
    if signal == "SIGABRT":
        assert scene.blamed == {}  # what the other node has seen is not known yet
        assert scene.incident.provisional
    scene.send_evidence(last, stacks=late, attempt=1)
    scene.judge()
    assert scene.blamed == named
    assert not scene.incident.provisional
    text = scene.incident.reason
    assert text.startswith(f"Rank 0 on host-0 was killed by {signal}")
    words = "; rank 1 on host-0 is to blame: it is in 'all_reduce' of 8 Float values, while 2 ranks are in"
    assert (words in text) is (1 in named)
    scene.run(5)
    assert len(scene.closings) == 1


@pytest.mark.parametrize("received", [True, False], ids=["the job goes on", "nothing follows"])
def test_an_abort_without_evidence_is_blamed_on_the_process_that_was_aborted(received: bool) -> None:
    scene = Scene().run(10).die(0, signal="SIGABRT").die(1, exit_code=1).run(1)
    assert (scene.blamed, scene.incident.provisional) == ({}, True)
    if received:
        scene.restart("rank 0 was killed")
        scene.run(10)
    else:
        scene.run(60)
    assert (scene.blamed, scene.incident.provisional) == ({0: "dead"}, False)
    assert scene.incident.reason == "Rank 0 on host-0 was killed by SIGABRT."


def test_an_exception_before_an_abort_names_the_rank_at_once() -> None:
    # NCCL's watchdog aborts a process whose CUDA context is broken, while its interpreter ends after the exception.
    text = "AcceleratorError: CUDA error: device-side assert triggered"
    lost = "DistBackendError: NCCL communicator was aborted: connection closed by peer"
    scene = Scene().run(10).die(1, signal="SIGABRT", message=lost).die(0, signal="SIGABRT", message=text).run(1)
    assert (scene.blamed, scene.incident.provisional) == ({0: "dead"}, False)
    assert scene.incident.culprits[0].reason == f"its process was killed by SIGABRT after {text}"


def _entered(values: int) -> Collective:
    return Collective("default_pg", "all_reduce", 133, 132, (), 133, (f"all_reduce of {values} Float",))


def test_peers_that_die_of_the_crash_are_the_same_incident() -> None:
    scene = Scene().run(10).die(1, signal="SIGKILL").die(0, exit_code=1).run(3)
    assert scene.blamed == {1: "dead"}


def test_a_rank_that_dies_while_stacks_are_taken_is_named() -> None:
    scene = Scene()
    scene.ignored |= {CAPTURE, RESTART}
    scene.run(10).hang(2).until_found().die(2, signal="SIGKILL").run(6)
    assert scene.blamed == {2: "dead"}


def test_the_frames_shown_are_those_of_the_culprit() -> None:
    scene = Scene(on_hang="capture").run(10).hang(2).until_found().run(1)
    assert [g.frames for g in scene.incident.stacks.groups() if 2 in g.ranks] == [LOADING]


@pytest.mark.parametrize(
    ("max_restarts", "final", "action"),
    [(3, False, Action.RESTART), (0, False, Action.STOP), (3, True, Action.STOP)],
    ids=["a restart is left", "none is left", "none would help"],
)
def test_a_crash_that_no_restart_follows_is_not_announced_with_one(
    max_restarts: int, final: bool, action: Action
) -> None:
    scene = Scene(max_restarts=max_restarts).run(10).die(1, exit_code=1, final=final)
    assert scene.incident.action is action
    announced = next(text for text in scene.printed if "Action: " in text)
    assert f"Action: {action};" in announced
    scene.run(120)
    assert not scene.issued, "the launchers act by themselves"


PEER = "RuntimeError: Connection closed by peer [127.0.0.1]:85"


@pytest.mark.parametrize("first", [0, 3])
def test_a_crash_that_follows_from_another_is_not_to_blame_whichever_is_reported_first(first: int) -> None:
    scene = Scene(4, 2).run(10)
    messages = {0: PEER, 3: "ValueError: bad batch"}
    for rank in (first, 3 - first):
        scene.die(rank, exit_code=1, message=messages[rank])
    assert [culprit.rank for culprit in scene.incident.culprits] == [3]
    assert scene.incident.reason.startswith("Rank 3 on host-1 exited with code 1: ValueError: bad batch")


@pytest.mark.parametrize("order", [(3, 0, 1), (0, 1, 3)], ids=["left first", "crash first"])
def test_a_rank_that_exited_with_code_0_is_to_blame_for_the_connections_it_ended(order: tuple[int, ...]) -> None:
    scene = Scene(4, 2).run(10)
    for rank in order:
        scene.die(rank, **({"exit_code": 0} if rank == 3 else {"exit_code": 1, "message": PEER}))
    assert [culprit.rank for culprit in scene.incident.culprits] == [3]
    assert scene.incident.reason.startswith(
        "Rank 3 on host-1 exited with code 0 while other ranks still needed it; after that, rank 0 on host-0 exited "
        f"with code 1: {PEER}"
    )


def test_most_ranks_that_have_ended_did_not_leave_too_early() -> None:
    scene = Scene(4, 2).run(10)
    for rank in (1, 2, 3):
        scene.die(rank, exit_code=0)
    scene.die(0, exit_code=1, message=PEER)
    assert [culprit.rank for culprit in scene.incident.culprits] == [0]


def test_an_exception_of_a_rank_itself_comes_before_one_that_left() -> None:
    scene = Scene(4, 2).run(10).die(3, exit_code=0).die(1, exit_code=1, message="ValueError: bad batch")
    scene.die(0, exit_code=1, message=PEER)
    assert [culprit.rank for culprit in scene.incident.culprits] == [1]


def begun_elsewhere(scene: Scene) -> None:
    """The launcher of node-1 begins attempt 2 before what node-0 reports has arrived."""
    scene.event(ProcessEventKind.RESTARTING, "node-1", reason="rank 0 crashed")
    for rank in (2, 3):
        scene.event(ProcessEventKind.STARTED, "node-1", attempt=2, rank=rank, pid=900 + rank, world_size=4)
    assert scene.job.attempt == 2


def late_exit(scene: Scene, message: str) -> None:
    scene.event(ProcessEventKind.EXITED, "node-0", attempt=1, rank=0, pid=100, exit_code=1, message=message)


def test_a_crash_reported_after_another_launcher_began_the_next_attempt_is_an_incident() -> None:
    scene = Scene(4, 2).run(10)
    begun_elsewhere(scene)
    late_exit(scene, "ValueError: bad batch")
    incident = scene.incident
    assert (incident.kind, incident.attempt, incident.phase) == (VerdictKind.PROCESS_EXITED, 1, Phase.RECOVERING)
    assert incident.reason == "Rank 0 on host-0 exited with code 1: ValueError: bad batch."
    assert scene.blamed == {0: "dead"}
    late_exit(scene, "ValueError: bad batch")
    assert len(scene.job.incidents) == 1
    scene.launch(attempt=2)
    scene.until(lambda: not incident.open)
    assert not scene.issued, "the launchers restarted by themselves"


def test_connections_that_were_lost_in_an_earlier_attempt_are_no_incident() -> None:
    scene = Scene(4, 2).run(10)
    begun_elsewhere(scene)  # as when another node joins: the ranks there were ended in order
    late_exit(scene, PEER)
    assert not scene.job.incidents


def test_a_crash_that_is_reported_late_renames_the_incident_of_those_that_lost_their_connection() -> None:
    scene = Scene(4, 2).run(10).die(2, exit_code=1, message=PEER)
    assert scene.blamed == {2: "dead"}
    begun_elsewhere(scene)
    late_exit(scene, "ValueError: bad batch")
    assert scene.blamed == {0: "dead"}
    assert scene.incident.reason.startswith("Rank 0 on host-0 exited with code 1: ValueError: bad batch")
    assert len(scene.job.incidents) == 1


def test_an_attempt_that_begins_again_is_not_reported_as_resumed() -> None:
    scene = Scene(on_hang="restart", checkpoint=1000).run(30)
    scene.hang(2).until_found().until(lambda: not scene.incident.open, within=120)
    assert "resumed at step 0, so no checkpoint was loaded; " in scene.incident.outcome
