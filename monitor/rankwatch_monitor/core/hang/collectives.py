"""Who has not come to the collective in which others wait, from the sequence numbers of process groups.

Within one group every rank makes the same collectives in the same order. A rank that entered number 58, which is not
completed, waits for those that have entered fewer. Numbers of different groups have nothing to do with each other:
pipeline stages and tensor-parallel groups go at a pace of their own, so only a group whose own ranks differ speaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from rankwatch_monitor.core.hang.stacks import Front


class Late(NamedTuple):
    """A rank that others wait for in one group."""

    missed: Front
    """Where those stand who wait for it: the furthest of them."""
    waiting: int
    """How many wait for it in that group."""
    newest: int
    """Sequence number of the newest collective that it entered itself; of this group."""

    @property
    def words(self) -> str:
        """What a person is told of it."""
        number = self.missed.enqueued
        waits = "1 rank waits" if self.waiting == 1 else f"{self.waiting} ranks wait"
        gap = f"; the newest that it has entered there is number {self.newest}" if number - self.newest > 1 else ""
        return f"it has not entered {place(self.missed)}, in which {waits}{gap}"


def place(front: Front) -> str:
    """What a person is told of a collective; names of torch are quoted like those of sections."""
    return f"'{front.operation}' number {front.enqueued} of group '{front.group}'"


class Standing(NamedTuple):
    """What the sequence numbers of all groups say."""

    late: dict[int, Late]
    """Ranks that others wait for, and who wait for nobody themselves."""
    circle: tuple[int, ...]
    """Ranks that wait for each other when nobody else is late: they entered collectives in different orders."""
    everywhere: tuple[Front, ...]
    """Collectives that all ranks known of their groups have entered and none has completed."""


def standing(fronts: Sequence[Front]) -> Standing:
    """Judge the fronts of all groups, of each the furthest first.

    Ranks that told nothing of a group are in none of its fronts, so nothing is said of them.
    """
    late: dict[int, Late] = {}
    waiting: set[int] = set()
    everywhere: list[Front] = []
    for _, told in groupby(fronts, key=lambda f: f.group):
        of_group = list(told)
        if len({f.enqueued for f in of_group}) == 1:
            if all(f.waits for f in of_group):
                everywhere.append(of_group[0])
            continue
        _judge(of_group, late, waiting)
    roots = {rank: each for rank, each in late.items() if rank not in waiting}
    circle = () if roots else tuple(sorted(set(late) & waiting))
    return Standing(roots, circle, tuple(everywhere))


def _judge(of_group: Sequence[Front], late: dict[int, Late], waiting: set[int]) -> None:
    lowest = min(f.enqueued for f in of_group)
    ahead = [f for f in of_group if f.waits]
    for front in ahead:
        if front.enqueued > lowest:
            waiting.update(front.ranks)
    for front in of_group:
        further = [f for f in ahead if f.enqueued > front.enqueued]
        if not further:
            continue  # who went on without this rank does not wait for it: it was asked earlier, or has left
        count = sum(len(f.ranks) for f in further)
        for rank in front.ranks:
            if rank not in late or late[rank].waiting < count:
                late[rank] = Late(further[0], count, front.enqueued)
