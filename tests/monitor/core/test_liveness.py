"""Whether a job is there at all."""

from __future__ import annotations

from monitor.core.scene import Scene
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.liveness import all_shut_down, lost


def goodbye(scene: Scene) -> Scene:
    for rank in scene.ranks:
        report = scene.report(rank)
        assert report is not None
        apply(scene.job, report._replace(ended=True), scene.now)
        rank.over = True
    return scene


def test_a_job_of_which_nothing_arrives_any_more_is_lost() -> None:
    scene = Scene(launchers=False, silence_timeout=30.0).run(10).cut(0, 1, 2, 3)
    assert not lost(scene.run(30).job, scene.now)
    assert lost(scene.run(1).job, scene.now)


def test_one_that_reports_is_not() -> None:
    scene = Scene(launchers=False, silence_timeout=30.0).run(10).cut(0, 1, 2)
    assert not lost(scene.run(300).job, scene.now)


def test_without_a_limit_nothing_is_ever_lost() -> None:
    scene = Scene(launchers=False, silence_timeout=None).run(10).cut(0, 1, 2, 3)
    assert not lost(scene.run(3000).job, scene.now)


def test_a_job_whose_ranks_all_shut_down_is_not_lost_but_gone() -> None:
    scene = goodbye(Scene(launchers=False, silence_timeout=30.0).run(10)).run(300)
    assert all_shut_down(scene.job)
    assert not lost(scene.job, scene.now)


def test_a_job_that_never_spoke_was_not_shut_down() -> None:
    assert not all_shut_down(Scene(launchers=False).job)
