"""Dumps of torch's flight recorder, as they are kept with an incident: JSON, compressed, never a pickle."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MAX_RANKS: Final = 256
"""The first ranks of a job, whose dumps are kept."""
MAX_DATA: Final = 256 << 10
"""Characters of one dump: torch's 2,000 entries take a quarter."""
MAX_NODE: Final = 1 << 20
"""Characters of all dumps of one node."""
MAX_INCIDENT: Final = 16 << 20
"""Characters of all dumps of one incident."""
MAX_JSON: Final = 8 << 20
"""Bytes of one dump as JSON."""
FILE: Final = "trace_"
"""A dump's file is called so, with the number of its rank: what torch's own reader takes as prefix."""


@dataclass(frozen=True, slots=True)
class FlightDump:
    """What the recorder of one rank held."""

    rank: int
    data: str
    """JSON, compressed by zlib and in base64; empty: it is stored elsewhere."""
    size: int = 0
    """Characters of ``data``, wherever it is."""


def packed(dumps: Mapping[int, bytes]) -> tuple[FlightDump, ...]:
    """The dumps of a node by rank, as many as there is room for."""
    found, room = [], MAX_NODE
    for rank in sorted(dumps):
        if rank >= MAX_RANKS or len(dumps[rank]) > MAX_JSON:
            continue
        data = base64.b64encode(zlib.compress(dumps[rank])).decode()
        if len(data) <= min(room, MAX_DATA):
            found.append(FlightDump(rank, data, len(data)))
            room -= len(data)
    return tuple(found)


def unpacked(data: str, most: int = MAX_JSON) -> bytes:
    """The JSON of a dump.

    Raises:
        ValueError: it is none, or too large.
    """
    try:
        inflating = zlib.decompressobj()
        found = inflating.decompress(base64.b64decode(data, validate=True), most)
        if not inflating.eof or inflating.unconsumed_tail:
            raise ValueError(f"it is cut off, or has more than {most} bytes")
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"it is no dump: {error}") from None
    return found
