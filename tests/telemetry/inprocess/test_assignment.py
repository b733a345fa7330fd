from __future__ import annotations

import pytest

from rankwatch.inprocess.assignment import (
    ActiveWorldSizeDivisibleBy,
    Assign,
    FillGaps,
    KeepWorldSize,
    MaxActiveWorldSize,
    Places,
    ShiftRanks,
    Situation,
    compose,
    initial_places,
    with_node_mates,
)

ALL = (0, 1, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("assign", "places", "reserves", "lost", "after"),
    [
        (KeepWorldSize(), (0, 1), (2, 3), {1}, Places((0, 2), (3,))),
        (KeepWorldSize(), (0, 1), (2, 3), {0, 1}, Places((2, 3))),
        (KeepWorldSize(), (0, 1), (2, 3), {2}, Places((0, 1), (3,))),
        (KeepWorldSize(), (0, 1), (2,), {1, 2}, None),
        (KeepWorldSize(), (0, 1), (), set(), Places((0, 1))),
        (FillGaps(), ALL, (), {1, 4, 5}, Places((0, 6, 2, 3, 7))),
        (FillGaps(), (0, 1, 2), (3,), {0}, Places((3, 1, 2))),
        (FillGaps(), (0, 1), (), {0, 1}, None),
        (ShiftRanks(), ALL, (), {1, 4, 5}, Places((0, 2, 3, 6, 7))),
        (ShiftRanks(), (0, 1, 2), (3, 4), {0}, Places((1, 2, 3), (4,))),
        (ShiftRanks(), (0,), (), {0}, None),
        (compose(ShiftRanks(), ActiveWorldSizeDivisibleBy(2)), (0, 1, 2, 3), (), {3}, Places((0, 1), (2,))),
        (compose(ShiftRanks(), ActiveWorldSizeDivisibleBy(4)), (0, 1, 2, 3), (), {3}, None),
        (compose(ShiftRanks(), MaxActiveWorldSize(2)), (0, 1, 2), (), {0}, Places((1, 2))),
        (compose(ShiftRanks(), MaxActiveWorldSize()), (0, 1, 2), (), {0}, Places((1, 2))),
        (compose(KeepWorldSize(), MaxActiveWorldSize(2)), (0, 1, 2), (), {0}, None),
    ],
)
def test_which_ranks_train_next(
    assign: Assign, places: tuple[int, ...], reserves: tuple[int, ...], lost: set[int], after: Places | None
) -> None:
    assert assign(Situation(places, reserves, frozenset(lost))) == after


def test_the_first_ranks_begin_and_the_others_wait() -> None:
    assert initial_places(4, 3, ["n"] * 4, KeepWorldSize()) == Places((0, 1, 2), (3,))
    assert initial_places(2, None, ["n"] * 2, KeepWorldSize()) == Places((0, 1))
    with pytest.raises(ValueError, match="active_world_size is 5, but only 4 ranks were started"):
        initial_places(4, 5, ["n"] * 4, KeepWorldSize())


def test_a_node_is_lost_with_one_of_its_ranks() -> None:
    assert with_node_mates({1}, ["a", "a", "b"], "node") == {0, 1}
    assert with_node_mates({1}, ["a", "a", "b"], "rank") == {1}
