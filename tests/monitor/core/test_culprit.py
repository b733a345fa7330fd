"""Who is to blame, in one-sided and in even scenes."""

from __future__ import annotations

import pytest

from monitor.core.scene import LOADING, REDUCING, Fate, Scene
from rankwatch.wire.control import NodeObservation, ProcessEvent, RankObservation
from rankwatch.wire.vocabulary import ProcessEventKind, ProcessState, RankState
from rankwatch_monitor.core.columns import RankColumns
from rankwatch_monitor.core.culprit import exit_words
from rankwatch_monitor.core.stacks import waits_for_peers


def test_a_stopped_process_is_named_before_anything_else() -> None:
    scene = Scene(on_hang="capture").run(10).stop(1).until_found()
    assert scene.blamed == {1: "stopped"}
    assert scene.rank_state(1) is RankState.STOPPED
    assert "stopped by a signal" in scene.incident.reason


def test_a_rank_that_holds_its_gil_is_named() -> None:
    scene = Scene(on_hang="capture").run(10).hold_gil(3).until_found()
    assert scene.blamed == {3: "gil_held"}
    assert "GIL" in scene.incident.reason
    assert "rank 3" in scene.incident.reason.lower()


@pytest.mark.parametrize("fault", ["stop", "hold_gil"])
def test_a_rank_that_is_back_within_its_limit_raises_nothing(fault: str) -> None:
    scene = Scene().run(10)
    getattr(scene, fault)(2)
    assert scene.run(8).resume().run(60).quiet()
    assert scene.rank_state(2) is RankState.RUNNING


def test_a_host_cut_off_after_a_living_pulse_is_silent_not_holding_its_gil() -> None:
    # The launcher spoke for a rank a last time, its pulse was fresh; then the whole host disappeared.
    scene = Scene(hosts=2, silence_timeout=30.0, section_timeouts={"step": None}).run(10)
    rank = scene.ranks[3]
    seen = RankObservation(3, rank.pid, ProcessState.ALIVE, pulse_age=0.2, beats=rank.beats, iteration=rank.iteration)
    scene.now += 0.1
    scene.submit(NodeObservation("node-1", 1, (seen,)))
    scene.cut_host(1).until_found()
    assert set(scene.blamed.values()) == {"host_silent"}
    assert set(scene.blamed) <= {2, 3}


def test_a_silent_host_is_named_with_all_its_ranks() -> None:
    scene = Scene(ranks=8, hosts=2, silence_timeout=5.0, section_timeouts={"step": None})
    scene.run(10).cut_host(1).until_found()
    assert scene.blamed == dict.fromkeys((4, 5, 6, 7), "host_silent")
    assert "likewise ranks 5, 6, 7" in scene.incident.reason


def test_two_ranks_behind_are_both_named() -> None:
    scene = Scene(ranks=8, launchers=False).run(10).hang(2).hang(5)
    scene.ranks[2].progress = 0
    scene.run(11)
    assert scene.blamed == {2: "behind", 5: "behind"}
    assert "the 6 other ranks wait" in scene.incident.reason
    assert "likewise rank 5" in scene.incident.reason


def test_a_symmetric_stall_names_nobody_and_says_why() -> None:
    scene = Scene().run(10).stall()
    scene.until_found()
    assert scene.blamed == {}
    assert "same place" in scene.incident.reason
    assert "nobody is named" in scene.incident.reason
    assert [scene.rank_state(r) for r in range(4)] == [RankState.HUNG] * 4


def test_a_rank_alone_past_its_limit_is_named_although_all_count_alike() -> None:
    scene = Scene(launchers=False).run(10)
    scene.hang(2, ahead=0)
    for rank in scene.ranks:
        if rank.number != 2:
            rank.opened = {}
    scene.run(12)
    assert scene.blamed == {2: "behind"}
    assert "the other ranks are not" in scene.incident.reason


def test_a_single_rank_is_named() -> None:
    scene = Scene(ranks=1, launchers=False).run(10).hang(0).run(11)
    assert scene.blamed == {0: "behind"}
    assert "only rank" in scene.incident.reason


def test_the_last_rank_alive_is_not_called_the_only_one() -> None:
    scene = Scene(ranks=2).run(10).die(1, exit_code=0)
    scene.hang(0).until_found()
    assert 0 in scene.blamed
    assert "it is the only rank:" not in scene.incident.reason
    assert not scene.incident.reason.endswith("it is the only rank.")


def test_waiting_ranks_are_shown_as_waiting_and_the_culprit_as_hung() -> None:
    scene = Scene(launchers=False).run(10).hang(2).run(12)
    assert [str(scene.rank_state(r)) for r in range(4)] == ["waiting", "waiting", "hung", "waiting"]


# Counts alone ---------------------------------------------------------------------------------------------------------


def test_a_rank_that_counts_more_does_not_make_culprits_of_the_others() -> None:
    # Rank 0 opens sections of its own (logging, checkpoints), so its progress is always ahead.
    scene = Scene(launchers=False).run(10).stall()
    scene.ranks[0].progress = 5
    scene.run(11)
    assert scene.blamed == {}


def test_stacks_find_the_culprit_among_ranks_that_count_differently() -> None:
    scene = Scene(on_hang="capture").run(10).hang(2)
    scene.ranks[0].progress = 5
    for rank in (1, 3):
        scene.ranks[rank].progress = 0
    scene.until_found().run(1)
    assert scene.blamed == {2: "behind"}


def test_stacks_overrule_counts() -> None:
    # Rank 1 counts less for a reason of its own and waits like the others; rank 3 is the one that does not.
    scene = Scene(on_hang="capture").run(10).hang(3)
    scene.ranks[1].progress, scene.ranks[3].progress = 0, 1
    scene.until_found().run(1)
    assert scene.blamed == {3: "behind"}
    assert "load_batch" in scene.incident.reason
    assert "train.py:41" in scene.incident.reason


def test_stacks_that_all_wait_leave_a_stall_without_a_name() -> None:
    scene = Scene(on_hang="capture").run(10).stall().until_found().run(2)
    assert scene.incident.stacks
    assert scene.blamed == {}


# Two ranks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stuck", [0, 1])
def test_in_a_world_of_two_the_stacks_tell_who(stuck: int) -> None:
    scene = Scene(ranks=2, on_hang="capture").run(10).hang(stuck).until_found().run(1)
    assert scene.blamed == {stuck: "behind"}
    assert "the other rank waits" in scene.incident.reason


@pytest.mark.parametrize("fault", ["stop", "hold_gil"])
def test_in_a_world_of_two_process_states_tell_who(fault: str) -> None:
    scene = Scene(ranks=2, on_hang="capture").run(10)
    getattr(scene, fault)(1)
    scene.until_found()
    assert set(scene.blamed) == {1}


def test_in_a_world_of_two_without_stacks_no_false_place_is_told() -> None:
    # One rank is a whole step behind the other: whoever is named, they are not "stuck in the same place".
    scene = Scene(ranks=2, launchers=False).run(10).hang(1)
    scene.ranks[0].iteration = (scene.ranks[0].iteration or 0) + 1
    scene.run(11)
    assert 0 not in scene.blamed
    assert "same place" not in scene.incident.reason


def test_a_healthy_world_of_two_raises_nothing() -> None:
    assert Scene(ranks=2).run(200).quiet()


# Deaths ---------------------------------------------------------------------------------------------------------------


def test_deaths_of_different_kinds_are_not_called_alike() -> None:
    scene = Scene(hosts=2, launchers=True).run(10)
    job, now = scene.job, scene.now
    for rank, words in ((2, {"signal": "SIGKILL", "age": 2.0}), (0, {"exit_code": 1, "age": 0.5})):
        node = scene.ranks[rank].node
        from_launcher = process_exit(node, rank, **words)  # type: ignore[arg-type]
        job.apply(from_launcher, now)
    scene.judge()
    reason = scene.incident.reason
    assert set(scene.blamed) >= {2}
    assert "Rank 2" in reason, "the first to die is spoken of first"
    assert "SIGKILL; likewise rank 0" not in reason
    assert "code 1; likewise rank 2" not in reason
    assert scene.incident.timeline.since == pytest.approx(now - 2.0)


def process_exit(node: str, rank: int, **how: object) -> ProcessEvent:
    return ProcessEvent(node, ProcessEventKind.EXITED, 1, rank=rank, **how)  # type: ignore[arg-type]


def test_a_death_outweighs_a_stopped_peer() -> None:
    scene = Scene().run(10).stop(1).run(1).die(3, signal="SIGKILL")
    assert scene.blamed == {3: "dead"}


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (1, "", "exited with code 1"),
        (1, "ValueError: no data", "exited with code 1 (ValueError: no data)"),
        (-9, "", "was killed by SIGKILL"),
        (-5, "", "was killed by SIGTRAP"),
        (-34, "", "was killed by signal 34"),
    ],
)
def test_exit_words(code: int, message: str, words: str) -> None:
    columns = RankColumns(2)
    columns.exit_code_R[1] = code
    if message:
        columns.exit_messages[1] = message
    assert exit_words(columns, 1) == words


def test_frames_of_the_scene_are_what_they_pretend_to_be() -> None:
    assert waits_for_peers(REDUCING)
    assert not waits_for_peers(LOADING)
    assert Fate.RUNS == "runs"
