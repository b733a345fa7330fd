"""The speed of a job over the last hours in a few numbers, for the list of jobs."""

from __future__ import annotations

import base64
from array import array
from typing import Final, NamedTuple

SECONDS: Final = 300
"""Of one point."""
POINTS: Final = 48
"""Four hours."""
UNKNOWN: Final = 255
LARGEST: Final = 254
"""The byte of the largest mean."""


class Shape(NamedTuple):
    """A sparkline as bytes: each point as a share of the largest one."""

    peak: float
    """Steps per second of the largest point."""
    points: str
    """:data:`POINTS` bytes as base64, oldest first; :data:`UNKNOWN`: no value."""


class Sparkline:
    """Means by five minutes, as a ring."""

    __slots__ = ("_counts", "_last", "_sums")

    def __init__(self) -> None:
        self._sums = array("d", bytes(8 * POINTS))
        self._counts = array("H", bytes(2 * POINTS))
        self._last = -1
        """The newest stretch of five minutes, counted from the epoch; -1: none."""

    def add(self, at: float, value: float) -> None:
        """Add a value of a moment in unix seconds."""
        stretch = int(at // SECONDS)
        for each in range(max(self._last + 1, stretch - POINTS + 1), stretch + 1):
            self._sums[each % POINTS] = self._counts[each % POINTS] = 0
        self._last = max(self._last, stretch)
        if stretch > self._last - POINTS:
            self._sums[stretch % POINTS] += value
            self._counts[stretch % POINTS] += 1

    def copy(self) -> Sparkline:
        """A copy that another thread may read."""
        made = Sparkline()
        made._sums, made._counts, made._last = self._sums[:], self._counts[:], self._last
        return made

    def means(self, now: float) -> list[float | None]:
        """The means of the last :data:`POINTS` stretches, the current one included, oldest first."""
        end = int(now // SECONDS)
        known = range(self._last - POINTS + 1, self._last + 1)
        return [
            self._sums[each % POINTS] / count if each in known and (count := self._counts[each % POINTS]) else None
            for each in range(end - POINTS + 1, end + 1)
        ]

    def shape(self, now: float) -> Shape | None:
        """For the list of jobs; None: it has no value in that time."""
        means = self.means(now)
        peak = max((mean for mean in means if mean is not None), default=None)
        if peak is None:
            return None
        scale = LARGEST / peak if peak > 0 else 0.0
        shares = bytes(UNKNOWN if mean is None else round(mean * scale) for mean in means)
        return Shape(float(f"{peak:.4g}"), base64.b64encode(shares).decode())
