"""What waits for a backend, on disk: segments of records, a position for each reader, and a limit.

How this works
--------------
Records are appended to the newest *segment*, a file; a full one is closed and the next begun, and every start begins
a new one. Each *reader* has a position, kept in a file of its own. A segment that all readers have left is removed.
Beyond the limit the oldest segment is removed also when it was not read: its readers go on behind it, and what they
missed is counted. Written records outlive the process, not the power: files are synced when they are closed.

A record is a header (mark, lengths, lane, checksum), its meta data and its body. One that was cut off by the end of a
process is the last of its segment; its reader goes on with the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

MIB: Final = 1024 * 1024
SEGMENT: Final = 8 * MIB
SMALLEST_LIMIT: Final = MIB
_HEADER: Final = struct.Struct("<2sBHII")
_MARK: Final = b"RW"
_POSITION: Final = struct.Struct("<QQI")
_AT_ONCE: Final = MIB
"""Bytes that a reader takes from the disk at a time."""


class Record(NamedTuple):
    """One request as it came."""

    path: str
    content_type: str
    encoding: str
    lane: int
    """0 to 255; records of one lane keep their order."""
    body: bytes

    def packed(self) -> bytes:
        """The record as it stands in a segment."""
        meta = "\n".join((self.path, self.content_type, self.encoding)).encode(errors="replace")
        check = zlib.crc32(self.body, zlib.crc32(meta))
        return _HEADER.pack(_MARK, self.lane, len(meta), len(self.body), check) + meta + self.body


class Position(NamedTuple):
    """A place in the spool."""

    segment: int
    offset: int


class Spool:
    """A folder of segments. One thread appends, any number read."""

    def __init__(self, folder: Path, limit: int) -> None:
        """Open or make it.

        Args:
            folder: for this spool alone.
            limit: bytes on disk.

        Raises:
            ValueError: the folder cannot be used; the text says why.
        """
        self._folder = folder
        self._segment_bytes = min(SEGMENT, max(limit // 8, 64 * 1024))
        self._limit = limit
        self._news = threading.Condition()
        self._readers: dict[str, Reader] = {}
        self._ending = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("wb")
        except OSError as error:
            raise ValueError(f"--forward-dir: cannot write into {folder}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ValueError(
                f"--forward-dir: another monitor forwards from {folder}; give each monitor a folder of its own"
            ) from None
        self._sizes = {int(path.stem): path.stat().st_size for path in sorted(folder.glob("*.spool"))}
        self._current = max(self._sizes, default=0) + 1
        self._sizes[self._current] = 0
        self._file = self._path(self._current).open("wb", buffering=0)

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        with self._news:
            return sum(self._sizes.values())

    def reader(self, name: str) -> Reader:
        """The reader of this name, where it was; one that is new begins with what is appended from now on."""
        reader = Reader(self, self._folder / f"{name}.position")
        with self._news:
            kept = reader.kept()
            # Noted at once: should the process end before anything was read, what came until then is not new.
            reader.move(Position(self._current, 0) if kept is None else max(kept, Position(min(self._sizes), 0)))
            self._readers[name] = reader
        return reader

    def begin(self) -> None:
        """Forget readers that nobody asked for; called once all were."""
        for path in self._folder.glob("*.position"):
            if path.stem not in self._readers:
                path.unlink(missing_ok=True)
        with self._news:
            self._tidy()

    def append(self, records: Iterable[bytes]) -> None:
        """Append packed records; they are on their way to the disk when this returns.

        Raises:
            OSError: the disk takes no more; nothing of them counts as appended.
        """
        data = b"".join(records)
        with self._news:
            size = self._sizes[self._current]
        if size and size + len(data) > self._segment_bytes:
            self._next_segment()
            size = 0
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file.fileno(), data[done:])
        except OSError:
            os.ftruncate(self._file.fileno(), size)
            os.lseek(self._file.fileno(), size, os.SEEK_SET)
            raise
        with self._news:
            self._sizes[self._current] = size + len(data)
            self._tidy()
            self._news.notify_all()

    def end(self) -> None:
        """Let nobody wait for records any more."""
        with self._news:
            self._ending = True
            self._news.notify_all()

    def close(self) -> None:
        """Sync and close the newest segment."""
        if self._file.closed:
            return
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()
        self._lock.close()

    def _next_segment(self) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        opened = self._path(self._current + 1).open("wb", buffering=0)
        self._file.close()
        self._file = opened
        with self._news:
            self._current += 1
            self._sizes[self._current] = 0

    def _tidy(self) -> None:
        """Remove segments that nobody needs, and above the limit the oldest."""
        read = min((reader.position.segment for reader in self._readers.values()), default=self._current)
        for number in sorted(self._sizes):
            if number >= self._current or (number >= read and sum(self._sizes.values()) <= self._limit):
                break
            for reader in self._readers.values():
                if reader.position.segment <= number:
                    start = reader.position.offset if reader.position.segment == number else 0
                    reader.missed += _count(self._path(number), start)
                    reader.move(Position(number + 1, 0))
            self._path(number).unlink(missing_ok=True)
            del self._sizes[number]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.spool"


class Reader:
    """One who reads a spool from front to back. ``missed`` counts records that were removed before they were read."""

    def __init__(self, spool: Spool, file: Path) -> None:
        self.position = Position(0, 0)
        self.missed = 0
        self._spool, self._path = spool, file
        self._file = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)

    def read(self, most: int, timeout: float) -> tuple[Sequence[Record], Position]:
        """Up to ``most`` records and the position behind them; waits up to ``timeout`` seconds for the first."""
        spool = self._spool
        with spool._news:
            spool._news.wait_for(lambda: self._more() or spool._ending, timeout)
            while self.position.segment < spool._current and self.position.offset >= self._end():
                self.move(Position(self.position.segment + 1, 0))
            position, end = self.position, self._end()
            if position.offset >= end:
                return (), position
            closed = position.segment < spool._current
            try:
                source = spool._path(position.segment).open("rb", buffering=0)
            except OSError:
                source = None
        if source is None:
            return (), self._skip(position, end)
        with source:
            records, offset = _records(source.fileno(), position.offset, end, most)
        if not records and closed:
            return (), self._skip(position, end)
        return records, Position(position.segment, offset)

    def advance(self, position: Position) -> None:
        """Everything before this position needs no more reading, also after a restart."""
        with self._spool._news:
            if position > self.position:
                self.move(position)
                self._spool._tidy()

    def behind(self) -> int:
        """Bytes that are not read yet."""
        with self._spool._news:
            sizes = self._spool._sizes
            return sum(size for number, size in sizes.items() if number >= self.position.segment) - self.position.offset

    def kept(self) -> Position | None:
        """Where this reader was in an earlier process, the beginning if that cannot be read; None when it is new."""
        data = os.pread(self._file, _POSITION.size, 0)
        if not data:
            return None
        segment, offset, check = _POSITION.unpack(data.ljust(_POSITION.size, b"\0"))
        return Position(segment, offset) if zlib.crc32(data[:16]) == check else Position(0, 0)

    def close(self) -> None:
        """Let the file go."""
        os.close(self._file)

    def _more(self) -> bool:
        return self.position < (self._spool._current, self._spool._sizes[self._spool._current])

    def _end(self) -> int:
        return self._spool._sizes.get(self.position.segment, 0)

    def move(self, position: Position) -> None:
        """Go to a position and note it; under the spool's lock."""
        self.position = position
        data = struct.pack("<QQ", *position)
        with contextlib.suppress(OSError):  # it may then be read twice, which is allowed
            os.pwrite(self._file, data + struct.pack("<I", zlib.crc32(data)), 0)

    def _skip(self, position: Position, end: int) -> Position:
        """Leave what cannot be read: a record that was cut off when a process ended."""
        self.missed += 1
        beyond = Position(position.segment, end)
        self.advance(beyond)
        return beyond


def _records(file: int, offset: int, end: int, most: int) -> tuple[list[Record], int]:
    """Whole records from ``offset``, and where the next one begins."""
    data = os.pread(file, min(end - offset, _AT_ONCE), offset)
    if len(data) >= _HEADER.size:
        _, _, meta_size, body_size, _ = _HEADER.unpack_from(data)
        first = _HEADER.size + meta_size + body_size
        if len(data) < first <= end - offset:
            data = os.pread(file, first, offset)
    found: list[Record] = []
    at = 0
    while len(found) < most and len(data) - at >= _HEADER.size:
        mark, lane, meta_size, body_size, check = _HEADER.unpack_from(data, at)
        begin = at + _HEADER.size
        behind = begin + meta_size + body_size
        if mark != _MARK or behind > len(data):
            break
        meta, body = data[begin : begin + meta_size], data[begin + meta_size : behind]
        if zlib.crc32(body, zlib.crc32(meta)) != check:
            break
        path, content_type, encoding = meta.decode(errors="replace").split("\n")
        found.append(Record(path, content_type, encoding, lane, body))
        at = behind
    return found, offset + at


def _count(path: Path, offset: int) -> int:
    """Records of a segment from ``offset`` on."""
    number = 0
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(offset)
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            mark, _, meta_size, body_size, _ = _HEADER.unpack(header)
            if mark != _MARK:
                break
            file.seek(meta_size + body_size, os.SEEK_CUR)
            number += 1
    return number
