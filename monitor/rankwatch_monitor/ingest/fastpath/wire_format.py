"""The part of protobuf's wire format that is needed to cut an OTLP request into resources without creating objects.

A message is a sequence of fields, each a tag (number and wire type) and a value. Input is untrusted: whatever is not a
sequence of whole fields raises :class:`ValueError`, and the caller falls back to protobuf's parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS: Final = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT: Final = 5
"""Bytes of a tag or length; enough for the largest body that is accepted."""

_REQUEST_RESOURCE_METRICS: Final = 0x0A
_RESOURCE: Final = 0x0A
_SCOPE_METRICS: Final = 0x12


class Field(NamedTuple):
    """One field of a message; its value is at ``[start, end)``."""

    number: int
    wire: int
    start: int
    end: int


class Slice(NamedTuple):
    """One ``ResourceMetrics`` of a request: its bytes, and those of its resource and its only scope."""

    body: bytes
    start: int
    end: int
    resource: bytes
    scope: bytes | None
    """None if there is not exactly one scope after exactly one resource; the parser has to read it then."""

    @property
    def whole(self) -> bytes:
        """All of it. Cut out when it is asked for, which costs more than finding it."""
        return self.body[self.start : self.end]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at offset ``at``, and the offset after it.

    Raises:
        ValueError: it does not end, or takes more bytes than any length here.
        IndexError: ``data`` ends before it.
    """
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    for following in range(at + 1, at + _LONGEST_VARINT):
        byte = data[following]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, following + 1
        shift += 7
    raise ValueError("varint too long")


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message at ``[start, end)``.

    Raises:
        ValueError: it is not a sequence of whole fields, or has a wire type that OTLP does not use.
    """
    at = start
    try:
        while at < end:
            tag, at = varint(data, at)
            wire = tag & 7
            if wire == BYTES:
                length, at = varint(data, at)
                stop = at + length
            elif wire == VARINT:
                _, stop = varint(data, at)
            else:
                stop = at + _WIDTHS[wire]
            if stop > end or not tag >> 3:
                raise ValueError("a field ends after its message")
            yield Field(tag >> 3, wire, at, stop)
            at = stop
    except (IndexError, KeyError):
        raise ValueError("not a sequence of whole fields") from None


def slices(body: bytes, most: int) -> list[Slice]:
    """Cut a metrics request into its resources; one more than ``most`` where there are more.

    Raises:
        ValueError: it holds anything else, or is truncated.
    """
    found: list[Slice] = []
    at, end = 0, len(body)
    try:
        while at < end and len(found) <= most:
            if body[at] != _REQUEST_RESOURCE_METRICS:
                raise ValueError("unknown field of a metrics request")
            length, at = varint(body, at + 1)
            if at + length > end:
                raise ValueError("a resource ends after its request")
            found.append(_slice(body, at, at + length))
            at += length
    except IndexError:
        raise ValueError("the request is truncated") from None
    return found


def _slice(body: bytes, start: int, end: int) -> Slice:
    if start < end and body[start] == _RESOURCE:
        length, begin = varint(body, start + 1)
        stop = begin + length
        if stop < end and body[stop] == _SCOPE_METRICS:
            length, at = varint(body, stop + 1)
            if at + length == end:
                return Slice(body, start, end, body[begin:stop], body[at:end])
    return Slice(body, start, end, b"", None)
