"""Nodes of one rack, switch or NVLink domain get neighbouring ranks, and a spare of the same place steps in first."""

from __future__ import annotations

from dataclasses import replace

from launcher.coordination.test_membership import Scene


def come(scene: Scene, *names: str, **facts: object) -> None:
    for name in names:
        scene.come(name, topology=("rack=r1", f"switch={name[0]}", f"nvlink={name[0]}-{name[1]}"), **facts)


def test_nodes_of_one_place_get_neighbouring_ranks_in_the_order_of_its_first() -> None:
    scene = Scene(6, 6)
    come(scene, "b1", "a2", "b2", "a1", "b3", "a3")
    assert scene.run().active == ("b1", "b2", "b3", "a2", "a1", "a3")


def test_levels_are_within_each_other() -> None:
    scene = Scene(5, 5)
    for name, labels in {
        "n1": ("rack=1", "switch=a"),
        "n2": ("rack=2", "switch=b"),
        "n3": ("rack=1", "switch=c"),
        "n4": ("rack=2", "switch=d"),
        "n5": ("rack=1", "switch=a"),
    }.items():
        scene.come(name, topology=labels)
    assert scene.run().active == ("n1", "n5", "n3", "n2", "n4")


def test_preferred_ranks_decide_within_a_place_and_between_places() -> None:
    scene = Scene(4, 4)
    for name, rank in (("a1", 3), ("b1", 2), ("a2", 1), ("b2", 0)):
        come(scene, name, preferred_rank=rank)
    assert scene.run().active == ("b2", "b1", "a2", "a1")


def test_ranks_that_were_given_stay_as_they_were_given() -> None:
    scene = Scene(4, 4, by_topology=False)
    for name, rank in (("a1", 0), ("b1", 1), ("a2", 2), ("b2", 3)):
        come(scene, name, preferred_rank=rank)
    assert scene.run().active == ("a1", "b1", "a2", "b2")


def test_without_labels_it_is_the_order_of_arrival() -> None:
    scene = Scene(3, 3)
    scene.come("b")
    come(scene, "a1")
    scene.come("c")
    assert scene.run().active == ("b", "a1", "c")


def test_a_spare_of_the_same_place_replaces_a_node_that_is_lost() -> None:
    scene = Scene(4, 4)
    come(scene, "a1", "a2", "b1", "b2")
    come(scene, "a3", "b3")
    first = scene.run()
    assert first.spares == ("a3", "b3")
    for name in ("a3", "b3"):
        scene.update(name, ready_after=first.attempt)
    scene.tick(1.0, "b1")
    scene.view.set_ended(["b1"])
    scene.tick(10.0)
    scene.end(first, "b1")
    second = scene.run(first)
    assert second.active == ("a1", "a2", "b3", "b2")
    assert second.spares == ("a3",)


def test_a_spare_of_another_place_is_better_than_none_and_one_of_the_same_rack_comes_before_it() -> None:
    scene = Scene(2, 2)
    scene.come("n1", topology=("rack=1", "switch=a"))
    scene.come("n2", topology=("rack=2", "switch=b"))
    first = scene.run()
    scene.come("s1", topology=("rack=1", "switch=z"))
    scene.come("s2", topology=("rack=2", "switch=y"))
    for name in ("s1", "s2"):
        scene.update(name, ready_after=first.attempt)
    scene.end(first)
    second = scene.run(first, {"n2": "excluded"})
    assert second.active == ("n1", "s2")
    scene.end(second)
    scene.update("s1", ready_after=second.attempt)
    assert scene.run(second, {"n2": "excluded", "s2": "excluded"}).active == ("n1", "s1")


def test_a_nearer_spare_that_is_still_being_checked_is_waited_for_and_no_other() -> None:
    scene = Scene(2, 2)
    come(scene, "a1", "b1", checks=True)
    first = scene.run()
    come(scene, "a2", "b2", checks=True)
    for name in ("a2", "b2"):
        scene.update(name, ready_after=first.attempt)
    scene.end(first)
    second = scene.run(first, {"a1": "excluded"})
    assert (second.active, second.spares) == (("a2", "b1"), ("b2",))
    come(scene, "a3", checks=True)
    spares = replace(second, spares=("b2", "a3"))
    scene.end(second)
    scene.update("a3", ready_after=second.attempt)  # checked for this attempt, b2 is not yet
    gone = {"a1": "excluded", "b1": "excluded"}
    assert scene.next_roster(spares, gone) == "node b2 on host-b2 is being checked"
    scene.update("b2", ready_after=second.attempt)
    assert scene.run(spares, gone).active == ("a2", "b2")


def test_a_slow_node_is_replaced_by_one_of_its_place() -> None:
    scene = Scene(2, 2)
    come(scene, "a1", "b1")
    first = scene.run()
    come(scene, "a2", "b2")
    for name in ("a2", "b2"):
        scene.update(name, ready_after=first.attempt)
    scene.end(first)
    assert scene.run(first, avoid="b1").active == ("a1", "b2")
