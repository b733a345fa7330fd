"""Running totals -> what is new since the last report, and repeats -> nothing.

OpenTelemetry senders count in two ways: *delta* points hold what happened since the last export, *cumulative* ones
everything since the series began. The core wants increments of finished sections and totals of counters, so one value
per process and series is remembered here. It is bounded: the process that has been silent for longest is forgotten
first. A time of 0 is OTLP's "not told"; without times no repeat can be recognised.
"""

from __future__ import annotations

from typing import NamedTuple

from rankwatch_monitor.core.events import RankIdentity, SectionStatistics
from rankwatch_monitor.ingest.lru import Remembered

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


# A delta histogram needs no more than the time of its last point: the same series has no two points at one time.
_Remembered = _Running | _Total | _Window | int
ProcessSeries = dict[SeriesKey, _Remembered]


class SeriesTracker:
    """What was last seen of each series of each process.

    Args:
        processes: how many processes are remembered.
        since_unix_ns: when this monitor began. A cumulative series that is older was (in part) counted by an earlier
            run of the monitor, so its first point only sets where counting begins.
    """

    def __init__(self, processes: int, since_unix_ns: int = 0) -> None:
        self._since_ns = since_unix_ns
        self._processes: Remembered[RankIdentity, ProcessSeries] = Remembered(lambda _: {}, processes)

    def __len__(self) -> int:
        return len(self._processes)

    def of(self, identity: RankIdentity) -> ProcessSeries:
        """Return what is remembered of one process, to be handed to the methods below."""
        return self._processes(identity)

    def total_of_deltas(self, series: ProcessSeries, key: SeriesKey, time_ns: int, value: int) -> int | None:
        """Return the total of a delta counter after this point, None when the point was counted before."""
        last = series.get(key)
        total = 0
        if isinstance(last, _Total):
            if time_ns and last.time_ns == time_ns:
                return None
            total = last.value
        series[key] = _Total(time_ns, total + value)
        return total + value

    def is_new_delta(self, series: ProcessSeries, key: SeriesKey, time_ns: int) -> bool:
        """Say whether a delta histogram point is another than the last one."""
        if time_ns and series.get(key) == time_ns:
            return False
        series[key] = time_ns
        return True

    def is_new_window(self, series: ProcessSeries, key: SeriesKey, time_ns: int, iteration: int | None) -> bool:
        """Say whether a window is another than the last one, and not an earlier one that was sent again.

        The step tells as well as the time: a sender that repeats its gauges gives them a new time with each export.
        """
        last = series.get(key)
        if isinstance(last, _Window):
            if (time_ns and time_ns == last.time_ns) or (iteration is not None and iteration == last.iteration):
                return False
            # A clock that was set back alone says nothing, nor does a script that begins its count of steps anew.
            if time_ns < last.time_ns and (iteration or 0) < (last.iteration or 0):
                return False
        series[key] = _Window(time_ns, iteration)
        return True

    def increment(
        self, series: ProcessSeries, key: SeriesKey, start_ns: int, time_ns: int, now: SectionStatistics
    ) -> SectionStatistics | None:
        """Return what a cumulative histogram gained since its last point, None when nothing."""
        last = series.get(key)
        if not isinstance(last, _Running) or last.start_ns != start_ns:
            series[key] = _Running(start_ns, time_ns, now)
            return now if start_ns >= self._since_ns else None
        before = last.statistics
        # A point that is not later and counts no more is a repeat, or comes late; one that counts more is new: the
        # sender's clock was set back.
        if time_ns and time_ns <= last.time_ns and (time_ns == last.time_ns or now.count <= before.count):
            return None
        series[key] = _Running(start_ns, time_ns, now)
        if now.count < before.count:  # a sender that began again and kept its start time
            return now
        return _difference(now, before) if now.count > before.count else None


def _difference(now: SectionStatistics, before: SectionStatistics) -> SectionStatistics:
    """Return the statistics of the durations that ``now`` has and ``before`` had not.

    A running maximum that rose is one of the new durations; one that did not says only that none was longer, and then
    the mean stands in for it. The same holds for the minimum.
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
