"""Columns over ranks: growing, forgetting, sections."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch_monitor.core.ranks import ALIVE, EXITED, LONGEST_MESSAGE, MESSAGES, UNKNOWN, RankColumns


def test_growing_keeps_what_is_known() -> None:
    columns = RankColumns(2)
    columns.set_sections(1, 100.0, {"step": 3.0}, None)
    columns.iteration_R[1], columns.hosts[1] = 7, "a"
    columns.grow(5)
    columns.grow(3)
    assert len(columns) == 5
    assert len(columns.hosts) == len(columns.instances) == len(columns.retired) == 5
    assert columns.open_since_RS.shape == (5, 1)
    assert columns.open_sections(1, 100.0) == {"step": 3.0}
    assert columns.open_sections(4, 100.0) == {}
    assert (columns.iteration_R[1], columns.iteration_R[4], columns.hosts[1]) == (7, -1, "a")
    assert columns.process_R.tolist() == [UNKNOWN] * 5


def test_ranks_that_come_one_by_one_are_rarely_moved() -> None:
    columns, ranks, place, moves = RankColumns(), 4_000, (0, 0), 0
    columns.add_sections(["step"])
    for rank in range(ranks):
        columns.grow(rank + 1)
        columns.iteration_R[rank] = rank
        if rank == ranks // 2:
            columns.add_sections(["epoch"])
        before, place = place, (columns.iteration_R.ctypes.data, columns.open_since_RS.ctypes.data)
        moves += place != before
    assert moves < 100
    assert columns.iteration_R.tolist() == list(range(ranks))
    assert columns.open_since_RS.shape == (ranks, 2)
    assert np.isnan(columns.open_since_RS).all()


def test_forgetting_a_rank_leaves_its_neighbours() -> None:
    columns = RankColumns(3)
    for rank in range(3):
        columns.set_sections(rank, 10.0, {"step": 1.0}, None)
        columns.reported_R[rank], columns.process_R[rank] = True, ALIVE
    columns.process_R[1] = EXITED
    columns.clear(1)
    assert columns.reported_R.tolist() == [True, False, True]
    assert columns.uses_sections_R.tolist() == [True, False, True]
    assert columns.process_R.tolist() == [ALIVE, UNKNOWN, ALIVE]
    assert columns.open_sections(1, 10.0) == {}
    assert columns.open_sections(2, 10.0) == {"step": 1.0}


def test_sections_are_replaced_as_a_whole() -> None:
    columns = RankColumns(1)
    columns.set_sections(0, 10.0, {"epoch": 8.0, "step": 2.0}, None)
    columns.set_sections(0, 12.0, {"epoch": 10.0}, None)
    assert columns.open_sections(0, 12.0) == {"epoch": pytest.approx(10.0)}
    assert columns.sections == ["epoch", "step"]


def test_idle_time_counts_only_while_no_section_is_open() -> None:
    columns = RankColumns(1)
    columns.set_sections(0, 10.0, {}, 4.0)
    assert columns.idle_since_R[0] == 6.0
    columns.set_sections(0, 11.0, {"step": 0.5}, 4.0)
    assert np.isnan(columns.idle_since_R[0])
    columns.set_sections(0, 12.0, {}, None)
    assert np.isnan(columns.idle_since_R[0])


def test_open_sections_come_outermost_first_and_never_negative() -> None:
    columns = RankColumns(1)
    columns.set_sections(0, 10.0, {"inner": 1.0, "outer": 5.0}, None)
    assert list(columns.open_sections(0, 9.0).items()) == [("outer", 4.0), ("inner", 0.0)]


def test_ranks_outside_all_sections() -> None:
    columns = RankColumns(3)
    assert columns.outside_sections().tolist() == [True] * 3, "there is no section at all"
    columns.set_sections(0, 10.0, {"step": 1.0, "forward": 0.5}, None)
    columns.set_sections(1, 10.0, {"forward": 0.5}, None)
    columns.set_sections(2, 10.0, {}, 1.0)
    assert columns.outside_sections().tolist() == [False, False, True]


def test_what_ranks_left_is_bounded_and_equal_texts_are_held_once() -> None:
    columns = RankColumns(1_000)
    for rank in range(500):
        columns.keep_message(rank, "RuntimeError: " + "x" * 10_000)
    assert {id(each) for each in columns.exit_messages.values()} == {id(columns.exit_messages[0])}
    assert len(columns.exit_messages[0]) == LONGEST_MESSAGE
    for rank in range(500, 1_000):
        columns.keep_message(rank, f"{rank} " + "x" * 10_000)
    assert columns.exit_messages[500].startswith("500 ")
    assert sum(map(len, set(columns.exit_messages.values()))) == MESSAGES
