"""Jobs that are alive and complete no step: not healthy, suspected with stacks, and acted on only when proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from monitor.core.hang.test_proof import BUSY, STILL, look
from monitor.core.scene import LOADING, Scene
from monitor.core.views.advice.test_playbook import known
from rankwatch.contract.enums import DirectiveKind
from rankwatch_monitor.core.job import Pace
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.publish.webhook.notices import Announced, new_notices
from support.simulator.plan import FaultKind


def retrying(**changes: Any) -> Scene:
    """After 40 steps all ranks enter and leave sections and send heartbeats, but complete no step."""
    scene = Scene(reports_durations=True, **changes).run(40)
    scene.busy = True
    return scene


def move(scene: Scene, seconds: int) -> Scene:
    for _ in range(seconds):
        for rank in scene.ranks:
            rank.stand(scene.now, "step")
            rank.at.beats, rank.at.beat_at = rank.at.beats + 1, scene.now
            rank.frames = LOADING
        scene.tick()
    return scene


def shown(scene: Scene) -> dict[str, object]:
    return job_view.summary(scene.job, scene.now)


def test_beats_and_sections_without_a_step_are_not_healthy_and_are_suspected_with_stacks() -> None:
    scene = move(retrying(), 50)
    assert shown(scene)["verdict"] == "healthy"
    assert scene.quiet()
    move(scene, 20)
    assert (shown(scene)["verdict"], shown(scene)["iterations_per_second"]) == ("no_step", 0.0)
    assert scene.incident.kind == "stalled"
    assert scene.incident.reason.startswith("No step has completed for 6")
    assert [d.kind for d in scene.issued] == [DirectiveKind.CAPTURE]
    assert len(scene.incident.stacks) == 4


def test_a_stall_of_busy_or_polling_ranks_is_never_acted_on() -> None:
    scene = move(retrying(), 70)
    for usage in (BUSY, replace(STILL, wakeups=90)):
        for _ in range(100):
            look(scene, dict.fromkeys(range(4), usage))
            move(scene, 2)
    assert not scene.incident.confirmed
    assert not scene.directives(DirectiveKind.RESTART)
    assert scene.incident.held
    assert known(scene).condition == "once its cause is gone", "the restart is not the first thing to do"
    scene.busy = False
    scene.run(5)
    assert scene.incident.outcome == "the ranks went on by themselves"
    assert shown(scene)["verdict"] == "healthy"


def test_a_stall_is_announced_once_the_window_has_passed_and_not_while_a_rank_is_busy() -> None:
    scene = move(retrying(), 70)
    for _ in range(40):
        look(scene, dict.fromkeys(range(4), BUSY))
        move(scene, 2)
    assert (scene.incident.proof, scene.incident.held) == ("busy", False)
    announced = Announced()
    assert not [n for n in new_notices(scene.job, announced, scene.now) if n.body["event"] == "incident_opened"]
    move(scene, int(scene.job.policy.confirmation_window) - 4)
    assert not scene.incident.held
    move(scene, 6)
    assert (scene.incident.proof, scene.incident.culprits) == ("stalled", ())
    opened = [n.body for n in new_notices(scene.job, announced, scene.now) if n.body["event"] == "incident_opened"]
    assert [body["text"] for body in opened] == [scene.incident.reason]
    assert "complete" in scene.incident.reason


def test_a_long_pause_that_has_occurred_before_is_no_stall() -> None:
    scene = move(retrying(), 50)
    scene.busy = False
    scene.run(5)
    scene.busy = True
    move(scene, 200)
    assert scene.quiet()
    assert shown(scene)["verdict"] == "healthy"
    assert shown(scene)["iterations_per_second"] == 0.0, "no step completes meanwhile"


def test_a_rank_that_does_not_end_when_the_others_have_is_found_and_proven() -> None:
    scene = Scene(reports_durations=True, beats=False).run(40)
    for rank in (0, 1, 3):
        scene.die(rank, exit_code=0)
    left = scene.ranks[2]
    left.fault, left.frames = FaultKind.HANG, LOADING
    left.stand(scene.now)
    scene.run(55)
    assert scene.quiet()
    scene.until_found(within=20).run(2)
    assert scene.incident.kind == "stalled"
    look(scene, {})
    assert scene.incident.confirmed
    assert [c.rank for c in scene.incident.culprits] == [2]
    assert "does not move in load_batch()" in scene.incident.reason


def test_without_learned_limits_nothing_is_suspected() -> None:
    assert move(retrying(learn_timeouts=False), 200).quiet()


@pytest.mark.parametrize("pause", [1.0, 7.0, 40.0, 300.0])
def test_the_pace_is_zero_while_a_job_is_stalled_and_never_while_it_steps_at_its_pace(pause: float) -> None:
    pace, now, iteration = Pace(), 0.0, 0
    rates = []
    for second in range(3000):
        now += 1.0
        if second % pause == 0 and second < 1500:
            iteration += 1
        pace.add(now, iteration)
        rates.append(pace.steps_per_second)
        assert not pace.stalled or pace.steps_per_second == 0.0
        assert len(pace.samples) < 400
    assert not pace.stalled or now - pace.stepped_at > pace.limit
    steady = [rate for rate in rates[int(2 * pause) : 1400] if rate is not None]
    assert all(rate == pytest.approx(1 / pause, rel=0.6) for rate in steady)
