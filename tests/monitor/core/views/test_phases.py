"""The phases of an incident: their names never change afterwards, and with the lost steps they are its cost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, ProcessEventKind
from rankwatch_monitor.core.incident_record import Phase as Stage
from rankwatch_monitor.core.incident_record import Timeline
from rankwatch_monitor.core.views import downtime
from rankwatch_monitor.core.views.phases import NAMES, durations, phases
from rankwatch_monitor.core.views.responses import Cost


def shown(scene: Scene) -> list[tuple[str, str, bool]]:
    """Name, mark and whether it goes on, of each."""
    found = phases(scene.job, scene.job.incidents[-1], scene.now)
    return [(each.name, each.mark, each.end is None) for each in found]


def names(scene: Scene) -> list[str]:
    return [name for name, _, _ in shown(scene)]


def with_timeline(scene: Scene, **changes: Any) -> Scene:
    incident = scene.job.incidents[-1]
    scene.job.incidents[-1] = replace(incident, timeline=replace(incident.timeline, **changes))
    return scene


def test_a_suspicion_is_confirmed_in_one_phase_whose_name_stays() -> None:
    scene = Scene(reports_durations=True).run(40).hang(2).until_found()
    assert shown(scene) == [("detect", "detected", False), ("confirm", "closed", True)]
    scene.run(10)
    assert scene.incident.timeline.captured is not None
    assert names(scene) == ["detect", "confirm"], "stacks of a suspicion are part of it"
    before = phases(scene.job, scene.incident, scene.now)[0]
    scene.until(lambda: scene.closings, 400)
    assert names(scene)[:2] == ["detect", "confirm"]
    assert phases(scene.job, scene.job.incidents[-1], scene.now)[0] == before
    assert names(scene)[-1] == "recover"


def test_a_suspicion_that_ends_by_itself_was_never_more() -> None:
    scene = Scene(reports_durations=True).run(40).hang(2).until_found().run(10).resume().run(5)
    assert shown(scene) == [("detect", "detected", False), ("confirm", "closed", False)]


def test_all_phases_are_consecutive_and_are_the_cost() -> None:
    scene = Scene(section_timeouts={"step": 5.0}).run(20).hang(1).until_found()
    seen = set()
    for _ in range(60):
        seen.add(names(scene)[-1])
        scene.run(1)
    found = phases(scene.job, scene.job.incidents[-1], scene.now)
    assert [each.mark for each in found][-1] == "first_step"
    assert all(one.end == other.begin for one, other in itertools.pairwise(found))
    assert seen <= set(NAMES)
    incident = scene.job.incidents[-1]
    assert sum(filter(None, durations(scene.job, incident, scene.now).values())) == downtime.held_up(incident)
    assert found[0].limit == 5.0, "the time until the limit is part of the detection"


@pytest.mark.parametrize(
    ("action", "stage", "name", "mark"),
    [
        (Action.LOG, Stage.DETECTED, "unresolved", "closed"),
        (Action.RESTART, Stage.CAPTURING, "capture", "captured"),
        (Action.RESTART, Stage.ACTING, "restart", "restarted"),
        (Action.STOP, Stage.ACTING, "stop", "stopped"),
        (Action.RESTART, Stage.RECOVERING, "recover", "first_step"),
    ],
)
def test_what_goes_on_is_what_was_ordered(action: Action, stage: Stage, name: str, mark: str) -> None:
    scene = Scene(section_timeouts={"step": 5.0}).run(20).hang(1).until_found()
    scene.job.incidents[-1] = replace(scene.incident, action=action, phase=stage)
    assert shown(scene)[-1] == (name, mark, True)


def test_an_incident_without_a_new_step_ends_with_what_was_under_way() -> None:
    scene = Scene(max_restarts=0).run(20).die(1, exit_code=1).run(1)
    scene.finish(ProcessEventKind.FAILED, "no restart is left")
    assert shown(scene)[-1] == ("stop", "failed", False)
    given_up = Scene().run(20).die(1, exit_code=1).run(1)
    given_up.job.incidents[-1] = replace(
        given_up.incident, phase=Stage.CLOSED, closed_at=given_up.now + 3, timeline=Timeline(given_up.now, given_up.now)
    )
    assert shown(given_up) == [("restart", "given_up", False)]


def test_the_phases_of_a_lost_job_end_when_it_was_last_heard() -> None:
    scene = Scene(4, hosts=2, on_hang="log").run(20)
    scene.hang(3).until_found().run(10)
    scene.cut_host(0).cut_host(1).run(900)
    assert shown(scene)[-1] == ("unresolved", "last_heard", False)
    incident = scene.job.incidents[-1]
    found = phases(scene.job, incident, scene.now)
    assert found[-1].end == scene.job.last_heard
    assert downtime.cost(scene.job, incident, scene.now) == Cost(pytest.approx(found[-1].end - found[0].begin), None)


def test_clocks_that_disagree_make_no_negative_phase() -> None:
    scene = Scene(section_timeouts={"step": 5.0}).run(20).hang(1).until_found()
    detected = scene.incident.timeline.detected
    with_timeline(scene, captured=detected - 3.0)
    assert all(each.end is None or each.end >= each.begin for each in phases(scene.job, scene.incident, scene.now))
    with_timeline(scene, since=None)
    assert phases(scene.job, scene.incident, scene.now)[0].begin == scene.incident.opened_at


def test_a_limit_that_a_later_cause_replaced_is_not_of_the_detection() -> None:
    scene = Scene(section_timeouts={"step": 5.0}).run(20).hang(1).until_found()
    assert scene.incident.found is not None
    scene.job.incidents[-1] = replace(scene.incident, found=replace(scene.incident.found, limit=60.0))
    assert phases(scene.job, scene.incident, scene.now)[0].limit is None
