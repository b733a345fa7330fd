"""A scope of metrics whose bytes were seen before but for its numbers -> a report's fields, without parsing.

How this works
--------------
In OTLP, times and values are fields of 8 bytes. So what a rank exports this time differs from its last export only at
fixed places, as long as it speaks of the same sections, groups and kernels. Such a *layout* is learned once, from bytes
that the full decoder has taken in whole (``layout_learning``): the literal bytes with zeros at the numbers, a mask that
puts zeros there, a ``struct`` that takes the numbers out, and *steps* that write them into the report's fields.

The full decoder (``otlp``) stays the specification. A layout does only what is ordinary, and only what has no effects;
a step that meets anything else, such as a negative age, gives up, and the full decoder reads the bytes as if nothing
had been tried. Finished sections come as histograms, whose buckets take any number of bytes. That one metric is cut
out before the comparison, and read by the full decoder's own reader.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankwatch.contract import semconv
from rankwatch_monitor.ingest.fastpath.wire_format import varint

Values = tuple[Any, ...]
Step = Callable[[Values, dict[str, Any]], bool]
"""Writes values into the fields of a report; False: they are not the ordinary ones."""

SCOPE_METRIC: Final = 0x12
"""The tag of a metric within its scope."""
_NAME: Final = semconv.SECTION_DURATION.name.encode()
_HISTOGRAM: Final = bytes((0x0A, len(_NAME))) + _NAME
NO_CUT: Final = -1
_MOST_LAYOUTS: Final = 1024
"""Layouts that are remembered: a job has some tens, one for each set of sections that are open together."""
_MOST_ALIKE: Final = 8
"""Layouts of the same length, which are tried one after the other."""
_MOST_BYTES: Final = 512 * 1024
"""Of one layout; a report of 512 kernels takes no more."""
_MOST_BYTES_IN_ALL: Final = 32 * 1024 * 1024
_MISSES_FOR_ONE: Final = 4
"""Full readings for each try to learn a layout, so that a sender who never repeats one costs little more."""
_TRIES_AT_ONCE: Final = 64
"""The first ones are learned at sight: few ranks are to be read fast as well."""


class Cut(NamedTuple):
    """A scope's bytes without its histogram of finished sections, which stood at ``at``."""

    rest: bytes
    at: int
    histogram: bytes
    """The metric itself, without its tag and length."""


def cut(scope: bytes) -> Cut:
    """Take the histogram of finished sections out of a scope, where there is one."""
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
    # Only a guess so far; a layout matches no more than the place where it was learned that a metric may stand.
    return Cut(scope, NO_CUT, b"")


class Layout:
    """One layout, see the top of this file. The scope's own limits were checked when it was learned."""

    __slots__ = ("_literal", "_mask", "_numbers", "_steps", "cuts", "items", "points")

    def __init__(
        self,
        rest: bytes,
        numbers: Sequence[int],
        taken: Struct,
        steps: Sequence[Step],
        *,
        cuts: frozenset[int],
        points: int,
        items: int,
    ) -> None:
        """``numbers`` are the places of all numbers in ``rest``, ``taken`` the struct of those that are needed."""
        mask = np.full(len(rest), 0xFF, dtype=np.uint8)
        for at in numbers:
            mask[at : at + 8] = 0
        self._mask: npt.NDArray[np.uint8] = mask
        self._literal = (np.frombuffer(rest, np.uint8) & mask).tobytes()
        self._numbers = taken
        self._steps = tuple(steps)
        self.cuts = cuts
        """Places between two metrics, where a histogram may be cut out."""
        self.points = points
        """Data points of the contract."""
        self.items = items
        """Points, metrics and scopes, as they count against ``points_per_request``."""

    def __len__(self) -> int:
        return len(self._literal)

    def fits(self, rest: bytes, at: int) -> bool:
        """Say whether bytes of the same length, with a histogram cut out at ``at``, are of this layout."""
        return at in self.cuts and (np.frombuffer(rest, np.uint8) & self._mask).tobytes() == self._literal

    def read(self, rest: bytes) -> dict[str, Any] | None:
        """Return the fields of a report that bytes of this layout tell; None when some are not ordinary."""
        values = self._numbers.unpack(rest)
        fields: dict[str, Any] = {}
        for step in self._steps:
            if not step(values, fields):
                return None
        return fields


class Layouts:
    """The layouts that were learned, by length, bounded; the one that has not been seen for longest is forgotten."""

    def __init__(self, learn: Callable[[Cut], Layout | None]) -> None:
        self._learn = learn
        self._by_length: OrderedDict[int, list[Layout]] = OrderedDict()
        self._count = self._bytes = 0
        self._misses = self._tries = 0

    def __len__(self) -> int:
        return self._count

    def find(self, scope: Cut) -> Layout | None:
        """Return the layout of a scope; None when it is of none that is known."""
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
        """Learn the layout of a scope that is of none that is known, and that the full decoder took in whole."""
        self._misses += 1
        if len(scope.rest) > _MOST_BYTES or self._misses < _MISSES_FOR_ONE * (self._tries - _TRIES_AT_ONCE):
            return
        # Several of one request miss the same layout.
        if self.find(scope) is not None:
            return
        self._tries += 1
        layout = self._learn(scope)
        if layout is None:
            return
        alike = self._by_length.setdefault(len(layout), [])
        if len(alike) >= _MOST_ALIKE:
            alike.pop()
            self._forgot(layout)
        alike.insert(0, layout)
        self._by_length.move_to_end(len(layout))
        self._count += 1
        self._bytes += len(layout)
        while self._count > _MOST_LAYOUTS or self._bytes > _MOST_BYTES_IN_ALL:
            _, oldest = self._by_length.popitem(last=False)
            for each in oldest:
                self._forgot(each)

    def _forgot(self, layout: Layout) -> None:
        self._count -= 1
        self._bytes -= len(layout)
