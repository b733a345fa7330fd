"""What a rank measured within a window or report, by section, kernel, process group or operation: seconds, bytes."""

from __future__ import annotations

from typing import NamedTuple


class SectionWindow(NamedTuple):
    """A section's runs within one window: how often, and seconds."""

    calls: int
    median: float
    tail: float
    """Mean of the slower half of the runs: half of them cannot hide behind the median."""
    max: float
    mean: float


class KernelStatistics(NamedTuple):
    """One kernel over one report: how often it was called, and seconds."""

    calls: int
    median: float
    tail: float
    """Mean of the slower half."""
    mean: float
    min: float
    max: float
    stddev: float
    """Population standard deviation."""


class CollectiveWindow(NamedTuple):
    """A rank's time in the collectives of one process group in one step, in seconds."""

    calls: int
    busy: float
    """The union of them."""
    exposed: float
    """The part of it that no computation of this rank covers: waiting, and the transfer."""
    shortest: float = 0.0
    """Of the collectives that began and ended within the step."""


class OperationWindow(NamedTuple):
    """A rank's collectives of one operation and process group in one step: seconds and bytes."""

    calls: int
    total: float
    """With the wait for members that came later."""
    shortest: float = 0.0
    """Of the shortest of the largest ones."""
    bytes: int = 0
    """All sizes together; 0: unknown, or none."""
    largest: int = 0
    """Of the largest one: over ``shortest`` the algorithm bandwidth of a call in which none waited; 0: unknown."""
    bus: int = 0
    """The same, times the factor of the bus bandwidth."""
