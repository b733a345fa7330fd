"""Flight recorder dumps as they are sent and kept."""

from __future__ import annotations

import base64
import random
import zlib

import pytest

from rankwatch.contract import flight
from rankwatch.contract.flight import FlightDump, packed, unpacked


def test_a_dump_comes_back() -> None:
    found = packed({3: b'{"entries": []}', 1: b"{}"})
    assert [(each.rank, unpacked(each.data), each.size) for each in found] == [
        (1, b"{}", len(found[0].data)),
        (3, b'{"entries": []}', len(found[1].data)),
    ]


def test_a_node_sends_as_many_as_there_is_room_for() -> None:
    noise = random.Random(1).randbytes(flight.MAX_DATA // 2)
    found = packed(dict.fromkeys(range(16), noise) | {flight.MAX_RANKS: b"{}"})
    assert 0 < len(found) < 16
    assert sum(each.size for each in found) <= flight.MAX_NODE
    assert packed({0: random.Random(1).randbytes(flight.MAX_DATA)}) == ()
    assert packed({0: b" " * (flight.MAX_JSON + 1)}) == ()


def bomb(size: int) -> str:
    return base64.b64encode(zlib.compress(b" " * size)).decode()


@pytest.mark.parametrize(
    "data", ["", "x", "é", "AAAA", bomb(flight.MAX_JSON + 1), bomb(100)[:-8], base64.b64encode(b"{}").decode()]
)
def test_what_is_none_or_too_large_is_refused(data: str) -> None:
    with pytest.raises(ValueError):
        unpacked(data)


def test_the_largest_is_taken() -> None:
    assert len(unpacked(bomb(flight.MAX_JSON))) == flight.MAX_JSON
    assert FlightDump(1, "").size == 0
