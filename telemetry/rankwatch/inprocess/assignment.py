"""Who trains in the next iteration. Pure: what a situation is in, who gets which rank out.

How this works
--------------
Every process is known for good by the rank that it started with, its initial rank. An assignment takes the places of
the last iteration, the reserves that waited, and who is lost, and gives the places of the next one, or None where it
cannot:

==================  ================================================================================================
KeepWorldSize       survivors keep their places, reserves take those of the lost ones; with too few reserves: None
FillGaps            survivors below the new world size keep their places, the others move into the gaps; it may shrink
ShiftRanks          all move up past the gaps and keep their order; it may shrink
==================  ================================================================================================

:func:`compose` puts what limits the active ranks behind one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Situation:
    """Who is left, all by initial rank."""

    places: tuple[int, ...]
    """Who had which active rank: ``places[active rank]``."""
    reserves: tuple[int, ...] = ()
    """Who waited, in the order in which they step in."""
    lost: frozenset[int] = frozenset()
    """Who of them is dead, unhealthy, or gone with its node."""


@dataclass(frozen=True, slots=True)
class Places:
    """Who trains next, and who waits."""

    places: tuple[int, ...]
    reserves: tuple[int, ...] = ()


Assign = Callable[[Situation], Places | None]
"""Gives the next places, or None when the survivors cannot go on. Every rank must come to the same result."""


@dataclass(frozen=True, slots=True)
class KeepWorldSize:
    """The same number of ranks, or none: what a job needs whose sharding is fixed. The default."""

    def __call__(self, now: Situation) -> Places | None:
        """Return the next places, or None where reserves are missing."""
        reserves = [rank for rank in now.reserves if rank not in now.lost]
        places = list(now.places)
        for index, rank in enumerate(places):
            if rank in now.lost:
                if not reserves:
                    return None
                places[index] = reserves.pop(0)
        return Places(tuple(places), tuple(reserves))


@dataclass(frozen=True, slots=True)
class FillGaps:
    """Reserves first; without them the ranks at the end move into the gaps, and the world shrinks."""

    def __call__(self, now: Situation) -> Places | None:
        """Return the next places; None when nobody is left."""
        reserves = [rank for rank in now.reserves if rank not in now.lost]
        places: list[int | None] = [None if rank in now.lost else rank for rank in now.places]
        size = min(len(places), sum(rank is not None for rank in places) + len(reserves))
        movers = [*reserves, *(rank for rank in places[size:] if rank is not None)]
        filled = [movers.pop(0) if rank is None else rank for rank in places[:size]]
        return Places(tuple(filled), tuple(movers)) if filled else None


@dataclass(frozen=True, slots=True)
class ShiftRanks:
    """All move up past the gaps; reserves follow behind the last; without them the world shrinks."""

    def __call__(self, now: Situation) -> Places | None:
        """Return the next places; None when nobody is left."""
        left = [rank for rank in (*now.places, *now.reserves) if rank not in now.lost]
        size = len(now.places)
        return Places(tuple(left[:size]), tuple(left[size:])) if left else None


@dataclass(frozen=True, slots=True)
class MaxActiveWorldSize:
    """At most so many ranks train; for :func:`compose`."""

    max_active_world_size: int | None = None

    def __call__(self, now: Situation) -> Places | None:
        """Return the places up to the limit, and the others as reserves."""
        size = len(now.places) if self.max_active_world_size is None else self.max_active_world_size
        return _first(now, size)


@dataclass(frozen=True, slots=True)
class ActiveWorldSizeDivisibleBy:
    """So many ranks train that the divisor goes into them; for :func:`compose`."""

    divisor: int = 1

    def __call__(self, now: Situation) -> Places | None:
        """Return the places up to the largest multiple; None when not even one is there."""
        return _first(now, len(now.places) // self.divisor * self.divisor)


def compose(*parts: Assign) -> Assign:
    """Return an assignment that does one after the other, the first part first."""

    def assign(now: Situation) -> Places | None:
        for part in parts:
            after = part(now)
            if after is None:
                return None
            now = Situation(after.places, after.reserves)
        return Places(now.places, now.reserves)

    return assign


def first_places(world: int, active: int | None, nodes: Sequence[str], assign: Assign) -> Places | None:
    """Return who begins: the first ``active`` of ``world`` ranks, the others wait.

    Raises:
        ValueError: there are fewer ranks than are to train.
    """
    if active is not None and active > world:
        raise ValueError(f"active_world_size is {active}, but only {world} ranks were started")
    assert len(nodes) == world, "one node for each rank"
    size = world if active is None else active
    return assign(Situation(tuple(range(size)), tuple(range(size, world))))


def with_their_nodes(lost: Collection[int], nodes: Sequence[str], granularity: str) -> frozenset[int]:
    """Return who is lost once nodes are lost with their ranks, if they are; ``nodes`` by initial rank."""
    if granularity == "rank":
        return frozenset(lost)
    gone = {nodes[rank] for rank in lost}
    return frozenset(rank for rank, node in enumerate(nodes) if node in gone)


def _first(now: Situation, size: int) -> Places | None:
    places, rest = now.places[:size], now.places[size:]
    return Places(places, (*rest, *now.reserves)) if places else None
