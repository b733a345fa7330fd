"""Mode ``report_determinism_stats``: what is validated is compared between the two runs of each step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from rankwatch.rerun import agreement, comparison
from rankwatch.rerun.statistics import DeterminismStatistics

_log = logging.getLogger("rankwatch")


class Determinism:
    """Counts the differences of this rank, and adds up those of all ranks from time to time."""

    def __init__(self, group: Any, report_every: int) -> None:
        self.counted = DeterminismStatistics()
        """Of this rank, since the last report."""
        self.total: DeterminismStatistics | None = None
        """Of all ranks, as last reported; on the first rank."""
        self._group, self._report_every = group, report_every
        self._first_results: dict[tuple[str, int], Any] = {}

    def validated(
        self, call: tuple[str, int], result: Any, comparison_func: Callable[[Any, Any], float] | None, *, again: bool
    ) -> None:
        """A result of the first run is kept, that of the second one is compared with it."""
        if not again:
            self._first_results[call] = comparison.kept(result)
        elif call in self._first_results:
            difference = comparison.difference(self._first_results.pop(call), result, comparison_func)
            self.counted.record(call[0], difference)

    def end_of_step(self, step: int) -> None:
        """Forget the step's results; report when it is time, on every rank alike."""
        self._first_results.clear()
        if (step + 1) % self._report_every == 0:
            self.report()

    def report(self) -> DeterminismStatistics | None:
        """Add up, log and return on the first rank what all ranks have counted so far; None elsewhere: a collective."""
        counted, self.counted = self.counted, DeterminismStatistics()
        everybody = agreement.gathered(counted.by_message, self._group)
        if everybody is None:
            return None
        self.total = self.total or DeterminismStatistics()
        for each in everybody:
            self.total.combine(each)
        for line in self.total.report().splitlines():
            _log.info("%s", line)
        return self.total
