"""Hangs without a configured a limit for: suspected, confirmed, acted on; and long pauses that are none.

Each scene has its silent twin: the same pause, from which the ranks come back.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.core.scene import LOADING, WINDOW, Scene
from rankwatch.contract.enums import Action, DirectiveKind, ProcessEventKind, VerdictKind
from rankwatch.contract.messages import NodeObservation
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.incident_record import Phase
from rankwatch_monitor.core.views import verdict
from support.simulator.plan import FaultKind


def trained(**changes: object) -> Scene:
    """A job without any configured limit that has run long enough to be known."""
    return Scene(reports_durations=True, **changes).run(40)


def test_a_hang_without_configuration_is_suspected_within_three_seconds_and_captured_at_once() -> None:
    scene = trained().hang(2)
    began = scene.now
    scene.until_found(within=15)
    incident = scene.incident
    assert scene.now - began <= 4
    assert not incident.confirmed
    assert [d.kind for d in scene.issued] == [DirectiveKind.CAPTURE]
    scene.run(3)
    assert incident.timeline.captured is not None
    assert incident.phase is Phase.CONFIRMING
    assert scene.blamed == {2: "behind"}
    assert "has made no progress in section 'step' for" in incident.reason
    assert scene.state == "suspected"
    assert verdict.job_state(scene.job, scene.now) == ("suspected", incident.reason)
    assert "over its learned limit of 2.5 s" in incident.reason
    prove = "once waiting has cost what a restart costs, or repeated samples of the ranks prove it"
    assert incident.action_reason == "the policy is to restart"
    assert prove in scene.printed[0]


def test_the_restart_follows_the_confirmation_and_a_second_capture() -> None:
    scene = trained().hang(2).until_found()
    incident, opened = scene.incident, scene.now
    scene.until(lambda: scene.directives(DirectiveKind.RESTART))
    assert 60 <= scene.now - opened <= 64
    assert incident.confirmed
    assert scene.state in ("hung", "restarting")
    assert len(scene.directives(DirectiveKind.CAPTURE)) == 2
    timeline = incident.timeline
    assert timeline.since < timeline.detected < timeline.decided <= timeline.captured
    scene.run(20)
    assert incident.phase is Phase.CLOSED
    assert scene.state == "running"
    assert incident.timeline.first_step is not None


def test_ranks_that_go_on_within_the_window_are_left_alone() -> None:
    scene = trained().hang(2).until_found()
    scene.run(30).resume().run(5)
    assert scene.incident.phase is Phase.CLOSED
    assert not scene.incident.confirmed
    assert scene.incident.outcome == "the ranks went on by themselves"
    assert not scene.directives(DirectiveKind.RESTART)
    assert scene.run(100).job.attempt == 1


def test_a_rank_that_moves_a_little_within_the_window_is_not_confirmed() -> None:
    scene = trained().hang(2).until_found()
    for _ in range(4):
        scene.run(20)
        for rank in scene.ranks:  # something moves, and stops again
            rank.stand(scene.now, "step")
    assert not any(incident.confirmed for incident in scene.job.incidents)
    assert not scene.directives(DirectiveKind.RESTART)


# Silence --------------------------------------------------------------------------------------------------------------


def test_silence_that_nobody_configured_is_announced_and_ends_by_itself() -> None:
    scene = Scene(hosts=2, section_timeouts={"step": None}).run(20).cut_host(1)
    scene.until_found().run(20)
    assert (scene.incident.confirmed, scene.incident.limit_source) == (False, "default")
    assert scene.incident.acts_at is not None
    assert set(scene.blamed) <= {2, 3}
    assert set(scene.blamed.values()) == {"host_silent"}
    scene.resume().run(20)
    assert scene.incident.phase is Phase.CLOSED
    assert not scene.directives(DirectiveKind.RESTART)


def test_a_configured_silence_timeout_acts_at_once() -> None:
    scene = Scene(hosts=2, section_timeouts={"step": None}, silence_timeout=61.0).run(20).cut_host(1).until_found()
    scene.run(15)
    assert scene.incident.confirmed
    assert scene.directives(DirectiveKind.RESTART)


def test_silence_without_progress_of_any_rank_is_ended_by_patience() -> None:
    scene = Scene(hosts=2, section_timeouts={"step": None}).run(20).cut_host(1).until_found()
    scene.run(5)
    begun, acts_at = scene.incident.opened_at, scene.incident.acts_at
    assert acts_at is not None
    assert acts_at - begun >= WINDOW
    scene.until(lambda: scene.directives(DirectiveKind.RESTART), within=200)
    assert abs(scene.now - acts_at) <= 5


def test_a_silent_rank_whose_peers_go_on_is_left_alone() -> None:
    """Only its way to the monitor is broken: without it, they would not complete steps."""
    scene = Scene(hosts=2, section_timeouts={"step": None}).run(20).cut(3).until_found()
    scene.run(600)
    assert scene.incident.kind is VerdictKind.SILENT
    assert not scene.incident.confirmed
    assert not scene.directives(DirectiveKind.RESTART)


def test_a_silent_rank_whose_process_ends_is_a_crash_at_once() -> None:
    scene = Scene(hosts=2, section_timeouts={"step": None}).run(20).cut(3).until_found().run(3)
    scene.die(3, signal="SIGKILL")
    assert scene.incident.kind is VerdictKind.PROCESS_EXITED
    assert scene.blamed == {3: "dead"}
    assert scene.incident.confirmed


# Where nothing follows ------------------------------------------------------------------------------------------------


def test_with_no_restart_left_the_looks_go_on_and_nothing_is_done() -> None:
    scene = trained(max_restarts=0).hang(2).until_found().run(5)
    incident = scene.incident
    assert (incident.phase, incident.action, incident.acts_at) == (Phase.DETECTED, Action.LOG, None)
    assert scene.directives(DirectiveKind.CAPTURE)[0].watch
    scene.run(130)
    assert incident.confirmed, "patience is at its end: it is announced, and held"
    assert not {d.kind for d in scene.issued} - {DirectiveKind.CAPTURE, DirectiveKind.TELL}


@pytest.mark.parametrize("policy", [{"observe_only": True}, {"on_hang": "log"}], ids=["observe only", "log"])
def test_a_suspicion_on_which_nothing_follows_is_told_to_the_launchers(policy: dict[str, object]) -> None:
    scene = trained(**policy).hang(2).until_found().run(5)
    told = scene.directives(DirectiveKind.TELL)
    assert [(each.suspected, each.acts_in) for each in told] == [(True, None)]
    assert told[0].follows == scene.incident.action_reason


# A first report or heartbeat ------------------------------------------------------------------------------------------


def missing(rank: int, **given: object) -> Scene:
    """A job of which one rank never reports, at the end of the default limit."""
    scene = Scene(hosts=2, section_timeouts={"step": None}, **given)
    scene.ranks[rank].starts_in = 10_000
    return scene.until_found(within=1900)


def test_a_rank_that_has_not_started_by_the_default_limit_is_announced_and_patience_decides() -> None:
    scene = missing(3)
    assert (scene.incident.kind, scene.incident.limit_source) == (VerdictKind.NEVER_STARTED, "default")
    assert scene.blamed == {3: "never_started"}
    assert not scene.incident.confirmed
    scene.until(lambda: scene.directives(DirectiveKind.RESTART), within=600)
    assert scene.now - scene.incident.opened_at >= WINDOW


def test_a_rank_that_never_reports_while_its_peers_go_on_is_left_alone() -> None:
    scene = Scene(hosts=2, section_timeouts={"step": None}).cut(3).until_found(within=1900).run(600)
    assert scene.incident.kind is VerdictKind.NEVER_STARTED
    assert not scene.incident.confirmed
    assert not scene.directives(DirectiveKind.RESTART)


def test_a_rank_that_starts_after_the_default_limit_is_left_alone() -> None:
    scene = missing(3)
    scene.ranks[3].starts_in = 0
    scene.run(30)
    assert scene.incident.phase is Phase.CLOSED
    assert not scene.directives(DirectiveKind.RESTART)


def test_a_configured_limit_of_the_first_report_acts_at_once() -> None:
    scene = missing(3, initial_heartbeat_timeout=60.0).run(15)
    assert scene.incident.confirmed
    assert scene.directives(DirectiveKind.RESTART)


def test_ranks_that_leave_heartbeats_to_another_are_not_restarted_by_the_default_limit() -> None:
    """Many scripts call heartbeat() on one rank."""
    scene = Scene(sections=False, steps=False, section_timeouts={"step": None})
    for _ in range(2600):
        for rank in scene.ranks[1:]:
            rank.at.beats = -1
        scene.tick()
    assert not any(incident.confirmed for incident in scene.job.incidents)
    assert not scene.directives(DirectiveKind.RESTART)


# Ranks that are about to end ------------------------------------------------------------------------------------------


def ends(scene: Scene, rank: int, since: float | None) -> None:
    """Its launcher reports that a rank is about to end since then; it reports no more itself."""
    ending = scene.ranks[rank]
    ending.disconnected = True
    age = None if since is None else scene.now - since
    seen = replace(ending.observation(scene.now), leaving=age, pulse_age=age)
    scene.submit(NodeObservation(ending.node, scene.attempt, (seen,)))


def waits_for_one_that_ends(seconds: int) -> Scene:
    scene = trained().hang(1)
    raised = scene.now
    apply(scene.job, scene.ranks[1].report(scene.now)._replace(ended=True), scene.now)
    for _ in range(seconds):
        ends(scene, 1, raised)
        scene.run(1)
    return scene


def test_ranks_that_wait_for_one_that_has_raised_do_not_hang_and_its_crash_is_one_incident() -> None:
    scene = waits_for_one_that_ends(20)
    assert scene.quiet()
    assert scene.state == "running"
    scene.event(ProcessEventKind.EXITED, **scene.ranks[1].named, exit_code=1, message="ValueError: x")
    assert scene.incident.kind is VerdictKind.PROCESS_EXITED
    assert scene.blamed == {1: "dead"}


def test_a_rank_that_does_not_end_although_it_began_to_is_named() -> None:
    scene = waits_for_one_that_ends(62)
    assert scene.incident.kind is VerdictKind.SECTION_OVERRUN
    assert scene.blamed == {1: "behind"}
    assert "began to end" in scene.incident.culprits[0].reason


def test_a_rank_that_goes_on_after_all_is_judged_like_others() -> None:
    scene = trained().hang(1)
    raised = scene.now
    ends(scene, 1, raised)
    scene.run(5)
    assert scene.quiet()
    ends(scene, 1, None)
    scene.until_found(within=3)


def test_a_suspicion_is_not_closed_while_its_rank_ends_but_becomes_the_crash() -> None:
    scene = trained().hang(1).until_found()
    for _ in range(5):
        ends(scene, 1, scene.now)
        scene.run(1)
    assert scene.incident.open
    scene.event(ProcessEventKind.EXITED, **scene.ranks[1].named, exit_code=1, message="ValueError: x")
    assert scene.incident.kind is VerdictKind.PROCESS_EXITED
    assert scene.blamed == {1: "dead"}
    assert len(scene.directives(DirectiveKind.RESTART)) == 0


@pytest.mark.parametrize("minimum", [3.0, 20.0], ids=["suspected before", "learned a longer one"])
def test_a_configured_limit_acts_also_where_timeouts_are_calculated(minimum: float) -> None:
    scene = trained(section_timeouts={"step": 8.0}, calculate_timeouts=True, learned_minimum=minimum).hang(2)
    began = scene.now
    scene.until(lambda: scene.directives(DirectiveKind.RESTART), within=20)
    assert 8 <= scene.now - began <= 10
    assert scene.blamed == {2: "behind"}


def test_a_configured_limit_that_is_passed_meanwhile_confirms_at_once() -> None:
    scene = trained(heartbeat_timeout=25.0).hang(2).until_found()
    scene.until(lambda: scene.incident.confirmed, within=30)
    assert scene.incident.action_reason == "the policy is to restart"
    assert "over its configured limit of 25 s" in scene.incident.reason
    assert scene.directives(DirectiveKind.RESTART) or scene.run(3).directives(DirectiveKind.RESTART)


def test_an_operator_need_not_wait_for_the_confirmation() -> None:
    scene = trained().hang(2).until_found().run(3)
    scene.order(Action.RESTART, "seen enough")
    scene.until(lambda: scene.directives(DirectiveKind.RESTART), within=5)
    assert scene.incident.confirmed


def test_a_watched_job_is_confirmed_too_without_a_launcher_to_act() -> None:
    scene = trained(launchers=False).hang(2).until_found()
    assert not scene.incident.confirmed
    scene.run(61)
    assert scene.incident.confirmed
    assert scene.incident.phase is Phase.DETECTED
    assert not scene.issued


def test_observe_only_confirms_and_does_nothing() -> None:
    scene = trained(observe_only=True).hang(2).until_found().run(90)
    assert scene.incident.confirmed
    assert not scene.directives(DirectiveKind.RESTART)


def test_a_confirmation_is_not_shortened_by_a_monitor_that_comes_back() -> None:
    scene = trained().hang(2).until_found().run(3)
    opened = scene.incident.opened_at
    scene.reload(away=30)
    back = scene.now
    scene.until(lambda: scene.directives(DirectiveKind.RESTART), within=100)
    assert scene.now - back >= 60
    assert len(scene.job.incidents) == 1
    assert scene.job.incidents[0].opened_at == opened


def test_nothing_is_judged_before_sixteen_steps() -> None:
    scene = Scene(reports_durations=True).run(10).hang(2).run(55)
    assert scene.quiet()
    scene.run(1780)
    assert scene.blamed == {2: "behind"}
    assert "over the limit of 60 s for a section without a learned limit" in scene.incident.reason
    assert not scene.incident.confirmed, "first_time_timeout holds, and no launcher has seen proof"
    assert scene.run(100).incident.confirmed


@pytest.mark.parametrize("section", ["checkpointing", "evaluation", "load_weights"])
@pytest.mark.parametrize("within_step", [False, True])
def test_a_pause_that_was_never_seen_before_is_looked_at_and_never_acted_on(section: str, within_step: bool) -> None:
    scene = trained().enter(section, within_step=within_step).run(600).leave().run(60)
    (incident,) = scene.job.incidents
    assert (incident.confirmed, incident.phase) == (False, Phase.CLOSED)
    assert not scene.directives(DirectiveKind.RESTART)


@pytest.mark.parametrize("section", ["evaluation", "load_weights"])
def test_a_pause_that_ended_by_itself_raises_no_suspicion_again(section: str) -> None:
    scene = trained().enter(section).run(100).leave().run(60)
    assert len(scene.job.incidents) == 1
    scene.enter(section).run(120).leave().run(60)
    assert len(scene.job.incidents) == 1, "it is known how long it takes"
    scene.enter(section).run(250)
    assert len(scene.job.incidents) == 2, "but not for ever"


@pytest.mark.parametrize("section", ["checkpointing", "evaluation", "load_weights"])
def test_a_pause_that_was_never_seen_before_is_no_suspicion_where_no_launcher_can_look(section: str) -> None:
    assert trained(launchers=False).enter(section).run(600).leave().run(60).quiet()


@pytest.mark.parametrize("section", ["checkpointing", "evaluation", "load_weights"])
def test_a_short_pause_that_was_never_seen_before_is_no_suspicion(section: str) -> None:
    assert trained().enter(section).run(58).leave().run(60).quiet()


def test_the_moment_after_a_long_section_is_no_lack_of_heartbeats() -> None:
    scene = trained(launchers=False).enter("evaluation").run(400)
    for rank in scene.ranks:
        rank.stand(scene.now)
    assert scene.run(5).quiet()
    scene.run(300)
    assert scene.job.incidents, "but there it must not stay"


@pytest.mark.parametrize("section", ["checkpointing", "evaluation"])
def test_a_hang_inside_such_a_pause_is_found(section: str) -> None:
    scene = trained(beats=False).enter(section)
    scene.until_found(within=65)
    assert scene.incident.section == section
    scene.run(1700)
    assert not scene.incident.confirmed
    scene.run(110)
    assert scene.incident.confirmed


def test_a_checkpoint_is_known_after_one_save() -> None:
    scene = trained().enter("checkpointing").run(30).leave().run(10)
    twin = trained().enter("checkpointing").run(30).leave().run(10)
    assert twin.enter("checkpointing").run(140).leave().run(70).quiet()
    scene.enter("checkpointing").until_found(within=160)
    assert scene.incident.limit == 150.0


def test_a_long_section_inside_the_step_does_not_make_the_step_late() -> None:
    scene = trained(launchers=False).enter("evaluation", within_step=True).run(300)
    assert scene.quiet()
    scene.leave()
    assert scene.run(30).quiet(), "the step goes on after it"


def test_the_first_step_of_a_restarted_rank_may_compile() -> None:
    scene = trained().hang(2).until_found()
    scene.until(lambda: scene.job.attempt == 2)
    for rank in scene.ranks:
        rank.stand(scene.now, "step")
    scene.busy = True
    scene.run(300)
    assert len(scene.directives(DirectiveKind.RESTART)) == 1
    scene.busy = False
    scene.run(20)
    assert scene.state == "running"


def test_a_hang_in_the_first_step_is_found_later() -> None:
    scene = Scene(reports_durations=True, beats=False, first_time_timeout=120.0)
    scene.busy = True
    scene.run(3)
    for rank in scene.ranks:
        rank.stand(scene.now, "step")
    scene.until_found(within=65)
    assert scene.incident.limit == 60.0
    scene.run(100)
    assert not scene.incident.confirmed
    scene.until(lambda: scene.incident.confirmed, within=60)


def test_a_configured_limit_is_raised_in_the_first_step_only() -> None:
    scene = Scene(reports_durations=True, section_timeouts={"step": 10.0})
    scene.busy = True
    scene.run(3)
    for rank in scene.ranks:
        rank.stand(scene.now, "step")
    assert scene.run(200).quiet()
    scene.busy = False
    scene.run(5).hang(1).until_found(within=15)
    assert scene.incident.confirmed, "a person configured it"


def test_a_job_that_comes_back_smaller_is_not_judged_by_the_pace_of_the_larger_one() -> None:
    scene = Scene(ranks=8, reports_durations=True).run(40)
    scene.launch(attempt=2, size=1)
    scene.run(5).busy = True
    assert scene.run(55).quiet(), "a step takes eight times as long, and more"
    assert not scene.run(345).directives(DirectiveKind.RESTART)
    twin = Scene(ranks=8, reports_durations=True).run(40)
    twin.launch(attempt=2)
    twin.run(5).hang(2).until_found(within=15)


def test_a_symmetric_stall_names_no_rank() -> None:
    scene = trained().stall().until_found()
    scene.run(70)
    assert scene.incident.confirmed
    assert scene.blamed == {}
    assert "no rank is named" in scene.incident.reason


def test_a_finished_job_is_no_suspicion() -> None:
    scene = trained()
    scene.finish(ProcessEventKind.FINISHED)
    assert scene.run(200).quiet()


def test_one_of_two_is_named_while_the_other_goes_on() -> None:
    """Ranks that do not wait for each other: counts and stacks prove nothing, but one goes on, one does not."""
    scene = Scene(ranks=2, reports_durations=True).run(40)
    scene.ranks[1].fault, scene.ranks[1].frames = FaultKind.HANG, LOADING
    scene.busy = True
    for _ in range(15):
        scene.ranks[0].at.iteration = scene.ranks[0].reached + 1
        scene.ranks[0].stand(scene.now + 0.5, "step")
        scene.ranks[0].frames = LOADING
        scene.tick()
    assert scene.blamed == {1: "behind"}
    assert "the other ranks are not" in scene.incident.reason


@pytest.mark.parametrize("learned", [True, False])
def test_a_rank_that_is_stuck_between_two_steps_is_not_reported_to_be_in_the_step(learned: bool) -> None:
    scene = Scene(reports_durations=learned, on_hang="log").run(120)
    scene.hang(2, outside=True).until_found().run(2)
    assert [c.rank for c in scene.incident.culprits] == [2]
    first, _, cause = scene.incident.reason.partition("; ")
    assert first.startswith("Rank 0 on host-0 has ")
    assert "(2 others too)" in first, "rank 2 is in no section"
    assert cause.startswith("rank 2 on host-0 is to blame: it has not begun the step that the others are in")
