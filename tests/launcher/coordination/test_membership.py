"""Rosters, lost nodes, exclusion and stop steps: scenarios with a simulated clock."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rankwatch.contract.node_checks import CheckReason, CheckResult, CheckState
from rankwatch_launcher.coordination.decisions import StepRange
from rankwatch_launcher.coordination.membership import (
    MAX_POLLS_PER_SECOND,
    Member,
    MembershipRules,
    MembershipView,
    NodeProgress,
    Roster,
    StopAnswer,
)

NOTHING: dict[str, str] = {}
FOLLOWS = NodeProgress(follows_stop_step=True)
ASKED = StopAnswer(0, True, None)


def at(step: int, speed: float = 0.0) -> NodeProgress:
    """Progress of a node whose ranks would follow a stop step."""
    return NodeProgress(StepRange(0, step), speed, follows_stop_step=True)


class Scene:
    """A few launchers and a clock."""

    def __init__(self, minimum: int, maximum: int, **rules: float) -> None:
        self.view = MembershipView(MembershipRules(minimum, maximum, **rules))
        self.now = 100.0
        self.members: dict[str, Member] = {}
        self.silent: set[str] = set()

    def come(self, *names: str, **facts: Any) -> None:
        for name in names:
            self.members[name] = Member(name, f"host-{name}", 2, ready_after=0, **facts)
        self.tick(0.0)

    def update(self, name: str, **changes: Any) -> None:
        self.members[name] = replace(self.members[name], **changes)
        self.tick(0.0)

    def tick(self, seconds: float, *silent: str) -> None:
        """Time passes; everybody beats but those that are silent from now on."""
        self.now += seconds
        self.silent |= {*silent}
        for name in self.members:
            if name not in self.silent:
                self.members[name] = replace(self.members[name], heartbeat=self.members[name].heartbeat + 1)
        self.view.update(self.members.values(), self.now)

    def next_roster(self, last: Roster | None = None, excluded: dict[str, str] = NOTHING, **more: Any) -> Roster | str:
        return self.view.next_roster(last, excluded, self.now, **more)

    def run(self, last: Roster | None = None, excluded: dict[str, str] = NOTHING, **more: Any) -> Roster:
        """The next roster, whose launchers run ranks then."""
        made = self.next_roster(last, excluded, **more)
        assert isinstance(made, Roster), made
        for name in made.active:
            self.update(name, ready_after=None)
        return made

    def end(self, roster: Roster, *but: str) -> None:
        """The attempt is over: everybody has ended their ranks."""
        for name in roster.active:
            if name not in but:
                self.update(name, ready_after=roster.attempt)


def test_all_nodes_that_there_can_be_start_at_once_in_the_order_of_their_arrival() -> None:
    scene = Scene(2, 2)
    scene.come("b")
    assert scene.next_roster() == "1 of at least 2 nodes are ready; waiting for 1 more"
    scene.come("a")
    assert scene.next_roster() == Roster(1, ("b", "a"))


def test_a_wish_for_a_group_rank_beats_the_order_of_arrival() -> None:
    scene = Scene(3, 3)
    scene.come("x", preferred_rank=2)
    scene.come("y", preferred_rank=0)
    scene.come("z", preferred_rank=1)
    assert scene.run().active == ("y", "z", "x")


def test_the_first_attempt_waits_for_more_nodes_only_for_the_last_call() -> None:
    scene = Scene(1, 3, last_call=30.0)
    scene.come("a", "b")
    assert "last call" in str(scene.next_roster())
    scene.tick(29.0)
    assert isinstance(scene.next_roster(), str)
    scene.tick(1.0)
    assert scene.run().active == ("a", "b")


def test_a_node_beyond_the_largest_number_is_a_spare_and_takes_the_place_of_the_lost() -> None:
    scene = Scene(2, 2, node_timeout=6.0)
    scene.come("a", "b", "c")
    first = scene.run()
    assert (first.active, first.spares) == (("a", "b"), ("c",))
    assert scene.view.places(first)["c"].reason.startswith("the job has its 2 nodes")
    scene.tick(5.9, "a")
    assert scene.view.lost(first, scene.now) == []
    scene.tick(0.2, "a")
    (lost,) = scene.view.lost(first, scene.now)
    assert lost.node == "a"
    scene.end(first, "a")
    second = scene.run(first)
    assert (second.attempt, second.active) == (2, ("c", "b")), "the others keep their ranks"


def test_its_silent_twin_a_launcher_that_beats_slowly_is_not_lost() -> None:
    scene = Scene(2, 2, node_timeout=6.0)
    scene.come("a", "b")
    roster = scene.run()
    for _ in range(20):
        scene.tick(5.0, "a")
        scene.silent.clear()
        scene.tick(0.5)
        assert scene.view.lost(roster, scene.now) == []


def test_no_launcher_begins_while_another_still_ends_its_ranks() -> None:
    scene = Scene(2, 2)
    scene.come("a", "b", "c")
    first = scene.run()
    scene.end(first, "b")
    assert scene.next_roster(first) == "node b on host-b is still ending ranks"
    scene.update("b", ready_after=1)
    assert scene.run(first).active == ("a", "b")


def test_a_launcher_that_did_not_notice_a_roster_yet_is_waited_for() -> None:
    scene = Scene(2, 2)
    scene.come("a", "b", "c")
    first = scene.next_roster()
    assert isinstance(first, Roster)
    # The attempt is ruled to end at once; neither has taken its place, both still wait for an attempt after 0.
    assert "still ending" in str(scene.next_roster(first))


def test_with_too_few_nodes_the_missing_nodes_are_reported_and_why() -> None:
    scene = Scene(2, 2, node_timeout=6.0)
    scene.come("a", "b")
    first = scene.run()
    scene.tick(7.0, "b")
    scene.end(first, "b")
    scene.tick(0.1, "b")
    assert scene.next_roster(first) == (
        "1 of at least 2 nodes are ready; waiting for 1 more, since node b on host-b was lost"
    )


def test_fewer_nodes_go_on_at_once_where_fewer_are_allowed_and_a_newcomer_regroups_them() -> None:
    scene = Scene(1, 2, node_timeout=6.0)
    scene.come("a", "b")
    first = scene.run()
    scene.tick(7.0, "b")
    scene.end(first, "b")
    second = scene.run(first)
    assert second.active == ("a",)
    scene.come("c")
    assert [m.node for m in scene.view.newcomers(second, {}, scene.now)] == ["c"]
    scene.end(second)
    assert scene.run(second).active == ("a", "c")


def test_a_full_group_is_not_disturbed_by_late_launchers() -> None:
    scene = Scene(2, 2)
    scene.come("a", "b")
    roster = scene.run()
    scene.come("c", "d")
    assert scene.view.newcomers(roster, {}, scene.now) == []
    late = scene.view.with_latecomers(roster, {"host:host-d": "excluded: it had ECC errors"}, scene.now)
    assert late == Roster(1, ("a", "b"), ("c",), {"d": "excluded: it had ECC errors"})


def test_a_launcher_on_an_excluded_host_disturbs_no_launcher_though_there_is_room() -> None:
    scene = Scene(1, 2)
    scene.come("a")
    assert isinstance(scene.next_roster(), str)
    scene.tick(31.0)
    roster = scene.run()
    scene.come("b")
    assert scene.view.newcomers(roster, {"host:host-b": "excluded: ECC errors"}, scene.now) == []
    assert [m.node for m in scene.view.newcomers(roster, {}, scene.now)] == ["b"]


def test_when_nothing_could_be_received_no_job_is_lost() -> None:
    scene = Scene(2, 2, node_timeout=6.0)
    scene.come("a", "b")
    roster = scene.run()
    scene.now += 8.0  # the store did not answer meanwhile
    scene.view.reset_timers(scene.now)
    assert scene.view.lost(roster, scene.now) == []


def test_a_new_coordinator_does_not_take_the_long_dead_for_alive() -> None:
    scene = Scene(2, 2, node_timeout=6.0)
    scene.come("a", "b", "c")
    roster = scene.run()
    scene.silent.add("c")  # a spare that died under the coordinator before
    scene.view = MembershipView(scene.view.rules)
    scene.tick(0.0)
    scene.view.reset_timers(scene.now, remaining=2.5)
    scene.tick(2.6)
    assert [*scene.view.alive(scene.now)] == ["a", "b"]
    assert scene.view.lost(roster, scene.now) == []


def test_slow_steps_are_waited_for_no_longer_than_needed() -> None:
    scene = Scene(1, 1)
    scene.come("a", progress=FOLLOWS)
    roster = scene.run()
    scene.update("a", progress=at(2, 0.05))
    assert scene.view.stop_step(roster) == 2 + 2


def test_a_step_is_named_only_once_all_have_reported_how_far_they_are_now() -> None:
    scene = Scene(2, 2)
    scene.come("a", "b", progress=FOLLOWS)
    roster = scene.run()
    scene.update("a", progress=at(5), stop_answer=ASKED)
    assert not scene.view.all_answered(roster)
    scene.update("b", progress=at(300, 100.0), stop_answer=ASKED)
    assert scene.view.all_answered(roster)
    assert scene.view.stop_step(roster) == 300 + 300 + 1


def test_an_excluded_node_is_parked_and_stays_so() -> None:
    scene = Scene(2, 2)
    scene.come("a", "b", "c")
    first = scene.run()
    scene.end(first)
    excluded = {"a": "excluded: an operator ordered it"}
    second = scene.run(first, excluded)
    assert (second.active, second.parked) == (("c", "b"), excluded)
    place = scene.view.places(second)["a"]
    assert (place.role, place.reason) == ("parked", "excluded: an operator ordered it")
    scene.end(second)
    assert scene.run(second, excluded).active == ("c", "b")


def test_excluding_more_than_there_are_left_reports_it() -> None:
    scene = Scene(2, 2)
    scene.come("a", "b")
    first = scene.run()
    scene.end(first)
    assert scene.next_roster(first, {"a": "x"}) == (
        "1 of at least 2 nodes are ready; waiting for 1 more, since node a on host-a was excluded"
    )


def test_a_node_to_be_spared_changes_places_with_a_spare() -> None:
    scene = Scene(2, 2)
    scene.come("a", "b", "c")
    first = scene.run()
    scene.end(first)
    second = scene.run(first, avoid="b")
    assert (second.active, second.spares) == (("a", "c"), ("b",))


def test_without_a_spare_all_ranks_move_to_another_node() -> None:
    scene = Scene(3, 3)
    scene.come("a", "b", "c")
    first = scene.run()
    scene.end(first)
    second = scene.run(first, avoid="b")
    assert all(before != after for before, after in zip(first.active, second.active, strict=True))
    assert set(second.active) == set(first.active)


def test_twenty_failures_each_cost_one_attempt() -> None:
    scene = Scene(3, 3, node_timeout=6.0)
    scene.come("n0", "n1", "n2", "n3")
    roster = scene.run()
    for i in range(20):
        lost = roster.active[i % 3]
        scene.tick(7.0, lost)
        scene.end(roster, lost)
        del scene.members[lost]
        again = scene.run(roster)
        assert again.attempt == roster.attempt + 1
        assert [a == b for a, b in zip(again.active, roster.active, strict=True)].count(False) == 1
        scene.come(f"n{i + 4}")
        assert scene.view.newcomers(again, {}, scene.now) == []
        roster = again


def test_ranks_are_counted_through_the_group_and_through_each_role() -> None:
    scene = Scene(3, 3)
    scene.members["a"] = Member("a", "h", 2, "trainer", ready_after=0)
    scene.members["b"] = Member("b", "h", 4, "server", ready_after=0)
    scene.members["c"] = Member("c", "h", 1, "trainer", ready_after=0)
    scene.tick(0.0)
    places = scene.view.places(scene.run())
    assert [places[n].first_rank for n in "abc"] == [0, 2, 6]
    assert [places[n].first_role_rank for n in "abc"] == [0, 0, 2]
    assert [(places[n].world_size, places[n].role_world_size) for n in "abc"] == [(7, 3), (7, 4), (7, 3)]


# Stopping -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def running() -> tuple[Scene, Roster]:
    """Two nodes whose ranks make 10 steps a second and would follow a stop step."""
    scene = Scene(2, 2)
    scene.come("a", "b", progress=FOLLOWS)
    roster = scene.run()
    scene.update("a", progress=at(100, 10.0), stop_answer=ASKED)
    scene.update("b", progress=at(101, 9.9), stop_answer=ASKED)
    return scene, roster


def test_a_stop_step_lies_three_seconds_ahead_of_the_furthest_rank(running: tuple[Scene, Roster]) -> None:
    scene, roster = running
    assert scene.view.steps(roster) == StepRange(0, 101)
    assert scene.view.stop_step(roster) == 101 + 30 + 1


def test_a_rank_that_passed_it_moves_it_on(running: tuple[Scene, Roster]) -> None:
    scene, roster = running
    scene.update("a", stop_answer=StopAnswer(1, True, 120))
    assert not scene.view.stop_refused(roster, 1)
    scene.update("b", stop_answer=StopAnswer(1, False, 133))
    assert scene.view.stop_refused(roster, 1)
    assert not scene.view.stop_refused(roster, 2)
    assert scene.view.stop_step(roster) == 133 + 30 + 1


def test_ranks_that_do_not_ask_get_no_stop_step(running: tuple[Scene, Roster]) -> None:
    scene, roster = running
    scene.update("b", progress=NodeProgress(StepRange(0, 101), 9.9))
    assert scene.view.stop_step(roster) is None


def test_before_the_first_step_there_is_nothing_to_save() -> None:
    scene = Scene(1, 1)
    scene.come("a", progress=FOLLOWS)
    assert scene.view.stop_step(scene.run()) is None


# Many launchers -------------------------------------------------------------------------------------------------------


class Counted(str):
    """A node's name that counts the comparisons of all names."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_the_work_for_a_roster_grows_with_the_launchers_and_not_with_their_square() -> None:
    count = 400
    # Equal names are other objects in the members than in the roster, as when both were read from the store.
    old, new = ([Counted(f"node-{number}") for number in range(count)] for _ in range(2))
    late = [Counted(f"late-{number}") for number in range(count)]
    view = MembershipView(MembershipRules(count, count))
    view.update([Member(name, "h", 1, ready_after=1) for name in [*new, *late]], 100.0)
    roster = Roster(1, tuple(old), tuple(Counted(name) for name in late))
    Counted.compared = 0
    assert view.with_latecomers(roster, NOTHING, 100.0) == roster
    made = view.next_roster(roster, NOTHING, 100.0)
    assert isinstance(made, Roster)
    assert made.active == roster.active
    assert Counted.compared < 20 * count


def test_a_stop_step_waits_for_the_polls_of_many_launchers() -> None:
    few, many = 10, 2 * MAX_POLLS_PER_SECOND
    assert stop_step_of(few) == 10 + 3 * 4 + 1
    # Each polls every 2 s, 1.8 s more than the margin is for: its step is as old, and it sees the proposal as late.
    assert stop_step_of(many) == 10 + math.ceil((3 + 2 * 1.8) * 4) + 1


def stop_step_of(count: int) -> int | None:
    """The stop step of so many launchers at step 10, with 4 steps a second."""
    view = MembershipView(MembershipRules(count, count))
    names = tuple(f"node-{number}" for number in range(count))
    view.update([Member(name, "h", 1, progress=at(10, 4.0), stop_answer=ASKED) for name in names], 100.0)
    return view.stop_step(Roster(1, names))


# Nodes that fail a check ----------------------------------------------------------------------------------------------

BROKEN = (CheckResult("host", CheckState.FAILED, CheckReason.FEW_FILES, {"found": "64"}),)


def test_a_node_that_fails_a_check_is_parked_and_named_until_it_passes() -> None:
    scene = Scene(2, 2)
    scene.come("a", checks=True)
    scene.come("b", checks=True, failures=BROKEN)
    waits = scene.next_roster()
    assert isinstance(waits, str)
    assert waits.startswith("1 of at least 2 nodes are ready; waiting for 1 more; node b on host-b takes no part")
    scene.come("c", checks=True)
    roster = scene.next_roster()
    assert isinstance(roster, Roster)
    assert (roster.active, roster.spares, [*roster.parked]) == (("a", "c"), (), ["b"])
    assert scene.view.newcomers(roster, NOTHING, scene.now) == []
    assert scene.view.with_latecomers(roster, NOTHING, scene.now) == roster
    scene.update("b", failures=())
    extended = scene.view.with_latecomers(roster, NOTHING, scene.now)
    assert (extended.spares, [*extended.parked]) == (("b",), [])
    assert scene.view.places(extended)["b"].role == "spare"


def test_a_node_that_passes_again_takes_a_free_place_at_once() -> None:
    scene = Scene(1, 2, last_call=0.0)
    scene.come("a", checks=True)
    scene.come("b", checks=True, failures=BROKEN)
    roster = scene.next_roster()
    assert isinstance(roster, Roster)
    assert roster.active == ("a",)
    assert scene.view.newcomers(roster, NOTHING, scene.now) == []
    scene.update("b", failures=())
    assert [m.node for m in scene.view.newcomers(roster, NOTHING, scene.now)] == ["b"]


def test_spares_are_checked_before_they_step_in_and_only_then_waited_for() -> None:
    scene = Scene(2, 2)
    scene.come("a", "b", "c", "d", checks=True)
    roster = scene.next_roster()
    assert isinstance(roster, Roster)
    assert roster.spares == ("c", "d")
    for name in "ab":
        scene.update(name, ready_after=None)
    # Both are ready again: nobody waits for the spares.
    for name in "ab":
        scene.update(name, ready_after=1)
    again = scene.next_roster(roster)
    assert isinstance(again, Roster)
    assert (again.active, again.spares) == (("a", "b"), ("c", "d"))
    # One is to be replaced, or fails: a spare is needed, but c and d were checked an attempt ago.
    assert scene.next_roster(roster, avoid="a") == "node c on host-c, node d on host-d are being checked"
    scene.update("a", failures=BROKEN)
    assert scene.next_roster(roster) == "node c on host-c, node d on host-d are being checked"
    scene.update("c", ready_after=1, failures=BROKEN)
    assert scene.next_roster(roster) == "node d on host-d is being checked"
    scene.update("d", ready_after=1)
    found = scene.next_roster(roster)
    assert isinstance(found, Roster)
    assert (found.active, [*found.parked]) == (("d", "b"), ["a", "c"])
