"""Fits what was seen of a node into the size of a report, so that one user's processes do not cost another's. Pure.

Users share the room: one that needs less leaves the rest to the others. What is beyond a user's share is cut from all
of its ranks alike, then ranks are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from rankwatch.contract.diagnosis import Profile, SeenExit, SeenRank

MOST: Final = 12 << 20
"""Bytes of all ranks of a report; a reader takes 16 MiB."""


Seen = SeenRank | SeenExit


class Fitted(NamedTuple):
    """What a report has room for."""

    ranks: tuple[SeenRank, ...]
    exits: tuple[SeenExit, ...]
    cut: tuple[int, ...]
    """Processes of which something was cut or that were left out."""


def fitted(ranks: Sequence[SeenRank], exits: Sequence[SeenExit], room: int = MOST) -> Fitted:
    """The ranks and exits of a node within ``room`` bytes, in their order."""
    size, seen = _Sizes(), list[Seen]((*ranks, *exits))
    needed: dict[int, int] = {}
    for each in seen:
        needed[each.user] = needed.get(each.user, 0) + size.of(each)
    if sum(needed.values()) <= room:
        return Fitted(tuple(ranks), tuple(exits), ())
    shares = _shares(needed, room)
    kept = {id(each): each for each in seen if needed[each.user] <= shares[each.user]}
    cut = list[int]()
    for user, share in shares.items():
        if needed[user] <= share:
            continue
        own, ends = [e for e in ranks if e.user == user], [e for e in exits if e.user == user]
        cut += [each.pid for each in own]
        shrunk = list(own)
        for shrink in _SHRINKING:
            if sum(map(size.of, shrunk)) <= share:
                break
            shrunk = [shrink(each) for each in shrunk]
        smaller: list[Seen] = [*shrunk, *ends]
        for before, after in zip((*own, *ends), smaller, strict=True):
            share -= size.of(after)
            if share >= 0:
                kept[id(before)] = after
    both = [kept[id(each)] for each in seen if id(each) in kept]
    return Fitted(
        tuple(each for each in both if isinstance(each, SeenRank)),
        tuple(each for each in both if isinstance(each, SeenExit)),
        tuple(cut),
    )


def _shares(needed: Mapping[int, int], room: int) -> dict[int, int]:
    """The room of each user: an equal part of what those who need less have left."""
    shares = {}
    for left, (user, size) in enumerate(sorted(needed.items(), key=lambda one: one[1]), 1 - len(needed)):
        shares[user] = min(size, room // (1 - left))
        room -= shares[user]
    return shares


def _innermost(frames: int, **more: Any) -> Callable[[SeenRank], SeenRank]:
    return lambda each: replace(each, stack=replace(each.stack, frames=each.stack.frames[:frames], **more))


_SHRINKING: Final[Iterable[Callable[[SeenRank], SeenRank]]] = (
    lambda each: replace(each, threads=(), native=()),
    lambda each: replace(each, log=None),
    lambda each: replace(each, profile=None),
    _innermost(16),
    _innermost(4, collectives=()),
)


class _Sizes:
    """Sizes as JSON; of a profile, which is by far the largest part, it is found once."""

    def __init__(self) -> None:
        self._of_profile: dict[int, int] = {}

    def of(self, each: Seen) -> int:
        profile = each.profile if isinstance(each, SeenRank) else None
        if profile is None or not isinstance(each, SeenRank):
            return _size(each)
        if id(profile) not in self._of_profile:
            self._of_profile[id(profile)] = _size(profile)
        return self._of_profile[id(profile)] + _size(replace(each, profile=None))


def _size(part: Seen | Profile) -> int:
    return len(json.dumps(asdict(part), separators=(",", ":"))) + 1
