"""Finds ranks that called another collective than their peers or have not entered theirs, by sequence numbers.

All ranks of a group issue the same collectives in the same order: a rank in collective 58, which is not completed,
waits for the ranks that have entered fewer. Sequence numbers of different groups are unrelated (pipeline stages and
tensor-parallel groups run at their own pace), so they are compared within one group only. Ranks whose collectives of
one number differ in operation or size wait for each other without end, or are aborted by their backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from rankwatch_monitor.core.hang.stacks import GroupProgress


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

    @property
    def sentence(self) -> str:
        """Why it is to blame."""
        number = self.missed.enqueued
        waits = "1 rank waits" if self.waiting == 1 else f"{self.waiting} ranks wait"
        gap = f"; the newest that it has entered there is number {self.newest}" if number - self.newest > 1 else ""
        return f"it has not entered {place(self.missed)}, in which {waits}{gap}"


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


def place(each: GroupProgress) -> str:
    """A collective as sentences name it; names of torch are quoted like those of sections."""
    return f"'{each.operation}' number {each.enqueued} of group '{each.group}'"


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
            if all(f.waits for f in of_group):
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
            roots = {rank: each for rank, each in late.items() if _elsewhere(rank, each, progress)}
    if late and not roots:
        cycle = tuple(sorted(late))
        return WaitingRanks({}, cycle, tuple(everywhere), tuple(fronts))
    for each in filter(lambda f: f.waits, progress if roots else ()):
        for rank in roots.keys() & each.ranks:
            if each.group != roots[rank].missed.group:
                roots[rank] = roots[rank]._replace(instead=each)
    return WaitingRanks(roots, (), tuple(everywhere))


def _elsewhere(rank: int, late: Late, progress: Sequence[GroupProgress]) -> bool:
    """Whether a rank waits elsewhere than most of those that call in both groups, whoever waits for it there.

    Ranks that never call in the other group cannot show which of the two comes first.
    """
    here = [f for f in progress if f.group == late.missed.group]
    other = {f.group for f in progress if f.waits and f.group != late.missed.group and rank in f.ranks}
    both = {r for f in here for r in f.ranks} & {r for f in progress if f.group in other for r in f.ranks}
    wait = {r for f in here if f.waits and f.enqueued > late.newest for r in f.ranks}
    return 2 * len(wait & both) > len(both)


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


def cannot_complete(progress: Sequence[GroupProgress], waiting: Sequence[int]) -> bool:
    """Whether ranks that all wait do so in collectives that none of them will complete, whatever the network does.

    They called different collectives under one number, or each rank that has entered a collective waits for one that
    stands in another. A collective that all ranks of its group have entered may still complete. So may the message
    between two ranks that a rank without a collective waits for: of that nothing is known.

    Args:
        progress: how far the ranks are in each process group.
        waiting: the ranks; all live ones.
    """
    if mismatch(progress) is not None:
        return True
    inside: set[int] = set()
    for of_group in _by_group(progress):
        lowest = min(each.enqueued for each in of_group)
        for each in filter(lambda one: one.waits, of_group):
            if each.completed + 1 <= lowest:
                return False
            inside.update(each.ranks)
    return inside.issuperset(waiting)


def _by_group(progress: Sequence[GroupProgress]) -> Iterator[list[GroupProgress]]:
    """The progress of each group; of thousands of small ones nearly all have one, that of all their ranks."""
    return (list(of_group) for _, of_group in groupby(progress, key=attrgetter("group")))


def _first_mismatch(of_group: Sequence[GroupProgress]) -> Mismatch | None:
    least = min(f.completed for f in of_group)
    numbers = {f.calls_from + i for f in of_group for i in range(len(f.calls))}
    for number in sorted(n for n in numbers if n > least):
        made: dict[str, list[GroupProgress]] = {}
        for each in of_group:
            if each.calls_from <= number < each.calls_from + len(each.calls):
                made.setdefault(each.calls[number - each.calls_from], []).append(each)
        made.pop("", None)
        if len(made) > 1:
            ranks_of = {call: tuple(sorted(rank for f in each for rank in f.ranks)) for call, each in made.items()}
            calls = sorted(ranks_of.items(), key=_most_ranks)
            waiting = frozenset(rank for f in of_group if f.completed < number for rank in f.ranks)
            majority = 2 * len(calls[0][1]) > sum(len(f.ranks) for f in of_group)
            beside = frozenset(rank for f in of_group if f.beside for rank in f.ranks)
            return Mismatch(of_group[0].group, number, tuple(calls), majority, waiting, beside)
    return None


def _most_ranks(call: tuple[str, tuple[int, ...]]) -> tuple[int, tuple[int, ...]]:
    return -len(call[1]), call[1]


def _judge(of_group: Sequence[GroupProgress], late: dict[int, Late], waiting: set[int]) -> None:
    lowest = min(f.enqueued for f in of_group)
    ahead = [f for f in of_group if f.waits]
    for each in ahead:
        if each.enqueued > lowest:
            waiting.update(each.ranks)
    for each in of_group:
        further = [f for f in ahead if f.enqueued > each.enqueued]
        if not further:
            continue  # the ranks ahead have completed theirs without this rank: they do not wait for it
        count = sum(len(f.ranks) for f in further)
        for rank in each.ranks:
            if rank not in late or late[rank].waiting < count:
                late[rank] = Late(further[0], count, each.enqueued)
