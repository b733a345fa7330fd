"""Calls that cannot complete, by the arguments that ranks gave them: for jobs of which no sequence numbers are known.

All ranks stand in a collective or wait for a message, so each goes on only if its own call completes. A call needs the
other ranks of its process group in the same one. If none has them, the ranks wait for each other without end. Who made
the wrong call is not in this: a rank that skipped one looks like one that made one more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rankwatch.contract.diagnosis import Called
from rankwatch.contract.peers import NONE_LEAVES_FIRST, waiting_call
from rankwatch_monitor.core.cause import Among, Made, Site, Some
from rankwatch_monitor.core.hang.stacks import StackGroup, call_site, site_of

_OTHER_END: Final = {"recv": "send", "send": "recv"}


class _Standing(NamedTuple):
    """A rank in its call."""

    rank: int
    operation: str
    site: Site | None
    size: int
    """Of its process group; 0: not known."""
    called: Called


def calls_of_circle(
    groups: Sequence[StackGroup], called: Mapping[int, Called], world: int
) -> tuple[tuple[Made, Some], ...]:
    """The calls in which all ranks stand, that of most first, if none can complete; empty: one may, or it is not known.

    Args:
        called: the arguments of calls, by rank.
        world: number of all ranks.
    """
    trusted = _shows_sizes(called, world)
    standing = list[_Standing]()
    for group in groups:
        call, site = waiting_call(group.frames), site_of(call_site(group.frames))
        name = "" if call is None else call.function.rpartition(".")[2]
        if name not in NONE_LEAVES_FIRST and name not in _OTHER_END:
            return ()  # others may leave it before all have entered, or it is no call between ranks
        for rank in group.ranks:
            if rank not in called:
                return ()
            own = called[rank]
            size = world if own.of_all else own.size if trusted and 0 < own.size <= world else 0
            standing.append(_Standing(rank, name, site, size, own))
    if sorted(each.rank for each in standing) != list(range(world)):
        return ()
    if any(_may_complete(each, standing, world) for each in standing):
        return ()
    ranks_in: dict[Made, list[int]] = {}
    for each in standing:
        ranks_in.setdefault(_made(each, world), []).append(each.rank)
    made = sorted(ranks_in.items(), key=lambda one: (-len(one[1]), min(one[1])))
    return tuple((call, Some.of(sorted(ranks))) for call, ranks in made)


def _shows_sizes(called: Mapping[int, Called], world: int) -> bool:
    """Whether process groups are laid out in memory as they are read: those of all ranks show what is known."""
    of_all = [(rank, each) for rank, each in called.items() if each.of_all and each.size]
    whole = sum((each.place, each.size) == (rank, world) for rank, each in called.items())
    return all((each.place, each.size) == (rank, world) for rank, each in of_all) and whole >= (1 if of_all else 2)


def _may_complete(own: _Standing, standing: Sequence[_Standing], world: int) -> bool:
    if (other_end := _OTHER_END.get(own.operation)) is not None:
        peer = own.called.peer
        return any(
            each.operation == other_end and peer in (each.rank, -1) and each.called.peer in (own.rank, -1)
            for each in standing
        )
    alike = [each for each in standing if each.operation == own.operation]
    if not own.size:  # it may be the group of all ranks, by another name
        return len(alike) == world or any(each.size != world for each in alike if each is not own)
    alike = [each for each in alike if each.size in (own.size, 0)]
    unknown = sum(1 for each in alike if not each.size)
    places = {each.rank if own.size == world else each.called.place for each in alike if each.size}
    return len(places) + unknown >= own.size


def _made(each: _Standing, world: int) -> Made:
    if each.operation in _OTHER_END:
        return Made(each.operation, "", each.site, waits=True, among=Among(0, each.called.group, each.called.peer))
    among = None if each.size == world else Among(each.size, each.called.group)
    return Made(each.operation, "", each.site, waits=True, among=among)
