"""Bodies: what is inflated, what is refused, and that nothing else is ever raised."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_monitor.ingest.body import body_format, check_length, inflate
from rankwatch_monitor.ingest.limits import MIB, Limits
from rankwatch_monitor.ingest.rejection import Refusal

LIMITS = Limits()
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
}
PACKED = [name for name in PACK if name in ("gzip", "zstd")]


def streamed_zstd(data: bytes) -> bytes:
    """Return a frame that does not say how long its content is, as a streaming sender makes."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


def refusal(body: bytes, encoding: str | None, limits: Limits = LIMITS) -> Refusal:
    with pytest.raises(Refusal) as refused:
        inflate(body, encoding, limits)
    return refused.value


@pytest.mark.parametrize("encoding", PACK)
@given(data=st.binary(max_size=3000))
def test_what_was_packed_comes_back(encoding: str, data: bytes) -> None:
    assert inflate(PACK[encoding](data), encoding, LIMITS) == data
    assert inflate(PACK[encoding](data), encoding.upper(), LIMITS) == data
    assert inflate(streamed_zstd(data), "zstd", LIMITS) == data


@pytest.mark.parametrize("encoding", PACKED)
def test_every_truncation_is_noticed(encoding: str) -> None:
    whole = PACK[encoding](b"rank 3 of 4 " * 50)
    for length in range(len(whole)):
        refused = refusal(whole[:length], encoding)
        assert (refused.status, refused.reason) == (400, "bad_body")
        assert "send it again" in refused.message


@pytest.mark.parametrize("encoding", PACKED)
def test_bytes_after_the_end(encoding: str) -> None:
    whole = PACK[encoding](b"one")
    for extra in (b"x", whole, whole * 500):
        refused = refusal(whole + extra, encoding)
        assert refused.status == 400
        assert "bytes after its end" in refused.message


@pytest.mark.parametrize("encoding", PACKED)
def test_a_bomb_is_refused_while_it_is_inflated(encoding: str) -> None:
    bomb = PACK[encoding](bytes(256 * MIB))
    assert len(bomb) < LIMITS.body_bytes
    tracemalloc.start()
    try:
        refused = refusal(bomb, encoding)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (refused.status, refused.reason) == (413, "body_too_large")
    assert "inflates to more than the limit of 16777216 bytes" in refused.message
    assert peak < 3 * LIMITS.decompressed_bytes


@pytest.mark.parametrize("encoding", PACK)
def test_the_limits_themselves_are_still_inside(encoding: str) -> None:
    limits = Limits(body_bytes=2000, decompressed_bytes=1000)
    assert len(inflate(PACK[encoding](bytes(1000)), encoding, limits)) == 1000
    assert refusal(PACK[encoding](bytes(1001)), encoding, limits).status == 413
    assert "above the limit of 2000 bytes" in refusal(bytes(2001), encoding, limits).message


def test_a_zstd_frame_that_wants_a_huge_window() -> None:
    packer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27)
    ).compressobj()
    assert refusal(packer.compress(bytes(1000)) + packer.flush(), "zstd").status == 400


@pytest.mark.parametrize("encoding", ["deflate", "br", "gzip, zstd", "\x00"])
def test_unknown_encodings(encoding: str) -> None:
    refused = refusal(b"", encoding)
    assert (refused.status, refused.reason) == (415, "bad_content_type")
    assert "send gzip, zstd, identity" in refused.message


@pytest.mark.parametrize("encoding", PACKED)
@given(data=st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_a_refusal(encoding: str, data: bytes) -> None:
    for body in (data, PACK[encoding](b"x" * 100)[:20] + data):
        with suppress(Refusal):
            inflate(body, encoding, LIMITS)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("application/x-protobuf", "protobuf"),
        ("application/json", "json"),
        ("Application/JSON; charset=utf-8", "json"),
        (" application/x-protobuf ;x=y", "protobuf"),
    ],
)
def test_content_types(header: str, expected: str) -> None:
    assert body_format(header) == expected


@pytest.mark.parametrize("header", [None, "", "text/plain", "application/protobuf", "json", "x" * 5000])
def test_unknown_content_types(header: str | None) -> None:
    with pytest.raises(Refusal, match="send application/x-protobuf or application/json") as refused:
        body_format(header)
    assert refused.value.status == 415
    assert len(refused.value.message) < 250


@pytest.mark.parametrize(
    ("header", "status"), [("4194305", 413), ("9" * 5000, 413), ("-1", 400), ("ten", 400), ("١٢", 400)]
)
def test_announced_lengths(header: str, status: int) -> None:
    check_length(None, LIMITS)
    check_length("4194304", LIMITS)
    with pytest.raises(Refusal) as refused:
        check_length(header, LIMITS)
    assert refused.value.status == status
