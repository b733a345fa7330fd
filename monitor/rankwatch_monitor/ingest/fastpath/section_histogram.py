"""Reads finished sections from the bytes of their histogram, as Rankwatch's ranks send it: exponential, with deltas.

Buckets have variable length, so a histogram has no layout. But the needed parts of a point (count, sum, min and max)
have fixed sizes and offsets before and after the buckets. Only bytes that protobuf has parsed successfully are read
here; anything unusual gives None and is left to ``otlp.sections.read_finished``.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from math import inf
from struct import Struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import SectionStatistics
from rankwatch_monitor.ingest.fastpath.wire_format import varint
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.ingest.otlp.builder import COUNT_END, ReportBuilder

# Tags of Metric, ExponentialHistogram and its data points in opentelemetry/proto/metrics/v1/metrics.proto.
_DESCRIBING: Final = frozenset({0x0A, 0x12, 0x1A})
"""Name, description and unit."""
_EXPONENTIAL, _POINT = 0x52, 0x0A
_IS_DELTA: Final = bytes((0x10, AGGREGATION_TEMPORALITY_DELTA))
_ATTRIBUTES, _SCALE, _ZERO_COUNT, _POSITIVE, _NEGATIVE = 0x0A, 0x30, 0x39, 0x42, 0x4A
_HEAD: Final = Struct("<B8xBQBQBd")
"""start (not needed for deltas), time, count and sum, each after its tag."""
_TAIL: Final = Struct("<BdBd")
"""min and max."""
_TAGS: Final = (0x11, 0x19, 0x21, 0x29, 0x61, 0x69)
_ONE_BYTE: Final = 0x80
_SECTIONS: Final = 1024
"""Sections whose encoded attribute is cached."""


class Finished(NamedTuple):
    """One point: the runs of one section since the last report."""

    section: str
    time_ns: int
    statistics: SectionStatistics


class FinishedReader:
    """Reads the histogram of finished sections; caches the encoded names of sections."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._section = lru_cache(_SECTIONS)(self._read_section)

    def read(self, metric: bytes) -> list[Finished] | None:
        """The points of a metric, given as valid protobuf; None if anything in it is unusual."""
        found: dict[str, Finished] = {}
        at, end = 0, len(metric)
        try:
            while metric[at] in _DESCRIBING:
                length, at = varint(metric, at + 1)
                at += length
            length, begin = varint(metric, at + 1)
            if metric[at] != _EXPONENTIAL or begin + length != end:
                return None
            at = begin
            count = 0
            while metric[at] == _POINT:
                length, begin = varint(metric, at + 1)
                at = begin + length
                point = self._point(metric, begin, at)
                if point is None:
                    return None
                found[point.section] = point
                count += 1
        except (ValueError, IndexError, struct.error):
            return None
        return list(found.values()) if len(found) == count and metric[at:] == _IS_DELTA else None

    def _point(self, data: bytes, start: int, end: int) -> Finished | None:
        length = data[start + 1]
        head = start + 2 + length
        at, tail = head + _HEAD.size, end - _TAIL.size
        if data[start] != _ATTRIBUTES or length >= _ONE_BYTE or at > tail:
            return None
        # Between head and tail there must be whole fields only; then the tail is one as well.
        if data[at] == _SCALE and data[at + 1] < _ONE_BYTE:
            at += 2
        if data[at] == _ZERO_COUNT:
            at += 9
        if data[at] == _POSITIVE and data[at + 1] < _ONE_BYTE:
            at += 2 + data[at + 1]
        if data[at] == _NEGATIVE and data[at + 1] < _ONE_BYTE:
            at += 2 + data[at + 1]
        section = self._section(data[start + 2 : head])
        tag_1, tag_2, time_ns, tag_3, count, tag_4, total = _HEAD.unpack_from(data, head)
        tag_5, least, tag_6, most = _TAIL.unpack_from(data, tail)
        if at != tail or (tag_1, tag_2, tag_3, tag_4, tag_5, tag_6) != _TAGS or section is None:
            return None
        if not (0 < count < COUNT_END and 0 <= total < inf and 0 <= least <= most < inf):
            return None
        return Finished(section, time_ns, SectionStatistics(count, total, least, most))

    def _read_section(self, encoded: bytes) -> str | None:
        """The section in an encoded attribute; None if it is not valid."""
        try:
            attribute = KeyValue.FromString(encoded)
        except DecodeError:
            return None
        name = attribute.value.string_value
        sound = name.isprintable() and 0 < len(name) <= self._limits.name_length
        return name if sound and attribute.key == semconv.ATTR_SECTION else None


def take(points: list[Finished], builder: ReportBuilder) -> bool:
    """Write points into the builder; False, without effects, if there may be no room for them."""
    series, tracker = builder.series(), builder.tracker
    if len(series) + len(points) > builder.limits.sections_per_job:
        return False
    finished: dict[str, SectionStatistics] = {}
    for section, time_ns, statistics in points:
        if tracker.is_new_delta(series, section, time_ns):
            finished[section] = statistics
        else:
            builder.counters.repeats += 1
    builder.fields["finished"] = finished
    return True
