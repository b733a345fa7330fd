"""The short way for the one request that comes thousands of times a second: protobuf metrics of a known length.

An ordinary request passes uvicorn's parser, a dozen layers of the application and as many of its answer, which takes
several times as long as all that is done with its bytes. Here the head is matched as a whole; what is not exactly what
ranks and Collectors send (another path or type, no length, anything repeated, folded or odd) goes the ordinary way with
every byte it came with. Admission, tokens, limits and refusals are the same on both ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fastapi import Response
from google.protobuf.message import Message

from rankwatch.contract import semconv
from rankwatch_monitor.ingest.admission import Admission, Body
from rankwatch_monitor.ingest.body import inflate
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.rejection import Refusal

BEGINS: Final = b"POST " + semconv.OTLP_METRICS_PATH.encode() + b" HTTP/1.1\r\n"
LONGEST_HEAD: Final = 4096
"""Bytes of a head; that of a rank has about 300."""
LARGEST: Final = 512 * 1024
"""Bytes of a body; a larger one is parsed on a thread, the ordinary way."""
LOOPBACK: Final = ("127.0.0.1", "::1")
_END: Final = b"\r\n\r\n"
_FIELD: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[ \t]*[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?[ \t]*\r\n"
_FIELDS: Final = re.compile(rb"(?:" + _FIELD + rb")+")
_UNUSUAL: Final = frozenset({"transfer-encoding", "expect", "upgrade", "trailer", "te"})
_OK: Final = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/x-protobuf\r\ncontent-length: %d\r\n\r\n"
_NOTHING_TO_SAY: Final = _OK % 0


class RefusedError(Exception):
    """A request is refused while it still comes in; the connection ends with this answer."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer


class OrdinaryWayError(Exception):
    """A request is not one for the short way after all; ``whole`` is every byte of it."""

    def __init__(self, whole: bytes) -> None:
        super().__init__()
        self.whole = whole


class Sender(NamedTuple):
    """Who sends, as far as admission wants to know."""

    headers: Mapping[str, str]
    method: str = "POST"


@dataclass(slots=True)
class Gathering:
    """One request whose body comes in."""

    headers: Mapping[str, str]
    length: int
    held: AbstractContextManager[Body]
    body: Body
    parts: list[bytes] = field(default_factory=list)

    def add(self, part: bytes) -> bytes:
        """Take what belongs to the body; return what came behind it.

        Raises:
            Refusal: 429, there is too much in flight and this sender has most of it.
        """
        missing = self.length - self.body.size
        mine, rest = (part, b"") if len(part) <= missing else (part[:missing], part[missing:])
        self.parts.append(mine)
        self.body.grew(len(mine))
        return rest

    @property
    def whole(self) -> bool:
        """Whether all of the body is here."""
        return self.body.size >= self.length

    def end(self) -> None:
        """Hold the body no more."""
        self.held.__exit__(None, None, None)


class Lane:
    """Takes metrics requests the short way."""

    def __init__(
        self,
        take: Callable[[bytes], Message | None],
        refused: Callable[[Refusal], Response],
        limits: Limits,
        counters: Counters,
        admit: Callable[[Sender], None] | None,
        admission: Admission,
    ) -> None:
        """Prepare.

        Args:
            take: takes an inflated body and says what is to be answered, None for nothing.
            refused: makes the answer to a request that is refused.
            limits: what one sender may ask.
            counters: where requests and rejections are counted.
            admit: says who may send.
            admission: says whether there is room.
        """
        self._take, self._refused, self._limits, self._counters = take, refused, limits, counters
        self._admit, self._admission = admit, admission

    def open(self, data: bytes, sender: str) -> tuple[Gathering, bytes] | None:
        """Begin with the first bytes of a request; return it and what came behind its head.

        None when it is to go the ordinary way, where it is also refused if need be: nothing was done with it.
        """
        end = data.find(_END, 0, LONGEST_HEAD)
        if not data.startswith(BEGINS) or end < 0 or (headers := read_head(data[: end + 2])) is None:
            return None
        length = int(headers["content-length"])
        if length > min(LARGEST, self._limits.body_bytes):
            return None
        try:
            self._admission.check()
            if self._admit is not None:
                self._admit(Sender(headers))
        except Refusal:
            return None
        # As uvicorn does it: only a proxy on this machine is believed whom it speaks for.
        held = self._admission.body(headers.get("x-forwarded-for", sender) if sender in LOOPBACK else sender)
        return Gathering(headers, length, held, held.__enter__()), data[end + 4 :]

    def add(self, request: Gathering, part: bytes) -> bytes:
        """Take what belongs to a request's body; return what came behind it.

        Raises:
            RefusedError: there is too much in flight.
        """
        try:
            return request.add(part)
        except Refusal as refusal:
            raise RefusedError(self.refuse(refusal)) from None

    def answer(self, request: Gathering, later: object = None) -> bytes:
        """Take a request that is whole; return the answer as it goes over the connection, at once."""
        del later
        self._counters.requests += 1
        try:
            # Many that were let in one by one may be whole in the same turn, and it is decoding them that takes long.
            self._admission.check()
            body = b"".join(request.parts)
            if "content-encoding" in request.headers:
                body = inflate(body, request.headers["content-encoding"], self._limits)
            said = self._take(body)
        except Refusal as refusal:
            return self.refuse(refusal)
        if said is None:
            return _NOTHING_TO_SAY
        content = said.SerializeToString()
        return _OK % len(content) + content

    def refuse(self, refusal: Refusal) -> bytes:
        """The answer to a request that is refused once it came."""
        self._counters.reject(refusal.reason)
        response = self._refused(refusal)
        lines = [b"HTTP/1.1 %d Refused" % response.status_code, *(b": ".join(each) for each in response.raw_headers)]
        return b"\r\n".join([*lines, b"", bytes(response.body)])


def read_head(
    head: bytes, begins: bytes = BEGINS, content_type: str = "application/x-protobuf"
) -> dict[str, str] | None:
    """The headers of a request that may go the short way, by lower-case name; None for any other.

    ``head`` ends with the line end of its last line; ``begins`` is the request line it must have.
    """
    headers = read_fields(head, begins)
    if headers is None:
        return None
    length = headers.get("content-length", "")
    usual = headers.get("content-type") == content_type and length.isdigit() and len(length) < 10
    return headers if usual else None


def read_fields(head: bytes, begins: bytes) -> dict[str, str] | None:
    """The headers of a request that is not unusual, with or without a body; None for any other. See above."""
    if not head.startswith(begins) or _FIELDS.fullmatch(head, len(begins)) is None:
        return None
    headers: dict[str, str] = {}
    lines = head[len(begins) : -2].decode("ascii").split("\r\n")
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip(" \t")
    usual = (
        len(headers) == len(lines)  # none is repeated
        and "host" in headers
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
        and not _UNUSUAL & headers.keys()
    )
    return headers if usual else None
