"""The launcher's side of the slots: opened when they appear, written at once."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from rankwatch.recording import shared_slots as layout
from rankwatch.recording.shared_slots import Slots
from rankwatch_launcher.node.slots import NodeSlots, SlotsFolder


@pytest.fixture
def node(tmp_path: Path) -> NodeSlots:
    return NodeSlots(tmp_path, 2)


def rank(folder: Path, local: int, iteration: int | None = None) -> Slots:
    slots = Slots.create(folder / f"{local}.slots")
    slots.claim(rank=4 + local, local_rank=local, world_size=8, attempt=1)
    slots.words[layout.ITERATION] = 0 if iteration is None else iteration + 1
    return slots


def test_ranks_are_read_once_they_have_claimed_their_slots(node: NodeSlots, tmp_path: Path) -> None:
    assert node.read() == {}
    (tmp_path / "0.slots").write_bytes(b"short")
    Slots.create(tmp_path / "1.slots")
    assert node.read() == {}
    rank(tmp_path, 1, iteration=3)
    rank(tmp_path, 0)
    readings = node.read()
    assert {local: reading.rank for local, reading in readings.items()} == {0: 4, 1: 5}
    assert readings[1].iteration == 3


def test_settings_reach_those_there_and_those_to_come(node: NodeSlots, tmp_path: Path) -> None:
    first = rank(tmp_path, 0)
    node.write_settings({"a": 1})
    second = rank(tmp_path, 1)
    node.read()
    assert [s.settings() for s in (first, second)] == [(2, {"a": 1})] * 2
    node.read()
    assert first.settings() == (2, {"a": 1}), "handed down once"
    node.write_settings({"a": 2})
    assert [s.settings() for s in (first, second)] == [(4, {"a": 2})] * 2


def test_a_stop_step_ahead_of_all_is_agreed(node: NodeSlots, tmp_path: Path) -> None:
    slots = [rank(tmp_path, 0, iteration=8), rank(tmp_path, 1, iteration=9)]
    assert node.set_stop_step(10) == (True, 9)
    assert [(s.words[layout.STOP_STEP], s.words[layout.STOP_PREEMPTS]) for s in slots] == [(11, 0)] * 2
    assert node.set_stop_step(12, preempts=True) == (True, 9)
    assert node.set_stop_step(9) == (False, 9), "what is refused leaves the step before, and its kind, as they were"
    assert [(s.words[layout.STOP_STEP], s.words[layout.STOP_PREEMPTS]) for s in slots] == [(13, 1)] * 2


def test_a_stop_step_that_one_has_completed_is_refused_and_taken_back(node: NodeSlots, tmp_path: Path) -> None:
    slots = [rank(tmp_path, 0, iteration=8), rank(tmp_path, 1, iteration=10)]
    assert node.set_stop_step(10) == (False, 10)
    assert [s.words[layout.STOP_STEP] for s in slots] == [0, 0]


def test_a_stop_step_needs_the_slots_of_all(node: NodeSlots, tmp_path: Path) -> None:
    rank(tmp_path, 0, iteration=8)
    assert node.set_stop_step(10) == (False, 8)


def test_a_rank_is_entered_while_it_does_not_end_and_sees_it(node: NodeSlots, tmp_path: Path) -> None:
    slots = rank(tmp_path, 0)
    with node.entering(0) as first, node.entering(0) as second, node.entering(1) as absent:
        assert (first, second, absent) == (True, True, False)
        assert slots.words[layout.ENTERED] == 2
    slots.words[layout.LEAVING] = time.monotonic_ns()
    with node.entering(0) as allowed:
        assert not allowed
        assert slots.words[layout.ENTERED] == 1, "written before it is read whether the rank ends"
        node.close()
    assert slots.words[layout.ENTERED] == 1, "the mapping is gone"


def test_after_close_nothing_is_touched(node: NodeSlots, tmp_path: Path) -> None:
    rank(tmp_path, 0)
    node.read()
    node.close()
    node.write_settings({"a": 1})
    assert node.read() == {}
    assert node.set_stop_step(10) == (False, None)
    with node.entering(0) as allowed:
        assert not allowed


def test_the_folder_is_private_and_keeps_one_attempt(tmp_path: Path) -> None:
    folder = SlotsFolder(tmp_path)
    first = folder.attempt(1, 1)
    second = folder.attempt(2, 1)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert not first.exists()
    assert second.stat().st_mode & 0o777 == 0o700
    folder.remove()
    assert not folder.path.exists()


def test_a_launcher_s_folder_that_has_vanished_is_made_again(tmp_path: Path) -> None:
    folder = SlotsFolder(tmp_path)
    shutil.rmtree(folder.path)
    made = folder.attempt(2, 1)
    assert made.is_dir()
    assert made.stat().st_mode & 0o777 == folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()


def test_another_file_system_is_used_when_this_one_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, temporary = tmp_path / "memory", tmp_path / "temporary"
    memory.mkdir()
    temporary.mkdir()
    folder = SlotsFolder(memory)
    shutil.rmtree(memory)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    made = folder.attempt(2, 1)
    assert made.is_dir()
    assert temporary in made.parents
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_folders_of_launchers_that_were_killed_are_removed_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    dead = SlotsFolder(tmp_path)
    dead.attempt(1, 1)
    os.close(dead._lock)  # as the kernel does when the process is killed
    dead._lock = -1
    live = SlotsFolder(tmp_path)
    assert not dead.path.exists()
    live.attempt(1, 1)
    shutil.rmtree(live.path)
    live.attempt(2, 1)
    foreign = tmp_path / "rankwatch-doctor-1"
    foreign.mkdir()
    (foreign / "probe").touch()
    starting = tmp_path / "rankwatch-starting"
    starting.mkdir()
    SlotsFolder(tmp_path).remove()
    assert live.path.exists()
    assert foreign.exists()
    assert starting.exists()
