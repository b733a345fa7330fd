"""What a slow rank does beside a fast one: told where the looks differ clearly, and nothing else."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.contract.messages import Frame, RankStack
from rankwatch_launcher.node.attempt import Attempt, RankProcess
from rankwatch_launcher.node.slow_look import LOOKS, Difference, SlowLook, difference

LIBRARY = Frame("recv", "/venv/lib/python3.11/site-packages/torch/store.py", 7)
LOAD, LATER, WAIT = (Frame(name, "/me/train.py", line) for name, line in (("load", 12), ("load", 14), ("step", 40)))


@pytest.mark.parametrize(
    ("slow", "fast", "found"),
    [
        ([LOAD] * 5 + [LATER] * 3 + [WAIT] * 4, [WAIT] * 12, Difference(LOAD, 8, 0)),
        ([LOAD] * 6 + [WAIT] * 6, [LOAD] * 2 + [WAIT] * 10, Difference(LOAD, 6, 2)),
        ([LOAD] * 4 + [WAIT] * 8, [LOAD] * 3 + [WAIT] * 9, None),
        ([WAIT] * 12, [WAIT] * 12, None),
        ([LOAD] * 12, None, Difference(LOAD, 12, 0)),
        ([LOAD] * 5 + [WAIT] * 4, None, None),
        ([], [WAIT] * 12, None),
    ],
)
def test_a_place_is_named_where_the_looks_differ(
    slow: list[Frame], fast: list[Frame] | None, found: Difference | None
) -> None:
    assert difference(slow, fast) == found


def attempt(ranks: int) -> Any:
    slots: Any = SimpleNamespace(stack_file=lambda _: None)
    return Attempt(1, slots, SimpleNamespace(), tuple(RankProcess(r, r, 100 + r) for r in range(ranks)), ranks)  # type: ignore[arg-type]


def looks(places: dict[int, Frame]) -> tuple[Any, list[list[int]]]:
    seen: list[list[int]] = []

    def sample(targets: Any, _deadline: float, _known: Any) -> tuple[dict[int, Any], list[RankStack]]:
        seen.append([target.rank for target in targets])
        return {}, [RankStack(each.rank, 1, "py-spy", (LIBRARY, places[each.rank])) for each in targets]

    return SimpleNamespace(sample=sample), seen


def test_a_slow_rank_and_one_other_are_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    stacks, seen = looks({0: WAIT, 1: WAIT, 2: LOAD})
    look = SlowLook(stacks, pause=(0.0, 0.0))
    look._busy.acquire()
    look._run(attempt(3), 2, threading.Event())
    assert seen == [[0, 2]] * LOOKS
    assert caplog.messages == [f"in {LOOKS} of {LOOKS} looks rank 2 is in load() (train.py:12), rank 0 in 0"]
    assert not look._busy.locked()


def test_a_rank_of_another_node_is_not_looked_at() -> None:
    stacks, seen = looks({})
    look = SlowLook(stacks, pause=(0.0, 0.0))
    look.begin(attempt(2), 7)
    assert (seen, look._busy.locked()) == ([], False)


def test_an_attempt_that_is_over_is_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    stacks, seen = looks({0: WAIT, 1: LOAD})
    look, ending = SlowLook(stacks, pause=(0.0, 0.0)), threading.Event()
    ending.set()
    look._busy.acquire()
    look._run(attempt(2), 1, ending)
    assert (seen, caplog.messages, look._busy.locked()) == ([], [], False)
