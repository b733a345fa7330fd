"""Ranks that stand at one line before their first step: said once, and only where it is certain. Nothing waits."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.contract.messages import Frame, RankStack
from rankwatch_launcher.node.attempt import Attempt, RankProcess
from rankwatch_launcher.node.first_look import FirstLook

LIBRARY = Frame("recv", "/venv/lib/python3.11/site-packages/torch/store.py", 7)
LOAD, OTHER = Frame("load", "/me/train.py", 12), Frame("load", "/me/train.py", 13)
IDLE = {"first_iteration": None, "quiet": None, "beats": 0, "open_sections": {}}


def said(
    caplog: pytest.LogCaptureFixture, *looks: tuple[Frame | None, ...], ranks: int = 2, **second: Any
) -> list[str]:
    """What is logged of two ranks that stand at these places, look after look; ``second``: the second one's reading."""
    readings = {0: SimpleNamespace(**IDLE), 1: SimpleNamespace(**IDLE | second)}
    left = list(looks)

    def sample(targets: Any, _deadline: float, _known: Any) -> tuple[dict[int, Any], list[RankStack]]:
        pairs = zip(targets, left.pop(0), strict=True)
        return {}, [RankStack(each.rank, 1, "py-spy", () if at is None else (LIBRARY, at)) for each, at in pairs]

    slots: Any = SimpleNamespace(read=lambda: dict(list(readings.items())[:ranks]), stack_file=lambda _: None)
    processes = tuple(RankProcess(rank, rank, 100 + rank) for rank in range(2))
    attempt: Any = Attempt(1, slots, SimpleNamespace(), processes, 2)  # type: ignore[arg-type]
    stacks: Any = SimpleNamespace(sample=sample)
    FirstLook(stacks, seconds=0.0)._run(attempt, threading.Event())
    return [record.getMessage() for record in caplog.records if "first step" in record.getMessage()]


def test_one_line_of_all_ranks_in_both_looks_is_said(caplog: pytest.LogCaptureFixture) -> None:
    (text,) = said(caplog, (LOAD, LOAD), (LOAD, LOAD))
    assert "all 2 ranks" in text
    assert "load() (train.py:12)" in text


@pytest.mark.parametrize(
    "looks",
    [((LOAD, OTHER), (LOAD, OTHER)), ((LOAD, LOAD), (OTHER, OTHER)), ((LOAD, None), (LOAD, None)), ((None, None),) * 2],
    ids=["two lines", "they move", "one unknown", "all unknown"],
)
def test_otherwise_nothing_is_said(
    looks: tuple[tuple[Frame | None, ...], ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert said(caplog, *looks) == []


@pytest.mark.parametrize(
    "second", [{"first_iteration": 0}, {"quiet": 1.0}, {"beats": 1}, {"open_sections": {"setup": 40.0}}], ids=str
)
def test_ranks_that_have_begun_are_not_looked_at(second: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, **second) == []


def test_ranks_without_init_are_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, ranks=1) == []
    assert said(caplog, ranks=0) == []


def test_an_attempt_that_is_over_is_not_looked_at() -> None:
    looked: list[Any] = []
    stacks: Any = SimpleNamespace(sample=lambda *given: looked.append(given))
    ending = threading.Event()
    ending.set()
    FirstLook(stacks)._run(SimpleNamespace(), ending)  # type: ignore[arg-type]
    assert looked == []
