"""Which process owns a rank, which attempt counts, and what survives a new run or a new monitor."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import (
    Action,
    DirectiveKind,
    JobState,
    ProcessEventKind,
    ProcessState,
    RankState,
    VerdictKind,
)
from rankwatch.contract.messages import NodeObservation, NodeRegistration, RankObservation
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import PolicyChanged, RankIdentity, RankReport
from rankwatch_monitor.core.incident_record import Phase
from rankwatch_monitor.core.job import Job, Pace


def report(scene: Scene, rank: int = 0, **identity: object) -> RankReport:
    printed = scene.report(scene.ranks[rank])
    assert printed is not None
    return printed._replace(identity=printed.identity._replace(**identity))  # type: ignore[arg-type]


# Attempts -------------------------------------------------------------------------------------------------------------


def test_reports_of_an_older_attempt_are_left_aside_and_counted() -> None:
    scene = Scene().run(10)
    late = report(scene, 2)
    scene.restart()
    scene.run(5)
    before = scene.job.columns.iteration_R.copy()
    apply(scene.job, late._replace(iteration=999), scene.now)
    assert scene.job.stale.count == 1
    assert (scene.job.columns.iteration_R == before).all()
    assert scene.job.attempt == 2


def test_a_newer_attempt_makes_all_ranks_unseen() -> None:
    scene = Scene(launchers=False).run(10)
    apply(scene.job, report(scene, 0, attempt=1, instance="next"), scene.now)
    assert scene.job.attempt == 1
    assert [str(scene.rank_state(r)) for r in range(4)] == ["running", "unseen", "unseen", "unseen"]


def test_process_events_and_observations_of_an_older_attempt_change_nothing() -> None:
    scene = Scene().run(10)
    scene.restart()
    scene.run(5)
    scene.event(ProcessEventKind.EXITED, attempt=1, rank=1, signal="SIGKILL")
    scene.event(ProcessEventKind.STARTED, attempt=1, rank=1, pid=1, world_size=9)
    scene.event(ProcessEventKind.RESTARTING, attempt=1, reason="late")
    seen = RankObservation(2, 1, ProcessState.STOPPED)
    scene.submit(NodeObservation("node-0", 1, (seen,)))
    assert scene.run(5).quiet()
    assert scene.job.restarts == 1
    assert scene.rank_state(2) is RankState.RUNNING


# Owners ---------------------------------------------------------------------------------------------------------------


def test_a_newer_process_takes_a_rank_over() -> None:
    scene = Scene(launchers=False).run(10)
    newer = report(scene, 1, instance="newer", pid=77, host="host-9", started_at=scene.now)
    apply(scene.job, newer._replace(iteration=3, first_iteration=3), scene.now)
    row = scene.job.columns
    assert (row.pid_R[1], row.hosts[1], row.iteration_R[1], row.first_iteration_R[1]) == (77, "host-9", 3, 3)


def test_an_older_process_that_still_speaks_is_left_aside() -> None:
    scene = Scene(launchers=False).run(10)
    old = report(scene, 1)
    apply(scene.job, report(scene, 1, instance="newer", pid=77, started_at=scene.now), scene.now)
    apply(scene.job, old._replace(iteration=500), scene.now)
    assert scene.job.columns.pid_R[1] == 77
    assert scene.job.stale.count == 1


def test_without_start_times_the_one_that_was_replaced_stays_replaced() -> None:
    scene = Scene(launchers=False).run(10)
    first = report(scene, 1, instance="a", started_at=0.0)
    second = report(scene, 1, instance="b", started_at=0.0, pid=2)
    job = Job("other", scene.now)
    for printed in (first, second, first, second, first):
        apply(job, printed, scene.now)
    assert job.columns.pid_R[1] == 2
    assert job.stale.count == 2


def test_a_hung_process_that_is_replaced_by_hand_ends_the_alarm() -> None:
    scene = Scene(launchers=False).run(10).hang(2).until_found()
    scene.launch(attempt=0, startup=1)
    scene.run(10)
    assert len(scene.closings) == 1
    assert scene.state == "running"


# Rank numbers ---------------------------------------------------------------------------------------------------------


def test_ranks_may_appear_in_any_order() -> None:
    job = Job("job", 0.0)
    for rank in (7, 0, 3):
        apply(job, RankReport(RankIdentity("job", rank, instance=str(rank)), iteration=rank), 1.0)
    assert len(job.columns) == 8
    assert job.world_size == 8
    assert job.columns.iteration_R.tolist() == [0, -1, -1, 3, -1, -1, -1, 7]


def test_a_world_that_is_reported_later_has_room_for_all() -> None:
    job = Job("job", 0.0)
    apply(job, RankReport(RankIdentity("job", 0, instance="a")), 1.0)
    apply(job, RankReport(RankIdentity("job", 0, instance="a", world_size=4)), 2.0)
    assert job.world_size == len(job.columns) == 4


# A new run of the same job --------------------------------------------------------------------------------------------


def rerun(scene: Scene) -> None:
    apply(scene.job, NodeRegistration("node-9", "host-9", 11, 4, "gpt"), scene.now)
    scene.launch(attempt=1)


def test_a_job_that_ended_can_be_launched_again() -> None:
    scene = Scene(max_restarts=1).run(10).hang(2)
    scene.until(lambda: scene.closings)
    scene.finish(ProcessEventKind.FAILED, "gave up")
    assert scene.state == "failed"
    directives = scene.job.last_directive
    rerun(scene)
    scene.run(10)
    assert scene.state == "running"
    assert scene.job.attempt == 1
    assert scene.job.restarts == 0, "the budget of the new run is its own"
    assert scene.job.last_directive == directives, "directive numbers go on"
    assert len(scene.job.incidents) == 1, "the history stays"
    assert list(scene.job.nodes) == ["node-9"]


def test_a_hang_in_the_new_run_is_found_and_has_an_id_of_its_own() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found()
    scene.finish(ProcessEventKind.FAILED, "gave up")
    rerun(scene)
    scene.run(10).hang(1).until(lambda: len(scene.job.incidents) == 2)
    assert scene.blamed == {1: "behind"}
    assert len({i.id for i in scene.job.incidents}) == 2


def test_late_words_of_the_old_run_do_not_disturb_the_new_one() -> None:
    scene = Scene().run(10)
    scene.restart()
    scene.run(5)
    late = report(scene, 1)
    scene.finish()
    rerun(scene)
    scene.run(5)
    apply(scene.job, late, scene.now)
    scene.run(5)
    assert scene.job.attempt == 1
    assert scene.quiet()


@pytest.mark.parametrize("goodbye", [True, False], ids=["after a clean end", "after it was lost"])
def test_a_watched_job_that_restarted_once_can_be_run_again_from_its_first_attempt(goodbye: bool) -> None:
    scene = Scene(launchers=False).run(10)
    scene.launch(attempt=2)
    scene.run(10)
    for rank in scene.ranks:
        if goodbye:
            apply(scene.job, report(scene, rank.number)._replace(ended=True), scene.now)
        rank.over = True
    scene.run(600)
    assert scene.state == ("finished" if goodbye else "lost")
    scene.launch(attempt=0)
    scene.run(10)
    assert scene.state == "running"
    assert scene.job.columns.pid_R.tolist() == [r.identity.pid for r in scene.ranks]


# Registration ---------------------------------------------------------------------------------------------------------


def test_the_policy_of_the_command_line_is_merged() -> None:
    scene = Scene(heartbeat_timeout=77.0)
    scene.submit(NodeRegistration("node-0", "host-0", 10, 4, policy={"section_timeouts": {"save": 420}}))
    assert dict(scene.job.policy.section_timeouts) == {"step": 10.0, "save": 420.0}
    assert scene.job.policy.heartbeat_timeout == 77.0


def test_registering_again_does_not_undo_what_an_operator_changed_since() -> None:
    # A launcher registers again whenever its line to the monitor was broken.
    scene = Scene()
    line = NodeRegistration("node-0", "host-0", 10, 4, policy={"heartbeat_timeout": 100.0})
    scene.submit(line)
    scene.submit(PolicyChanged(scene.job.policy.changed({"heartbeat_timeout": 900.0})))
    scene.submit(line)
    assert scene.job.policy.heartbeat_timeout == 900.0


def test_a_registration_with_a_wrong_policy_changes_nothing() -> None:
    scene = Scene().run(10)
    scene.finish()
    with pytest.raises(ValueError, match="heartbeat_timeout"):
        apply(scene.job, NodeRegistration("new", "h", 1, 1, policy={"heartbeat_timeout": -1}), scene.now)
    assert "new" not in scene.job.nodes
    assert scene.state == "finished"


def test_registering_again_keeps_the_ranks_of_the_node() -> None:
    scene = Scene(hosts=2).run(10)
    scene.submit(NodeRegistration("node-1", "host-1", 10, 2, "gpt", attempt=1))
    assert scene.job.nodes["node-1"].ranks == {2, 3}
    assert scene.run(5).quiet()


# Heartbeats and steps as reported -----------------------------------------------------------------------------------


def test_what_a_report_does_not_mention_stays_as_it_was() -> None:
    scene = Scene(launchers=False).run(10)
    columns = scene.job.columns
    before = (columns.iteration_R[0], columns.heartbeats_R[0], columns.open_sections(0, scene.now))
    apply(scene.job, RankReport(scene.ranks[0].identity), scene.now)
    assert (columns.iteration_R[0], columns.heartbeats_R[0], columns.open_sections(0, scene.now)) == before


def test_beats_without_an_age_count_from_the_report_that_reported_them() -> None:
    job = Job("job", 0.0)
    identity = RankIdentity("job", 0, instance="a")
    apply(job, RankReport(identity, beats=5), 10.0)
    apply(job, RankReport(identity, beats=5), 20.0)
    assert job.columns.last_heartbeat_R[0] == 10.0
    apply(job, RankReport(identity, beats=6), 30.0)
    assert job.columns.last_heartbeat_R[0] == 30.0


def test_the_pace_is_steps_per_second() -> None:
    scene = Scene(launchers=False).run(40)
    assert scene.job.steps_per_second == pytest.approx(1.0)
    scene.hang(1).run(9)
    assert scene.job.steps_per_second is not None
    assert 0.5 < scene.job.steps_per_second < 1.0
    scene.run(3)
    assert scene.job.steps_per_second == 0.0, "no step for ten seconds, where one took a second"


def test_the_step_under_way_does_not_slow_the_speed_of_steady_steps() -> None:
    pace, rates = Pace(), []
    for second in range(120):
        pace.add(float(second), second // 7)
        rates.append(pace.steps_per_second)
    known = [rate for rate in rates if rate is not None]
    assert known == pytest.approx([1 / 7] * len(known))
    assert len(known) > 90
    for second in range(120, 140):
        pace.add(float(second), 119 // 7)
    assert pace.steps_per_second is not None
    assert 0 < pace.steps_per_second < 1 / 7, "it takes longer than those before it"


def test_reports_that_arrive_together_after_a_pause_show_no_speed_that_never_was() -> None:
    pace, steps = Pace(), 0
    for second in range(100):
        steps += 1
        pace.add(float(second), steps)
    pace.add(160.0, steps + 1)
    rates = []
    for second in range(161, 200):  # what waited meanwhile arrives within a second
        steps += 60 if second == 161 else 1
        pace.add(float(second), steps + 1)
        rates.append(pace.steps_per_second)
    assert max(rate for rate in rates if rate is not None) <= 60 / 5 + 1
    assert rates[-1] == pytest.approx(1.0, rel=0.1)
    late = Pace()
    late.add(0.0, 100)
    late.add(1.0, 165)
    assert late.steps_per_second is None, "one second shows no speed"


def test_the_speed_of_a_new_job_begins_with_a_whole_interval_of_steps() -> None:
    pace = Pace()
    pace.add(0.0, 1)  # an early report, which waited for the monitor with all that follow
    pace.add(1.0, 60)
    rates = []
    for second in range(2, 60):
        pace.add(float(second), 60 + second - 1)
        rates.append(pace.steps_per_second)
    assert rates[0] is None
    assert [rate for rate in rates if rate is not None] == pytest.approx(
        [1.0] * sum(rate is not None for rate in rates)
    )


def test_directives_are_numbered_without_gaps_and_kept_within_bounds() -> None:
    job = Job("job", 0.0)
    numbers = [job.new_directive(DirectiveKind.SETTINGS, "why").id for _ in range(250)]
    assert numbers == list(range(1, 251))
    assert len(job.directives) == 100


# The monitor dies and comes back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("away", [0, 5, 59, 61, 3600, 86_400])
@pytest.mark.parametrize("launchers", [True, False])
def test_a_monitor_that_comes_back_raises_no_alarm_for_its_absence(away: int, launchers: bool) -> None:
    scene = Scene(launchers=launchers, heartbeat_timeout=30.0, initial_heartbeat_timeout=20.0).run(10)
    scene.reload(away)
    scene.judge()
    scene.run(100)
    assert scene.quiet()
    assert scene.state == "running"


def test_ages_reported_by_ranks_count_in_full_after_the_monitor_came_back() -> None:
    scene = Scene(launchers=False).run(10).hang(2).reload(100)
    scene.run(1)
    assert scene.incident.elapsed == pytest.approx(101.0)


def test_silence_counts_only_from_the_return() -> None:
    scene = Scene(launchers=False, silence_timeout=30.0, initial_heartbeat_timeout=40.0).run(10).cut(2).reload(500)
    scene.run(30)
    assert scene.quiet()
    scene.until_found(within=60)
    assert set(scene.blamed) == {2}


@pytest.mark.parametrize("away", [0, 30])
def test_an_open_incident_survives_the_monitor_and_ends_once(away: int) -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found().run(5).reload(away)
    scene.judge()  # the first tick comes before any rank has spoken
    assert scene.incident.open, scene.incident.outcome
    scene.run(20)
    assert scene.incident.open, scene.incident.outcome
    assert scene.blamed == {2: "behind"}
    scene.resume().run(5)
    assert [c.outcome for c in scene.closings] == ["the ranks went on by themselves"]
    assert len(scene.job.incidents) == 1


def test_ranks_that_went_on_while_the_monitor_was_away_end_the_incident() -> None:
    scene = Scene(on_hang="log").run(10).hang(2).until_found().resume().reload(30)
    scene.judge()
    scene.run(5)
    assert len(scene.closings) == 1
    assert len(scene.job.incidents) == 1


def test_a_restart_that_was_about_to_be_ordered_is_ordered_once() -> None:
    scene = Scene(capture_deadline=5.0)
    scene.ignored.add(DirectiveKind.CAPTURE)
    scene.run(10).hang(2).until_found()
    assert scene.incident.phase is Phase.CAPTURING
    scene.reload(20)
    scene.judge()
    assert not scene.closings, scene.closings
    scene.until(lambda: scene.closings, within=30)
    assert len(scene.directives(DirectiveKind.RESTART)) == 1
    assert len(scene.job.incidents) == 1
    assert scene.job.attempt == 2
    assert "resumed at step" in scene.incident.outcome


def test_a_restart_under_way_is_not_ordered_again() -> None:
    scene = Scene().run(10).hang(2).until_found().run(1)
    assert len(scene.directives(DirectiveKind.RESTART)) == 1
    scene.reload(3)
    scene.judge()
    scene.until(lambda: scene.closings, within=30)
    assert len(scene.directives(DirectiveKind.RESTART)) == 1
    assert scene.state == "running"


def test_a_restart_that_happened_while_the_monitor_was_away_closes_the_incident() -> None:
    scene = Scene()
    scene.ignored.add(DirectiveKind.RESTART)
    scene.run(10).hang(2).until_found().run(1).reload(5)
    scene.launch(attempt=2)
    scene.until(lambda: scene.closings, within=30)
    assert scene.incident.timeline.restarted is not None
    assert scene.state == "running"


def test_the_second_node_of_a_restart_that_spans_the_absence_is_not_counted_again() -> None:
    scene = Scene(hosts=2).run(10)
    scene.event(ProcessEventKind.RESTARTING, "node-0", reason="rank 1 was killed")
    scene.reload(1)
    scene.event(ProcessEventKind.RESTARTING, "node-1", reason="rank 1 was killed")
    assert scene.job.restarts == 1


def test_a_job_that_ended_stays_ended() -> None:
    scene = Scene().run(10)
    scene.finish(ProcessEventKind.STOPPED, "preempted")
    scene.reload(1000)
    scene.judge()
    assert scene.state == "stopped"
    assert scene.job.ended is not None
    assert scene.job.ended.state is JobState.STOPPED
    assert scene.quiet()


def test_orders_and_directive_numbers_go_on_after_the_return() -> None:
    scene = Scene().run(10)
    scene.order(Action.CAPTURE)
    scene.run(2).reload(10).run(2)
    scene.order(Action.CAPTURE)
    scene.run(2)
    assert [d.id for d in scene.issued] == [1, 2]
    assert len({i.id for i in scene.job.incidents}) == 2
    assert {i.kind for i in scene.job.incidents} == {VerdictKind.ORDERED}


def test_an_attempt_too_young_for_a_speed_has_that_between_its_samples() -> None:
    pace = Pace()
    for second, steps in enumerate((4, 5, 7, 9)):
        pace.add(float(second), steps)
    assert pace.steps_per_second is None
    assert pace.between_samples == 2.0
    early = Pace()
    early.add(0.0, 4)
    early.add(1.0, 5)
    assert early.between_samples is None, "the first sample says nothing about when its step completed"
