"""What the consoles of a job's launchers are told, and that nothing is told twice."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.core import scene as scene_module
from monitor.core.scene import Scene
from monitor.publish.scored import straggler
from rankwatch.contract.enums import ConsoleWord, DirectiveKind
from rankwatch_monitor.core import console
from rankwatch_monitor.core.effects import Issue, Slowed
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.views.headline import CONSOLE

SUSPECT, WENT_ON, HANG, BACK = ConsoleWord.SUSPECT, ConsoleWord.WENT_ON, ConsoleWord.HANG, ConsoleWord.BACK


@pytest.fixture(autouse=True)
def worded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decided(job: Any, now: float) -> list[Any]:
        return [each for effect in advance(job, now) for each in console.worded(job, effect)]

    monkeypatch.setattr(scene_module, "advance", decided)


def words(scene: Scene) -> list[str]:
    return [d.word for d in scene.issued if d.word]


def test_a_hang_comes_with_its_restart_and_the_first_new_step_with_its_cost() -> None:
    scene = Scene(checkpoint=5).run(14).hang(2)
    scene.until(lambda: BACK in words(scene))
    assert words(scene) == [HANG, BACK]
    (restart,) = scene.directives(DirectiveKind.RESTART)
    assert restart.word == HANG
    assert all(line.startswith("rank 2 ") for line in restart.headlines), "the culprit comes first"
    assert [len(line) <= most for line, most in zip(restart.headlines, CONSOLE, strict=False)].count(False) == 0
    (back,) = [d for d in scene.issued if d.word == BACK]
    assert f"step {scene.ranks[0].at.first_iteration}" in back.headlines[0]
    assert f"{scene.incident.steps_lost} steps lost" in back.headlines[0]
    scene.run(60)
    assert words(scene) == [HANG, BACK]


@pytest.mark.parametrize("policy", [{"on_hang": "log"}, {"observe_only": True}])
def test_a_hang_that_nothing_is_done_about_is_told_once_and_that_it_ended(policy: dict[str, Any]) -> None:
    scene = Scene(**policy).run(12).hang(2)
    scene.until(lambda: HANG in words(scene)).run(40)
    assert words(scene) == [HANG]
    scene.resume()
    scene.until(lambda: scene.closings).run(5)
    assert words(scene) == [HANG, WENT_ON]


def test_a_suspicion_is_told_with_its_stacks_and_that_it_ended_by_itself() -> None:
    scene = Scene(section_timeouts={}, reports_durations=True).run(40).hang(2)
    scene.until(lambda: SUSPECT in words(scene))
    assert scene.incident.stacks.groups()
    scene.resume()
    scene.until(lambda: scene.closings).run(5)
    assert {*words(scene)} == {SUSPECT, WENT_ON}
    told = [(d.word, d.headlines[0]) for d in scene.issued if d.word]
    assert len({*told}) == len(told)


def test_a_crash_is_told_by_the_launchers_and_its_first_new_step_here() -> None:
    scene = Scene().run(12).die(1, exit_code=3)
    scene.until(lambda: scene.job.incidents)
    scene.restart("rank 1 exited with code 3")
    scene.until(lambda: scene.closings)
    assert words(scene) == [BACK]


def test_without_launchers_nothing_is_told() -> None:
    scene = Scene(launchers=False).run(12).hang(2)
    scene.until(lambda: scene.job.incidents).run(30)
    assert words(scene) == []


def test_what_was_told_is_forgotten_in_the_end() -> None:
    scene = Scene().run(3)
    for number in range(console.KEPT + 9):
        console._note(scene.job, f"i{number}", HANG)
    assert len(scene.job.told) == console.KEPT


def test_a_slow_rank_is_named_to_its_launcher_which_looks_at_what_it_does() -> None:
    scene = Scene().run(20)
    found = straggler(1)
    (_, issue) = console.worded(scene.job, Slowed(found, found.reason))
    assert isinstance(issue, Issue)
    assert (issue.directive.word, issue.directive.slow_rank) == (ConsoleWord.SLOW, 1)
    assert console.worded(scene.job, Slowed(found, found.reason)) == [Slowed(found, found.reason)], "told once"
    found.ended = scene.now
    (_, issue) = console.worded(scene.job, Slowed(found, "it is over"))
    assert isinstance(issue, Issue)
    assert (issue.directive.word, issue.directive.slow_rank) == (BACK, None)
