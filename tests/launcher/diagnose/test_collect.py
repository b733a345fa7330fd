"""Whom the collector asks for its collectives: a rank that stands in one, never one that may be leaving."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.diagnose.scenes import at, call, seen, stands, usage
from rankwatch.contract.diagnosis import Hindrance
from rankwatch.contract.messages import Collective
from rankwatch_launcher.diagnose import collect, find
from rankwatch_launcher.diagnose.find import Rank
from rankwatch_launcher.stacks import collectives

KNOWN = (Collective("default_pg", "all_reduce", 4, 3),)


@pytest.mark.parametrize(
    ("shown", "socket", "asked"),
    [
        (stands(0), "/run/rank.sock", True),
        (stands(0), "", False),
        (stands(0), "rank.sock", False),  # of a folder that only the rank knows
        (seen(0, call(), usage(same_stack=0.5)), "/run/rank.sock", False),
        (seen(0, at("exit"), usage()), "/run/rank.sock", False),
        (seen(0, (), usage()), "/run/rank.sock", False),
    ],
)
def test_only_who_stands_in_a_collective_is_asked(
    shown: object, socket: str, asked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[Path] = []

    def of_rank(path: Path, until: float, owner: int) -> tuple[Collective, ...]:
        assert owner == 1000
        assert until < time.monotonic() + 2 * collect.CONTROL_PLANE_SECONDS
        calls.append(path)
        return KNOWN

    monkeypatch.setattr(collectives, "of_rank", of_rank)
    rank = Rank(100, "job", 0, 4, 0, 4, dumps=str(tmp_path / "none"), control_plane=socket, user=1000)
    watched = collect._Watched(rank, None, shown.stack)  # type: ignore[attr-defined]
    assert collect._collectives(watched) == (KNOWN if asked else ())
    assert calls == ([Path(socket)] if asked else [])


def test_a_process_that_does_not_answer_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rank = Rank(100, "job", 0, 4, 0, 4, dumps=str(tmp_path / "none"), control_plane=str(tmp_path / "no.sock"))
    assert collect._collectives(collect._Watched(rank, None, replace(stands(0)).stack)) == ()


def test_a_process_that_the_kernel_does_not_show_is_no_process_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    collector = collect.Collector(proc=tmp_path)
    shown = replace(stands(0)).stack
    unread = replace(shown, frames=(), error="py-spy: Error: Failed to get process executable name.")
    assert not collector._refused(unread), "it has ended"

    def refuse(path: object) -> str:
        raise PermissionError(path)

    monkeypatch.setattr(collect.os, "readlink", refuse)
    assert collector._refused(unread)
    assert [each.kind for each in collector._obstacles(find.Found(), [unread, shown])][-1:] == [Hindrance.NOT_TRACED]


def frames(rank: int | None = None, *, size: int | None = None, i: int | None = None) -> list[dict[str, object]]:
    """Those of a process of ``torch.multiprocessing`` (``i``) or of Python's, innermost first."""

    def frame(name: str, file: str, **variables: int | None) -> dict[str, object]:
        shown = [{"name": each, "repr": str(value)} for each, value in variables.items() if value is not None]
        return {"name": name, "filename": file, "locals": shown}

    made = [
        frame("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", rank=0),
        frame("train", "/src/train.py", rank=rank, world_size=size),
        frame("run", "/usr/lib/python3.11/multiprocessing/process.py", rank=7),
    ]
    return made if i is None else [*made, frame("_wrap", "/x/site-packages/torch/multiprocessing/spawn.py", i=i)]


def numbered(*stacks: list[dict[str, object]], nprocs: int | None = None) -> list[tuple[int, int, bool]]:
    ranks = [Rank(20 + i, "job", i, len(stacks), i, guessed=True, parent=10) for i in range(len(stacks))]
    parent = [{"name": "spawn", "filename": "/x/torch/multiprocessing/spawn.py", "locals": []}]
    if nprocs is not None:
        parent[0]["locals"] = [{"name": "nprocs", "repr": str(nprocs)}]
    known = collect._numbered(ranks, {10: parent, **{20 + i: each for i, each in enumerate(stacks)}})
    found = [known.get(each.pid, each) for each in ranks]
    return [(each.rank, each.world_size, each.guessed) for each in found if each is not None]


def test_ranks_have_the_numbers_that_their_functions_were_given() -> None:
    assert numbered(frames(1), frames(0)) == [(1, 2, False), (0, 2, False)]
    assert numbered(frames(3, size=4), frames(2, size=4)) == [(3, 4, False), (2, 4, False)], "of another node, too"
    assert numbered(frames(i=1), frames(i=0), nprocs=3) == [(1, 3, False), (0, 3, False)]
    assert numbered(frames(5, size=8, i=1), frames(4, size=8, i=0), nprocs=2) == [(5, 8, False), (4, 8, False)]


def test_variables_that_number_nobody_do_not() -> None:
    assert numbered(frames(), frames()) == [(0, 2, True), (1, 2, True)]
    assert numbered(frames(8), frames(8)) == [(0, 2, True), (1, 2, True)], "the rank of a matrix"
    assert numbered(frames(8, i=1), frames(8, i=0)) == [(1, 2, False), (0, 2, False)]
    assert numbered(frames(0), frames()) == [(0, 2, True), (1, 2, True)]
    assert numbered(frames(7), frames(3)) == [(0, 2, True), (1, 2, True)], "of more ranks than there are"
