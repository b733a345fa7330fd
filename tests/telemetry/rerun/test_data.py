"""The microbatches of a step can be had once more, in place and after a resume."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rankwatch.rerun import RerunDataIterator
from rankwatch.rerun.data import rerun_iterators


def take(data: RerunDataIterator, count: int) -> list[int]:
    return [next(data) for _ in range(count)]


def test_a_step_is_replayed_and_the_next_one_is_new() -> None:
    data = RerunDataIterator(range(100))
    data.advance()
    assert take(data, 3) == [0, 1, 2]
    for _ in range(2):
        data.rewind()
        assert take(data, 3) == [0, 1, 2]
    data.advance()
    assert take(data, 2) == [3, 4]


def test_a_re_run_may_read_less_or_more_than_the_first_run() -> None:
    data = RerunDataIterator(range(100))
    data.advance()
    take(data, 2)
    data.rewind()
    assert take(data, 3) == [0, 1, 2]
    data.rewind()
    assert take(data, 3) == [0, 1, 2], "what it read further is kept too"
    data.rewind()
    take(data, 1)
    data.advance()
    assert take(data, 1) == [3]


@pytest.mark.parametrize("kind", [dict, UserDict, lambda items: list(items.items())], ids=["dict", "UserDict", "list"])
def test_a_step_may_take_things_out_of_a_microbatch(kind: Callable[[dict[str, int]], Any]) -> None:
    data = RerunDataIterator([kind({"labels": 1})])
    data.advance()
    for _ in range(3):
        batch = next(data)
        assert len(batch) == 1
        batch.pop("labels" if not isinstance(batch, list) else 0)
        data.rewind()
    assert len(data.state_dict()["microbatches"][0]) == 1


def test_a_loader_is_asked_through_it_for_its_own_state() -> None:
    """Megatron hands over loaders of one's own as they are, and saves ``iterator.iterable.save_state()``."""

    class Loader:
        def __init__(self) -> None:
            self.given = 0

        def __next__(self) -> int:
            self.given += 1
            return self.given

        def save_state(self) -> int:
            return self.given

    data = RerunDataIterator(Loader())  # type: ignore[arg-type]
    assert take(data, 2) == [1, 2]
    assert data.iterable.save_state() == 2  # type: ignore[attr-defined]


def test_nothing_is_kept_before_the_first_step() -> None:
    data = RerunDataIterator(range(100))
    assert list(zip(data, range(3), strict=False)) == [(0, 0), (1, 1), (2, 2)]
    assert data.state_dict() == {"microbatches": []}


def test_the_data_may_end_within_a_step() -> None:
    data = RerunDataIterator(range(1))
    data.advance()
    assert next(data) == 0
    with pytest.raises(StopIteration):
        next(data)
    data.rewind()
    assert next(data) == 0


@pytest.mark.parametrize(
    ("skip_replayed", "first"),
    [pytest.param(True, 5, id="the loader begins with the step"), pytest.param(False, 7, id="the loader is behind it")],
)
def test_after_a_resume_the_step_comes_from_the_checkpoint(skip_replayed: bool, first: int) -> None:
    before = RerunDataIterator(iter(range(5, 100)))
    before.advance()
    take(before, 2)
    data = RerunDataIterator(iter(range(first, 100)), skip_replayed=skip_replayed)
    data.load_state_dict(before.state_dict())
    data.rewind()
    assert take(data, 2) == [5, 6]
    data.advance()
    assert take(data, 2) == [7, 8]


def test_dropping_what_was_replayed_survives_the_end_of_the_data() -> None:
    data = RerunDataIterator(iter(()))
    data.load_state_dict({"microbatches": [1]})
    data.advance()
    with pytest.raises(StopIteration):
        next(data)


def test_what_cannot_be_rewound_is_named() -> None:
    data = RerunDataIterator([1])
    assert rerun_iterators(None) == []
    assert rerun_iterators(data) == [data]
    assert rerun_iterators([None, data]) == [data]

    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match=r"a generator cannot be rewound.*RerunDataIterator\(iter\(loader\)\)"):
        rerun_iterators(generator())
