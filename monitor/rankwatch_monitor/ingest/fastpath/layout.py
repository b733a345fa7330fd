"""Recognises scopes of metrics whose bytes differ from known ones only in their numbers, and reads those numbers.

In OTLP, times and values are fields of 8 bytes. So two exports of a rank with the same sections, groups and kernels
differ at fixed offsets only. Such a *layout* is learned once, from bytes that the full decoder has accepted
(:mod:`.learning`): the literal bytes with zeros at the numbers, a mask that zeroes the numbers, a ``struct`` that
extracts them, and how the fields of a report are made of them (:mod:`.columns`).

The full decoder remains the specification. A layout handles ordinary values only and has no effects; where a number is
not ordinary, such as a negative age, the full decoder reads the bytes. Finished sections are a histogram, whose buckets
have variable length. That metric is cut out before the comparison, and parsed and read as in the full decoder.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankwatch.contract import semconv
from rankwatch_monitor.ingest.fastpath.columns import Reading, Unusual
from rankwatch_monitor.ingest.fastpath.wire_format import varint

SCOPE_METRIC: Final = 0x12
"""The tag of a metric within its scope."""
_NAME: Final = semconv.SECTION_DURATION.name.encode()
_HISTOGRAM: Final = bytes((0x0A, len(_NAME))) + _NAME
NO_CUT: Final = -1
_MOST_LAYOUTS: Final = 1024
"""A job has some tens of layouts, one for each set of sections that are open together."""
_MOST_ALIKE: Final = 8
"""Layouts of the same length; they are compared one after the other."""
_MOST_BYTES: Final = 512 * 1024
"""Of one layout; a report of 512 kernels takes no more."""
_MOST_BYTES_IN_ALL: Final = 32 * 1024 * 1024
_MISSES_FOR_ONE: Final = 4
"""Misses per attempt to learn a layout, so that senders which never repeat one cost little more."""
_TRIES_AT_ONCE: Final = 64
"""Attempts without that limit, so that small jobs benefit too."""


class Cut(NamedTuple):
    """A scope's bytes without the histogram of finished sections, which was at offset ``at``."""

    rest: bytes
    at: int
    histogram: bytes
    """The metric itself, without its tag and length."""


def cut(scope: bytes) -> Cut:
    """Cut the histogram of finished sections out of a scope, if there is one."""
    name_at = scope.find(_HISTOGRAM)
    for width in (1, 2, 3):
        at = name_at - width - 1
        if at < 0 or scope[at] != SCOPE_METRIC:
            continue
        try:
            length, begin = varint(scope, at + 1)
        except (ValueError, IndexError):
            continue
        end = begin + length
        if begin == name_at and (end == len(scope) or (end < len(scope) and scope[end] == SCOPE_METRIC)):
            return Cut(scope[:at] + scope[end:], at, scope[begin:end])
    # The cut is a guess until a layout confirms that a metric may begin at its offset.
    return Cut(scope, NO_CUT, b"")


class Layout:
    """One layout. The limits that depend on names and counts were checked when it was learned."""

    __slots__ = ("_literal", "_mask", "_numbers", "_reading", "cuts", "items", "points")

    def __init__(
        self,
        rest: bytes,
        numbers: Sequence[int],
        needed: Struct,
        reading: Reading,
        *,
        cuts: frozenset[int],
        points: int,
        items: int,
    ) -> None:
        """``numbers`` are the offsets of all numbers in ``rest``; ``needed`` unpacks those that are read."""
        mask = np.full(len(rest), 0xFF, dtype=np.uint8)
        for at in numbers:
            mask[at : at + 8] = 0
        self._mask: npt.NDArray[np.uint8] = mask
        self._literal = (np.frombuffer(rest, np.uint8) & mask).tobytes()
        self._numbers, self._reading = needed, reading
        self.cuts = cuts
        """Offsets between two metrics, where a histogram may have been cut out."""
        self.points = points
        """Data points of the contract."""
        self.items = items
        """Points, metrics and scopes, as counted against ``points_per_request``."""

    def __len__(self) -> int:
        return len(self._literal)

    def fits(self, rest: bytes, at: int) -> bool:
        """Whether bytes of the same length, with a histogram cut out at ``at``, have this layout."""
        return at in self.cuts and (np.frombuffer(rest, np.uint8) & self._mask).tobytes() == self._literal

    def read(self, rest: bytes) -> list[Any] | None:
        """The report fields in bytes of this layout, without the identity; None when some values are not ordinary."""
        try:
            return self._reading.fields((0, *self._numbers.unpack(rest)))
        except Unusual:
            return None


class Layouts:
    """The known layouts by length; bounded, the least recently used are evicted."""

    def __init__(self, learn: Callable[[Cut], Layout | None]) -> None:
        self._learn = learn
        self._by_length: OrderedDict[int, list[Layout]] = OrderedDict()
        self._count = self._bytes = 0
        self._misses = self._tries = 0

    def __len__(self) -> int:
        return self._count

    def find(self, scope: Cut) -> Layout | None:
        """The layout of a scope; None if it is not known."""
        length = len(scope.rest)
        alike = self._by_length.get(length)
        if alike is None:
            return None
        for position, layout in enumerate(alike):
            if layout.fits(scope.rest, scope.at):
                if position:
                    alike.insert(0, alike.pop(position))
                self._by_length.move_to_end(length)
                return layout
        return None

    def missed(self, scope: Cut) -> None:
        """Learn the layout of a scope without a known one, which the full decoder accepted completely."""
        self._misses += 1
        if len(scope.rest) > _MOST_BYTES or self._misses < _MISSES_FOR_ONE * (self._tries - _TRIES_AT_ONCE):
            return
        # Several resources of one request may miss the same layout.
        if self.find(scope) is not None:
            return
        self._tries += 1
        layout = self._learn(scope)
        if layout is None:
            return
        alike = self._by_length.setdefault(len(layout), [])
        if len(alike) >= _MOST_ALIKE:
            alike.pop()
            self._evicted(layout)
        alike.insert(0, layout)
        self._by_length.move_to_end(len(layout))
        self._count += 1
        self._bytes += len(layout)
        while self._count > _MOST_LAYOUTS or self._bytes > _MOST_BYTES_IN_ALL:
            _, oldest = self._by_length.popitem(last=False)
            for each in oldest:
                self._evicted(each)

    def _evicted(self, layout: Layout) -> None:
        self._count -= 1
        self._bytes -= len(layout)
