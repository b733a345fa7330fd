"""Turns running totals into increments, and recognises repeated points.

OpenTelemetry senders count in two ways: *delta* points hold what happened since the last export, *cumulative* ones
everything since the series started. The core takes increments of finished sections and totals of counters, so one value
per process and series is remembered; the least recently seen process is evicted first. A time of 0 means "unknown" in
OTLP; without times no repetition can be recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from rankwatch_monitor.core.events import RankIdentity, SectionStatistics
from rankwatch_monitor.ingest.lru import LruCache

SeriesKey = str | tuple[str, str]
"""A section name, or (metric, attribute value) of a counter."""


class _Running(NamedTuple):
    """The last cumulative histogram point of a series."""

    start_ns: int
    time_ns: int
    statistics: SectionStatistics


class _Total(NamedTuple):
    """The sum of the delta points of a counter."""

    time_ns: int
    value: int


class _Window(NamedTuple):
    """The last window of a process."""

    time_ns: int
    iteration: int | None


# An int is the time of the last point of a delta histogram: a series has no two points at one time.
SERIES: Final = 12
"""Series of all processes together, for each that may be remembered: a rank has ten, and may have hundreds."""
_RECOUNT: Final = 65_536
"""New series after which all are counted."""
_Remembered = _Running | _Total | _Window | int
ProcessSeries = dict[SeriesKey, _Remembered]


class SeriesTracker:
    """The last values of each series of each process.

    Args:
        processes: how many processes are remembered.
        since_unix_ns: when this monitor started. A cumulative series that is older was, in part, counted by an earlier
            run of the monitor, so its first point only sets the baseline.
    """

    def __init__(self, processes: int, since_unix_ns: int = 0) -> None:
        self._since_ns = since_unix_ns
        self._most, self._new = SERIES * processes, 0
        self._processes: LruCache[RankIdentity, ProcessSeries] = LruCache(lambda _: {}, processes)

    def __len__(self) -> int:
        return len(self._processes)

    def of(self, identity: RankIdentity) -> ProcessSeries:
        """The series of one process, as the methods below take them."""
        return self._processes(identity)

    def sweep(self, over: Callable[[RankIdentity], bool]) -> bool:
        """Forget some of the processes that are ``over``; return whether there were any."""
        return self._processes.sweep(lambda identity, _: over(identity))

    def _set(self, series: ProcessSeries, key: SeriesKey, value: _Remembered) -> None:
        if key not in series:
            self._new += 1
            if self._new >= min(_RECOUNT, self._most):
                self._new = 0
                self._processes.shrink(len, self._most)
        series[key] = value

    def total_of_deltas(self, series: ProcessSeries, key: SeriesKey, time_ns: int, value: int) -> int | None:
        """The total of a delta counter after this point; None when the point is a repetition."""
        last = series.get(key)
        total = 0
        if isinstance(last, _Total):
            if time_ns and last.time_ns == time_ns:
                return None
            total = last.value
        self._set(series, key, _Total(time_ns, total + value))
        return total + value

    def is_new_delta(self, series: ProcessSeries, key: SeriesKey, time_ns: int) -> bool:
        """Whether a delta histogram point is not a repetition of the last one."""
        if time_ns and series.get(key) == time_ns:
            return False
        self._set(series, key, time_ns)
        return True

    def is_new_window(self, series: ProcessSeries, key: SeriesKey, time_ns: int, iteration: int | None) -> bool:
        """Whether a window is neither the last one nor an earlier one that was sent again.

        Compared by time and by step, since a sender that repeats its gauges gives them a new time with each export.
        """
        last = series.get(key)
        if isinstance(last, _Window):
            if (time_ns and time_ns == last.time_ns) or (iteration is not None and iteration == last.iteration):
                return False
            # Both must go back: a clock may be set back, and a script may restart its step count.
            if time_ns < last.time_ns and (iteration or 0) < (last.iteration or 0):
                return False
        self._set(series, key, _Window(time_ns, iteration))
        return True

    def increment(
        self, series: ProcessSeries, key: SeriesKey, start_ns: int, time_ns: int, now: SectionStatistics
    ) -> SectionStatistics | None:
        """The increment of a cumulative histogram since its last point; None when there is none."""
        last = series.get(key)
        if not isinstance(last, _Running) or last.start_ns != start_ns:
            self._set(series, key, _Running(start_ns, time_ns, now))
            return now if start_ns >= self._since_ns else None
        before = last.statistics
        # Not later and no larger count: a repetition, or out of order. A larger count is new; the clock was set back.
        if time_ns and time_ns <= last.time_ns and (time_ns == last.time_ns or now.count <= before.count):
            return None
        self._set(series, key, _Running(start_ns, time_ns, now))
        if now.count < before.count:  # the sender restarted its series and kept the start time
            return now
        return _difference(now, before) if now.count > before.count else None


def _difference(now: SectionStatistics, before: SectionStatistics) -> SectionStatistics:
    """Statistics of the durations that are in ``now`` but not in ``before``.

    A maximum that rose is one of the new durations. If it did not, the new maximum is unknown, and the mean of the new
    durations stands in for it. The same holds for the minimum.
    """
    count = now.count - before.count
    total = max(0.0, now.sum - before.sum)
    mean = min(max(total / count, now.min), now.max)
    return SectionStatistics(
        count,
        total,
        now.min if now.min < before.min else mean,
        now.max if now.max > before.max else mean,
    )
