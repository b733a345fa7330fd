"""What shows that a rank is behind within the step of the others."""

from __future__ import annotations

import pytest

from monitor.core.scene import REDUCING, Scene
from rankwatch_monitor.core.views import job_view

WITHIN = "it is behind within the same step, and the 3 other ranks wait for it"


def row(scene: Scene, rank: int = 2) -> dict[str, object]:
    return job_view.ranks(scene.job, scene.now, [rank])[0]


def captured(scene: Scene) -> Scene:
    return scene.until(lambda: scene.job.incidents and scene.incident.stacks.groups() and scene.incident.culprits)


def without_stacks() -> Scene:
    """A job in which rank 2 hangs, and nothing is captured."""
    return Scene(observe_only=True).run(20).hang(2).until_found()


def test_stacks_show_where_the_rank_is_and_where_the_others_wait() -> None:
    scene = captured(Scene(on_hang="log").run(20).hang(2))
    assert row(scene)["reason"] == f"{WITHIN} (it is in load_batch, the others are already in all_reduce)"
    assert row(scene)["function"] == "load_batch"
    assert (row(scene, 1)["reason"], row(scene, 1)["function"]) == ("", "all_reduce")


def test_one_rank_that_is_ahead_is_the_other() -> None:
    scene = captured(Scene(2, on_hang="log").run(20).hang(1))
    assert "(it is in load_batch, the other is already in all_reduce)" in str(row(scene, 1)["reason"])


def test_in_the_collective_of_the_others_progress_shows_it() -> None:
    scene = Scene(on_hang="log").run(20).hang(2)
    scene.ranks[2].frames = REDUCING
    assert row(captured(scene))["reason"] == f"{WITHIN} (it has not moved in this step; the 3 others have)"


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        ((1, 1, 0, 1), "it has not moved in this step; the 3 others have"),
        ((1, 0, 0, 3), "it has not moved in this step; 2 of the 3 others have"),
        ((0, 0, 0, 3), "it has not moved in this step; 1 of the 3 others has"),
        ((2, 3, 1, 2), "the 3 others are further in this step"),
    ],
)
def test_without_stacks_progress_shows_it(progress: tuple[int, ...], words: str) -> None:
    scene = without_stacks()
    for rank, reached in zip(scene.ranks, progress, strict=True):
        rank.at.progress = reached
    assert row(scene.run(1))["reason"] == f"{WITHIN} ({words})"
    assert row(scene)["function"] is None


def test_of_a_rank_that_is_no_longer_behind_nothing_is_added() -> None:
    scene = without_stacks().run(2)
    for rank in scene.ranks:
        rank.at.progress = 1
    assert row(scene.run(1))["reason"] == WITHIN


def test_steps_behind_are_in_the_table_already() -> None:
    scene = Scene(on_hang="log").run(20).hang(2)
    for rank in (0, 1, 3):
        scene.ranks[rank].at.iteration = scene.ranks[rank].reached + 1
    reason = str(row(scene.until_found())["reason"])
    assert "1 step behind" in reason
    assert "(" not in reason
