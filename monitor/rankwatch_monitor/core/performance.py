"""How fast each rank of a job is: what its windows and kernel reports say, kept as columns over ranks."""

from __future__ import annotations

from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.scores import Told


class Performance:
    """What is known of the speed of one job's ranks. ``told`` is what everybody shows."""

    def __init__(self) -> None:
        self.told = Told()

    def take(self, report: RankReport, now: float) -> None:
        """Take in what a rank says of its windows, kernels and device."""

    def begin_attempt(self, attempt: int) -> None:
        """Another attempt runs: windows and device readings of the one before are gone, its history stays."""
