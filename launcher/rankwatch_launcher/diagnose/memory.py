"""Reads what a process has in its memory: its environment as it is now, and the sizes of torch's process groups.

``/proc/PID/environ`` is the environment of a process's start. What it sets itself (``os.environ``) is in its memory,
where the C library's ``environ`` points. Read like a debugger reads, under the same rights, without stopping it; all
that is read may be of any form, so every read is bounded and a failure is an empty answer.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rankwatch_launcher import procfs

_C_LIBRARIES: Final = ("libc.so", "libc-2", "ld-musl")
_HEADER: Final = struct.Struct("<16s2HI3QI6H")
_SEGMENT: Final = struct.Struct("<2I6Q")
_ENTRY: Final = struct.Struct("<qQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_DYNAMIC: Final = 2
_STRINGS, _SYMBOLS, _HASHES = 5, 6, 0x6FFFFEF5
"""Tags of the tables that are needed, see ``elf.h``."""
_ENVIRON: Final = b"environ"
_MOST_SEGMENTS: Final = 64
_MOST_ENTRIES: Final = 256
_MOST_VARIABLES: Final = 4096
_LONGEST: Final = 2048
"""Bytes of a variable: a rank, an address or a path is shorter."""
_CHAIN: Final = 64
_VALUE: Final = 16
"""Of a Python object of pybind11: where its C++ object is."""
_RANK_AND_SIZE: Final = 24
"""Of ``c10d::ProcessGroup``: behind the table of its functions, its count of references and its store."""


class _Memory:
    """The memory of a process. Every failure is an OSError."""

    def __init__(self, pid: int, proc: Path) -> None:
        self._file = os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._file)

    def read(self, address: int, size: int) -> bytes:
        if not 0 < address < 1 << 62:
            raise OSError("no address")
        found = os.pread(self._file, size, address)
        if len(found) < size:
            raise OSError("it ends")
        return found

    def number(self, address: int) -> int:
        (value,) = struct.unpack("<Q", self.read(address, 8))
        return int(value)

    def text(self, address: int) -> bytes:
        """Up to its end; empty: it is longer than any that is needed."""
        found = b""
        while len(found) < _LONGEST:
            size = 256 - address % 256  # never over the end of a page into nothing
            found += self.read(address, size)
            address += size
            if b"\0" in found:
                return found.partition(b"\0")[0]
        return b""


def environment(pid: int, proc: Path = procfs.PROC) -> dict[str, str]:
    """The environment of a process as it is now; empty: it cannot be read."""
    try:
        memory = _Memory(pid, proc)
    except OSError:
        return {}
    try:
        for base in _bases(pid, proc):
            found = _symbol(memory, base)
            if found:
                return dict(_variables(memory, memory.number(found)))
    except (OSError, struct.error):
        pass
    finally:
        memory.close()
    return {}


def group(pid: int, address: int, proc: Path = procfs.PROC) -> tuple[int, int]:
    """A process's place in a process group of torch, and the group's size, by the Python object of the group.

    It is what stands there: whoever uses it has to hold it against a group whose size is known.
    """
    try:
        memory = _Memory(pid, proc)
    except OSError:
        return -1, 0
    try:
        place, size = struct.unpack("<2i", memory.read(memory.number(address + _VALUE) + _RANK_AND_SIZE, 8))
        return int(place), int(size)
    except (OSError, struct.error):
        return -1, 0
    finally:
        memory.close()


def _bases(pid: int, proc: Path) -> Iterator[int]:
    """Where the program and its C library begin: the program may have taken over what the library defines."""
    first, library = 0, 0
    for line in procfs.text(proc / str(pid) / "maps").splitlines():
        span, _, offset, *_ = line.split(maxsplit=3)
        name = line.rpartition("/")[2] if "/" in line else ""
        if int(offset, 16) or not name:
            continue
        begin = int(span.partition("-")[0], 16)
        first = first or begin
        library = library or (begin if name.startswith(_C_LIBRARIES) else 0)
    yield from (each for each in (first, library) if each)


def _symbol(memory: _Memory, base: int) -> int:
    """Where the file that begins at ``base`` has its ``environ``; 0: it has none."""
    head = _HEADER.unpack(memory.read(base, _HEADER.size))
    if head[0][:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
        return 0
    # A program that is not relocated states addresses, all others what is added to their base.
    shift = base if head[1] == 3 else 0
    segments = [
        _SEGMENT.unpack(memory.read(base + head[5] + i * _SEGMENT.size, _SEGMENT.size))
        for i in range(min(head[10], _MOST_SEGMENTS))
    ]
    dynamic = next((each for each in segments if each[0] == _DYNAMIC), None)
    if dynamic is None:
        return 0
    tables = dict[int, int]()
    for i in range(min(dynamic[6] // _ENTRY.size, _MOST_ENTRIES)):
        tag, value = _ENTRY.unpack(memory.read(shift + dynamic[3] + i * _ENTRY.size, _ENTRY.size))
        if not tag:
            break
        tables[tag] = value if value >= base else value + shift
    if not tables.keys() >= {_STRINGS, _SYMBOLS, _HASHES}:
        return 0
    return _hashed(memory, tables, shift)


def _hashed(memory: _Memory, tables: dict[int, int], shift: int) -> int:
    """The address of ``environ`` by the table of hashes that GNU's linker makes; 0: it is not defined there."""
    wanted = 5381
    for letter in _ENVIRON:
        wanted = (wanted * 33 + letter) & 0xFFFFFFFF
    buckets, first, words, _ = struct.unpack("<4I", memory.read(tables[_HASHES], 16))
    if not buckets:
        return 0
    at_buckets = tables[_HASHES] + 16 + 8 * words
    (index,) = struct.unpack("<I", memory.read(at_buckets + 4 * (wanted % buckets), 4))
    if index < first:
        return 0
    for place in range(index, index + _CHAIN):
        (seen,) = struct.unpack("<I", memory.read(at_buckets + 4 * (buckets + place - first), 4))
        if seen | 1 == wanted | 1:
            name, _, _, section, value, _ = _SYMBOL.unpack(
                memory.read(tables[_SYMBOLS] + place * _SYMBOL.size, _SYMBOL.size)
            )
            if section and memory.read(tables[_STRINGS] + name, len(_ENVIRON) + 1) == _ENVIRON + b"\0":
                return int(value) + shift
        if seen & 1:
            break
    return 0


def _variables(memory: _Memory, array: int) -> Iterator[tuple[str, str]]:
    for i in range(_MOST_VARIABLES):
        address = memory.number(array + 8 * i)
        if not address:
            return
        name, equals, value = memory.text(address).decode(errors="replace").partition("=")
        if equals:
            yield name, value
