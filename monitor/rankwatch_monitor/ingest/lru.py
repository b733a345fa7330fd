"""What is remembered of each sender until it has been silent for a while, or there are too many: a small cache.

How this works
--------------
There are two generations. Who speaks is in the young one; when five minutes have passed, the young one becomes
the old one, whose members come back when they speak, and what was left in the old one is forgotten: the processes of
jobs that have ended do not stay until others push them out. Within a generation, and so in all, the order is that in
which they last spoke; where there are too many, who has been silent for longest goes first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

SECONDS: Final = 300.0
"""Silence after which a sender may be forgotten; it surely is after twice as long. Ranks speak every 15 s at least."""


class Remembered(Generic[K, V]):
    """``remembered(key)``: the value of a key, made by ``make(key)`` when it is not known. Used by one thread.

    Args:
        make: makes a value.
        most: how many are kept.
        clock: seconds that never go back.
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
        """The value of a key that speaks now."""
        young = self._young
        try:
            value = young[key]
        except KeyError:
            return self._come_back(key)
        young.move_to_end(key)
        return value

    def _come_back(self, key: K) -> V:
        value = self._old.pop(key) if key in self._old else self._make(key)
        now = self._clock()
        if now - self._since > SECONDS:
            self._old, self._young, self._since = self._young, OrderedDict(), now
        self._young[key] = value
        if len(self) > self._most:
            (self._old or self._young).popitem(last=False)
        return value
