"""Values that the training script logged: the latest ones, and their means since the last point of the trends."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Final, NamedTuple

from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.regression.trends import LOGGED, NON_FINITE

MAX_NAMES: Final = 32
"""Names of a job."""
OWNED: Final = 120.0
"""Seconds for which a rank that reported a name keeps it; afterwards another may report it."""


class Value(NamedTuple):
    """The last value of a name, the rank that reported it, and when."""

    value: float
    rank: int
    at: float


class LoggedValues:
    """The logged values of one job."""

    def __init__(self) -> None:
        self.latest: dict[str, Value] = {}
        self.step: int | None = None
        self.non_finite: dict[str, int] = {}
        """How many values were NaN or infinite since this monitor watches the job, by name; it never decreases."""
        self._counted_by: dict[str, tuple[int, float]] = {}
        """The rank whose values are counted there, and when it last had any."""
        self._pending: dict[str, list[float]] = {}
        self._counts: dict[tuple[str, int], int] = {}
        """How many values were NaN or infinite, by name and rank, as its process counts them."""
        self._new: dict[str, dict[int, int]] = {}
        """How many of them are new since the last point, by name and rank."""
        self._resumed = False

    def resume(self) -> None:
        """The processes began before this monitor did: what they had counted until their first report is not new."""
        self._resumed = True

    def take(self, report: RankReport, now: float) -> None:
        """Take a rank's values. Of ranks that report the same name, the lowest counts."""
        rank = report.identity.rank
        for name, value in report.logged.items():
            known = self.latest.get(name)
            if not isfinite(value) or (known is None and len(self.latest) >= MAX_NAMES):
                continue
            if known is not None and known.rank < rank and now - known.at < OWNED:
                continue
            if known is not None and known.rank != rank:
                self._pending.pop(name, None)
            self.latest[name] = Value(value, rank, now)
            if len(self.non_finite) < MAX_NAMES:
                self.non_finite.setdefault(name, 0)
            self._pending.setdefault(name, []).append(value)
            del self._pending[name][:-MAX_NAMES]
        for name, count in report.logged_non_finite.items():
            self._count(name, rank, count, now)
        if report.logged_step is not None:
            self.step = report.logged_step

    def begin_attempt(self) -> None:
        """Other processes log from now on."""
        for each in (self.latest, self._pending, self._counts, self._new, self._counted_by):
            each.clear()
        self.step, self._resumed = None, False

    def take_point(self) -> Mapping[str, float]:
        """Means, and numbers of values that were not finite, since the last call, under the names of the trends."""
        pending, self._pending = self._pending, {}
        new, self._new = self._new, {}
        means = {f"{LOGGED}{name}": sum(values) / len(values) for name, values in pending.items()}
        return {**means, **{f"{NON_FINITE}{name}": by_rank[min(by_rank)] for name, by_rank in new.items()}}

    def _count(self, name: str, rank: int, count: int, now: float) -> None:
        finite, known = self.latest.get(name), self._counts.get((name, rank))
        if known is None and len(self._counts) >= MAX_NAMES:
            return
        self._counts[name, rank] = count
        before = count if known is None and self._resumed else known or 0
        if finite is not None and finite.rank < rank and now - finite.at < OWNED:
            return
        # A smaller count is that of another process.
        if (new := count - before if count >= before else count) > 0:
            by_rank = self._new.setdefault(name, {})
            by_rank[rank] = by_rank.get(rank, 0) + new
            self._add(name, rank, new, now)

    def _add(self, name: str, rank: int, new: int, now: float) -> None:
        """Count for the job as a whole: of ranks with the same name, the lowest counts."""
        counted = self._counted_by.get(name)
        if counted is not None and counted[0] < rank and now - counted[1] < OWNED:
            return
        if name in self.non_finite or len(self.non_finite) < MAX_NAMES:
            self._counted_by[name] = (rank, now)
            self.non_finite[name] = self.non_finite.get(name, 0) + new
