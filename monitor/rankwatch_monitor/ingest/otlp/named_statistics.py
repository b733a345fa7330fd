"""Metrics that say several numbers of each of many things, all by name: sections, kernels, process groups.

Each point carries the name of the thing and, unless it counts calls, the word of its statistic. They are gathered by
name here, within a bound, and handed out once their calls and what else is needed are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from rankwatch.contract import semconv
from rankwatch_monitor.ingest.otlp.builder import Draft, value_of
from rankwatch_monitor.ingest.rejection import quote

_CALLS: Final = "calls"
_NONE_YET: Final = Metric()
# Whole numbers up to here are exact in the core's float64 columns.
COUNT_END: Final = 2**53
# Thirty years: a longer time is none, and the core keeps them as float32.
SECONDS_END: Final = 1e9


class Things(NamedTuple):
    """What is counted and timed."""

    word: str
    """What people call one of them."""
    key: str
    """The point attribute that holds its name."""
    statistics: frozenset[str]
    needed: str
    """The statistic without which the others say nothing."""
    limit: Literal["sections_per_job", "kernels_per_report", "groups_per_report"]
    too_many: str
    """The reason under which those above the limit are counted."""


class NamedStatistics:
    """Numbers of one report by name and statistic, at most as many names as the limit allows."""

    __slots__ = ("_draft", "_limit", "_metric", "_things", "_told")

    def __init__(self, draft: Draft, things: Things) -> None:
        self._draft = draft
        self._things = things
        self._limit: int = getattr(draft.limits, things.limit)
        self._told: dict[str, dict[str, float]] = {}
        self._metric = _NONE_YET

    def read_seconds(self, metric: Metric, points: Sequence[Any]) -> None:
        """Take in points that carry a statistic; of several with the same one the last counts."""
        draft, statistics = self._draft, self._things.statistics
        self._metric = metric
        for row, name, statistic, point in self._rows(metric, points):
            value = value_of(point)
            if statistic not in statistics:
                draft.reject("bad_name", metric, _unknown(semconv.ATTR_STATISTIC, statistic, statistics))
            elif value is not None:
                if 0 <= value < SECONDS_END:
                    row[statistic] = float(value)
                else:
                    draft.reject("bad_value", metric, f"{self._things.word} {quote(name)}: {statistic} of {value} s")

    def read_calls(self, metric: Metric, points: Sequence[Any]) -> None:
        """Take in how often each was called."""
        self._metric = metric
        for row, name, _, point in self._rows(metric, points):
            value = value_of(point)
            if value is None:
                continue
            if 0 <= value < COUNT_END and value == int(value):
                row[_CALLS] = int(value)
            else:
                self._draft.reject("bad_value", metric, f"{self._things.word} {quote(name)} called {value} times")

    def whole(self) -> Iterator[tuple[str, int, dict[str, float]]]:
        """Yield name, calls and statistics of each; those that lack what is needed are rejected, uncalled ones are not
        spoken of."""
        for name, row in self._told.items():
            count = len(row)
            calls = row.pop(_CALLS, None)
            if calls == 0 or not count:
                continue
            if calls is None or self._things.needed not in row:
                lack = _CALLS if calls is None else self._things.needed
                self.reject(name, f"came without its {lack}", count)
            else:
                yield name, int(calls), row

    def reject(self, name: str, what: str, points: int) -> None:
        """Turn away all that was told of one name."""
        self._draft.reject("bad_value", self._metric, f"{self._things.word} {quote(name)} {what}", points)

    def _rows(self, metric: Metric, points: Sequence[Any]) -> Iterator[tuple[dict[str, float], str, str, Any]]:
        """Yield what was told so far under the name of each point that can be taken; the name, statistic and point."""
        draft, told, things, limit = self._draft, self._told, self._things, self._limit
        key, longest, most = things.key, draft.limits.name_length, draft.limits.attributes
        beyond = 0
        for point in points:
            attributes = point.attributes
            if len(attributes) > most:
                draft.reject("too_many_attributes", metric, f"a point with {len(attributes)} attributes")
                continue
            name = statistic = ""
            for attribute in attributes:
                found = attribute.key
                if found == key:
                    name = attribute.value.string_value
                elif found == semconv.ATTR_STATISTIC:
                    statistic = attribute.value.string_value
            row = told.get(name)
            if row is None:
                if not name or not name.isprintable() or len(name) > longest:
                    draft.reject_name(metric, key, name)
                    continue
                if len(told) >= limit:
                    beyond += 1
                    continue
                row = told[name] = {}
            yield row, name, statistic, point
        if beyond:  # in one go: words for each of many thousands would take longer than reading them
            draft.reject(things.too_many, metric, f"more than {limit} different {things.word}s", beyond)


def seconds_by_word(
    draft: Draft, metric: Metric, points: Sequence[Any], key: str, known: frozenset[str]
) -> dict[str, float] | None:
    """Return seconds by the word each point carries under ``key``; None when a point had to be rejected."""
    found: dict[str, float] = {}
    rejected_before = draft.rejections.items
    for word, point in draft.named(points, metric, key):
        value = value_of(point)
        if word not in known:
            draft.reject("bad_name", metric, _unknown(key, word, known))
        elif value is not None:
            if 0 <= value < SECONDS_END:
                found[word] = float(value)
            else:
                draft.reject("bad_value", metric, f"{word} of {value} s")
    return found if draft.rejections.items == rejected_before else None


def _unknown(key: str, word: str, known: frozenset[str]) -> str:
    said = f"{key} {quote(word)} is unknown" if word else f"a point without {key}"
    return f"{said}; known are {', '.join(sorted(known))}"
