"""Which nodes take part: spares, parked nodes, those that come and go."""

from __future__ import annotations

from dataclasses import replace

from monitor.core.scene import Scene
from rankwatch.contract.enums import Action, DirectiveKind, NodeRole, ProcessEventKind
from rankwatch.contract.messages import NodeObservation, NodeRegistration, ProcessEvent
from rankwatch_monitor.core import apply, nodes
from rankwatch_monitor.core.events import PolicyChanged
from rankwatch_monitor.core.job import KEPT_DEPARTED_NODES, Job
from rankwatch_monitor.core.views import job_view, verdict


def joins(scene: Scene, node: str, role: NodeRole, reason: str = "") -> None:
    scene.submit(NodeRegistration(node, node.replace("node", "host"), 10, 2, "gpt"))
    observe(scene, node, role, reason)


def observe(scene: Scene, node: str, role: NodeRole, reason: str = "") -> None:
    scene.submit(NodeObservation(node, 0, role=role, role_reason=reason))


def test_roles_are_shown_with_their_reasons() -> None:
    scene = Scene(4, 2).run(10)
    joins(scene, "node-2", NodeRole.SPARE, "2 nodes are enough")
    joins(scene, "node-3", NodeRole.PARKED, "excluded: bad memory")
    shown = {row["node"]: (row["role"], row["role_reason"]) for row in job_view.launchers(scene.job, scene.now)}
    assert shown == {
        "node-0": ("active", ""),
        "node-1": ("active", ""),
        "node-2": ("spare", "2 nodes are enough"),
        "node-3": ("parked", "excluded: bad memory"),
    }
    assert job_view.summary(scene.job, scene.now)["nodes_by_role"] == {"active": 2, "spare": 1, "parked": 1}
    scene.reload(1)
    assert {n: (x.role, x.role_reason) for n, x in scene.job.nodes.items()} == shown


def test_spares_and_parked_nodes_are_neither_asked_nor_waited_for() -> None:
    scene = Scene(4, 2).run(10)
    joins(scene, "node-2", NodeRole.SPARE)
    joins(scene, "node-3", NodeRole.PARKED)
    scene.hang(2).until(lambda: scene.directives(DirectiveKind.RESTART))
    assert scene.incident.heard_nodes == {"node-0", "node-1"}
    took = (scene.incident.timeline.captured or 0) - (scene.incident.timeline.detected or 0)
    assert took <= 1.0, "nothing else was waited for"
    scene.until(lambda: scene.closings)
    scene.finish()
    assert scene.state == "finished"


def test_a_node_that_is_parked_takes_no_part_from_that_moment_on() -> None:
    scene = Scene(4, 2).run(10)
    observe(scene, "node-1", NodeRole.PARKED, "excluded by a person")
    scene.event(ProcessEventKind.FINISHED, "node-0")
    assert scene.state == "finished"


def test_a_spare_that_is_alone_left_receives_an_operators_stop() -> None:
    scene = Scene(4, 1).run(10)
    joins(scene, "node-1", NodeRole.SPARE)
    scene.event(ProcessEventKind.NODE_LOST, "node-1", lost_node="node-0")
    assert list(nodes.acting(scene.job)) == ["node-1"]
    assert nodes.any_acting(scene.job)
    scene.order(Action.STOP, "enough")
    scene.run(8)
    assert scene.directives(DirectiveKind.STOP)


def test_a_job_whose_launchers_have_all_ended_has_none_that_can_act() -> None:
    scene = Scene(4, 2).run(5)
    assert nodes.any_acting(scene.job)
    for name, node in scene.job.nodes.items():
        node.ended = ProcessEvent(name, ProcessEventKind.FINISHED, scene.job.attempt)
    assert not nodes.any_acting(scene.job)
    assert not nodes.any_acting(Job("without-launchers", 0.0))


def test_twenty_restarts_with_nodes_that_come_and_go_end_with_the_last_ones() -> None:
    """Some leave with a word, some are lost, some just fall silent; none of them keeps the job from ending."""
    scene = Scene(4, 2, max_restarts=100).run(5)
    names = ["node-0", "node-1"]
    for attempt in range(2, 22):
        leaver, name = names.pop(0), f"node-{attempt}"
        match attempt % 3:
            case 0:
                scene.event(ProcessEventKind.FAILED, leaver, attempt=attempt - 1, reason="its disk is full")
            case 1:
                scene.event(ProcessEventKind.NODE_LOST, names[0], attempt=attempt - 1, lost_node=leaver)
        scene.event(ProcessEventKind.RESTARTING, names[0], attempt=attempt - 1, reason="a node has left")
        names.append(name)
        joins(scene, name, NodeRole.ACTIVE)
        scene.attempt = attempt
        for rank in range(4):
            scene.event(ProcessEventKind.STARTED, names[rank // 2], rank=rank, pid=100 * attempt + rank, world_size=4)
        assert set(nodes.acting(scene.job)) == set(names)
        assert nodes.any_acting(scene.job)
        assert scene.job.ended is None
    assert scene.job.restarts == 20
    scene.event(ProcessEventKind.FINISHED, names[0])
    assert scene.job.ended is None, "one of the two still runs"
    scene.event(ProcessEventKind.FINISHED, names[1])
    assert scene.state == "finished"


def test_what_a_launcher_adds_to_its_policy_changes_nothing_else() -> None:
    scene = Scene(hosts=2)
    reported = NodeRegistration(scene.nodes[0], "host-0", 10, 2, "gpt", policy={"max_restarts": 5})
    scene.submit(reported)
    scene.submit(PolicyChanged(scene.job.policy.changed({"max_restarts": 9})))  # by a person
    more = replace(reported, policy={"max_restarts": 5, "on_straggler": "stop"})
    scene.submit(more)
    assert (scene.job.policy.max_restarts, str(scene.job.policy.on_straggler)) == (9, "stop")
    scene.submit(PolicyChanged(scene.job.policy.changed({"on_straggler": "log"})))
    scene.submit(replace(more, node=scene.nodes[1]))  # the ranks of another node ask for the same
    assert str(scene.job.policy.on_straggler) == "log"


def test_launchers_that_left_long_ago_are_forgotten() -> None:
    scene = Scene(2, 1, max_restarts=10_000).run(5)
    before = "node-0"
    for attempt in range(2, KEPT_DEPARTED_NODES + 22):
        scene.event(ProcessEventKind.FAILED, before, attempt=attempt - 1)
        before = f"node-{attempt}"
        joins(scene, before, NodeRole.ACTIVE)
        for rank in range(2):
            scene.event(ProcessEventKind.STARTED, before, attempt=attempt, rank=rank, pid=attempt, world_size=2)
    assert len(scene.job.nodes) <= KEPT_DEPARTED_NODES + 1


def test_a_launcher_that_never_shut_down_is_replaced_by_the_next_launch() -> None:
    """The machine was taken away; the retry counts its attempts from 1 again, as the first launch did."""
    scene = Scene(4, 1).run(10)
    scene.event(ProcessEventKind.STOPPING, reason="preempted: the launcher on host-0 got SIGTERM")
    assert scene.incident.open
    scene.submit(NodeRegistration("node-9", "host-9", 11, 4, "gpt"))
    scene.now += 30.0
    for rank in range(4):
        scene.event(ProcessEventKind.STARTED, "node-9", attempt=1, rank=rank, pid=7000 + rank, world_size=4)
    assert list(scene.job.nodes) == ["node-9"]
    assert scene.closings[0].outcome == "the job was launched again"
    scene.event(ProcessEventKind.FINISHED, "node-9", attempt=1)
    assert scene.state == "finished"


def test_nodes_are_called_by_their_host_unless_it_has_several() -> None:
    scene = Scene(4, 2)
    assert nodes.title(scene.job, "node-1") == "host-1"
    scene.submit(NodeRegistration("node-1b", "host-1", 12, 2, "gpt"))
    assert nodes.title(scene.job, "node-1") == "node-1"
    assert nodes.titles(scene.job, ["node-0", "node-1", "node-1b"]) == "host-0, node-1 and node-1b"


def test_a_job_whose_launchers_only_ask_is_not_lost() -> None:
    scene = Scene(4, 2).run(10)
    scene.paused = True  # nothing else is stated by anybody
    for _ in range(6):
        scene.run(20)
        for node in scene.job.nodes.values():
            apply.poll(scene.job, node, scene.now)
    assert scene.now - scene.job.last_heard < 1.0
    assert verdict.job_state(scene.job, scene.now)[0] != "lost"
    scene.run(100)
    assert verdict.job_state(scene.job, scene.now)[0] == "lost"
