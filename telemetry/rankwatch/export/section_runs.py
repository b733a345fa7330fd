"""Finished runs of a section, and the exact statistics of those within one window. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_RUNS: Final = 4096
"""Runs of one section kept for the statistics of one window; maximum, mean and count are of all."""


class Run(NamedTuple):
    """One finished run of a section."""

    section: str
    end_ns: int
    duration_ns: int
    iteration: int
    """Of the step it belongs to."""
    first: bool
    """The process had never finished this section before."""


class SectionStatistics(NamedTuple):
    """A section's runs within one window, in seconds."""

    calls: int
    median: float
    tail: float
    """Mean of the slower half, the middle run included when their number is odd."""
    max: float
    mean: float


class Runs:
    """The runs of one section within one window."""

    __slots__ = ("calls", "kept", "max", "sum")

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.calls = self.sum = self.max = 0

    def add(self, duration_ns: int) -> None:
        """Take in one run."""
        self.calls += 1
        self.sum += duration_ns
        self.max = max(self.max, duration_ns)
        if len(self.kept) < MAX_RUNS:
            self.kept.append(duration_ns)

    def statistics(self) -> SectionStatistics:
        """Of all runs so far, of which there is one at least."""
        ordered = sorted(self.kept)
        return SectionStatistics(
            self.calls, middle(ordered) / 1e9, tail(ordered) / 1e9, self.max / 1e9, self.sum / self.calls / 1e9
        )


def middle(ordered: Sequence[int]) -> float:
    """Median of sorted values."""
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def tail(ordered: Sequence[int]) -> float:
    """Mean of the upper half of sorted values, the middle one included when their number is odd."""
    upper = ordered[len(ordered) // 2 :]
    return sum(upper) / len(upper)
