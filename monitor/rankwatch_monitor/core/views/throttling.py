"""The GPU of a slow rank that is throttled, which explains why its computation takes longer. Derived when read."""

from __future__ import annotations

from typing import Final, NamedTuple

from rankwatch.contract.enums import Cause
from rankwatch_monitor.core.events import DeviceReading, throttle_words
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Straggler

_REMEDY: Final = (("thermal", "cooling"), ("brake", "power supply"), ("slowdown", "cooling and power supply"))
"""What to check by a part of a reason's name."""


class Throttle(NamedTuple):
    """A throttled GPU."""

    rank: int
    local_rank: int
    """-1: unknown."""
    reasons: tuple[str, ...]
    since: float
    """Unix seconds of the first reading in a row with such a reason."""
    readings: str
    """``88 °C, 1.20 of 1.98 GHz``; empty: none are known."""

    @property
    def gpu(self) -> str:
        """``GPU 5``."""
        return f"GPU {self.local_rank}" if self.local_rank >= 0 else "its GPU"

    @property
    def words(self) -> str:
        """The reasons in words."""
        return ", ".join(map(throttle_words, self.reasons))

    @property
    def remedy(self) -> str:
        """What to check."""
        found = (what for reason in self.reasons for part, what in _REMEDY if part in reason)
        return next(found, "power limit")


def throttle_of(job: Job, straggler: Straggler) -> Throttle | None:
    """The throttling that makes a rank compute slowly; None: another cause, or most of its peers are throttled too.

    Args:
        straggler: one of its slow ranks.
    """
    performance, rank = job.performance, straggler.rank
    reading, since = performance.readings.get(rank), performance.throttled_since.get(rank)
    if straggler.cause is not Cause.COMPUTE or reading is None or since is None or rank >= len(job.columns):
        return None
    if 2 * len(performance.throttled_since) > len(performance.readings):
        return None
    return Throttle(rank, int(job.columns.local_rank_R[rank]), reading.slowed_by, since, _readings(reading))


def _readings(reading: DeviceReading) -> str:
    found = [] if reading.temperature is None else [f"{reading.temperature:.0f} °C"]
    if reading.clock is not None:
        limit = "" if reading.clock_limit is None else f" of {reading.clock_limit / 1e9:.2f}"
        found.append(f"{reading.clock / 1e9:.2f}{limit} GHz")
    return ", ".join(found)
