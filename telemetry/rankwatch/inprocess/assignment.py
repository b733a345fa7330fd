"""Assigns active ranks for the next iteration. Pure.

Every process is identified by the rank that it started with, its initial rank. An assignment takes the places of the
last iteration, its reserves and the lost ranks, and returns the next places, or None if no valid assignment exists:

==================  ================================================================================================
KeepWorldSize       survivors keep their places, reserves replace lost ranks; with too few reserves: None
FillGaps            survivors below the new world size keep their places, the others fill gaps; the world may shrink
ShiftRanks          all move up past the gaps and keep their order; the world may shrink
==================  ================================================================================================

:func:`compose` applies limits on the active ranks after one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Situation:
    """Input of an assignment, by initial rank."""

    places: tuple[int, ...]
    """The active ranks: ``places[active rank]``."""
    reserves: tuple[int, ...] = ()
    """In the order in which they become active."""
    lost: frozenset[int] = frozenset()
    """Those that are dead, unhealthy, or on an excluded node."""


@dataclass(frozen=True, slots=True)
class Places:
    """The active ranks and the reserves of the next iteration, by initial rank."""

    places: tuple[int, ...]
    reserves: tuple[int, ...] = ()


Assign = Callable[[Situation], Places | None]
"""Returns the next places, or None if the survivors cannot continue. Must be deterministic: every rank calls it."""


@dataclass(frozen=True, slots=True)
class KeepWorldSize:
    """Keeps the world size, for jobs whose sharding is fixed. The default."""

    def __call__(self, now: Situation) -> Places | None:
        """Return the next places; None if there are too few reserves."""
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
    """Fills gaps with reserves, then with the last active ranks, in which case the world shrinks."""

    def __call__(self, now: Situation) -> Places | None:
        """Return the next places; None if no rank is left."""
        reserves = [rank for rank in now.reserves if rank not in now.lost]
        places: list[int | None] = [None if rank in now.lost else rank for rank in now.places]
        size = min(len(places), sum(rank is not None for rank in places) + len(reserves))
        movers = [*reserves, *(rank for rank in places[size:] if rank is not None)]
        filled = [movers.pop(0) if rank is None else rank for rank in places[:size]]
        return Places(tuple(filled), tuple(movers)) if filled else None


@dataclass(frozen=True, slots=True)
class ShiftRanks:
    """Moves all ranks up past the gaps, and appends reserves; without them the world shrinks."""

    def __call__(self, now: Situation) -> Places | None:
        """Return the next places; None if no rank is left."""
        left = [rank for rank in (*now.places, *now.reserves) if rank not in now.lost]
        size = len(now.places)
        return Places(tuple(left[:size]), tuple(left[size:])) if left else None


@dataclass(frozen=True, slots=True)
class MaxActiveWorldSize:
    """Limits the active world size; for :func:`compose`."""

    max_active_world_size: int | None = None

    def __call__(self, now: Situation) -> Places | None:
        """Return the places up to the limit; the others become reserves."""
        size = len(now.places) if self.max_active_world_size is None else self.max_active_world_size
        return _first(now, size)


@dataclass(frozen=True, slots=True)
class ActiveWorldSizeDivisibleBy:
    """Makes the active world size a multiple of ``divisor``; for :func:`compose`."""

    divisor: int = 1

    def __call__(self, now: Situation) -> Places | None:
        """Return the places up to the largest multiple; None if that is 0."""
        return _first(now, len(now.places) // self.divisor * self.divisor)


def compose(*parts: Assign) -> Assign:
    """Return an assignment that applies the parts in order."""

    def assign(now: Situation) -> Places | None:
        for part in parts:
            places = part(now)
            if places is None:
                return None
            now = Situation(places.places, places.reserves)
        return Places(now.places, now.reserves)

    return assign


def initial_places(world: int, active: int | None, nodes: Sequence[str], assign: Assign) -> Places | None:
    """Return the places of the first iteration: ``active`` of ``world`` ranks, the others are reserves.

    Raises:
        ValueError: there are fewer than ``active`` ranks.
    """
    if active is not None and active > world:
        raise ValueError(f"active_world_size is {active}, but only {world} ranks were started")
    assert len(nodes) == world, "one node for each rank"
    size = world if active is None else active
    return assign(Situation(tuple(range(size)), tuple(range(size, world))))


def with_node_mates(lost: Collection[int], nodes: Sequence[str], granularity: str) -> frozenset[int]:
    """Return the lost ranks, with granularity ``node`` all ranks of their nodes; ``nodes`` by initial rank."""
    if granularity == "rank":
        return frozenset(lost)
    gone = {nodes[rank] for rank in lost}
    return frozenset(rank for rank, node in enumerate(nodes) if node in gone)


def _first(now: Situation, size: int) -> Places | None:
    places, rest = now.places[:size], now.places[size:]
    return Places(places, (*rest, *now.reserves)) if places else None
