"""What one user's processes leave of a report to those of another."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from rankwatch.contract.diagnosis import Profile, Profiled, SeenExit, SeenRank, ThreadStack
from rankwatch.contract.messages import Collective, Frame, RankLog, RankStack
from rankwatch_launcher.diagnose.share import MOST, fitted

WIDE = "\N{GRINNING FACE}" * 300
FRAMES = tuple(Frame(WIDE, WIDE, line) for line in range(64))


def rank(number: int, user: int = 1, *, frames: tuple[Frame, ...] = FRAMES[:20]) -> SeenRank:
    stack = RankStack(
        number, 100 + number, "py-spy", frames, collectives=(Collective("g", 1, 1, "all_reduce", (0, 1)),)
    )
    profile = Profile(frames, ((Profiled(tuple(range(len(frames))), 200),),) * 3)
    threads = (ThreadStack("t", frames[:12]),)
    return SeenRank(100 + number, "j", number, 8, stack=stack, threads=threads, profile=profile, user=user,
                    log=RankLog(number, "stderr", "h", "p"))  # fmt: skip


def size(*parts: SeenRank | SeenExit) -> int:
    return sum(len(json.dumps(asdict(part))) for part in parts)


def test_what_fits_is_left_as_it_is() -> None:
    ranks = [rank(0), rank(1, user=2)]
    exits = [SeenExit("j", 2, user=1)]
    assert fitted(ranks, exits) == (tuple(ranks), tuple(exits), ())


def test_what_is_cut_is_that_of_the_user_with_the_most() -> None:
    victim, hostile = [rank(n, user=1) for n in range(4)], [rank(n, user=2, frames=FRAMES) for n in range(200)]
    seen = [each for pair in zip(hostile, victim * 50, strict=True) for each in pair][:8] + hostile[4:]
    found = fitted(seen, [SeenExit("j", 7, user=1)])
    assert [each for each in found.ranks if each.user == 1] == victim
    assert found.exits == (SeenExit("j", 7, user=1),)
    assert set(found.cut) == {each.pid for each in hostile}
    assert size(*found.ranks) <= MOST
    others = [each for each in found.ranks if each.user == 2]
    assert len(others) == len(hostile)
    assert {(each.threads, each.log, each.profile) for each in others} == {((), None, None)}
    assert {len(each.stack.frames) for each in others} == {4}


def test_least_is_lost_first() -> None:
    whole = [rank(n) for n in range(4)]
    bare = [replace(each, threads=()) for each in whole]
    found = fitted(whole, [], size(*bare))
    assert list(found.ranks) == bare


def test_beyond_that_ranks_and_exits_are_left_out() -> None:
    victim, hostile = rank(0, user=1), [replace(rank(n, user=2), job="x" * 1000) for n in range(100)]
    exits = [SeenExit("x" * 1000, n, user=2) for n in range(10_000)]
    found = fitted([*hostile, victim], exits, 1 << 20)
    assert victim in found.ranks
    assert 0 < len([each for each in found.ranks if each.user == 2]) <= 100
    assert size(*found.ranks, *found.exits) <= 1 << 20
