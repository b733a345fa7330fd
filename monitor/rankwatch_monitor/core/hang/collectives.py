"""Finds ranks that have not entered a collective in which others wait, from the sequence numbers of process groups.

All ranks of a group issue the same collectives in the same order: a rank in collective 58, which is not completed,
waits for the ranks that have entered fewer. Sequence numbers of different groups are unrelated (pipeline stages and
tensor-parallel groups run at their own pace), so they are compared within one group only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
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

    @property
    def sentence(self) -> str:
        """Why it is to blame."""
        number = self.missed.enqueued
        waits = "1 rank waits" if self.waiting == 1 else f"{self.waiting} ranks wait"
        gap = f"; the newest that it has entered there is number {self.newest}" if number - self.newest > 1 else ""
        return f"it has not entered {place(self.missed)}, in which {waits}{gap}"


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


def waiting_ranks(progress: Sequence[GroupProgress]) -> WaitingRanks:
    """Compare the progress of all groups, of each the furthest first.

    Ranks that reported nothing of a group do not appear in its progress, so they are never late there.
    """
    late: dict[int, Late] = {}
    waiting: set[int] = set()
    everywhere: list[GroupProgress] = []
    for _, reported in groupby(progress, key=lambda f: f.group):
        of_group = list(reported)
        if len({f.enqueued for f in of_group}) == 1:
            if all(f.waits for f in of_group):
                everywhere.append(of_group[0])
            continue
        _judge(of_group, late, waiting)
    roots = {rank: each for rank, each in late.items() if rank not in waiting}
    cycle = () if roots else tuple(sorted(set(late) & waiting))
    return WaitingRanks(roots, cycle, tuple(everywhere))


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
