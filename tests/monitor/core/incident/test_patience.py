"""How long a suspicion that nothing proves is left alone: as long as a restart costs, and what bounds that.

Each scene that ends in a restart has its silent twin: the same wait, from which the rank comes back in time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from monitor.core.hang.test_proof import SLEEPS, STILL, UNSEEN, watched
from monitor.core.scene import WINDOW, Scene
from rankwatch.contract.enums import Action, DirectiveKind, LimitSource, Proof, WaitKind
from rankwatch.contract.messages import Usage, Wait
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.incident.lifecycle import allowed_action
from rankwatch_monitor.core.incident.patience import AFTER_ITS_END
from rankwatch_monitor.core.incident_record import Phase
from rankwatch_monitor.core.views.headline import detail
from rankwatch_monitor.publish.webhook.notices import announced_so_far, new_notices

CHILD = replace(STILL, wait=Wait(WaitKind.CHILD, "sbatch --wait (pid 7)"))


def suspected(usage: Usage, steps: int = 40, **changes: Any) -> Scene:
    """Rank 2 has hung after so many steps, and looks show this of it."""
    scene = Scene(reports_durations=True, **changes).run(steps).hang(2).until_found()
    return watched(scene, {2: usage}, 10)


def patience(scene: Scene) -> float:
    """Seconds from the beginning of the suspicion until it is acted on."""
    incident = scene.job.incidents[-1]
    assert incident.acts_at is not None
    return incident.acts_at - incident.opened_at


def restarted(scene: Scene, usage: Usage, before: int = 0) -> float:
    """Let time pass until the next restart is ordered; the seconds since the suspicion began."""
    for _ in range(2000):
        if len(scene.directives(DirectiveKind.RESTART)) > before:
            return scene.now - scene.job.incidents[-1].opened_at
        scene.run(1)
        if scene.job.incidents[-1].undecided:
            look_now(scene, usage)
    raise AssertionError("no restart")


def look_now(scene: Scene, usage: Usage) -> None:
    stacks = tuple(replace(each, usage=usage if each.rank == 2 else STILL) for each in scene.stacks("node-0"))
    scene.send_evidence("node-0", stacks=stacks, look=1)


@pytest.mark.parametrize(("usage", "factor"), [(UNSEEN, 1), (SLEEPS, 2), (CHILD, 2)])
def test_it_lasts_for_the_window_at_least_and_twice_that_where_the_wait_may_end(usage: Usage, factor: int) -> None:
    scene = suspected(usage)
    assert patience(scene) == factor * WINDOW
    acts_at = scene.incident.acts_at
    watched(scene, {2: usage}, int(factor * WINDOW) - 15)
    assert (scene.incident.confirmed, scene.incident.acts_at) == (False, acts_at), "it is no other time at each look"
    assert factor * WINDOW <= restarted(scene, usage) <= factor * WINDOW + 5
    assert scene.incident.acts_at is None, "it is confirmed"


def test_a_configured_limit_that_is_running_ends_it_before_its_time() -> None:
    """The limit learned beside it raises the suspicion; what is shown is when the configured one acts."""
    scene = suspected(UNSEEN, calculate_timeouts=True, section_timeouts={"step": 60.0})
    incident = scene.incident
    assert (incident.confirmed, incident.limit_source) == (False, LimitSource.LEARNED)
    assert incident.timeline.since is not None
    acts_at = incident.timeline.since + 60.0
    assert incident.acts_at == pytest.approx(acts_at, abs=1.0)
    assert incident.acts_at < incident.opened_at + WINDOW
    scene.until(lambda: scene.directives(DirectiveKind.RESTART))
    assert scene.now == pytest.approx(acts_at, abs=2.0)


def test_what_was_passed_when_it_was_detected_stays_as_it_was() -> None:
    scene = suspected(CHILD)
    assert scene.now - scene.incident.timeline.since > 10
    first = scene.incident.timeline.detected - scene.incident.timeline.since
    assert scene.incident.elapsed == pytest.approx(first)
    restarted(scene, CHILD)
    assert scene.incident.elapsed == pytest.approx(first)
    assert f"for {first:.1f} s, over its learned limit" in detail(scene.incident)


def test_a_wait_that_ends_before_the_patience_leads_to_nothing() -> None:
    scene = watched(suspected(SLEEPS), {2: SLEEPS}, 100).resume().run(5)
    assert (scene.incident.confirmed, scene.incident.phase, scene.incident.acts_at) == (False, Phase.CLOSED, None)
    assert not scene.run(300).directives(DirectiveKind.RESTART)


def test_the_default_window_is_three_minutes() -> None:
    assert patience(suspected(UNSEEN, confirmation_window=Policy().confirmation_window)) == 180.0


def test_a_restart_costs_the_training_since_the_first_step_and_the_start_up() -> None:
    scene = suspected(UNSEEN, steps=400)
    columns, incident = scene.job.columns, scene.incident
    first, since = float(columns.first_step_R.min()), incident.timeline.since
    assert since is not None
    assert incident.restart_cost == pytest.approx((since - first) + (first - scene.job.attempt_since))
    assert incident.restart_cost > 350
    assert patience(scene) == pytest.approx(incident.restart_cost)


def test_a_checkpoint_makes_a_restart_cheap() -> None:
    scene = suspected(UNSEEN, steps=402, saves=True)
    assert scene.incident.restart_cost is not None
    assert scene.incident.restart_cost < 20
    assert patience(scene) == WINDOW


def test_it_is_bounded_by_the_longest_patience_and_never_below_the_window() -> None:
    assert patience(suspected(UNSEEN, steps=400, longest_patience=100.0)) == 100.0
    assert patience(suspected(SLEEPS, longest_patience=90.0)) == 90.0
    assert patience(suspected(UNSEEN, longest_patience=10.0)) == WINDOW


def test_it_lasts_until_the_known_end_of_the_wait() -> None:
    ends = replace(SLEEPS, wait=Wait(WaitKind.TIMED, seconds=600.0))
    scene = suspected(UNSEEN)
    look_now(scene, ends)
    look = scene.now
    scene.run(1)
    assert scene.incident.acts_at == pytest.approx(look + 600.0 + AFTER_ITS_END)
    soon = suspected(replace(SLEEPS, wait=Wait(WaitKind.TIMED, seconds=5.0)))
    assert patience(soon) == 2 * WINDOW
    never = suspected(UNSEEN)
    look_now(never, replace(SLEEPS, wait=Wait(WaitKind.TIMED, seconds=1e6)))
    never.run(1)
    assert patience(never) == never.job.policy.longest_patience


def test_a_rank_that_sleeps_again_and_again_has_no_known_end() -> None:
    polls = replace(SLEEPS, wait=Wait(WaitKind.TIMED, seconds=45.0))
    scene = watched(suspected(polls), {2: polls}, 60)
    assert patience(scene) == 2 * WINDOW
    assert restarted(scene, polls) <= 2 * WINDOW + 5


@pytest.mark.parametrize("usage", [UNSEEN, SLEEPS], ids=["unknown", "sleeps"])
def test_at_the_same_place_in_the_next_attempt_it_is_four_times_as_long(usage: Usage) -> None:
    scene = suspected(usage)
    first = restarted(scene, usage)
    scene.until(lambda: scene.job.attempt == 2 and scene.job.open_incident is None)
    scene.run(30).hang(2).until(lambda: len(scene.job.incidents) == 2)
    watched_again(scene, usage, 10)
    incident = scene.job.incidents[-1]
    assert incident.attempts_here == 1
    assert patience(scene) == 4 * (2 * WINDOW if usage is SLEEPS else WINDOW)
    assert restarted(scene, usage, before=1) > 3 * first
    assert [each.ranks for each in scene.job.standstills] == [(2,), (2,)]


def test_another_place_in_the_next_attempt_begins_anew() -> None:
    scene = suspected(SLEEPS)
    restarted(scene, SLEEPS)
    scene.until(lambda: scene.job.attempt == 2 and scene.job.open_incident is None)
    scene.run(30).hang(1).until(lambda: len(scene.job.incidents) == 2).run(2)
    for _ in range(5):
        stacks = tuple(replace(each, usage=SLEEPS if each.rank == 1 else STILL) for each in scene.stacks("node-0"))
        scene.send_evidence("node-0", stacks=stacks, look=1)
        scene.run(2)
    assert scene.job.incidents[-1].attempts_here == 0
    assert patience(scene) == 2 * WINDOW
    scene.job.begin_run(scene.now)
    assert not scene.job.standstills, "a new run has not stood anywhere yet"


def watched_again(scene: Scene, usage: Usage, seconds: int) -> None:
    for _ in range(seconds // 2):
        scene.run(2)
        look_now(scene, usage)


# Without a restart left -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", [STILL, SLEEPS, UNSEEN], ids=["still", "sleeps", "unknown"])
def test_a_limit_that_nobody_configured_never_ends_a_job(usage: Usage) -> None:
    scene = Scene(reports_durations=True, max_restarts=0).run(40)
    announced = announced_so_far(scene.job, scene.now)
    scene.hang(2).until_found()
    watched(scene, {2: usage}, 900)
    assert {each.kind for each in scene.issued} == {DirectiveKind.CAPTURE, DirectiveKind.TELL}
    assert (scene.incident.action, scene.incident.confirmed, scene.incident.open) == (Action.LOG, True, True)
    opened = [each for each in new_notices(scene.job, announced, scene.now) if each.body["event"] == "incident_opened"]
    assert len(opened) == 1
    scene.resume().run(5)
    assert (scene.incident.outcome, scene.state) == ("the ranks went on by themselves", "running")


@pytest.mark.parametrize("policy", [{"max_restarts": 0}, {"on_hang": "log"}, {"on_hang": "capture"}])
def test_a_hang_that_is_proven_after_its_patience_is_said_once(policy: dict[str, Any]) -> None:
    scene = Scene(reports_durations=True, **policy).run(40).hang(2).until_found()
    watched(scene, {2: SLEEPS}, 300)
    assert (scene.incident.confirmed, scene.incident.proof) == (True, Proof.MAY_END)
    asked = len([each for each in scene.directives(DirectiveKind.CAPTURE) if each.watch])
    watched(scene, {2: SLEEPS}, 300)
    assert len([each for each in scene.directives(DirectiveKind.CAPTURE) if each.watch]) > asked
    told = len(scene.directives(DirectiveKind.TELL))
    watched(scene, {2: STILL}, 300)
    assert scene.incident.proof == Proof.STILL
    assert [each.proof for each in scene.directives(DirectiveKind.TELL)[told:]] == [Proof.STILL]
    assert not scene.directives(DirectiveKind.RESTART)


@pytest.mark.parametrize("past", [False, True])
def test_the_last_restart_is_given_back_only_once_training_got_past_the_place(past: bool) -> None:
    scene = suspected(UNSEEN, max_restarts=1)
    restarted(scene, UNSEEN)
    scene.until(lambda: scene.job.attempt == 2 and scene.job.open_incident is None)
    step = scene.job.standstills[0].step
    assert step is not None
    if past:
        scene.until(lambda: (scene.job.furthest_iteration or 0) > step)
    assert (scene.job.furthest_iteration or 0) > step or not past
    scene.run(1).hang(2).until(lambda: len(scene.job.incidents) == 2)
    assert (scene.job.restarts, scene.job.given_back) == (1, int(past))
    watched_again(scene, STILL, 1200)
    assert len(scene.directives(DirectiveKind.RESTART)) == (2 if past else 1)
    assert not scene.directives(DirectiveKind.STOP)


def test_a_configured_limit_ends_a_job_without_restarts_as_before() -> None:
    scene = Scene(max_restarts=0).run(20).hang(2).until_found().run(5)
    assert scene.directives(DirectiveKind.STOP)
    late = Scene(reports_durations=True, max_restarts=0, heartbeat_timeout=250.0).run(40).hang(2).until_found()
    late.run(200)
    assert late.incident.confirmed
    assert not late.directives(DirectiveKind.STOP), "patience is at its end, and no more than that"
    late.until(lambda: late.directives(DirectiveKind.STOP), within=120)


def test_what_is_allowed_depends_on_who_set_the_limit() -> None:
    job = Scene(max_restarts=0).job
    assert allowed_action(job, Action.RESTART, confirmed=False)[0] is Action.LOG
    assert allowed_action(job, Action.RESTART)[0] is Action.STOP
    job = Scene(max_restarts=1).job
    assert allowed_action(job, Action.RESTART, confirmed=False)[0] is Action.RESTART


# Stored ---------------------------------------------------------------------------------------------------------------


def test_what_is_known_of_a_wait_survives_the_monitor() -> None:
    answer = replace(STILL, wait=Wait(WaitKind.SOCKET, "10.0.3.7:443", 12.0, "fetcher"))
    scene = suspected(answer)
    restarted(scene, answer)
    scene.until(lambda: scene.job.attempt == 2 and scene.job.open_incident is None)
    scene.run(30).hang(2).until(lambda: len(scene.job.incidents) == 2)
    watched_again(scene, answer, 10)
    before, kept = scene.job.incidents[-1], list(scene.job.standstills)
    assert [each.wait for each in before.waits if each.rank == 2] == [answer.wait]
    assert (before.attempts_here, before.acts_at is None, before.restart_cost is None) == (1, False, False)
    scene.reload()
    after = scene.job.incidents[-1]
    assert (after.waits, after.acts_at) == (before.waits, before.acts_at)
    assert (after.restart_cost, after.attempts_here) == (before.restart_cost, before.attempts_here)
    assert list(scene.job.standstills) == kept
    shown = after.to_json()
    waits = {"rank": 2, "kind": "socket", "target": "10.0.3.7:443", "seconds": 12.0, "through": "fetcher"}
    assert waits in shown["waits"]
    assert (shown["acts_at"], shown["attempts_here"]) == (before.acts_at, 1)


def test_ranks_that_wait_for_their_peers_are_not_kept() -> None:
    scene = suspected(SLEEPS)
    assert 2 in [each.rank for each in scene.incident.waits]
    look_now(scene, replace(STILL, wait=Wait(WaitKind.PEERS)))
    assert 2 not in [each.rank for each in scene.incident.waits]
