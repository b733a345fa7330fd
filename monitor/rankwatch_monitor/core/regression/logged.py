"""Values that the training script logged: the latest ones, and their means since the last point of the trends."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Final, NamedTuple

from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.regression.trends import LOGGED

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
        self.non_finite: dict[str, int] = {}
        """How many values were NaN or infinite, by name, as the process counts them."""
        self.step: int | None = None
        self._pending: dict[str, list[float]] = {}

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
            self._pending.setdefault(name, []).append(value)
            del self._pending[name][:-MAX_NAMES]
        for name, count in report.logged_non_finite.items():
            if name in self.non_finite or len(self.non_finite) < MAX_NAMES:
                self.non_finite[name] = count
        if report.logged_step is not None:
            self.step = report.logged_step

    def begin_attempt(self) -> None:
        """Other processes log from now on."""
        self.latest.clear()
        self.non_finite.clear()
        self._pending.clear()
        self.step = None

    def take_means(self) -> Mapping[str, float]:
        """The means since the last call, under the names of the trends."""
        pending, self._pending = self._pending, {}
        return {f"{LOGGED}{name}": sum(values) / len(values) for name, values in pending.items()}
