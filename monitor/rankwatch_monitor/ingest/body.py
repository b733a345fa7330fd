"""Checks and inflates a request body.

Inflating stops at the limit: a body that would exceed it is refused while being inflated, and never held as a whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

import zstandard

from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.ingest.rejection import Refusal, quote

Format = Literal["protobuf", "json"]

CONTENT_TYPES: Final[Mapping[str, Format]] = {"application/x-protobuf": "protobuf", "application/json": "json"}
ACCEPTED_ENCODINGS: Final = "gzip, zstd, identity"

# Makes zlib expect a gzip header and trailer.
_GZIP_WINDOW: Final = 31
# RFC 8878 section 3.1.1.1.2 requires at least 8 MiB; more would let a sender choose the memory that is used.
_ZSTD_WINDOW_BYTES: Final = 8 * 1024 * 1024
# A block of a zstd frame has at least 4 bytes and inflates to at most 128 KiB, so a slice to at most 8 MiB.
_ZSTD_SLICE_BYTES: Final = 256


def body_format(content_type: str | None) -> Format:
    """The message encoding of a ``Content-Type`` header.

    Raises:
        Refusal: 415, it is missing or not supported.
    """
    name = (content_type or "").partition(";")[0].strip().lower()
    found = CONTENT_TYPES.get(name)
    if found is None:
        given = f"content type {quote(content_type)} is not supported" if content_type else "there is no content type"
        raise Refusal(415, "bad_content_type", f"{given}: send application/x-protobuf or application/json")
    return found


def check_length(content_length: str | None, limits: Limits) -> None:
    """Refuse a body by its ``Content-Length`` header, before any of it is read.

    Raises:
        Refusal: 413 above the limit, 400 when it is not a number.
    """
    if content_length is None:
        return
    if not (content_length.isascii() and content_length.isdigit()):
        raise Refusal(400, "bad_body", f"content length {quote(content_length)} is not a number")
    if len(content_length) > 18 or int(content_length) > limits.body_bytes:
        raise too_large(limits)


def too_large(limits: Limits) -> Refusal:
    """The refusal of a body above the limit."""
    return Refusal(
        413, "body_too_large", f"the request body is above the limit of {limits.body_bytes} bytes: send smaller batches"
    )


def inflate_little(body: bytes, content_encoding: str | None, limits: Limits, most: int) -> bytes | None:
    """Undo the ``Content-Encoding`` of a body if that gives no more than ``most`` bytes, else None.

    Raises:
        Refusal: 415 unknown encoding, 400 truncated or corrupt.
    """
    try:
        return inflate(body, content_encoding, replace(limits, body_bytes=most, decompressed_bytes=most))
    except Refusal as refusal:
        if refusal.status == 413:
            return None
        raise


def inflate(body: bytes, content_encoding: str | None, limits: Limits) -> bytes:
    """Undo the ``Content-Encoding`` of a body.

    Raises:
        Refusal: 413 too large before or after inflating, 415 unknown encoding, 400 truncated or corrupt.
    """
    if len(body) > limits.body_bytes:
        raise too_large(limits)
    encoding = (content_encoding or "").strip().lower()
    if encoding in ("", "identity"):
        inflated = body
    elif encoding == "gzip":
        inflated = _gunzip(body, limits.decompressed_bytes)
    elif encoding == "zstd":
        inflated = _unzstd(body, limits.decompressed_bytes)
    else:
        raise Refusal(
            415,
            "bad_content_type",
            f"content encoding {quote(content_encoding)} is not supported: send {ACCEPTED_ENCODINGS}",
        )
    if len(inflated) > limits.decompressed_bytes:
        raise _inflates_too_large(limits.decompressed_bytes)
    return inflated


def _gunzip(body: bytes, cap: int) -> bytes:
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        inflated = inflater.decompress(body, cap + 1)
    except zlib.error as error:
        raise Refusal(400, "bad_body", f"the gzip body is corrupt ({error}): send it again") from None
    if len(inflated) > cap:
        raise _inflates_too_large(cap)
    if not inflater.eof:
        raise Refusal(400, "bad_body", "the gzip body is truncated: send it again")
    if inflater.unused_data:
        # Several members are legal gzip, but millions of empty ones are an attack, and no OTLP sender sends two.
        raise Refusal(400, "bad_body", "the gzip body has bytes after its end: send one gzip member")
    return inflated


def _unzstd(body: bytes, cap: int) -> bytes:
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
    parts: list[bytes] = []
    size = at = 0
    try:
        while at < len(body) and not inflater.eof:
            part = inflater.decompress(body[at : at + _ZSTD_SLICE_BYTES])
            at += _ZSTD_SLICE_BYTES
            size += len(part)
            if size > cap:
                raise _inflates_too_large(cap)
            parts.append(part)
    except zstandard.ZstdError as error:
        raise Refusal(400, "bad_body", f"the zstd body is corrupt ({error}): send it again") from None
    if not inflater.eof:
        raise Refusal(400, "bad_body", "the zstd body is truncated: send it again")
    if inflater.unused_data or at < len(body):
        raise Refusal(400, "bad_body", "the zstd body has bytes after its end: send one zstd frame")
    return b"".join(parts)


def _inflates_too_large(cap: int) -> Refusal:
    return Refusal(
        413, "body_too_large", f"the request body inflates to more than the limit of {cap} bytes: send smaller batches"
    )
