"""Derives the layout of a scope from its bytes.

The bytes are those of a scope that the full decoder accepted completely. Nothing else is assumed of the sender: any
unusual content (repeated fields, delta counters, points without a value, several points where one is expected) means
that such scopes are always read by the full decoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA

from rankwatch_monitor.ingest.fastpath.columns import FULL_DECODER, READ, Number, Point, Reading, Unusual
from rankwatch_monitor.ingest.fastpath.layout import NO_CUT, Cut, Layout
from rankwatch_monitor.ingest.fastpath.wire_format import BYTES, FIXED32, FIXED64, VARINT, Field, fields, varint
from rankwatch_monitor.ingest.limits import Limits

# Field numbers of opentelemetry/proto/metrics/v1/metrics.proto, with their wire types.
_SCOPE_METRIC: Final = 2
_NAME, _DESCRIPTION, _UNIT, _GAUGE, _SUM = 1, 2, 3, 5, 7
_POINT, _TEMPORALITY, _MONOTONIC = 1, 2, 3
_START, _TIME, _DOUBLE, _INT, _ATTRIBUTE, _FLAGS = 2, 3, 4, 6, 7, 8
_POINT_WIRES: Final = {
    _START: FIXED64,
    _TIME: FIXED64,
    _DOUBLE: FIXED64,
    _INT: FIXED64,
    _ATTRIBUTE: BYTES,
    _FLAGS: FIXED32,
}


@dataclass
class _Scope:
    """The metrics and offsets found in a scope."""

    metrics: dict[str, list[Point]] = field(default_factory=dict)
    count: int = 0
    """Number of metrics, including unknown ones."""
    numbers: list[int] = field(default_factory=list)
    """Offsets of the numbers of all points."""
    cuts: set[int] = field(default_factory=lambda: {NO_CUT, 0})
    """Offsets where a metric may begin."""


def learn(scope: Cut, limits: Limits) -> Layout | None:
    """The layout of a scope; None if anything in it is unusual."""
    rest = scope.rest
    try:
        found = _scope(rest)
        if scope.at not in found.cuts:
            raise Unusual
        if not found.metrics.keys().isdisjoint(FULL_DECODER):
            raise Unusual
        of_contract = {name: points for name, points in found.metrics.items() if name in READ}
        needed = sorted({number for points in of_contract.values() for number in _needed(points)})
        index = {number: 1 + i for i, number in enumerate(needed)}
        metrics = {name: [_indexed(point, index) for point in points] for name, points in of_contract.items()}
        reading = Reading(metrics, limits)
    except (Unusual, ValueError, DecodeError):
        return None
    points = sum(map(len, of_contract.values()))
    return Layout(
        rest,
        found.numbers,
        _struct(needed, len(rest)),
        reading,
        cuts=frozenset(found.cuts),
        points=points,
        items=1 + found.count + points,
    )


def _needed(points: Sequence[Point]) -> Iterator[Number]:
    """The time of the first point, and all values."""
    if points[0].time is not None:
        yield points[0].time
    for point in points:
        yield point.value


def _indexed(point: Point, index: Mapping[Number, int]) -> Point:
    """A point with the index of each number in place of its offset."""
    time, value = point.time, point.value
    known = None if time is None or time not in index else time._replace(at=index[time])
    return Point(point.attributes, known, value._replace(at=index[value]))


def _struct(numbers: Sequence[Number], size: int) -> Struct:
    codes, at = ["<"], 0
    for number in numbers:
        codes.append(f"{number.at - at}x{'q' if number.whole else 'd'}")
        at = number.at + 8
    return Struct("".join((*codes, f"{size - at}x")))


def _scope(data: bytes) -> _Scope:
    found = _Scope()
    for each in fields(data, 0, len(data)):
        if each.number == _SCOPE_METRIC and each.wire == BYTES:
            _metric(data, each, found)
            found.count += 1
        found.cuts.add(each.end)
    return found


def _metric(data: bytes, metric: Field, found: _Scope) -> None:
    parts = {each.number: each for each in fields(data, metric.start, metric.end)}
    if len(parts) != sum(1 for _ in fields(data, metric.start, metric.end)):
        raise Unusual
    kinds = parts.keys() - {_NAME, _DESCRIPTION, _UNIT}
    if _NAME not in parts or any(each.wire != BYTES for each in parts.values()) or len(kinds) != 1:
        raise Unusual
    (kind,) = kinds
    if kind not in (_GAUGE, _SUM):
        raise Unusual
    name = data[parts[_NAME].start : parts[_NAME].end].decode()
    points: list[Point] = []
    for each in fields(data, parts[kind].start, parts[kind].end):
        if each.number == _POINT and each.wire == BYTES:
            points.append(_point(data, each, found))
        elif each.number == _TEMPORALITY and each.wire == VARINT and kind == _SUM:
            if varint(data, each.start)[0] == AGGREGATION_TEMPORALITY_DELTA:
                raise Unusual
        elif each.number != _MONOTONIC or each.wire != VARINT:
            raise Unusual
    if not points or name in found.metrics:
        raise Unusual
    found.metrics[name] = points


def _point(data: bytes, point: Field, found: _Scope) -> Point:
    numbers: dict[int, int] = {}
    attributes: dict[str, str] = {}
    for each in fields(data, point.start, point.end):
        if each.wire != _POINT_WIRES.get(each.number):
            raise Unusual
        if each.number == _ATTRIBUTE:
            attribute = KeyValue.FromString(data[each.start : each.end])
            if attribute.key in attributes:
                raise Unusual
            attributes[attribute.key] = attribute.value.string_value
        elif each.number in numbers or (each.number == _FLAGS and any(data[each.start : each.end])):
            raise Unusual
        else:
            numbers[each.number] = each.start
    if (_DOUBLE in numbers) == (_INT in numbers):
        raise Unusual
    found.numbers += (at for number, at in numbers.items() if number != _FLAGS)
    whole = _INT in numbers
    value = Number(numbers[_INT if whole else _DOUBLE], whole)
    return Point(attributes, Number(numbers[_TIME], whole=True) if _TIME in numbers else None, value)
