"""What NCCL answers goes with the stacks of a capture, which do not wait for it for long."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankwatch.contract.messages import RankStack
from rankwatch.contract.nccl_ras import RasReport
from rankwatch_launcher.node import evidence
from rankwatch_launcher.node.attempt import Attempt, RankProcess
from rankwatch_launcher.node.evidence import EvidenceTaker
from support.waiting import wait_for

REPORT = RasReport("2.28.9", total=3)


class Stage:
    """An evidence taker of one node, of which ``first`` is the lowest rank; what it posts."""

    def __init__(self, pid: int, first: int) -> None:
        self.posted: list[dict[str, Any]] = []
        ranks = (RankProcess(first, 0, pid), RankProcess(first + 1, 1, pid))
        slots = SimpleNamespace(stack_file=lambda _: None, entering=lambda _: nullcontext(True))
        attempt = Attempt(1, cast(Any, slots), cast(Any, None), ranks, 8)
        self.taker = EvidenceTaker("n", cast(Any, SimpleNamespace(current=attempt, launchers=1)))
        self.taker.connect(cast(Any, self), lambda: None)

    def post(self, what: str, message: Callable[[], dict[str, Any]], *, delay: float = 0.0) -> None:
        assert (what, delay >= 0.0) == ("evidence", True)
        self.posted.append(message())


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


def answers(monkeypatch: pytest.MonkeyPatch, ask: Callable[..., RasReport | None]) -> None:
    monkeypatch.setattr(evidence.ras, "ask", ask)


@pytest.mark.parametrize(("first", "asks"), [(0, True), (2, True), (4, False), (6, False)])
def test_the_first_nodes_ask_nccl_beside_the_stacks(
    pid: int, monkeypatch: pytest.MonkeyPatch, first: int, asks: bool
) -> None:
    answers(monkeypatch, lambda pids, until: REPORT if list(pids) == [pid, pid] else None)
    stage = Stage(pid, first)
    stage.taker.capture(20.0, incident="i", directive=1)
    (posted,) = stage.posted
    assert [each["rank"] for each in posted["stacks"]] == [first, first + 1]
    assert (posted["ras"] is not None) is asks


def test_of_a_crash_nccl_is_not_asked(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, lambda pids, until: pytest.fail("asked"))
    stage = Stage(pid, 0)
    stage.taker.capture(20.0, incident=None, exited=[RankStack(0, pid, "traceback")])
    assert stage.posted[0]["ras"] is None
    stage = Stage(pid, 0)
    stage.taker.capture(20.0, incident=None, last=True)
    assert stage.posted[0]["ras"] is None


def test_stacks_go_without_an_answer_that_comes_late_and_it_follows(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    answers(monkeypatch, lambda pids, until: REPORT if go.wait(60) else None)
    stage = Stage(pid, 0)
    began = time.monotonic()
    stage.taker.capture(1.0, incident="i", directive=1)
    assert time.monotonic() - began < 30.0
    (stacks,) = stage.posted
    assert (len(stacks["stacks"]), stacks["ras"]) == (2, None)
    go.set()
    late = wait_for(lambda: stage.posted[1:], "the answer follows")[0]
    assert (late["stacks"], late["incident_id"], late["ras"]["total"]) == ((), "i", 3)


def test_a_question_that_fails_leaves_the_stacks_alone(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no")

    answers(monkeypatch, fails)
    stage = Stage(pid, 0)
    stage.taker.capture(20.0, incident="i", directive=1)
    assert stage.posted[0]["ras"] is None
