"""The figures behind the claim that a rank is behind within the step of the others."""

from __future__ import annotations

from monitor.core.scene import Scene
from rankwatch_monitor.core.views import job_view

WITHIN = "it is behind within the same step, and the 3 other ranks wait for it"


def reason(scene: Scene, rank: int = 2) -> str:
    return str(job_view.ranks(scene.job, scene.now, [rank])[0]["reason"])


def test_the_counters_of_the_rank_and_of_those_ahead_are_stated() -> None:
    scene = Scene(on_hang="log").run(20).hang(2).until_found()
    assert reason(scene) == f"{WITHIN} (0 signs of progress in this step, the others 1)"
    assert reason(scene, 1) == ""
    scene.ranks[1].at.progress = 3
    ahead = "(0 signs of progress in this step, the others 1 to 3)"
    assert reason(scene.run(1)) == f"{WITHIN} {ahead}"


def test_of_a_rank_that_is_no_longer_behind_no_figure_is_stated() -> None:
    scene = Scene(on_hang="log").run(20).hang(2).until_found().run(2)
    for rank in scene.ranks:
        rank.at.progress = 1
    assert reason(scene.run(1)) == WITHIN


def test_steps_behind_are_in_the_table_already() -> None:
    scene = Scene(on_hang="log").run(20).hang(2)
    for rank in (0, 1, 3):
        scene.ranks[rank].at.iteration = scene.ranks[rank].reached + 1
    assert "1 step behind" in reason(scene.until_found())
    assert "progress()" not in reason(scene)
