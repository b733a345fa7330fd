"""The watch over suspected ranks: what it posts, and what ends it. Stacks are scripted, nothing waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.contract.messages import Collective, RankStack
from rankwatch_launcher.node import watch as module
from rankwatch_launcher.node.attempt import Attempt, RankProcess
from rankwatch_launcher.node.watch import RankWatch
from rankwatch_launcher.stacks.capture import Target

ENOUGH = 1000.0
"""Seconds of a watch that something else ends."""


class Scene:
    """Two ranks of one node, local 0 and 1, global 4 and 5; ``on_look`` is called at each look with its number."""

    def __init__(self) -> None:
        self.looks: list[list[Target]] = []
        self.known: list[Mapping[int, Sequence[Collective]]] = []
        self.posts: list[tuple[str, dict[str, Any], float]] = []
        self.steps = {0: 7, 1: 7}
        self.on_look: Callable[[int], None] = lambda _: None
        slots: Any = SimpleNamespace(read=self._read, stack_file=lambda local: f"/slots/{local}.stack")
        inbox: Any = SimpleNamespace()
        ranks = (RankProcess(4, 0, os.getpid()), RankProcess(5, 1, os.getpid()))
        self.attempt = Attempt(3, slots, inbox, ranks, world_size=8)
        stacks: Any = SimpleNamespace(sample=self._sample)
        self.watch = RankWatch("node-b", stacks)
        self.link: Any = SimpleNamespace(
            post=lambda path, body, *, delay=0.0: self.posts.append((path, body(), delay)),
        )

    def _read(self) -> dict[int, Any]:
        return {local: SimpleNamespace(iteration=step, progress=0, finished=0) for local, step in self.steps.items()}

    def _sample(self, targets: Iterable[Target], deadline: float, known: Any) -> tuple[dict[int, Any], list[RankStack]]:
        self.looks.append(list(targets))
        self.known.append(dict(known))
        self.on_look(len(self.looks))
        return {}, [
            RankStack(
                target.rank,
                target.pid,
                "py-spy",
                (),
                process_state="alive",
                collectives=(Collective("default_pg", "all_reduce", len(self.looks), 0),),
            )
            for target in self.looks[-1]
        ]

    def run(self, incident: str | None = "i1", seconds: float = ENOUGH) -> None:
        self.watch.watch(self.link, self.attempt, incident, seconds=seconds)

    def stop_at(self, look: int) -> None:
        self.on_look = lambda number: self.watch.stop() if number == look else None


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "watch_interval", lambda launchers, watched: 0.0)


def test_the_first_look_is_a_baseline_and_each_later_one_is_posted() -> None:
    scene = Scene()
    scene.stop_at(4)
    scene.run()
    assert [(path, body["look"]) for path, body, _ in scene.posts] == [("evidence", 1), ("evidence", 2)]
    body = scene.posts[0][1]
    assert (body["node"], body["attempt"], body["incident_id"]) == ("node-b", 3, "i1")
    assert [(stack["rank"], stack["usage"] is not None) for stack in body["stacks"]] == [(4, True), (5, True)]
    assert 0.0 <= body["age"] < 60.0


def test_a_ranks_stack_is_read_from_the_file_of_its_local_rank() -> None:
    scene = Scene()
    scene.stop_at(1)
    scene.run()
    assert [(target.rank, target.local_rank, str(target.stack_file)) for target in scene.looks[0]] == [
        (4, 0, "/slots/0.stack"),
        (5, 1, "/slots/1.stack"),
    ]


def test_collectives_of_the_look_before_are_passed_on() -> None:
    scene = Scene()
    scene.stop_at(4)
    scene.run()
    assert scene.known[1] == {}
    assert {rank: [each.enqueued for each in found] for rank, found in scene.known[2].items()} == {4: [2], 5: [2]}


def test_a_watch_ends_when_all_ranks_have_moved_and_not_before() -> None:
    scene = Scene()

    def move(look: int) -> None:
        if look == 2:
            scene.steps[0] = 8
        elif look == 4:
            scene.steps[1] = 8

    scene.on_look = move
    scene.run()
    assert len(scene.looks) == 4


def test_ranks_that_have_ended_are_not_looked_at_and_without_ranks_the_watch_ends() -> None:
    scene = Scene()

    def end(look: int) -> None:
        if look < 3:
            scene.attempt.ranks[look - 1].code = 1

    scene.on_look = end
    scene.run()
    assert [[target.rank for target in targets] for targets in scene.looks] == [[4, 5], [5], []]


def test_a_watch_lasts_as_long_as_asked_for() -> None:
    scene = Scene()
    scene.run(seconds=0.0)
    assert scene.looks == []


def test_after_its_end_no_watch_begins() -> None:
    scene = Scene()
    scene.watch.close()
    scene.run()
    assert scene.looks == []


def test_a_new_watch_ends_the_one_in_progress() -> None:
    scene = Scene()
    first = threading.Thread(target=scene.run)
    began = threading.Event()
    scene.on_look = lambda _: began.set()
    first.start()
    try:
        assert began.wait(60.0)
        scene.run(seconds=0.0)
        first.join(60.0)
        assert not first.is_alive()
    finally:
        scene.watch.close()
        first.join(60.0)


@pytest.mark.parametrize(("incident", "meters"), [("i1", 1), ("i2", 2), (None, 2)])
def test_a_watch_that_prolongs_another_compares_with_what_that_one_has_seen(
    incident: str | None, meters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[module.UsageMeter] = []

    def meter() -> module.UsageMeter:
        made.append(usage_meter())
        return made[-1]

    usage_meter = module.UsageMeter
    monkeypatch.setattr(module, "UsageMeter", meter)
    scene = Scene()
    scene.run("i1", seconds=0.0)
    scene.run(incident, seconds=0.0)
    assert len(made) == meters
