"""Answers OTLP over gRPC, which this port does not take, in words that a gRPC client shows.

A gRPC client opens HTTP/2 with its preface. It gets our settings at once and, for its first request, a gRPC status
whose message has the remedy; the connection is closed after that. All of it is constant bytes: requests are neither
decompressed nor decoded, so no HTTP/2 library is needed. A client over TLS never gets here: it asks for HTTP/2 in the
handshake, which fails.

The status is UNIMPLEMENTED, upon which senders drop the request instead of retrying it.
"""

from __future__ import annotations

from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MESSAGE: Final = (
    "this port takes OTLP over HTTP, not gRPC: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or use a Collector"
)
"""Printable ASCII without %, which gRPC would decode; at most 126 bytes, the longest length in one byte of HPACK."""
MOST_BYTES: Final = 65_536
"""Bytes that may come before the first request's headers."""

_HEADERS, _SETTINGS, _GOAWAY = 0x1, 0x4, 0x7
_ACK, _END_STREAM_AND_HEADERS = 0x1, 0x5
_UNIMPLEMENTED: Final = b"12"


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of RFC 9113, section 4.1."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field of RFC 7541, section 6.2.2: not indexed, its name new, both without Huffman coding."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


_STATUS_200: Final = b"\x88"  # entry 8 of HPACK's static table
_TRAILERS: Final = (
    _STATUS_200
    + _literal(b"content-type", b"application/grpc")
    + _literal(b"grpc-status", _UNIMPLEMENTED)
    + _literal(b"grpc-message", MESSAGE.encode("ascii"))
)


class GrpcRefusal:
    """One HTTP/2 connection: received bytes in, bytes to send out. No IO."""

    def __init__(self) -> None:
        self._buffer = b""
        self._greeted = False
        self._received = 0
        self.done = False
        """The answer is complete: the connection is to be closed once it is sent, and what comes is ignored."""

    def receive(self, data: bytes) -> bytes:
        """Take received bytes, from the preface on; return those to send."""
        if self.done:
            return b""
        self._received += len(data)
        self._buffer += data
        answer = b""
        if not self._greeted and len(self._buffer) >= len(PREFACE):
            self._greeted = True
            self.done = not self._buffer.startswith(PREFACE)
            self._buffer = self._buffer.removeprefix(PREFACE)
            answer = _frame(_SETTINGS, 0, 0)
        while self._greeted and not self.done and len(self._buffer) >= 9:
            size = int.from_bytes(self._buffer[:3], "big")
            kind, flags = self._buffer[3], self._buffer[4]
            stream = int.from_bytes(self._buffer[5:9], "big")
            if kind == _HEADERS:  # its header block is of no interest, and need not be complete
                last = stream.to_bytes(4, "big") + bytes(4)  # RFC 9113, section 6.8: no error
                answer += _frame(_HEADERS, _END_STREAM_AND_HEADERS, stream, _TRAILERS) + _frame(_GOAWAY, 0, 0, last)
                self.done = True
            elif len(self._buffer) < 9 + size:
                break
            elif kind == _SETTINGS and not flags & _ACK:
                answer += _frame(_SETTINGS, _ACK, 0)
            self._buffer = self._buffer[9 + size :]
        self.done |= self._received > MOST_BYTES
        return answer
