"""How long each of a job's costliest kernels takes now, and took since the monitor has held the job. Pure, bounded.

Whenever kernels were scored, the median over the ranks of each kernel and that of its slowest rank are added to the
last point, or to a new one when the spacing has passed. When there are :data:`MAX_POINTS`, neighbouring points are
joined and the spacing doubles, so that the trend always reaches back to its beginning: 30 min at first, a week at
128 min. A kernel has a column of its own while it is among the costliest; a new one takes the column of the one that
cost least of those that are not.

Of the ranks each point has only the slowest, and which one that was: the points of a rank that is slow are its own
trend since it became so, and before it another one was the slowest. So the memory does not depend on the ranks.

Collectives are not among the kernels: they wait for other ranks (``lateness``).

Shapes: K kernels, T points, C columns. All of it takes 100 KB a job at most, with two ranks as with 16,384.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from rankwatch_monitor.core.ranks import Floats, Ints
from rankwatch_monitor.core.straggler.scores import KernelFigures

MAX_KERNELS: Final = 32
"""The costliest ones by total time; a rank reports 64."""
MAX_POINTS: Final = 128
SPACING: Final = 15.0
"""Seconds between two points at first."""
MIN_POINTS: Final = 4
"""Points from which on a kernel's usual median means something."""
USUAL: Final = 0.25
"""Quantile of the points that is the usual median: a kernel that was slow for most of the time is still seen."""
SLOWER: Final = 1.25
"""Multiple of the usual median from which on a kernel became slower."""
UNEVEN: Final = 1.1
"""Multiple of the median over the ranks from which on the slowest rank is slow in a kernel."""


class Kernel(NamedTuple):
    """One kernel as last reported; seconds of one call."""

    name: str
    share: float
    """Of the time that all ranks spent in kernels."""
    ranks: int
    """Ranks that reported it."""
    median: float
    """Over the ranks' medians."""
    tail: float
    fastest: float
    slowest: float
    """Least and largest median of a rank."""
    slowest_rank: int


class Change(NamedTuple):
    """A kernel now, compared with its own usual median."""

    ratio: float
    since: float | None
    """Unix seconds since when it has been slower; None: it is not."""


class SlowestPoint(NamedTuple):
    """The slowest rank of one kernel at one point."""

    seconds: float
    """Its median."""
    rank: int


class KernelTrends:
    """The costliest kernels of one job, and the points of each."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        """As last reported, the costliest first."""
        self.omitted = 0
        """Further kernels that were reported."""
        self.at: float | None = None
        """Unix seconds of the last report."""
        self.points: list[float] = []
        """Unix seconds at which each point began."""
        self.spacing = SPACING
        self._column: dict[str, int] = {}
        self._cost: dict[str, float] = {}
        """The largest share that each kernel with a column has had."""
        self._sum_TC: Floats = np.zeros((0, MAX_KERNELS), dtype=np.float32)
        """Sum of the medians in each point, of those of the slowest rank, and their number; a point is their mean."""
        self._slowest_TC: Floats = np.zeros_like(self._sum_TC)
        self._count_TC: Floats = np.zeros_like(self._sum_TC)
        self._rank_TC: Ints = np.zeros((0, MAX_KERNELS), dtype=np.int32)
        """The slowest rank of each point."""

    def add(self, at: float, figures: KernelFigures) -> None:
        """Add what the ranks reported as of ``at`` (unix seconds)."""
        kernels = _costliest(figures)
        if not kernels:
            return
        self.at, self.kernels, self.omitted = at, kernels[:MAX_KERNELS], max(0, len(kernels) - MAX_KERNELS)
        if not self.points or at - self.points[-1] >= self.spacing:
            if len(self.points) >= MAX_POINTS:
                self._halve()
            self.points.append(at)
            empty_1C = np.zeros((1, MAX_KERNELS), dtype=np.float32)
            self._sum_TC, self._slowest_TC, self._count_TC = (
                np.vstack([each, empty_1C]) for each in (self._sum_TC, self._slowest_TC, self._count_TC)
            )
            self._rank_TC = np.vstack([self._rank_TC, empty_1C.astype(np.int32)])
        self._assign_columns()
        for kernel in self.kernels:
            column = self._column[kernel.name]
            self._sum_TC[-1, column] += kernel.median
            self._slowest_TC[-1, column] += kernel.slowest
            self._count_TC[-1, column] += 1
            self._rank_TC[-1, column] = kernel.slowest_rank

    def trend(self, name: str) -> list[float | None]:
        """The median of a kernel at each point; None where it was not reported."""
        column = self._column[name]
        known = zip(self._sum_TC[:, column].tolist(), self._count_TC[:, column].tolist(), strict=True)
        return [total / count if count else None for total, count in known]

    def slowest(self, name: str) -> list[SlowestPoint | None]:
        """The rank that was the slowest in a kernel at each point; None where it was not reported."""
        column = self._column[name]
        columns = (each[:, column].tolist() for each in (self._slowest_TC, self._count_TC, self._rank_TC))
        return [
            SlowestPoint(total / count, rank) if count else None for total, count, rank in zip(*columns, strict=True)
        ]

    def uneven_since(self, kernel: Kernel) -> float | None:
        """Unix seconds since when the slowest rank has been the slowest by :data:`UNEVEN`; None: it is not."""
        if kernel.ranks < 2 or kernel.slowest < UNEVEN * kernel.median:
            return None
        since = self.at
        points = zip(self.points, self.trend(kernel.name), self.slowest(kernel.name), strict=True)
        for at, median, slowest in reversed(list(points)):
            if median is None or slowest is None:
                continue
            if slowest.rank != kernel.slowest_rank or slowest.seconds < UNEVEN * median:
                break
            since = at
        return since

    def change(self, kernel: Kernel) -> Change | None:
        """A kernel against the lower quartile of its points; None while there are too few."""
        trend = self.trend(kernel.name)
        known = sorted(value for value in trend if value is not None)
        if len(known) < MIN_POINTS or not (usual := known[int(USUAL * (len(known) - 1))]):
            return None
        ratio = kernel.median / usual
        if ratio < SLOWER:
            return Change(ratio, None)
        since = self.at
        for at, value in zip(reversed(self.points), reversed(trend), strict=True):
            if value is not None and value < SLOWER * usual:
                break
            since = since if value is None else at
        return Change(ratio, since)

    def _assign_columns(self) -> None:
        now = {kernel.name for kernel in self.kernels}
        for kernel in self.kernels:
            if kernel.name not in self._column:
                self._column[kernel.name] = column = self._free_column(now)
                self._sum_TC[:, column] = self._slowest_TC[:, column] = self._count_TC[:, column] = 0.0
            self._cost[kernel.name] = max(kernel.share, self._cost.get(kernel.name, 0.0))

    def _free_column(self, now: set[str]) -> int:
        if len(self._column) < MAX_KERNELS:
            return len(self._column)
        least = min((name for name in self._column if name not in now), key=self._cost.__getitem__)
        del self._cost[least]
        return self._column.pop(least)

    def _halve(self) -> None:
        self.points, self.spacing = self.points[::2], 2 * self.spacing
        pairs = np.arange(0, len(self._sum_TC), 2)
        later = np.minimum(pairs + 1, len(self._sum_TC) - 1)
        mean_TC = self._slowest_TC / np.maximum(self._count_TC, 1)
        self._rank_TC = np.where(mean_TC[later] >= mean_TC[pairs], self._rank_TC[later], self._rank_TC[pairs])
        self._sum_TC, self._slowest_TC, self._count_TC = (
            np.add.reduceat(each, pairs) for each in (self._sum_TC, self._slowest_TC, self._count_TC)
        )


def _costliest(figures: KernelFigures) -> list[Kernel]:
    """The kernels that any rank reported, the costliest first."""
    total = float(figures.spent_K.sum())
    columns = np.flatnonzero((figures.ranks_K > 0) & (figures.spent_K > 0))
    return [
        Kernel(
            name=figures.names[k],
            share=float(figures.spent_K[k]) / total,
            ranks=int(figures.ranks_K[k]),
            median=float(figures.median_K[k]),
            tail=float(figures.tail_K[k]),
            fastest=float(figures.fastest_K[k]),
            slowest=float(figures.slowest_K[k]),
            slowest_rank=int(figures.slowest_rank_K[k]),
        )
        for k in columns[np.argsort(-figures.spent_K[columns], kind="stable")].tolist()
    ]
