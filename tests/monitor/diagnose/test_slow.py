"""Who is late, by profiles: only who waits less than the others all the time, and only where the others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from monitor.diagnose.scenes import at, call, report, sleeps, stands, trains
from rankwatch.contract.diagnosis import Profile, Profiled, SeenRank
from rankwatch.contract.messages import Frame
from rankwatch_monitor.core.cause import Site
from rankwatch_monitor.diagnose import screen, slow
from rankwatch_monitor.diagnose.judge import Judged, Verdict, judge

FRAMES = (*call(), *at("load"), *at("forward"))
WAITS, LOADS, COMPUTES = (0, 1), (2, 3), (4, 5)


def profiled(rank: int, slices: Sequence[tuple[int, int, int]], **kernel: Any) -> SeenRank:
    """``slices``: samples that found it waiting, loading, computing."""
    made = tuple(
        tuple(Profiled(stack, number) for stack, number in zip((WAITS, LOADS, COMPUTES), each, strict=True) if number)
        for each in slices
    )
    return replace(trains(rank), profile=Profile(FRAMES, made, **kernel))


PEER = (70, 5, 25)


def of(*ranks: SeenRank) -> Judged:
    (judged,) = judge([report(*ranks)])
    return judged


def late(judged: Judged) -> list[int]:
    assert judged.slowness is not None
    return [each.rank for each in judged.slowness.late]


def test_a_rank_that_hardly_waits_while_the_others_do_is_late_with_what_it_does_instead() -> None:
    peers = [profiled(rank, [PEER] * 3) for rank in (0, 1, 3)]
    judged = of(*peers, profiled(2, [(5, 70, 25)] * 3))
    assert (judged.verdict, late(judged)) == (Verdict.SLOW, [2])
    assert judged.slowness is not None
    (found,) = judged.slowness.late
    assert found.waits == slow.Beside(0.05, 0.7)
    assert found.rows[0] == slow.Row(slow.Spot(Site("load", "train.py", 12), waits=False), 0.7, 0.05)
    assert (found.lacks_cpu, found.is_throttled, found.reads_pages) == (False, False, False)


def test_of_two_ranks_and_of_two_late_ones() -> None:
    assert late(of(profiled(0, [PEER] * 3), profiled(1, [(20, 50, 30)] * 3))) == [1]
    others = [profiled(rank, [PEER] * 3) for rank in range(4)]
    assert late(of(*others, profiled(4, [(40, 30, 30)] * 3), profiled(5, [(10, 60, 30)] * 3))) == [5, 4]


@pytest.mark.parametrize(
    "slices",
    [
        [PEER] * 3,
        [(65, 10, 25)] * 3,
        [(0, 75, 25), PEER, PEER],  # a checkpoint, once
        [(69, 6, 25), (30, 45, 25), (30, 45, 25)],  # it began while it was looked at
    ],
)
def test_nobody_is_late_of_ranks_that_wait_alike_or_less_only_for_a_while(slices: Any) -> None:
    judged = of(*(profiled(rank, [PEER] * 3) for rank in range(3)), profiled(3, slices))
    assert (judged.verdict, late(judged)) == (Verdict.HEALTHY, [])


def test_a_job_whose_ranks_stand_is_not_called_slow_as_it_may_hang() -> None:
    peers = [replace(stands(rank), profile=profiled(rank, [(100, 0, 0)] * 3).profile) for rank in (0, 2, 3)]
    judged = of(*peers, replace(sleeps(1), profile=profiled(1, [(0, 100, 0)] * 3).profile))
    assert (judged.verdict, late(judged)) == (Verdict.UNKNOWN, [1])
    assert judged.incident is not None


def test_ranks_that_were_not_seen_are_stated() -> None:
    judged = of(profiled(0, [PEER] * 3), profiled(1, [PEER] * 3), profiled(2, [(5, 70, 25)] * 3))
    assert (judged.verdict, judged.unseen) == (Verdict.SLOW, (3,))
    assert judged.reason.endswith("Rank 3 was not seen.")


def test_nobody_is_late_where_nobody_waits() -> None:
    assert late(of(profiled(0, [(0, 90, 10)] * 3), profiled(1, [(0, 10, 90)] * 3))) == []


def test_too_few_samples_or_one_rank_alone_tell_nothing() -> None:
    assert of(profiled(0, [PEER] * 3), profiled(1, [(1, 20, 5)] * 3)).slowness is None
    assert of(profiled(0, [PEER] * 3)).slowness is None
    assert of(trains(0), trains(1)).slowness is None


@pytest.mark.parametrize(
    ("own", "peers", "shown"),
    [
        ({"running": 0.25, "ready": 0.7}, {"running": 0.25, "ready": 0.02}, "lacks_cpu"),
        ({"throttled": 0.3}, {"throttled": 0.0}, "is_throttled"),
        ({"faults": 800.0}, {"faults": 1.0}, "reads_pages"),
    ],
)
def test_what_the_kernel_tells_of_a_late_rank(own: Mapping[str, Any], peers: Mapping[str, Any], shown: str) -> None:
    judged = of(profiled(0, [(5, 70, 25)] * 3, **own), *(profiled(rank, [PEER] * 3, **peers) for rank in (1, 2)))
    assert judged.slowness is not None
    (found,) = judged.slowness.late
    assert getattr(found, shown)
    assert [name for name in ("lacks_cpu", "is_throttled", "reads_pages") if getattr(found, name)] == [shown]


def test_that_all_wait_for_a_cpu_is_not_the_cause_of_one() -> None:
    crowded = [profiled(rank, [PEER] * 3, running=0.1, ready=0.15) for rank in (1, 2)]
    judged = of(profiled(0, [(5, 70, 25)] * 3, running=0.38, ready=0.57), *crowded)
    assert judged.slowness is not None
    assert not judged.slowness.late[0].lacks_cpu


def test_the_screen_and_the_folded_stacks() -> None:
    judged = of(*(profiled(rank, [PEER] * 3) for rank in (0, 1)), profiled(2, [(5, 70, 25)] * 3))
    shown = screen.lines([judged], [], [])
    assert "    70 %       5 %   is in load() (train.py:12)" in shown
    counts = Counter(dict(line.rsplit(" ", 1) for line in slow.folded(judged.ranks).splitlines()))
    assert counts["rank 2;main (/src/train.py:40);load (/src/train.py:12)"] == "210"
    assert len(counts) == 9


def test_hostile_profiles_do_not_fail() -> None:
    bad = Profile((), tuple((Profiled((0, 7, -1), 50),) for _ in range(3)))
    judged = of(replace(trains(0), profile=bad), profiled(1, [PEER] * 3))
    assert judged.slowness is not None


def test_a_frame_stays_on_its_line() -> None:
    frame = Frame("f\nrank 9;g 7\x1b[2J", "/a\n;b.py", 3)
    profile = Profile((frame,), ((Profiled((0,), 5),),))
    text = slow.folded([replace(trains(0), profile=profile)])
    assert text.count("\n") == 1
    assert text.count(";") == 1
    assert text.strip().isprintable()
