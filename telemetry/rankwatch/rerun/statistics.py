"""How far the results of a step lie apart when it is run twice: one histogram for each validated value. Pure.

Relative differences are counted by decades, so that memory stays bounded and the histograms of ranks add up exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SMALLEST_DECADE: Final = -17
"""Below the resolution of float64: smaller differences are counted with those of 1e-17."""
LARGEST_DECADE: Final = 1
"""A relative difference is at most 2; what is infinite (NaN against a number) is counted by itself."""
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


@dataclass(slots=True)
class Differences:
    """The relative differences of one value between two runs of the same step."""

    count: int = 0
    identical: int = 0
    infinite: int = 0
    total: float = 0.0
    """Sum of the finite differences."""
    largest: float = 0.0
    decades: dict[int, int] = field(default_factory=dict)
    """Of the differences in (10^(d-1), 10^d], how many there were, by d."""

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
        """Take in what another rank has counted."""
        self.count += other.count
        self.identical += other.identical
        self.infinite += other.infinite
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        for decade, count in other.decades.items():
            self.decades[decade] = self.decades.get(decade, 0) + count

    @property
    def mean(self) -> float:
        """Average of the differences, equal results included and infinite ones left out."""
        finite = self.count - self.infinite
        return self.total / finite if finite else 0.0

    def percentile(self, percent: float) -> float:
        """A bound that so many percent of the differences do not exceed: 0, a power of ten, or infinity."""
        wanted = math.ceil(self.count * percent / 100)
        seen = self.identical
        if seen >= wanted:
            return 0.0
        for decade, count in sorted(self.decades.items()):
            seen += count
            if seen >= wanted:
                return min(10.0**decade, self.largest)
        return math.inf

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        percentiles = {f"p{percent:g}": self.percentile(percent) for percent in PERCENTILES}
        named = {"count": self.count, "identical": self.identical, "infinite": self.infinite, "mean": self.mean}
        return {**named, "max": self.largest, **percentiles, "decades": dict(sorted(self.decades.items()))}

    def __str__(self) -> str:
        if self.identical == self.count:
            return f"{self.count} pairs, all identical"
        percentiles = ", ".join(f"p{percent:g} <= {self.percentile(percent):.1e}" for percent in PERCENTILES)
        odd = f", {self.infinite} NaN or infinite in one run only" if self.infinite else ""
        return (
            f"{self.count} pairs, {self.identical} identical{odd}; relative difference: mean {self.mean:.3e}, "
            f"{percentiles}, max {self.largest:.3e}"
        )


class DeterminismStatistics:
    """The differences of all validated values, by the message that each is validated with."""

    def __init__(self) -> None:
        self.by_message: dict[str, Differences] = {}

    def record(self, message: str, difference: float) -> None:
        """Count one difference of a value."""
        self.by_message.setdefault(message, Differences()).record(difference)

    def combine(self, other: Mapping[str, Differences]) -> None:
        """Take in what another rank has counted."""
        for message, differences in other.items():
            self.by_message.setdefault(message, Differences()).combine(differences)

    def report(self) -> str:
        """One line for each value."""
        if not self.by_message:
            return "determinism: no value has been validated twice yet"
        return "\n".join(f"determinism of {message!r}: {found}" for message, found in sorted(self.by_message.items()))

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """As JSON holds it, by message."""
        return {message: found.as_dict() for message, found in sorted(self.by_message.items())}
