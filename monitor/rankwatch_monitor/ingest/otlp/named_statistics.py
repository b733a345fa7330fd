"""Metrics with several statistics per name: of sections, kernels and process groups.

Each point carries a name and, unless it counts calls, a statistic. The points of several metrics are collected by name,
within a bound, and yielded once all metrics of a report were read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from rankwatch.contract import semconv
from rankwatch_monitor.ingest.otlp.builder import COUNT_END, SECONDS_END, ReportBuilder, value_of
from rankwatch_monitor.ingest.rejection import quote

_CALLS: Final = "calls"
_NO_METRIC: Final = Metric()


class SeriesKind(NamedTuple):
    """What the names stand for."""

    noun: str
    """What one of them is called in messages."""
    key: str
    """The point attribute that holds the name."""
    statistics: frozenset[str]
    needed: str
    """The statistic without which the others are useless."""
    limit: Literal["sections_per_job", "kernels_per_report", "groups_per_report"]
    too_many: str
    """The reason under which names above the limit are counted."""
    sizes: frozenset[str] = frozenset()
    """Statistics that are bytes; the others are seconds."""


class NamedStatistics:
    """Statistics of one report by name; the number of names is bounded."""

    __slots__ = ("_builder", "_kind", "_limit", "_metric", "_statistics")

    def __init__(self, builder: ReportBuilder, kind: SeriesKind) -> None:
        self._builder = builder
        self._kind = kind
        self._limit: int = getattr(builder.limits, kind.limit)
        self._statistics: dict[str, dict[str, float]] = {}
        self._metric = _NO_METRIC

    def read_seconds(self, metric: Metric, points: Sequence[Any]) -> None:
        """Read points that carry a statistic; of several with the same one the last wins."""
        builder, statistics = self._builder, self._kind.statistics
        self._metric = metric
        for row, name, statistic, point in self._rows(metric, points):
            value = value_of(point)
            if statistic not in statistics:
                builder.reject("bad_name", metric, _unknown(semconv.ATTR_STATISTIC, statistic, statistics))
            elif value is not None:
                if 0 <= value < SECONDS_END:
                    row[statistic] = float(value)
                else:
                    builder.reject("bad_value", metric, f"{self._kind.noun} {quote(name)}: {statistic} of {value} s")

    def read_sizes(self, metric: Metric, points: Sequence[Any]) -> None:
        """Read points that carry a statistic in bytes."""
        builder, known = self._builder, self._kind.sizes
        for row, name, statistic, point in self._rows(metric, points):
            value = value_of(point)
            if statistic not in known:
                builder.reject("bad_name", metric, _unknown(semconv.ATTR_STATISTIC, statistic, known))
            elif value is not None:
                if 0 <= value < COUNT_END and value == int(value):
                    row[statistic] = int(value)
                else:
                    builder.reject("bad_value", metric, f"{self._kind.noun} {quote(name)}: {statistic} of {value} B")

    def read_calls(self, metric: Metric, points: Sequence[Any]) -> None:
        """Read the number of calls of each name."""
        self._metric = metric
        for row, name, _, point in self._rows(metric, points):
            value = value_of(point)
            if value is None:
                continue
            if 0 <= value < COUNT_END and value == int(value):
                row[_CALLS] = int(value)
            else:
                self._builder.reject("bad_value", metric, f"{self._kind.noun} {quote(name)} called {value} times")

    def complete(self) -> Iterator[tuple[str, int, dict[str, float]]]:
        """Yield name, calls and statistics. Names without calls are skipped, those that lack the needed statistic
        are rejected."""
        for name, row in self._statistics.items():
            count = len(row)
            calls = row.pop(_CALLS, None)
            if calls == 0 or not count:
                continue
            if calls is None or self._kind.needed not in row:
                lack = _CALLS if calls is None else self._kind.needed
                self.reject(name, f"has no {lack}", count)
            else:
                yield name, int(calls), row

    def reject(self, name: str, what: str, points: int) -> None:
        """Reject all points of one name."""
        self._builder.reject("bad_value", self._metric, f"{self._kind.noun} {quote(name)} {what}", points)

    def _rows(self, metric: Metric, points: Sequence[Any]) -> Iterator[tuple[dict[str, float], str, str, Any]]:
        """Yield, for each usable point, the statistics read so far under its name, then name, statistic and point."""
        builder, by_name, kind, limit = self._builder, self._statistics, self._kind, self._limit
        key, longest, most = kind.key, builder.limits.name_length, builder.limits.attributes
        beyond = 0
        for point in points:
            attributes = point.attributes
            if len(attributes) > most:
                builder.reject("too_many_attributes", metric, f"a point with {len(attributes)} attributes")
                continue
            name = statistic = ""
            for attribute in attributes:
                found = attribute.key
                if found == key:
                    name = attribute.value.string_value
                elif found == semconv.ATTR_STATISTIC:
                    statistic = attribute.value.string_value
            row = by_name.get(name)
            if row is None:
                if not name or not name.isprintable() or len(name) > longest:
                    builder.reject_name(metric, key, name)
                    continue
                if len(by_name) >= limit:
                    beyond += 1
                    continue
                row = by_name[name] = {}
            yield row, name, statistic, point
        if beyond:  # one message: one for each of thousands would take longer than reading them
            builder.reject(kind.too_many, metric, f"more than {limit} different {kind.noun}s", beyond)


def seconds_by_word(
    builder: ReportBuilder, metric: Metric, points: Sequence[Any], key: str, known: frozenset[str]
) -> dict[str, float] | None:
    """Seconds by the text of each point's attribute ``key``; None when a point had to be rejected."""
    found: dict[str, float] = {}
    rejected_before = builder.rejections.items
    for word, point in builder.named(points, metric, key):
        value = value_of(point)
        if word not in known:
            builder.reject("bad_name", metric, _unknown(key, word, known))
        elif value is not None:
            if 0 <= value < SECONDS_END:
                found[word] = float(value)
            else:
                builder.reject("bad_value", metric, f"{word} of {value} s")
    return found if builder.rejections.items == rejected_before else None


def _unknown(key: str, word: str, known: frozenset[str]) -> str:
    problem = f"{key} {quote(word)} is unknown" if word else f"a point without {key}"
    return f"{problem}; known are {', '.join(sorted(known))}"
