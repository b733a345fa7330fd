"""Which launcher runs each rank: one launcher at a time, the one that started it last."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import DirectiveKind, ProcessEventKind
from rankwatch.contract.messages import NodeRegistration
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.ranks import RankColumns
from rankwatch_monitor.core.views import job_view


def joins(scene: Scene, node: str, ranks: int = 2) -> None:
    scene.submit(NodeRegistration(node, node.replace("node", "host"), 11, ranks, "gpt"))


def starts(scene: Scene, node: str, *ranks: int, attempt: int | None = None, world_size: int = 4) -> None:
    """A launcher states that it has started ranks, of the attempt that runs unless another one is named."""
    number = scene.attempt if attempt is None else attempt
    for rank in ranks:
        scene.event(ProcessEventKind.STARTED, node, attempt=number, rank=rank, pid=9000 + rank, world_size=world_size)


def runners(scene: Scene) -> dict[str, list[int]]:
    """Which ranks each launcher runs; those that run none are left out."""
    return {name: sorted(node.ranks) for name, node in scene.job.nodes.items() if node.ranks}


def consistent(scene: Scene) -> bool:
    """Whether launchers and columns agree, and no rank has two launchers."""
    columns, nodes = scene.job.columns, scene.job.nodes
    reported = {rank: name for name, node in nodes.items() for rank in node.ranks}
    return sum(len(node.ranks) for node in nodes.values()) == len(reported) and all(
        columns.launchers[rank] == name for rank, name in reported.items()
    )


def test_each_rank_is_its_launchers() -> None:
    scene = Scene(4, 2).run(3)
    assert runners(scene) == {"node-0": [0, 1], "node-1": [2, 3]}
    assert scene.job.columns.launchers == ["node-0", "node-0", "node-1", "node-1"]


def test_a_rank_that_another_launcher_starts_leaves_the_first_ones() -> None:
    """A reserve takes the place of one process while all others go on."""
    scene = Scene(4, 2).run(3)
    starts(scene, "node-1", 1)
    assert runners(scene) == {"node-0": [0], "node-1": [1, 2, 3]}
    assert scene.job.columns.hosts[1] == "host-1"
    assert scene.job.launches == 0, "it is the same launch: node-1 has started ranks before"
    shown = {row["node"]: row["ranks"] for row in job_view.launchers(scene.job, scene.now)}
    assert shown == {"node-0": [0], "node-1": [1, 2, 3]}
    assert consistent(scene)


def test_a_rank_that_wanders_and_comes_back_is_the_last_ones() -> None:
    scene = Scene(4, 2).run(3)
    for node in ("node-1", "node-0", "node-1", "node-0"):
        starts(scene, node, 1)
        assert consistent(scene)
    assert runners(scene) == {"node-0": [0, 1], "node-1": [2, 3]}


def test_a_launcher_that_starts_its_rank_again_keeps_it() -> None:
    scene = Scene(4, 2).run(3)
    starts(scene, "node-0", 0)
    assert runners(scene) == {"node-0": [0, 1], "node-1": [2, 3]}


def test_a_launcher_that_registers_again_keeps_its_ranks_until_another_starts_them() -> None:
    scene = Scene(4, 2).run(3)
    joins(scene, "node-0")
    assert runners(scene)["node-0"] == [0, 1]
    starts(scene, "node-1", 0, 1)
    assert runners(scene) == {"node-1": [0, 1, 2, 3]}
    assert consistent(scene)


def test_a_launcher_that_registers_again_and_starts_its_rank_again_is_of_the_same_launch() -> None:
    scene = Scene(4, 2).run(3)
    joins(scene, "node-0")
    starts(scene, "node-0", 0)
    assert scene.job.launches == 0
    assert runners(scene) == {"node-0": [0, 1], "node-1": [2, 3]}


def test_a_launcher_that_has_lost_all_its_ranks_is_not_asked_for_stacks() -> None:
    scene = Scene(4, 2).run(3)
    starts(scene, "node-0", 2, 3)
    scene.hang(2).until(lambda: scene.directives(DirectiveKind.CAPTURE))
    assert list(nodes.acting(scene.job)) == ["node-0"]


def test_each_attempt_begins_with_nobodys_ranks() -> None:
    scene = Scene(4, 2, max_restarts=10).run(3)
    scene.event(ProcessEventKind.RESTARTING, "node-0", reason="a rank has crashed")
    starts(scene, "node-1", 0, attempt=2)
    assert runners(scene) == {"node-1": [0]}
    assert scene.job.columns.launchers == ["node-1", "", "", ""]
    starts(scene, "node-0", 2, 3, attempt=2)
    starts(scene, "node-1", 1, attempt=2)
    assert runners(scene) == {"node-0": [2, 3], "node-1": [0, 1]}, "the nodes have changed places"
    assert scene.job.launches == 0
    assert consistent(scene)


def test_a_start_of_an_attempt_that_is_over_takes_no_rank_away() -> None:
    scene = Scene(4, 2, max_restarts=10).run(3)
    scene.restart()
    starts(scene, "node-1", 0, attempt=1)
    assert runners(scene) == {"node-0": [0, 1], "node-1": [2, 3]}


def test_a_monitor_that_took_the_job_up_knows_which_process_ran_each_rank() -> None:
    scene = Scene(4, 2).run(3)
    scene.reload(1)
    assert scene.job.columns.launchers == ["node-0", "node-0", "node-1", "node-1"]
    starts(scene, "node-1", 1)
    assert runners(scene) == {"node-0": [0], "node-1": [1, 2, 3]}
    assert consistent(scene)


@pytest.mark.parametrize("reloaded", [False, True])
def test_a_launcher_of_another_launch_is_noticed_by_the_rank_that_others_run(reloaded: bool) -> None:
    scene = Scene(4, 2).run(3)
    if reloaded:
        scene.reload(1)
    joins(scene, "node-9", 4)
    starts(scene, "node-9", 2, attempt=1)
    assert scene.job.launches == 1
    assert runners(scene) == {"node-9": [2]}
    starts(scene, "node-9", 0, 1, 3, attempt=1)
    assert list(scene.job.nodes) == ["node-9"]
    assert scene.job.launches == 1, "once for all its ranks"
    assert consistent(scene)


def test_all_launchers_of_another_launch_are_taken_for_one() -> None:
    scene = Scene(4, 2).run(3)
    for node in ("node-8", "node-9"):
        joins(scene, node)
    starts(scene, "node-9", 2, 3, attempt=1)
    starts(scene, "node-8", 0, 1, attempt=1)
    assert scene.job.launches == 1
    assert runners(scene) == {"node-8": [0, 1], "node-9": [2, 3]}


def test_a_launcher_of_an_earlier_attempt_is_of_another_launch() -> None:
    scene = Scene(4, 2, max_restarts=10).run(3)
    scene.restart()
    joins(scene, "node-9", 4)
    starts(scene, "node-9", 0, attempt=1)
    assert (scene.job.launches, scene.job.attempt) == (1, 1)
    assert runners(scene) == {"node-9": [0]}


@pytest.mark.parametrize("rank", [4, 7])
def test_a_launcher_that_joins_with_ranks_that_no_launcher_runs_is_of_the_same_launch(rank: int) -> None:
    scene = Scene(4, 2).run(3)
    joins(scene, "node-2")
    starts(scene, "node-2", rank, world_size=8)
    assert scene.job.launches == 0
    assert runners(scene) == {"node-0": [0, 1], "node-1": [2, 3], "node-2": [rank]}
    assert len(scene.job.columns.launchers) == len(scene.job.columns)
    assert consistent(scene)


def test_a_rank_whose_launcher_is_forgotten_is_anybodys() -> None:
    scene = Scene(4, 2).run(3)
    del scene.job.nodes["node-0"]
    joins(scene, "node-2")
    starts(scene, "node-2", 0, 1)
    assert scene.job.launches == 0
    assert runners(scene) == {"node-1": [2, 3], "node-2": [0, 1]}


def test_columns_that_grow_keep_the_process_of_each_rank() -> None:
    columns = RankColumns(2)
    columns.launchers[1] = "node-1"
    columns.grow(4)
    assert columns.launchers == ["", "node-1", "", ""]
    columns.clear(1)
    assert columns.launchers[1] == "node-1", "another process of the rank is still its launcher's"
