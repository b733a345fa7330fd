"""Parses the head of a fast-lane request, and buffers its body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from fastapi import Response

from rankwatch_monitor.ingest.admission import Body

LONGEST_HEAD: Final = 4096
"""Bytes of a request head; a rank's has about 300."""
LARGEST_BODY: Final = 512 * 1024
"""Bytes of a body. A larger one is decoded on a thread, by the application."""
END_OF_HEAD: Final = b"\r\n\r\n"
LOOPBACK: Final = ("127.0.0.1", "::1")
_FIELD: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[ \t]*[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?[ \t]*\r\n"
_FIELDS: Final = re.compile(rb"(?:" + _FIELD + rb")+")
_FORWARDED: Final = re.compile(rb"\r\nx-forwarded-for:([^\r\n]*)", re.IGNORECASE)
_UNUSUAL: Final = frozenset({"transfer-encoding", "expect", "upgrade", "trailer", "te"})


Client = tuple[str, int] | None
"""Host and port of the other side."""


class RefusedError(Exception):
    """A request is refused before its body is complete; the connection is closed after ``response``."""

    def __init__(self, response: bytes) -> None:
        super().__init__()
        self.response = response


class FallBackError(Exception):
    """A request has to be answered by the application after all; ``request`` holds every byte of it."""

    def __init__(self, request: bytes) -> None:
        super().__init__()
        self.request = request


@dataclass(slots=True)
class CountedPost:
    """A request whose body is being received, and counts against the memory for bodies."""

    head: bytes
    """With the empty line at its end."""
    headers: Mapping[str, str]
    length: int
    """Bytes of the body."""
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    """Bytes received so far."""
    sender: str = ""
    admitted: AbstractContextManager[Body] | None = None
    counted: Body | None = None

    def add(self, data: bytes) -> bytes:
        """Append received bytes; return those after the end of the body.

        Raises:
            Refusal: 429, too much is in flight and most of it is this client's.
        """
        missing = self.length - self.size
        own, rest = (data, b"") if len(data) <= missing else (data[:missing], data[missing:])
        self.parts.append(own)
        self.size += len(own)
        assert self.counted is not None
        self.counted.grew(len(own))
        return rest

    @property
    def complete(self) -> bool:
        """Whether the whole body was received."""
        return self.size >= self.length

    @property
    def body(self) -> bytes:
        """What was received of the body."""
        return b"".join(self.parts)

    def release(self) -> None:
        """Stop counting the body: the request has ended, however it did."""
        assert self.admitted is not None
        self.admitted.__exit__(None, None, None)


def parse_post(head: bytes, request_line: bytes, content_type: str) -> dict[str, str] | None:
    """The headers of a POST request that a lane may take, by lower-case name; None for any other.

    Args:
        head: up to and with the line end of its last header.
        request_line: that it must begin with.
        content_type: that it must have.
    """
    headers = parse_headers(head, request_line)
    if headers is None:
        return None
    length = headers.get("content-length", "")
    usual = headers.get("content-type") == content_type and length.isdigit() and len(length) < 10
    return headers if usual else None


def parse_headers(head: bytes, request_line: bytes) -> dict[str, str] | None:
    """The headers of a request with nothing unusual in its head; None for any other. Arguments as above."""
    if not head.startswith(request_line) or _FIELDS.fullmatch(head, len(request_line)) is None:
        return None
    headers: dict[str, str] = {}
    lines = head[len(request_line) : -2].decode("ascii").split("\r\n")
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip(" \t")
    usual = (
        len(headers) == len(lines)  # no header is repeated
        and "host" in headers
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
        and not _UNUSUAL & headers.keys()
    )
    return headers if usual else None


def sender(client: Client, headers: Mapping[str, str]) -> str:
    """The address that a body is counted under.

    As uvicorn does, ``X-Forwarded-For`` is believed only from a proxy on this machine, and of it only what that proxy
    appended: the rest is the sender's own.
    """
    host = client[0] if client else ""
    forwarded = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    return forwarded if forwarded and host in LOOPBACK else host


def sender_of(data: bytes, client: Client) -> str:
    """The same by the first bytes of any request."""
    head = data[: data.find(END_OF_HEAD) + 2]
    forwarded = _FORWARDED.findall(head) if client is not None and client[0] in LOOPBACK else []
    return sender(client, {"x-forwarded-for": forwarded[-1].decode("latin-1")} if forwarded else {})


def refused(response: Response) -> bytes:
    """The bytes of a refusal, after which the connection is closed or goes on."""
    lines = [b"HTTP/1.1 %d Refused" % response.status_code, *(b": ".join(each) for each in response.raw_headers)]
    return b"\r\n".join([*lines, b"", bytes(response.body)])
