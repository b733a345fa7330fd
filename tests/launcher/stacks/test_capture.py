"""Stacks taken of real ranks, by each way, and the deadline that holds in all of them."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest

from rankwatch.contract.enums import ProcessState
from rankwatch.contract.env import stack_file
from rankwatch.contract.files import find_program
from rankwatch.contract.messages import Frame, RankStack
from rankwatch.liveness.torch_control_plane import socket_file
from rankwatch_launcher.stacks import capture as evidence
from rankwatch_launcher.stacks import formats
from rankwatch_launcher.stacks.capture import StackReader, Target
from support.gloo_ranks import GlooRanks, gloo_ranks
from support.waiting import wait_for

DEADLINE = 3.0


def reader(*, py_spy: bool) -> StackReader:
    """A reader that has done its probe, with or without py-spy."""
    made = StackReader(py_spy=find_program("py-spy") if py_spy else None, refusal="" if py_spy else "no right to trace")
    made._probed.set()
    return made


def targets(ranks: GlooRanks) -> list[Target]:
    return [Target(r, r, pid, ranks.folder / f"{r}.stack") for r, pid in enumerate(ranks.pids)]


def captured(ranks: GlooRanks, deadline: float = DEADLINE, *, py_spy: bool = False) -> tuple[RankStack, ...]:
    began = time.monotonic()
    stacks = reader(py_spy=py_spy).capture(targets(ranks), deadline, last=False)
    assert time.monotonic() - began < deadline + 20.0, "it ends by itself, on a busy machine somewhat later"
    assert [s.rank for s in stacks] == [0, 1]
    return stacks


def all_enter(ranks: GlooRanks) -> None:
    """Rank 0 is surely in the collective that rank 1 misses."""
    wait_for(lambda: captured(ranks)[0].collectives[0].enqueued == 4, "rank 0 enters the fourth")


def test_faulthandler_is_the_second_way_and_the_collectives_come_beside(tmp_path: Path) -> None:
    with gloo_ranks(tmp_path) as ranks:
        all_enter(ranks)
        waits, sleeps = captured(ranks)
    assert (waits.method, sleeps.method) == ("faulthandler", "faulthandler")
    assert waits.frames[0].function == "all_reduce"
    assert "rankwatch_sleeps" in [f.function for f in sleeps.frames]
    assert [(s.collectives[0].enqueued, s.collectives[0].completed) for s in (waits, sleeps)] == [(4, 3), (3, 3)]


def test_py_spy_goes_before_it(tmp_path: Path) -> None:
    with gloo_ranks(tmp_path, kind="gil") as ranks:
        stacks = captured(ranks, py_spy=True)
    if any("ermission" in s.error for s in stacks):
        pytest.skip(f"py-spy may not trace here: {stacks[0].error}")
    assert [s.method for s in stacks] == ["py-spy", "py-spy"]
    assert "rankwatch_holds_the_gil" in [f.function for f in stacks[1].frames]
    assert stacks[1].collectives[0].enqueued == 3, "the flight recorder needs no GIL"


def test_a_rank_that_holds_its_gil_writes_its_stack_and_its_collectives_are_reported(tmp_path: Path) -> None:
    with gloo_ranks(tmp_path, kind="gil") as ranks:
        other, held = captured(ranks, deadline=10.0)
    assert (other.method, held.method) == ("faulthandler", "faulthandler")
    assert "rankwatch_holds_the_gil" in [f.function for f in held.frames]
    assert held.collectives[0].enqueued == 3


def test_a_rank_that_is_about_to_end_is_neither_signalled_nor_asked(tmp_path: Path) -> None:
    with gloo_ranks(tmp_path) as ranks:
        closed = [replace(t, entering=partial(contextlib.nullcontext, False)) for t in targets(ranks)]
        stacks = reader(py_spy=False).capture(closed, DEADLINE, last=True)
        for rank in range(2):
            assert (ranks.folder / f"{rank}.stack").read_text().count("\n") == 1, "the main thread's identifier alone"
    assert [(s.method, s.collectives) for s in stacks] == [("", ()), ("", ())]


def test_a_stopped_rank_is_an_error_at_once_and_is_not_continued(tmp_path: Path) -> None:
    with gloo_ranks(tmp_path) as ranks:
        ranks.stop(1)
        began = time.monotonic()
        other, stopped = captured(ranks, deadline=10.0)
        assert time.monotonic() - began < 9.5, "nothing that is known to be in vain is waited for"
        assert (other.method, stopped.method) == ("faulthandler", "")
        assert stopped.process_state is ProcessState.STOPPED
        stat = Path(f"/proc/{ranks.pids[1]}/stat").read_text()
        assert stat.rpartition(")")[2].split()[0] == "T"


def test_no_capture_takes_longer_than_ten_seconds_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evidence.MAX_SECONDS <= 10.0
    release = threading.Event()
    monkeypatch.setattr(evidence, "MAX_SECONDS", 0.3)
    monkeypatch.setattr(evidence.procfs, "process_state", lambda _: release.wait())
    began = time.monotonic()
    stacks = reader(py_spy=False).capture([Target(r, r, 1) for r in range(40)], 600.0, last=True)
    release.set()
    assert time.monotonic() - began < 30.0
    assert [s.rank for s in stacks] == list(range(40)), "every rank is accounted for"
    assert {s.error for s in stacks} == {"no stack within 0.3 s"}


def test_one_rank_that_cannot_be_read_at_all_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pid: int) -> ProcessState:
        if pid == 1:
            raise RuntimeError("unreadable")
        return ProcessState.EXITED

    monkeypatch.setattr(evidence.procfs, "process_state", broken)
    stacks = reader(py_spy=False).capture([Target(0, 0, 1), Target(1, 1, 2)], 5.0, last=False)
    assert [s.error for s in stacks] == ["no stack within 5 s", "the process is gone"]


def test_the_rank_and_its_launcher_mean_the_same_socket(tmp_path: Path) -> None:
    target = Target(11, 3, 1, tmp_path / stack_file(3))
    assert target.control_plane is None
    (tmp_path / socket_file(3)).touch()
    assert target.control_plane == tmp_path / socket_file(3)


# Sizes ----------------------------------------------------------------------------------------------------------------


def wide(rank: int, text: str = "x") -> RankStack:
    frames = tuple(Frame(text * 300, text * 300, i) for i in range(64))
    return RankStack(rank, 1, "py-spy", frames)


@pytest.mark.parametrize("text", ["x", "ü", "\U0001f600", '"'])
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_a_nodes_evidence_fits_into_what_a_monitor_takes(ranks: int, text: str) -> None:
    kept = formats.bounded([wide(r, text) for r in range(ranks)])
    assert len(json.dumps([asdict(s) for s in kept])) < 4 * 2**20
    assert [s.rank for s in kept] == list(range(ranks))
    assert all(s.frames[0].line == 0 for s in kept), "the inner frames are kept"
    if any(len(s.frames) < 64 for s in kept):
        assert all("truncated" in s.error for s in kept)


def test_what_fits_is_left_as_it_is() -> None:
    small = [RankStack(r, 1, "py-spy", (Frame("f", "/a.py", 1),)) for r in range(8)]
    assert formats.bounded(small) == tuple(small)


@pytest.mark.parametrize("does", ["bytearray(1 << 30)", "sys.stdout.write('[' * (64 << 20))"])
def test_a_py_spy_that_a_process_makes_grow_is_ended(tmp_path: Path, does: str) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!{sys.executable}\nimport sys\nx = {does}\nprint('[]')\n")
    tool.chmod(0o755)
    with pytest.raises(ValueError, match="py-spy"):
        evidence.run_py_spy(str(tool), 1, 60.0)
    tool.write_text(f"#!{sys.executable}\nprint('[]')\n")
    assert evidence.run_py_spy(str(tool), 1, 60.0) == "[]\n"
