"""Finds ranks that called another collective than their peers or have not entered theirs, by sequence numbers.

All ranks of a group issue the same collectives in the same order: a rank in collective 58, which is not completed,
waits for the ranks that have entered fewer. Sequence numbers of different groups are unrelated (pipeline stages and
tensor-parallel groups run at their own pace), so they are compared within one group only. Ranks whose collectives of
one number differ in operation or size wait for each other without end, or are aborted by their backend.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from rankwatch_monitor.core.cause import Call
from rankwatch_monitor.core.hang.stacks import GroupProgress

MOST_BYTES: Final = 1 << 28
"""Read at most to find which ranks of a circle wait elsewhere than their peers; beyond it none is named."""


class Late(NamedTuple):
    """A rank that others wait for in one group."""

    missed: GroupProgress
    """The progress of the ranks that wait for it, of the furthest of them."""
    waiting: int
    """How many ranks of the group wait for it."""
    newest: int
    """Sequence number of the newest collective of the group that it has entered."""
    instead: GroupProgress | None = None
    """The progress of another group, in which it has entered a collective that is not completed."""
    reordered: bool = False
    """The ranks wait for each other in a circle, and this one has entered the groups in another order than before."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ranks of one group called different collectives under one sequence number, and some of them wait in theirs."""

    group: str
    number: int
    calls: tuple[tuple[str, tuple[int, ...]], ...]
    """Calls with their ranks, that of most ranks first."""
    has_majority: bool
    """More than half of the group's ranks made the first of the calls."""
    waiting: frozenset[int]
    """Ranks that wait in their call."""
    beside: frozenset[int] = frozenset()
    """Ranks of which another thread than the main one made the newest call of the group."""

    def by_its_past(self, earlier: Collection[str]) -> Mismatch:
        """Where as many ranks made one call as another: the one that was made before is the usual one, if only one."""
        usual = [each for each in self.calls if each[0] in earlier]
        if self.has_majority or len(usual) != 1:
            return self
        others = [each for each in self.calls if each is not usual[0]]
        return replace(self, calls=(*usual, *others), has_majority=True)


def call_of(each: GroupProgress) -> Call:
    """The newest collective that ranks have entered."""
    return Call(each.operation, each.enqueued, each.group)


class WaitingRanks(NamedTuple):
    """What follows from the sequence numbers of all groups."""

    late: dict[int, Late]
    """Ranks that others wait for and that wait for none themselves."""
    cycle: tuple[int, ...]
    """Ranks that wait for each other while no other rank is late: they entered collectives in different orders."""
    everywhere: tuple[GroupProgress, ...]
    """Collectives that all known ranks of their groups have entered and none has completed."""
    circle: tuple[GroupProgress, ...] = ()
    """Where the ranks of ``cycle`` wait."""


def waiting_ranks(progress: Sequence[GroupProgress]) -> WaitingRanks:
    """Compare the progress of all groups, of each the furthest first.

    Ranks that reported nothing of a group do not appear in its progress, so they are never late there.
    """
    late: dict[int, Late] = {}
    waiting: set[int] = set()
    everywhere: list[GroupProgress] = []
    for of_group in _by_group(progress):
        if len(of_group) == 1 or len({f.enqueued for f in of_group}) == 1:
            if all(f.waits for f in of_group) and _is_whole(of_group):
                everywhere.append(_merged(of_group))
            continue
        _judge(of_group, late, waiting)
    roots = {rank: each for rank, each in late.items() if rank not in waiting}
    if late and not roots:
        fronts = [f for f in progress if f.waits and not late.keys().isdisjoint(f.ranks)]
        odd = {rank for f in fronts if f.unusual for rank in late.keys() & f.ranks}
        if odd and odd != late.keys():
            roots = {rank: late[rank]._replace(reordered=True) for rank in odd}
        else:
            elsewhere = _Elsewhere(progress)
            few = elsewhere.bytes_for(late) <= MOST_BYTES
            roots = {rank: each for rank, each in late.items() if few and elsewhere.waits(rank, each)}
    if late and not roots:
        cycle = tuple(sorted(late))
        return WaitingRanks({}, cycle, tuple(everywhere), tuple(fronts))
    for each in filter(lambda f: f.waits, progress if roots else ()):
        for rank in roots.keys() & each.ranks:
            if each.group != roots[rank].missed.group:
                roots[rank] = roots[rank]._replace(instead=each)
    return WaitingRanks(roots, (), tuple(everywhere))


class _Elsewhere:
    """Which ranks wait elsewhere than their peers. Sets of ranks are bits of integers, since there may be thousands."""

    def __init__(self, progress: Sequence[GroupProgress]) -> None:
        self._index = {rank: i for i, rank in enumerate({rank for each in progress for rank in each.ranks})}
        self._members: dict[str, int] = {}
        self._waiting: dict[str, list[tuple[int, int]]] = {}
        """By group: the collective that ranks wait in, the furthest first, and all that wait in it or a further one."""
        self._groups: dict[int, list[str]] = {}
        """By rank: groups in which it waits."""
        if len(self._index) * len(progress) > 8 * MOST_BYTES:
            return
        for each in progress:
            ranks = self._bits(each.ranks)
            self._members[each.group] = self._members.get(each.group, 0) | ranks
            if each.waits:
                fronts = self._waiting.setdefault(each.group, [])
                fronts.append((each.enqueued, ranks | (fronts[-1][1] if fronts else 0)))
                for rank in each.ranks:
                    self._groups.setdefault(rank, []).append(each.group)

    def bytes_for(self, late: Mapping[int, Late]) -> float:
        """How much has to be read to judge these ranks."""
        if self._index and not self._members:
            return math.inf
        return sum(len(self._groups.get(rank, ())) + 1 for rank in late) * len(self._index) / 8

    def waits(self, rank: int, late: Late) -> bool:
        """Whether a rank waits elsewhere than most of those that call in both groups, whoever waits for it there.

        Ranks that never call in the other group cannot show which of the two comes first.
        """
        here, others = late.missed.group, 0
        for group in self._groups.get(rank, ()):
            others |= self._members[group] if group != here else 0
        both = self._members[here] & others
        fronts = self._waiting.get(here, [])
        further = bisect_left(fronts, -late.newest, key=lambda front: -front[0])
        wait = fronts[further - 1][1] if further else 0
        return 2 * (wait & both).bit_count() > both.bit_count()

    def _bits(self, ranks: Sequence[int]) -> int:
        bits = bytearray(len(self._index) // 8 + 1)
        for rank in ranks:
            at = self._index[rank]
            bits[at // 8] |= 1 << at % 8
        return int.from_bytes(bits, "little")


def _merged(of_group: Sequence[GroupProgress]) -> GroupProgress:
    """Ranks in one collective, whose progress may differ in what was called before it and by which thread."""
    if len(of_group) == 1:
        return of_group[0]
    ranks = tuple(sorted(rank for f in of_group for rank in f.ranks))
    return of_group[0]._replace(ranks=ranks, beside=any(f.beside for f in of_group))


def mismatch(progress: Sequence[GroupProgress]) -> Mismatch | None:
    """The first mismatch in which a rank waits, of a group with a majority if there is one."""
    several = (of_group for of_group in _by_group(progress) if len(of_group) > 1)  # equal progress is of equal calls
    found = [first for of_group in several if (first := _first_mismatch(of_group)) is not None]
    return min(found, key=lambda each: not each.has_majority, default=None)


def _is_whole(of_group: Sequence[GroupProgress]) -> bool:
    """Whether no rank of the group is known to be missing: one that has called nothing in it has no progress there."""
    return sum(len(each.ranks) for each in of_group) >= of_group[0].size


def may_miss_one(progress: Sequence[GroupProgress]) -> bool:
    """Whether ranks may wait for one without progress; False: the groups in which they wait are known to be whole."""
    waiting = [of_group for of_group in _by_group(progress) if any(each.waits for each in of_group)]
    return not progress or any(not of_group[0].size or not _is_whole(of_group) for of_group in waiting)


def cannot_complete(progress: Sequence[GroupProgress], waiting: Sequence[int]) -> bool:
    """Whether ranks that all wait do so in collectives that none of them will complete, whatever the network does.

    They called different collectives under one number, or each rank that has entered a collective waits for one that
    stands in another. A collective that all ranks of its group have entered may still complete. So may the message
    between two ranks that a rank without a collective waits for: of that nothing is known. A rank without progress in
    one of its groups has not entered it, if its progress in another group is known.

    Args:
        progress: how far the ranks are in each process group.
    """
    if mismatch(progress) is not None:
        return True
    inside: set[int] = set()
    all_read = {rank for each in progress for rank in each.ranks}.issuperset(waiting)
    for of_group in _by_group(progress):
        lowest = min(each.enqueued for each in of_group)
        for each in filter(lambda one: one.waits, of_group):
            if each.completed + 1 <= lowest and (_is_whole(of_group) or not all_read):
                return False
            inside.update(each.ranks)
    return inside.issuperset(waiting)


def _by_group(progress: Sequence[GroupProgress]) -> Iterator[list[GroupProgress]]:
    """The progress of each group; of thousands of small ones nearly all have one, that of all their ranks."""
    return (list(of_group) for _, of_group in groupby(progress, key=attrgetter("group")))


def _first_mismatch(of_group: Sequence[GroupProgress]) -> Mismatch | None:
    least = min(f.completed for f in of_group)
    calls_by_number: dict[int, dict[str, list[GroupProgress]]] = {}
    for each in of_group:
        for number, call in enumerate(each.calls, each.calls_from):
            if call and number > least:
                calls_by_number.setdefault(number, {}).setdefault(call, []).append(each)
    differing = min((number for number, made in calls_by_number.items() if len(made) > 1), default=None)
    if differing is None:
        return None
    made = calls_by_number[differing]
    ranks_of = {call: tuple(sorted(rank for f in each for rank in f.ranks)) for call, each in made.items()}
    calls = sorted(ranks_of.items(), key=lambda call: (-len(call[1]), call[1]))
    waiting = frozenset(rank for f in of_group if f.completed < differing for rank in f.ranks)
    majority = 2 * len(calls[0][1]) > sum(len(f.ranks) for f in of_group)
    beside = frozenset(rank for f in of_group if f.beside for rank in f.ranks)
    return Mismatch(of_group[0].group, differing, tuple(calls), majority, waiting, beside)


def _judge(of_group: Sequence[GroupProgress], late: dict[int, Late], waiting: set[int]) -> None:
    lowest = min(f.enqueued for f in of_group)
    ahead = [f for f in of_group if f.waits]
    for each in ahead:
        if each.enqueued > lowest:
            waiting.update(each.ranks)
    further = count = 0
    for each in of_group:  # the furthest first
        while further < len(ahead) and ahead[further].enqueued > each.enqueued:
            count += len(ahead[further].ranks)
            further += 1
        if not further:
            continue  # the ranks ahead have completed theirs without this rank: they do not wait for it
        for rank in each.ranks:
            if rank not in late or late[rank].waiting < count:
                late[rank] = Late(ahead[0], count, each.enqueued)
