"""Where a job's time went: scenes with known answers, and what holds in every scene."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.core.accounted import STARTUP, THINGS, Accounted, about, freely, rerun
from rankwatch.contract.enums import Action, DirectiveKind, ProcessEventKind
from rankwatch_monitor.core import goodput_accounting
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.goodput.intervals import Bucket

# Steps ----------------------------------------------------------------------------------------------------------------


def test_a_healthy_run() -> None:
    scene = Accounted().run(100)
    assert scene.spent == about(startup=STARTUP, productive=98.5)
    assert goodput_accounting.ratio(scene.job) == pytest.approx(0.985)


def test_a_job_has_no_ratio_before_its_first_step() -> None:
    scene = Accounted()
    scene.launch(startup=1000)
    scene.run(300)
    assert scene.spent == about(startup=300.0)
    assert goodput_accounting.ratio(scene.job) is None
    assert goodput_accounting.last_hour(scene.job) == (pytest.approx(300.0), None)


def test_slow_steps_are_productive_also_while_one_is_under_way() -> None:
    scene = Accounted(section_timeouts={"step": 300.0}).run(10)
    for _ in range(3):
        scene.busy = True
        scene.run(100)
        scene.busy = False
        scene.run(1)
    scene.busy = True
    scene.run(50)
    assert scene.spent == about(startup=STARTUP, productive=scene.lived - STARTUP)


def test_rare_reports_make_no_difference() -> None:
    often, rarely = Accounted(reports_durations=True).run(100), Accounted(reports_durations=True, interval=5).run(100)
    assert rarely.spent == about(**often.spent)


def test_the_end_of_a_run() -> None:
    scene = Accounted(section_timeouts={"step": 300.0}).run(60)
    scene.busy = True
    scene.run(20)
    scene.finish()
    scene.run(1000)
    assert scene.spent == about(startup=STARTUP, productive=58.5, shutdown=20.0)
    assert scene.lived == pytest.approx(80.0), "time stands still after the end"


def test_a_run_that_ends_well_without_a_step_cannot_be_measured() -> None:
    scene = Accounted(steps=False, sections=False).run(90)
    scene.finish()
    scene.run(10)
    assert scene.spent == about(unmeasured=90.0)
    assert goodput_accounting.ratio(scene.job) is None


def test_a_run_that_fails_before_its_first_step_was_starting() -> None:
    scene = Accounted()
    scene.launch(startup=1000)
    scene.run(30)
    scene.finish(ProcessEventKind.FAILED, "no data")
    assert scene.spent == about(startup=30.0)


# Restarts -------------------------------------------------------------------------------------------------------------


def test_a_hang_counts_from_where_it_began_not_from_where_it_was_found() -> None:
    scene = Accounted().run(60).hang(2)
    scene.run(5)
    assert scene.spent == about(startup=STARTUP, productive=63.5), "not detected yet"
    scene.until(lambda: scene.closings).run(30)
    timeline = scene.incident.timeline
    assert None not in (timeline.since, timeline.detected, timeline.restarted, timeline.first_step)
    assert scene.spent["hang"] == pytest.approx(timeline.detected - timeline.since)
    assert scene.spent["handling"] == pytest.approx(timeline.restarted - timeline.detected)
    assert scene.spent["restart"] == pytest.approx(timeline.first_step - timeline.restarted)
    assert scene.spent["hang"] == pytest.approx(11.0)


def test_the_silent_twin_of_a_hang_has_no_lost_time() -> None:
    assert set(Accounted().run(134).spent) == {"startup", "productive"}


def test_steps_that_a_restart_threw_away_are_lost() -> None:
    scene = Accounted(checkpoint=50).run(92).hang(2)
    scene.until(lambda: scene.closings).run(200)
    lost = scene.incident.steps_lost
    assert lost is not None
    assert lost > 30
    assert scene.spent["lost_steps"] == pytest.approx(lost - 1 + 0.5, abs=1.0), "a step a second; the first is restart"
    steps = scene.job.furthest_iteration
    assert scene.spent["productive"] == pytest.approx(steps, abs=2.0)


def test_steps_are_lost_as_soon_as_the_attempt_resumes_before_them_and_new_when_done_again() -> None:
    scene = Accounted(checkpoint=50).run(92).hang(2)
    scene.until(lambda: scene.job.attempt == 2)
    assert scene.spent["productive"] == pytest.approx(92.0 - STARTUP, abs=1.0), "nothing is lost yet"
    scene.until(lambda: scene.closings)
    before = scene.spent
    assert before["productive"] == pytest.approx(scene.job.furthest_iteration, abs=1.0), "a step a second"
    assert before["lost_steps"] == pytest.approx(scene.incident.steps_lost, abs=1.0)
    scene.busy = True
    scene.run(5)
    assert scene.spent["productive"] == pytest.approx(before["productive"] + 5.0)
    assert scene.spent["lost_steps"] == before["lost_steps"]


def test_steps_that_are_never_done_again_are_no_goodput() -> None:
    scene = Accounted(checkpoint=50).run(92)
    for _ in range(2):
        scene.die(1, exit_code=1).run(2)
        scene.restart()
        scene.run(15)
    scene.finish(ProcessEventKind.FAILED, "no restart is left")
    kept = scene.job.furthest_iteration
    assert kept is not None
    assert kept < 70
    assert scene.spent["productive"] == pytest.approx(kept, abs=1.0), "a step a second"
    assert goodput_accounting.ratio(scene.job) == pytest.approx(kept / scene.lived, abs=0.01)
    assert goodput_accounting.lost_steps(scene.job) == scene.job.incidents[0].furthest_iteration - kept
    assert goodput_accounting.last_hour(scene.job)[1] == pytest.approx(goodput_accounting.ratio(scene.job))


def test_each_incident_has_the_time_of_the_steps_that_its_restart_threw_away() -> None:
    scene = Accounted(checkpoint=50).run(92)
    for _ in range(2):
        scene.die(1, exit_code=1).run(2)
        scene.restart()
        scene.run(15)
    lost = [scene.job.ledger.lost_by(each.timeline.first_step) for each in scene.job.incidents]
    # Of the lost steps, the first one is done again within the restart; a step takes a second.
    assert lost == [pytest.approx(each.steps_lost - 1, abs=1.0) for each in scene.job.incidents]
    assert lost[0] > lost[1] > 10.0
    assert sum(lost) == pytest.approx(scene.spent["lost_steps"])
    assert scene.job.ledger.lost_by(None) == 0.0


def test_the_counters_take_lost_steps_over_as_they_are_done_again() -> None:
    scene = Accounted(checkpoint=50).run(92).hang(2)
    scene.until(lambda: scene.closings)
    ledger = scene.job.ledger
    assert ledger.totals[Bucket.PRODUCTIVE] > ledger.settled[Bucket.PRODUCTIVE] + 30
    scene.run(60)
    assert ledger.totals == pytest.approx(ledger.settled)


def test_steps_after_the_last_checkpoint_are_at_risk() -> None:
    scene = Accounted(checkpoint=50, saves=True).run(45)
    assert goodput_accounting.steps_at_risk(scene.job) is None
    scene.run(47)
    scene.die(1, exit_code=1).run(2)
    at_risk = goodput_accounting.steps_at_risk(scene.job)
    assert at_risk is not None
    scene.restart()
    scene.run(1)
    assert goodput_accounting.steps_at_risk(scene.job) == at_risk, "no step of the next attempt yet"
    scene.run(2)
    lost = scene.incident.steps_lost
    assert lost is not None
    assert at_risk - 1 <= lost <= at_risk


def test_a_crash_costs_its_handling_and_its_restart() -> None:
    scene = Accounted().run(63).die(1, exit_code=1)
    scene.run(2)
    scene.restart()
    scene.run(60)
    assert scene.spent == about(startup=STARTUP, productive=120.0, handling=2.0, restart=STARTUP)


def test_a_step_that_a_crash_cut_short_is_lost_and_what_lasted_longer_was_no_step() -> None:
    scene = Accounted(detection=False).run(60)
    scene.busy = True
    scene.run(30)
    scene.busy = False
    scene.restart()
    scene.run(30)
    assert scene.spent["handling"] == pytest.approx(29.0)
    assert scene.spent["lost_steps"] >= 1.0
    assert "hang" not in scene.spent


def test_an_ordered_restart_is_handling_and_no_hang() -> None:
    scene = Accounted().run(60)
    scene.order(Action.RESTART, "new driver")
    scene.until(lambda: scene.closings).run(20)
    assert "hang" not in scene.spent
    assert scene.spent["restart"] == pytest.approx(STARTUP)


def test_ordered_stacks_cost_nothing() -> None:
    scene = Accounted().run(60)
    scene.order(Action.CAPTURE)
    scene.run(40)
    assert scene.spent == about(startup=STARTUP, productive=98.5)


def test_a_restart_that_hangs_again_before_its_first_step() -> None:
    scene = Accounted().run(60).hang(2).until_found()
    scene.until(lambda: scene.job.attempt == 2)
    for rank in scene.ranks:
        rank.starts_in = 10_000
    scene.run(120)
    assert scene.spent["restart"] > 100.0
    assert scene.spent["hang"] == pytest.approx(11.0)


def test_a_chained_run_goes_on_with_the_same_ledger() -> None:
    scene = Accounted().run(60)
    scene.finish()
    scene.run(500)
    rerun(scene)
    scene.run(60)
    spent = scene.spent
    assert spent["down"] == pytest.approx(500.0)
    assert spent["startup"] == pytest.approx(STARTUP)
    assert spent["restart"] == pytest.approx(STARTUP)
    assert scene.lived == pytest.approx(620.0)


def test_processes_that_are_replaced_by_hand() -> None:
    scene = Accounted(launchers=False).run(60)
    scene.busy = True
    scene.run(5)
    scene.busy = False
    scene.launch(attempt=0, startup=20)
    scene.run(60)
    spent = scene.spent
    assert spent["restart"] == pytest.approx(5.0 - 1.0 + 19.5, abs=1.1)
    assert scene.job.ledger.first_attempt is False


def test_a_watched_job_that_shut_down_has_ended_and_may_come_back() -> None:
    scene = Accounted(launchers=False).run(60)
    for rank in scene.ranks:
        report = scene.report(rank)
        assert report is not None
        apply(scene.job, report._replace(ended=True), scene.now)
        rank.over = True
    scene.run(300)
    assert scene.lived == pytest.approx(60.0)
    scene.launch(attempt=0, startup=3)
    scene.run(30)
    assert scene.spent["down"] == pytest.approx(302.0, abs=1.0)


# Sections -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "bucket"),
    [("checkpointing", "checkpointing"), ("evaluation", "evaluation"), ("eval", "evaluation")],
)
def test_a_section_between_two_steps(section: str, bucket: str) -> None:
    scene = Accounted().run(60).enter(section)
    scene.run(30)
    assert scene.spent[bucket] == pytest.approx(30.0), "also while it lasts"
    scene.leave().run(30)
    assert scene.spent[bucket] == pytest.approx(30.0, abs=1.0)
    assert scene.spent["productive"] == pytest.approx(88.5, abs=1.0)


@pytest.mark.parametrize("section", ["checkpointing", "evaluation"])
def test_within_a_step_it_is_part_of_the_step(section: str) -> None:
    scene = Accounted(section_timeouts={"step": 300.0}).run(60).enter(section, within_step=True)
    scene.run(30).leave().run(30)
    assert scene.spent == about(startup=STARTUP, productive=118.5)


def test_one_rank_that_checkpoints_does_not_stop_the_others() -> None:
    scene = Accounted().run(60)
    scene.busy = True
    scene.ranks[0].stand(scene.now, "checkpointing")
    scene.run(5)
    assert "checkpointing" not in scene.spent


def test_any_other_section_is_part_of_the_work() -> None:
    scene = Accounted().run(60).enter("data_loading")
    scene.run(30).leave().run(10)
    assert set(scene.spent) == {"startup", "productive"}


def test_a_section_that_began_before_the_last_look_counts_from_its_beginning() -> None:
    scene = Accounted(interval=5, section_timeouts={"step": 300.0}).run(62)
    scene.enter("checkpointing").run(18)
    assert scene.spent["checkpointing"] == pytest.approx(18.0, abs=3.0)
    scene.run(20)
    assert scene.spent["checkpointing"] == pytest.approx(38.0, abs=3.0)


def test_a_hang_in_a_checkpoint_is_a_hang() -> None:
    scene = Accounted(section_timeouts={"step": 300.0, "checkpointing": 20.0}).run(60)
    scene.enter("checkpointing").until_found()
    scene.until(lambda: scene.job.attempt == 2)
    scene.busy = False
    scene.run(10)
    assert scene.spent["hang"] == pytest.approx(21.0, abs=1.0)
    assert scene.spent.get("checkpointing", 0.0) < 1.0


# Out of sight ---------------------------------------------------------------------------------------------------------


def test_the_monitor_was_away_and_the_steps_went_on() -> None:
    scene = Accounted().run(60).reload(300).run(60)
    assert scene.spent == about(startup=STARTUP, productive=418.5)


def test_the_monitor_was_away_and_the_job_stood_still_for_a_part_of_it() -> None:
    scene = Accounted(silence_timeout=None).run(60)
    scene.busy = True
    scene.reload(100)
    scene.busy = False
    scene.paused = True
    scene.run(50)
    scene.paused = False
    scene.run(30)
    assert scene.spent["unseen"] == pytest.approx(100.0, abs=2.0)
    assert scene.spent["productive"] == pytest.approx(138.5, abs=2.0)


def test_time_away_is_unseen_until_the_next_step() -> None:
    scene = Accounted().run(60)
    scene.busy = True
    scene.reload(300).run(2)
    assert scene.spent["unseen"] == pytest.approx(300.0, abs=2.0)


def test_a_short_absence_is_none() -> None:
    scene = Accounted().run(60).reload(5)
    scene.busy = True
    scene.run(1)
    assert "unseen" not in scene.spent


def test_the_monitor_was_away_while_the_job_was_restarted() -> None:
    scene = Accounted().run(60)
    scene.reload(100)
    scene.restart()
    scene.run(60)
    assert scene.spent["unseen"] == pytest.approx(100.0)
    assert scene.spent["restart"] == pytest.approx(STARTUP)


def test_the_monitor_dies_in_the_middle_of_a_hang() -> None:
    scene = Accounted(section_timeouts={"step": 30.0}).run(60).hang(2).run(10)
    scene.reload(100)
    scene.until(lambda: scene.closings, 300).run(30)
    assert scene.spent["unseen"] == pytest.approx(100.0, abs=2.0)
    assert scene.spent["hang"] >= 10.0
    assert scene.spent["productive"] == pytest.approx(58.5 + 30.0, abs=5.0)


def test_a_lost_job_ends_at_its_last_message() -> None:
    scene = Accounted(launchers=False, silence_timeout=30.0).run(60)
    scene.cut(0, 1, 2, 3).run(500)
    assert scene.state == "lost"
    assert scene.lived == pytest.approx(60.0)
    scene.resume().run(60)
    assert scene.spent == about(startup=STARTUP, productive=scene.lived - STARTUP), "it had worked all the time"
    assert scene.lived == pytest.approx(620.0)


def test_a_lost_job_that_comes_back_in_another_attempt_was_down() -> None:
    scene = Accounted(launchers=False, silence_timeout=30.0).run(60)
    for rank in scene.ranks:
        rank.over = True
    scene.run(500)
    scene.launch(attempt=2)
    scene.run(60)
    assert scene.spent["down"] == pytest.approx(501.0, abs=1.0)


def test_a_monitor_that_comes_late_counts_from_then() -> None:
    scene = Accounted(launchers=False)
    scene.paused = True
    scene.run(1000)
    scene.paused = False
    late = type(scene.job)("job", scene.now)
    scene.job = late
    scene.run(60)
    assert scene.spent == about(productive=60.0), "its first step was long before"


def test_the_only_report_of_the_last_attempt_may_come_after_its_end() -> None:
    scene = Accounted().run(60)
    reached = scene.job.furthest_iteration
    assert reached is not None
    scene.restart()
    scene.run(1)
    scene.paused = True
    scene.finish(ProcessEventKind.FAILED, "rank 1 exited with code 3")
    scene.paused = False
    scene.run(1)
    assert scene.job.ended is not None
    first = reached - 6
    report = RankReport(scene.ranks[0].identity, iteration=first + 1, first_iteration=first, first_iteration_age=0.5)
    scene.submit(report)
    scene.run(2)
    assert scene.job.furthest_iteration == first + 1
    assert scene.job.ledger.reached == first + 1, "as its record has it"
    assert goodput_accounting.lost_steps(scene.job) == 5


def test_a_step_that_only_the_launcher_tells_of_is_noted() -> None:
    """Of ranks that ended before their first report."""
    scene = Accounted().run(60)
    reached = scene.job.furthest_iteration
    assert reached is not None
    scene.paused = True
    scene.restart()
    for rank in range(len(scene.ranks)):
        scene.event(ProcessEventKind.EXITED, rank=rank, exit_code=3, iteration=reached - 6)
    scene.finish(ProcessEventKind.FAILED, "rank 1 exited with code 3")
    scene.paused = False
    scene.run(2)
    assert scene.job.ended is not None
    assert scene.job.furthest_iteration == reached - 6
    assert scene.job.ledger.reached == reached - 6, "as its record has it"


def test_a_late_report_may_come_before_the_launcher_s_word_of_the_attempt() -> None:
    """A monitor that was busy applies both at once; its first step was before that."""
    scene = Accounted().run(60)
    reached = scene.job.furthest_iteration
    assert reached is not None
    scene.paused = True
    scene.restart()
    scene.finish(ProcessEventKind.FAILED, "rank 1 exited with code 3")
    scene.paused = False
    first = reached - 6
    report = RankReport(scene.ranks[0].identity, iteration=first + 1, first_iteration=first, first_iteration_age=0.5)
    scene.submit(report)
    scene.run(2)
    assert scene.job.ledger.reached == first + 1


# In every scene -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(THINGS), st.integers(1, 60)), min_size=1, max_size=10),
)
def test_the_buckets_sum_to_the_time_and_none_is_negative(
    launchers: bool, reports_durations: bool, happens: list[tuple[str, int]]
) -> None:
    scene = Accounted(
        launchers=launchers, reports_durations=reports_durations, silence_timeout=20.0, section_timeouts={"step": 10.0}
    )
    for what, seconds in happens:
        freely(scene, what, seconds)
        scene.run(5)
    scene.check()
    alive = scene.job.ended is None and scene.state not in ("lost", "finished")
    if alive:
        assert scene.lived == pytest.approx(scene.now - scene.job.created_at, abs=1e-6)


# Incident overlay -----------------------------------------------------------------------------------------------------


def test_an_incident_that_resolves_by_itself_is_a_stall() -> None:
    scene = Accounted(on_hang="log").run(60).hang(2).run(40)
    assert scene.spent["hang"] == pytest.approx(40.0), "nothing is done about it: it lasts"
    scene.resume().run(50)
    assert scene.spent["stalled"] == pytest.approx(40.0, abs=1.0)
    assert "hang" not in scene.spent


def test_a_hang_that_is_only_recorded_until_the_job_is_killed() -> None:
    scene = Accounted(on_hang="log").run(60).hang(2).run(40)
    scene.finish(ProcessEventKind.FAILED, "killed by hand")
    assert scene.spent == about(startup=STARTUP, productive=58.5, hang=40.0)


def test_a_suspicion_leaves_time_with_completed_steps_productive() -> None:
    scene = Accounted(silence_timeout=20.0, on_hang="log").run(60).cut(2).until_found()
    scene.run(60)
    assert scene.job.open_incident is not None
    assert set(scene.spent) == {"startup", "productive"}


def test_launchers_that_ignore_directives_count_as_handling() -> None:
    scene = Accounted().run(60)
    scene.ignored.add(DirectiveKind.RESTART)
    scene.hang(2).until_found()
    scene.run(100)
    assert scene.spent["hang"] == pytest.approx(11.0)
    assert scene.spent["handling"] == pytest.approx(100.0)
