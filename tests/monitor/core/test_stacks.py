"""Grouping of stacks, and which of them wait for peers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch.wire.control import Frame, RankStack
from rankwatch_monitor.core.stacks import group, waits_for_peers

TORCH = "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def stack(rank: int, *functions: str, file: str = "/srv/me/train.py", line: int = 1) -> RankStack:
    return RankStack(rank, 100 + rank, "py-spy", tuple(Frame(f, file, line) for f in functions))


def test_the_odd_one_comes_first() -> None:
    groups = group([stack(r, "all_reduce", file=TORCH) for r in range(16) if r != 7] + [stack(7, "load")])
    assert [g.ranks for g in groups] == [(7,), tuple(r for r in range(16) if r != 7)]
    assert [g.label for g in groups] == ["rank 7", "15 ranks"]


def test_line_numbers_do_not_split_a_group_and_the_lowest_rank_is_shown() -> None:
    (only,) = group([stack(3, "f", line=30), stack(1, "f", line=10)])
    assert only.ranks == (1, 3)
    assert only.frames[0].line == 10


def test_the_same_function_of_another_file_is_another_place() -> None:
    assert len(group([stack(0, "f"), stack(1, "f", file="/srv/me/other.py")])) == 2


def test_stacks_that_could_not_be_had_are_left_out() -> None:
    assert group([RankStack(0, 1, "", error="no permission")]) == []
    assert group([]) == []


@pytest.mark.parametrize("function", ["all_reduce", "ProcessGroupNCCL.barrier", "Work.wait", "_engine_run_backward"])
def test_a_collective_of_torch_waits(function: str) -> None:
    assert waits_for_peers(stack(0, function, "train_step", file=TORCH).frames)


@pytest.mark.parametrize(
    "frames",
    [
        stack(0, "wait", file="/srv/me/train.py").frames,
        stack(0, "send", file="/usr/lib/python3.12/socket.py").frames,
        stack(0, "forward", file=TORCH).frames,
        stack(0, "wait", file="/srv/me/torchlike/queue.py").frames,
        (),
    ],
    ids=["a user's wait", "a socket", "another torch function", "a name alike", "nothing"],
)
def test_anything_else_does_not(frames: tuple[Frame, ...]) -> None:
    assert not waits_for_peers(frames)


def test_a_windows_path_is_understood() -> None:
    assert waits_for_peers((Frame("barrier", r"C:\venv\Lib\site-packages\torch\distributed\distributed_c10d.py", 1),))


@given(st.dictionaries(st.integers(0, 50), st.sampled_from(["f", "g", "h"])))
def test_every_rank_is_in_exactly_one_group(places: dict[int, str]) -> None:
    groups = group(stack(rank, function) for rank, function in places.items())
    ranks = [r for g in groups for r in g.ranks]
    assert sorted(ranks) == sorted(places)
    assert [len(g.ranks) for g in groups] == sorted(len(g.ranks) for g in groups)
    for g in groups:
        assert len({places[r] for r in g.ranks}) == 1
