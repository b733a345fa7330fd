"""How often the ranks of a job send what, by the number of them: one monitor takes in what all of them send."""

from __future__ import annotations

from typing import Final

EXPORT_SECONDS: Final = 1.0
"""Seconds between two reports of a rank; a limit that is passed is reported at once, whatever the interval."""
MOST_REQUESTS: Final = 4_096
"""Requests a second that all ranks of a job make of one monitor together."""
MOST_REPORTS: Final = 20_000
"""The same for reports of which a Collector puts those of a node into one request."""
WINDOW_SECONDS: Final = 10.0
"""Seconds that a window of steps lasts, about: ranks find a power of two of steps that comes near it."""
MOST_WINDOWS: Final = 1_600
"""Windows a second of all ranks of a job: they take three times as long as a report without."""


def export_seconds(world_size: int, *, collected: bool) -> float:
    """Seconds between two reports of a rank, where nobody has set them; ``collected``: a Collector stands between."""
    return max(EXPORT_SECONDS, world_size / (MOST_REPORTS if collected else MOST_REQUESTS))


def histogram_seconds(world_size: int) -> float:
    """Seconds between two reports that hold the durations of finished sections; 0: every report holds them.

    They are a third of the work that a report makes, and no limit waits for them.
    """
    return 0.0 if world_size <= MOST_REQUESTS else window_seconds(world_size)


def window_seconds(world_size: int) -> float:
    """Seconds that a window lasts, about, where nobody has set how many steps it has."""
    return max(WINDOW_SECONDS, world_size / MOST_WINDOWS)


def window_spread(world_size: int) -> float:
    """Seconds over which the ranks of a very large job spread what they tell of a window that all close at once."""
    return window_seconds(world_size) - WINDOW_SECONDS
