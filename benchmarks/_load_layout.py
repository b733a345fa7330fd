"""Where in the bytes of a report its identity, its times and its values stand, so that they can be written over.

Times, ages and counts are fixed64, double and sfixed64 in OTLP, eight bytes wherever they stand; identity is text of
a fixed length and whole numbers. Found by walking protobuf's wire format along the few fields that matter, so nothing
is assumed of the order in which the encoder writes them. Numbers of fields: opentelemetry-proto's ``metrics.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_RESOURCE_METRICS, _RESOURCE, _SCOPE_METRICS, _METRICS = 1, 1, 2, 2
_METRIC_NAME, _DATA_POINTS = 1, 1
_KINDS: Final = {5: "gauge", 7: "sum", 10: "exponential_histogram"}
_START, _TIME, _DOUBLE, _INT = 2, 3, 4, 6
_LABELS: Final = {"gauge": 7, "sum": 7, "exponential_histogram": 1}
_TEMPORALITY: Final = 2
_DELTA: Final = 1


class Span(NamedTuple):
    """Some bytes of a body."""

    at: int
    length: int


class Value(NamedTuple):
    """The eight bytes of one data point's value."""

    metric: str
    labels: tuple[str, ...]
    """Values of its attributes."""
    at: int


class Layout(NamedTuple):
    """Places of one report's bytes."""

    identity: dict[str, Span]
    """Resource attribute -> its text, or its number as a varint."""
    times: list[int]
    starts: list[int]
    """Of delta points only: those change with each report."""
    values: list[Value]


def varint(number: int) -> bytes:
    """A whole number from 0 up as protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def find(body: bytes) -> Layout:
    """The places in an export request that holds one resource.

    Raises:
        ValueError: it is no such request.
    """
    layout = Layout({}, [], [], [])
    resources = [field for field in _fields(body, Span(0, len(body))) if field[0] == _RESOURCE_METRICS]
    if len(resources) != 1:
        raise ValueError(f"a report has one resource, not {len(resources)}")
    for number, _, within in _fields(body, resources[0][2]):
        if number == _RESOURCE:
            for _, _, attribute in _fields(body, within):
                key, value = _attribute(body, attribute)
                layout.identity[key] = value
        elif number == _SCOPE_METRICS:
            for inner, _, metric in _fields(body, within):
                if inner == _METRICS:
                    _metric(body, metric, layout)
    return layout


def _metric(body: bytes, metric: Span, layout: Layout) -> None:
    fields = list(_fields(body, metric))
    name = next(_text(body, span) for number, _, span in fields if number == _METRIC_NAME)
    for number, _, data in fields:
        if number in _KINDS:
            kind = _KINDS[number]
            inner = list(_fields(body, data))
            delta = kind != "gauge" and any(n == _TEMPORALITY and body[span.at] == _DELTA for n, _, span in inner)
            for point in (span for n, _, span in inner if n == _DATA_POINTS):
                _point(body, point, name, kind, layout, delta=delta)


def _point(body: bytes, point: Span, name: str, kind: str, layout: Layout, *, delta: bool) -> None:
    labels: list[str] = []
    at = -1
    for number, wire, span in _fields(body, point):
        if wire == _FIXED64:
            if number == _TIME:
                layout.times.append(span.at)
            elif number == _START and delta:
                layout.starts.append(span.at)
            elif kind != "exponential_histogram" and number in (_DOUBLE, _INT):
                at = span.at
        elif wire == _LENGTH and number == _LABELS[kind]:
            labels.append(_text(body, _attribute(body, span)[1]))
    if at >= 0:
        layout.values.append(Value(name, tuple(labels), at))


def _attribute(body: bytes, attribute: Span) -> tuple[str, Span]:
    key, value = (span for _, _, span in _fields(body, attribute))
    inner = next((span for _, _, span in _fields(body, value)), Span(value.at, 0))
    return _text(body, key), inner


def _text(body: bytes, span: Span) -> str:
    return body[span.at : span.at + span.length].decode()


def _fields(body: bytes, within: Span) -> Iterator[tuple[int, int, Span]]:
    """Number, wire type and content of each field."""
    at, end = within.at, within.at + within.length
    while at < end:
        tag, at = _read_varint(body, at)
        number, wire = tag >> 3, tag & 7
        if wire == _LENGTH:
            length, at = _read_varint(body, at)
        elif wire == _VARINT:
            length = _read_varint(body, at)[1] - at
        else:
            length = {_FIXED64: 8, _FIXED32: 4}[wire]
        yield number, wire, Span(at, length)
        at += length


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
