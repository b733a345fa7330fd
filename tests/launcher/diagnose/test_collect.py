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
