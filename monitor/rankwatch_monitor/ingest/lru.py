"""A bounded cache of values per sender, which also evicts senders that have been silent for a while.

There are two generations. A key that is used is in the young one. Every five minutes the young generation becomes the
old one, and what is left in the previous old one is evicted, so processes of ended jobs do not stay until others push
them out; keys of the old generation move to the young one when used. Within a generation, and so overall, keys are
ordered by their last use: beyond the limit, the least recently used is evicted. Keys that are known to be over, as
those of processes that were replaced, are found earlier among the least recently used: :meth:`LruCache.sweep`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain, islice
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

SECONDS: Final = 300.0
"""Silence after which a sender may be evicted; after twice as long it is. Ranks report every 15 s at least."""
SWEPT: Final = 64
"""A sweep looks at one of so many parts of a cache, so that none takes long: 5 ms where 100,000 ranks were replaced."""


class LruCache(Generic[K, V]):
    """``cache(key)`` returns the value of a key, created by ``make(key)`` when it is not cached. Not thread-safe.

    Args:
        make: creates a value.
        most: number of cached values.
        clock: monotonic seconds.
    """

    __slots__ = ("_clock", "_make", "_most", "_old", "_since", "_young")

    def __init__(self, make: Callable[[K], V], most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._most, self._clock = make, most, clock
        self._young: OrderedDict[K, V] = OrderedDict()
        self._old: OrderedDict[K, V] = OrderedDict()
        self._since = clock()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __call__(self, key: K) -> V:
        """The value of a key, which counts as used now."""
        young = self._young
        try:
            value = young[key]
        except KeyError:
            return self._revive(key)
        young.move_to_end(key)
        return value

    def sweep(self, over: Callable[[K, V], bool]) -> bool:
        """Evict those keys that are ``over`` among the least recently used, and all that were silent for too long.

        Returns whether any were over: then there may be more.
        """
        self._turn_over()
        oldest = islice(chain(self._old.items(), self._young.items()), 1 + len(self) // SWEPT)
        found = [key for key, value in oldest if over(key, value)]
        for key in found:
            del (self._old if key in self._old else self._young)[key]
        return bool(found)

    def shrink(self, size: Callable[[V], int], most: int) -> None:
        """Evict the least recently used values until the sizes of the others add up to ``most`` at most."""
        left = sum(size(each) for each in chain(self._old.values(), self._young.values()))
        while left > most:
            _, evicted = (self._old or self._young).popitem(last=False)
            left -= size(evicted)

    def _turn_over(self) -> None:
        """Begin another generation, if it is time to."""
        now = self._clock()
        if now - self._since > SECONDS:
            self._old, self._young, self._since = self._young, OrderedDict(), now

    def _revive(self, key: K) -> V:
        value = self._old.pop(key) if key in self._old else self._make(key)
        self._turn_over()
        self._young[key] = value
        if len(self) > self._most:
            (self._old or self._young).popitem(last=False)
        return value
