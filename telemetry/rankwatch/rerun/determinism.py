"""Mode ``report_determinism_stats``: histograms of the differences between two runs of each step, per validated value.

Relative differences are counted by decade, so that memory is bounded and the histograms of all ranks add up exactly.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rankwatch.rerun import collectives, comparison

_log = logging.getLogger("rankwatch")

SMALLEST_DECADE: Final = -17
"""Below the resolution of float64; smaller differences are counted here."""
LARGEST_DECADE: Final = 1
"""A relative difference is at most 2; infinite ones (NaN against a number) are counted separately."""
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


@dataclass(slots=True)
class Differences:
    """Histogram of the relative differences of one value between two runs of a step."""

    count: int = 0
    identical: int = 0
    infinite: int = 0
    total: float = 0.0
    """Sum of the finite differences."""
    largest: float = 0.0
    decades: dict[int, int] = field(default_factory=dict)
    """Count of the differences in (10^(d-1), 10^d], by d."""

    def record(self, difference: float) -> None:
        """Count one difference."""
        self.count += 1
        self.largest = max(self.largest, difference)
        if difference == 0:
            self.identical += 1
        elif math.isinf(difference):
            self.infinite += 1
        else:
            self.total += difference
            decade = min(max(math.ceil(math.log10(difference)), SMALLEST_DECADE), LARGEST_DECADE)
            self.decades[decade] = self.decades.get(decade, 0) + 1

    def combine(self, other: Differences) -> None:
        """Add the counts of another rank."""
        self.count += other.count
        self.identical += other.identical
        self.infinite += other.infinite
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        for decade, count in other.decades.items():
            self.decades[decade] = self.decades.get(decade, 0) + count

    @property
    def mean(self) -> float:
        """Mean of the finite differences, including those that are 0."""
        finite = self.count - self.infinite
        return self.total / finite if finite else 0.0

    def percentile(self, percent: float) -> float:
        """Return an upper bound of a percentile: 0, a power of ten, or infinity."""
        rank = math.ceil(self.count * percent / 100)
        seen = self.identical
        if seen >= rank:
            return 0.0
        for decade, count in sorted(self.decades.items()):
            seen += count
            if seen >= rank:
                return min(10.0**decade, self.largest)
        return math.inf

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        percentiles = {f"p{percent:g}": self.percentile(percent) for percent in PERCENTILES}
        named = {"count": self.count, "identical": self.identical, "infinite": self.infinite, "mean": self.mean}
        return {**named, "max": self.largest, **percentiles, "decades": dict(sorted(self.decades.items()))}

    def __str__(self) -> str:
        if self.identical == self.count:
            return f"{self.count} pairs, all identical"
        percentiles = ", ".join(f"p{percent:g} <= {self.percentile(percent):.1e}" for percent in PERCENTILES)
        nonfinite = f", {self.infinite} NaN or infinite in one run only" if self.infinite else ""
        return (
            f"{self.count} pairs, {self.identical} identical{nonfinite}; relative difference: mean {self.mean:.3e}, "
            f"{percentiles}, max {self.largest:.3e}"
        )


class DeterminismStatistics:
    """The differences of all validated values, by the message of the validation."""

    def __init__(self) -> None:
        self.by_message: dict[str, Differences] = {}

    def record(self, message: str, difference: float) -> None:
        """Count one difference of a value."""
        self.by_message.setdefault(message, Differences()).record(difference)

    def combine(self, other: Mapping[str, Differences]) -> None:
        """Add the counts of another rank."""
        for message, differences in other.items():
            self.by_message.setdefault(message, Differences()).combine(differences)

    def report(self) -> str:
        """Return one line per value."""
        if not self.by_message:
            return "determinism: no value has been validated twice yet"
        return "\n".join(f"determinism of {message!r}: {found}" for message, found in sorted(self.by_message.items()))

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return it as JSON-compatible values, by message."""
        return {message: found.as_dict() for message, found in sorted(self.by_message.items())}


class DeterminismCheck:
    """Counts the differences of this rank, and periodically adds up those of all ranks."""

    def __init__(self, group: Any, report_every: int) -> None:
        self.counted = DeterminismStatistics()
        """Counts of this rank since the last report."""
        self.total: DeterminismStatistics | None = None
        """Counts of all ranks up to the last report; on the first rank only."""
        self._group, self._report_every = group, report_every
        self._first_results: dict[tuple[str, int], Any] = {}

    def record(
        self, call: tuple[str, int], result: Any, comparison_func: Callable[[Any, Any], float] | None, *, again: bool
    ) -> None:
        """Keep a result of the first run, or compare one of the second run (``again``) with it."""
        if not again:
            self._first_results[call] = comparison.snapshot(result)
        elif call in self._first_results:
            difference = comparison.difference(self._first_results.pop(call), result, comparison_func)
            self.counted.record(call[0], difference)

    def end_of_step(self, step: int) -> None:
        """Drop the step's results; report every ``report_every`` steps."""
        self._first_results.clear()
        if (step + 1) % self._report_every == 0:
            self.report()

    def report(self) -> DeterminismStatistics | None:
        """Log and return the counts of all ranks on the first rank, None on the others: a collective."""
        counted, self.counted = self.counted, DeterminismStatistics()
        gathered = collectives.gather(counted.by_message, self._group)
        if gathered is None:
            return None
        self.total = self.total or DeterminismStatistics()
        for each in gathered:
            self.total.combine(each)
        for line in self.total.report().splitlines():
            _log.info("%s", line)
        return self.total
