"""Restarts that leave nodes out: by a person's order, and by policy within its cap."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, DirectiveKind, NodeRole, ProcessEventKind
from rankwatch.contract.messages import NodeObservation, NodeRegistration
from rankwatch_monitor.core.events import Order
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.core.job import NodeLoss

RESTART = DirectiveKind.RESTART
PAGE = Path(__file__).parents[4] / "monitor" / "rankwatch_monitor" / "web" / "source"
WORDS = json.loads((PAGE / "tests" / "remaining.json").read_text())
"""What remains, and its sentence, which the page's tests check too."""
BY_POLICY = {"on_hang": "restart_excluding_node", "max_restarts": 50}


def spare(scene: Scene, name: str = "node-9", role: NodeRole = NodeRole.SPARE) -> Scene:
    scene.submit(NodeRegistration(name, name.replace("node", "host"), 10, 2, "gpt"))
    scene.submit(NodeObservation(name, 0, role=role, role_reason="enough nodes"))
    return scene


def needing(scene: Scene, nodes: int) -> Scene:
    """Its launchers register with the minimum of --nnodes."""
    for node in list(scene.job.nodes.values()):
        scene.submit(replace(node.registration, min_nodes=nodes))
    return scene


def excludes(scene: Scene, *, ranks: tuple[int, ...] = (), names: tuple[str, ...] = (), reason: str = "") -> None:
    chosen = exclusion.chosen(scene.job, ranks, names)
    scene.submit(Order(Action.RESTART_EXCLUDING_NODE, reason, chosen))


# Orders ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("meant", [{"ranks": (3,)}, {"names": ("node-1",)}, {"names": ("host-1",), "ranks": (2, 3)}])
def test_an_order_restarts_without_the_node(meant: dict[str, tuple[str, ...]]) -> None:
    scene = spare(Scene(4, 2).run(10))
    excludes(scene, **meant, reason="bad memory")  # type: ignore[arg-type]
    scene.until(lambda: scene.directives(RESTART))
    assert scene.directives(RESTART)[0].exclude == ("node-1",)
    assert scene.incident.reason == "An operator ordered a restart without host-1: bad memory."
    assert "node host-1 is excluded; the spare host-9 takes its place" in scene.incident.action_reason
    assert scene.incident.to_json()["exclude"] == ["node-1"]
    scene.until(lambda: scene.closings)
    assert scene.incident.action is Action.RESTART_EXCLUDING_NODE


def test_what_remains_without_a_host_is_neither_lost_nor_ended() -> None:
    scene = needing(spare(spare(Scene(8, 4).run(10)), "node-8", NodeRole.PARKED), 2)
    assert exclusion.remaining(scene.job, "host-1") == (3, 4, 1, 2)
    scene.job.nodes["node-2"].lost = NodeLoss(1, (4, 5), scene.now, "its machine is gone")
    assert exclusion.remaining(scene.job, "host-1") == (2, 4, 1, 2)
    assert exclusion.remaining(scene.job, "host-2") == (3, 4, 1, 2)
    assert exclusion.remaining(scene.job, "host-9") == (3, 4, 0, 2)
    assert exclusion.remaining(scene.job, "host-1", "host-9") == (2, 4, 0, 2)


def test_the_minimum_is_unknown_where_no_launcher_that_runs_has_registered_one() -> None:
    scene = Scene(8, 4).run(10)
    assert exclusion.remaining(scene.job, "host-1").min_nodes == 0
    last = scene.job.nodes["node-3"].registration
    scene.submit(replace(last, min_nodes=4))
    assert exclusion.remaining(scene.job, "host-1").min_nodes == 4
    scene.event(ProcessEventKind.FINISHED, node="node-3")
    assert exclusion.remaining(scene.job, "host-1").min_nodes == 0


@pytest.mark.parametrize("case", WORDS, ids=lambda case: case["sentence"])
def test_what_remains_is_worded_as_on_the_page(case: dict[str, Any]) -> None:
    sentence = case.pop("sentence")
    assert exclusion.Remaining(**case).sentence == sentence


@pytest.mark.parametrize(
    ("least", "follows"),
    [
        (1, "so the launchers continue with 1 node: the job may run on 1 or more"),
        (2, "so the launchers wait for another one: the job needs at least 2 (--nnodes)"),
    ],
)
def test_an_order_states_whether_the_launchers_continue_without_the_node(least: int, follows: str) -> None:
    scene = needing(Scene(4, 2).run(10), least)
    excludes(scene, ranks=(3,))
    scene.until(lambda: scene.directives(RESTART))
    assert f"node host-1 is excluded; no spare waits, {follows}" in scene.incident.action_reason


def test_a_plain_restart_excludes_no_node() -> None:
    scene = Scene(4, 2).run(10)
    scene.order(Action.RESTART)
    scene.until(lambda: scene.directives(RESTART))
    assert scene.directives(RESTART)[0].exclude == ()


def test_while_the_launchers_act_the_job_states_what_becomes_of_the_node() -> None:
    scene = Scene(4, 2)
    scene.ignored.add(RESTART)
    scene.run(10)
    excludes(scene, ranks=(0,))
    scene.run(3)
    assert scene.state == "restarting"
    assert "no spare waits" in scene.incident.action_reason
    assert "or wait for another one" in scene.incident.action_reason


def test_an_excluded_node_that_runs_again_by_another_restart_is_excluded_from_the_new_attempt() -> None:
    scene = Scene(4, 2)
    scene.mute_nodes |= {"node-0", "node-1"}
    scene.run(10)
    excludes(scene, ranks=(3,))
    scene.restart("rank 0 crashed")
    scene.run(1)
    (directive,) = scene.directives(RESTART)
    assert (directive.attempt, directive.exclude) == (2, ("node-1",))
    scene.ignored.add(RESTART)
    scene.mute_nodes.clear()
    scene.run(30)
    assert scene.job.attempt == 3
    assert len(scene.directives(RESTART)) == 1, "it is not ordered a third time"


@pytest.mark.parametrize(
    ("ranks", "names", "words"),
    [
        ((), (), "which node is to be left out"),
        ((9,), (), "runs rank 9; there are ranks 0, 1, 2, 3"),
        ((), ("moon",), "no node 'moon'; its nodes are host-0, host-1"),
        ((0, 2), (), "order 'restart' or 'stop' instead"),
        ((), ("host-8",), "is parked and runs no ranks"),
    ],
)
def test_an_order_that_cannot_be_states_why(ranks: tuple[int, ...], names: tuple[str, ...], words: str) -> None:
    scene = spare(Scene(4, 2).run(10), "node-8", NodeRole.PARKED)
    with pytest.raises(ValueError, match=words):
        excludes(scene, ranks=ranks, names=names)
    assert scene.quiet()


def test_a_spare_and_a_node_that_has_left_cannot_be_excluded_but_a_spare_may_be_all_that_is_left() -> None:
    scene = spare(Scene(4, 2).run(10))
    with pytest.raises(ValueError, match="is a spare"):
        exclusion.chosen(scene.job, (), ("host-9",))
    assert exclusion.chosen(scene.job, (0, 2), ()) == ("node-0", "node-1")
    scene.event(ProcessEventKind.NODE_LOST, lost_node="node-1")
    with pytest.raises(ValueError, match="has left"):
        exclusion.chosen(scene.job, (), ("node-1",))


# Policy ---------------------------------------------------------------------------------------------------------------


def test_the_policy_excludes_the_node_of_the_culprit() -> None:
    scene = Scene(4, 2, **BY_POLICY).run(10).hang(2)
    scene.until(lambda: scene.closings)
    assert scene.directives(RESTART)[0].exclude == ("node-1",)
    assert scene.incident.action is Action.RESTART_EXCLUDING_NODE
    assert "node host-1 is excluded" in scene.incident.action_reason
    assert scene.blamed == {2: "behind"}


def test_its_twin_with_a_plain_restart_excludes_no_node() -> None:
    scene = Scene(4, 2).run(10).hang(2)
    scene.until(lambda: scene.closings)
    assert scene.directives(RESTART)[0].exclude == ()


def test_no_culprit_is_a_plain_restart() -> None:
    scene = Scene(4, 2, **BY_POLICY).run(10).stall()
    scene.until(lambda: scene.closings)
    assert scene.directives(RESTART)[0].exclude == ()
    assert scene.incident.action is Action.RESTART
    assert "no rank is named, so no node is excluded" in scene.incident.action_reason


def test_the_only_node_is_not_excluded() -> None:
    scene = Scene(4, 1, **BY_POLICY).run(10).hang(2)
    scene.until(lambda: scene.closings)
    assert scene.directives(RESTART)[0].exclude == ()
    assert "none would remain without host-0" in scene.incident.action_reason


@pytest.mark.parametrize("least", [1, 2])
def test_a_node_that_the_job_needs_is_not_excluded_unless_a_spare_waits(least: int) -> None:
    scene = needing(Scene(4, 2, **BY_POLICY).run(10), least).hang(2)
    scene.until(lambda: scene.closings)
    assert scene.directives(RESTART)[0].exclude == (("node-1",) if least == 1 else ())
    why = "no node is excluded: without host-1, 1 of 2 nodes remain, and no spare; the job needs at least 2 (--nnodes)"
    assert (why in scene.incident.action_reason) is (least == 2)
    replaced = needing(spare(Scene(4, 2, **BY_POLICY).run(10)), least).hang(2)
    replaced.until(lambda: replaced.directives(RESTART))
    assert replaced.directives(RESTART)[0].exclude == ("node-1",)


def test_beyond_the_cap_nodes_stay_and_an_hour_later_they_may_go_again() -> None:
    scene = Scene(4, 2, **BY_POLICY).run(10)
    for rank, excluded in ((2, ("node-1",)), (0, ())):
        scene.hang(rank)
        closed = len(scene.closings)
        scene.until(lambda closed=closed: len(scene.closings) > closed)  # type: ignore[misc]
        scene.run(5)
        assert scene.directives(RESTART)[-1].exclude == excluded
    assert "the cap is 1 an hour, and 1 was excluded in the last hour" in scene.job.incidents[-1].action_reason
    assert scene.job.incidents[-1].action is Action.RESTART
    scene.now += 3600.0
    scene.job.last_heard = scene.now
    scene.launch(attempt=scene.attempt + 1)
    scene.run(10).hang(2)
    scene.until(lambda: len(scene.directives(RESTART)) > 2)
    assert scene.directives(RESTART)[-1].exclude == ("node-1",)


def test_what_an_operator_excluded_leaves_the_policys_cap_alone() -> None:
    scene = Scene(6, 3, **BY_POLICY).run(10)
    excludes(scene, ranks=(0,))
    scene.until(lambda: scene.closings).run(5)
    scene.hang(4).until(lambda: len(scene.closings) > 1)
    assert scene.directives(RESTART)[-1].exclude == ("node-2",)


def test_a_used_up_budget_stops_instead_as_for_any_restart() -> None:
    scene = Scene(4, 2, on_hang="restart_excluding_node", max_restarts=0).run(10).hang(2)
    scene.until(lambda: scene.directives(DirectiveKind.STOP))
    assert "the restart budget is used up (0 of 0)" in scene.incident.action_reason


def test_a_reloaded_monitor_knows_what_it_excluded() -> None:
    scene = Scene(4, 2, **BY_POLICY)
    scene.ignored.add(RESTART)
    scene.run(10).hang(2).until(lambda: scene.directives(RESTART))
    scene.reload(1)
    assert scene.incident.exclude == ("node-1",)
