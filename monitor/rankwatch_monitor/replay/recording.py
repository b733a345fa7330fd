"""The recording format: every event that reaches the core, written by a running monitor, read by ``rankwatch replay``.

Layout
------
JSON lines, compressed when the file name ends in ``.gz`` or ``.zst``. The first line is a header; each further line is
one of these, ``at`` being the monitor's clock in unix seconds:

=======================================================  ==============================================================
line                                                     meaning
=======================================================  ==============================================================
``{"at": t, "job": id, "began": {...}, "open": [...]}``  a job, as it was before its first event below
``{"at": t, "job": id, KIND: {...}}``                    an event; KIND is a key of :data:`KINDS`
``{"at": t, "lost": n}``                                 n events before this line could not be written
``{"at": t}``                                            the monitor was running and received nothing
=======================================================  ==============================================================

The monitor evaluates ten times a second. Only the last tick before an event is written (``ticked``), from which a
replay derives the others: the response to a decision must not precede it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeGuard

import zstandard

from rankwatch.contract import text
from rankwatch.contract.messages import Evidence, NodeObservation, NodeRegistration, ProcessEvent, read
from rankwatch_monitor.core.events import Acknowledged, JobEvent, Order, PolicyChanged, RankReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.store import codec

log = logging.getLogger("rankwatch")

VERSION: Final = 1
KINDS: Final[Mapping[str, type[Any]]] = {
    "report": RankReport,
    "registration": NodeRegistration,
    "observation": NodeObservation,
    "process": ProcessEvent,
    "acknowledged": Acknowledged,
    "evidence": Evidence,
    "order": Order,
    "policy": PolicyChanged,
}
_KIND_OF: Final = {shape: kind for kind, shape in KINDS.items()}

QUEUE_LENGTH: Final = 65_536
"""Events that may wait for the disk: four seconds of the highest event rate of one monitor."""
MARK_SECONDS: Final = 5.0
"""Maximum seconds between two lines, so that a replay knows how long nothing was received."""
FLUSH_SECONDS: Final = 1.0
"""Seconds after which an event is in the file, even if the monitor is killed."""
KNOWN_JOBS: Final = 65_536
LATEST: Final = 253_402_300_799.0
"""Unix seconds at the end of the year 9999."""
LONGEST_LINE: Final = 256 << 20
"""Bytes of one line: the state of a job with 20,000 launchers and large registrations has 64 MiB."""
MOST_VALUES: Final = 1 << 23
"""Values of one line: 256 MiB of empty lists would take 13 GiB of memory."""
_BEGINS: Final = b'{"rankwatch"'
NO_RECORDING: Final = "this is no recording of rankwatch, no table of operations and no trace of PyTorch's profiler"
_CHUNK: Final = 1 << 16
_PACKED_CHUNK: Final = 256
"""Bytes that are unpacked at once: 4 of them may stand for 128 KiB of one byte."""


class RecordingError(ValueError):
    """A recording cannot be read; the message names the line and the error."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a recording."""

    at: float
    job_id: str | None = None
    event: JobEvent | None = None
    began: Mapping[str, Any] | None = None
    """A job's row, see :func:`rankwatch_monitor.store.codec.job_row`."""
    open: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """The open incidents of that job."""
    lost: int = 0
    ticked: float | None = None
    """The monitor's last tick."""

    def to_line(self) -> bytes:
        """The line, with its newline."""
        line: dict[str, Any] = {"at": self.at}
        if self.job_id is not None:
            line["job"] = self.job_id
        if self.began is not None:
            line["began"], line["open"] = self.began, list(self.open)
        if self.event is not None:
            line[_KIND_OF[type(self.event)]] = plain(self.event, sparse=True)
        if self.ticked is not None:
            line["ticked"] = self.ticked
        if self.lost:
            line["lost"] = self.lost
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def beginning(job: Job, now: float) -> Entry:
    """The entry with a job's state at ``now``, before its next event is applied."""
    return Entry(now, job.id, began=codec.job_row(job), open=[codec.incident_row(i) for i in job.incidents if i.open])


# Writing --------------------------------------------------------------------------------------------------------------


class _Packer(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self, mode: int = ..., /) -> bytes: ...


class Writer:
    """Writes a recording on the caller's thread.

    Raises:
        OSError: the file cannot be written, or exists.
    """

    def __init__(self, path: str | Path, now: float) -> None:
        self.path = Path(path)
        # It holds what the database does: names, policies, stacks.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file: IO[bytes] = os.fdopen(descriptor, "wb")
        self._packer: _Packer | None = None
        self._sync = 0
        if self.path.suffix == ".gz":
            self._packer, self._sync = zlib.compressobj(6, wbits=31), zlib.Z_SYNC_FLUSH
        elif self.path.suffix in (".zst", ".zstd"):
            self._packer, self._sync = zstandard.ZstdCompressor().compressobj(), zstandard.COMPRESSOBJ_FLUSH_BLOCK
        header = {"rankwatch": "recording", "version": VERSION, "at": now}
        self._write(json.dumps(header).encode() + b"\n")

    def write(self, entry: Entry) -> None:
        """Add one line."""
        self._write(entry.to_line())

    def flush(self) -> None:
        """Flush everything written to the file."""
        if self._packer is not None:
            self._file.write(self._packer.flush(self._sync))
        self._file.flush()

    def close(self) -> None:
        """Write the rest and close the file, even when the disk is full."""
        try:
            if self._packer is not None:
                self._file.write(self._packer.flush())
        finally:
            self._file.close()

    def _write(self, line: bytes) -> None:
        self._file.write(line if self._packer is None else self._packer.compress(line))


class Recorder:
    """Records the events of a monitor's core. No method waits for the disk; excess events are dropped and counted."""

    def __init__(self, path: str | Path, now: float) -> None:
        """Start a recording.

        Args:
            path: the file; if it exists, a number is added to the name.

        Raises:
            ValueError: it cannot be written; the message gives the reason.
        """
        try:
            self._writer = Writer(_free(Path(path)), now)
        except OSError as error:
            raise ValueError(f"--record: cannot write {path}: {error.strerror or error}") from None
        self.path = self._writer.path
        self._dropped = 0
        """Events dropped because the queue was full; written by the caller's thread only."""
        self._unwritten = 0
        """Queued events when the disk failed; written by the recorder's thread only."""
        self._reported = 0
        self._queue: queue.Queue[Entry] = queue.Queue(QUEUE_LENGTH)
        self._jobs: dict[str, float] = {}
        self._marked = now
        self._ticked: float | None = None
        self._broken = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankwatch-recorder", daemon=True)
        self._thread.start()
        log.info("recording the core's events in %s", self.path)

    @property
    def lost(self) -> int:
        """Events that could not be recorded so far."""
        return self._dropped + self._unwritten

    def put(self, now: float, job: Job, event: JobEvent) -> None:
        """Record an event of a job; to be called just before the event is applied."""
        self._marked = now
        if self._jobs.get(job.id) != job.created_at:
            if len(self._jobs) >= KNOWN_JOBS:
                self._jobs.clear()  # they are written again; a replay skips the repetition
            if not self._add(beginning(job, now)):
                return  # it is part of the state before the job's next event
            self._jobs[job.id] = job.created_at
        self._add(Entry(now, job.id, event, ticked=self._ticked))

    def tick(self, now: float) -> None:
        """The monitor evaluates all jobs now; recorded with the next event, or on its own if none follows."""
        self._ticked = now
        if now - self._marked >= MARK_SECONDS:
            self._marked = now
            self._add(Entry(now))

    def close(self, now: float, timeout: float = 5.0) -> None:
        """End the recording; waits for the disk for ``timeout`` seconds at most."""
        self._add(Entry(now))
        self._closing.set()
        self._thread.join(timeout)
        if self.lost:
            log.warning("recording: %d events were dropped", self.lost)

    def _add(self, entry: Entry) -> bool:
        if not self._broken:
            try:
                self._queue.put_nowait(entry)
            except queue.Full:
                if not self._dropped:
                    log.warning("recording: the disk is too slow; events are dropped")
            else:
                return True
        self._dropped += entry.event is not None
        return False

    # On the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        batch: list[Entry] = []
        try:
            while not (self._closing.is_set() and self._queue.empty()):
                batch = self._waiting()
                self._write(batch)
                self._closing.wait(FLUSH_SECONDS)  # larger batches compress better
            batch = []
            self._writer.close()
        except OSError as error:
            self._broken = True
            log.error("recording has ended: %s: %s; the monitor continues", self.path, error.strerror or error)
            self._unwritten += sum(entry.event is not None for entry in (*batch, *self._drained()))
            with contextlib.suppress(OSError):
                self._writer.close()

    def _waiting(self) -> list[Entry]:
        try:
            first = self._queue.get(timeout=FLUSH_SECONDS / 4)
        except queue.Empty:
            return []
        return [first, *self._drained()]

    def _drained(self) -> list[Entry]:
        found: list[Entry] = []
        with contextlib.suppress(queue.Empty):
            while len(found) < QUEUE_LENGTH:
                found.append(self._queue.get_nowait())
        return found

    def _write(self, batch: Sequence[Entry]) -> None:
        for entry in batch:
            self._writer.write(entry)
        lost = self._dropped - self._reported
        if lost and batch:
            self._reported += lost
            self._writer.write(Entry(batch[-1].at, lost=lost))
        if batch:
            self._writer.flush()


def _free(path: Path) -> Path:
    """The path, or with the first unused number in its name."""
    if path.parent.is_dir() and not os.access(path.parent, os.W_OK | os.X_OK):
        return path  # opening it reports the error
    name, dot, suffixes = path.name.partition(".")
    candidate, number = path, 0
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{name}.{number}{dot}{suffixes}")
    return candidate


# Reading --------------------------------------------------------------------------------------------------------------


class Recording:
    """Reads a recording line by line, once. ``truncated`` is set at the end when the last line is incomplete."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.truncated = False
        self.lines = 0
        self.bytes_read = 0
        """Bytes of the file on disk, compressed or not."""

    def __iter__(self) -> Iterator[Entry]:
        """All entries in order.

        Raises:
            RecordingError: a line is invalid. An incomplete last line is no error: the monitor may have been killed.
            OSError: the file cannot be read.
        """
        held: bytes | None = None
        last = float("-inf")
        for line in self._split():
            if held is not None:
                entry = self._entry(held, last)
                if entry is not None:
                    last = entry.at
                    yield entry
            held = line
        if held is None:
            raise RecordingError(f"{self.path} is empty")
        if not held.endswith(b"\n"):
            self.truncated = True
        elif (entry := self._entry(held, last)) is not None:
            yield entry
        if self.lines == 0:
            cut = held.startswith(_BEGINS)
            reason = "it is cut off, so there is nothing to read" if cut else NO_RECORDING
            raise RecordingError(f"{self.path}, line 1: {reason}")

    def _entry(self, line: bytes, last: float) -> Entry | None:
        self.lines += 1
        try:
            if self.lines == 1 and not line.startswith(_BEGINS):
                raise ValueError(NO_RECORDING)
            if text.values(line) > MOST_VALUES:
                raise ValueError(f"it has more than {MOST_VALUES} values")
            line_data = json.loads(line)
            if not isinstance(line_data, dict):
                raise ValueError("it is no object")
            if self.lines == 1:
                _check_header(line_data)
                return None
            entry = _read(line_data)
            if entry.at < last:
                raise ValueError(f"it is {last - entry.at:g} s before the line above it")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RecordingError(f"{self.path}, line {self.lines}: {error}") from None
        return entry

    def _split(self) -> Iterator[bytes]:
        """The lines with their newlines; the last one may lack it."""
        rest: list[bytes] = []
        size = 0
        for data in self._unpacked():
            *whole, last = data.split(b"\n")
            for line in whole:
                yield b"".join([*rest, line, b"\n"])
                rest, size = [], 0
            rest.append(last)
            if (size := size + len(last)) > LONGEST_LINE:
                raise RecordingError(f"{self.path}, after line {self.lines}: a line has more than {LONGEST_LINE} bytes")
        if size:
            yield b"".join(rest)

    def _unpacked(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            unpacker: Any = None
            if self.path.suffix == ".gz":
                unpacker = zlib.decompressobj(wbits=31)
            elif self.path.suffix in (".zst", ".zstd"):
                unpacker = zstandard.ZstdDecompressor().decompressobj()
            while data := file.read(_CHUNK if unpacker is None else _PACKED_CHUNK):
                self.bytes_read += len(data)
                if unpacker is not None and unpacker.eof:
                    raise RecordingError(f"{self.path}: something follows its end")
                try:
                    yield data if unpacker is None else unpacker.decompress(data)
                except (zlib.error, zstandard.ZstdError) as error:
                    raise RecordingError(f"{self.path}, after line {self.lines}: {error}") from None


def _check_header(line_data: Mapping[str, Any]) -> None:
    if line_data.get("rankwatch") != "recording":
        raise ValueError(NO_RECORDING)
    if line_data.get("version") != VERSION:
        raise ValueError(f"it has version {line_data.get('version')!r}, this program reads version {VERSION}")


def _read(line_data: Mapping[str, Any]) -> Entry:
    at, job_id, lost = line_data.get("at"), line_data.get("job"), line_data.get("lost", 0)
    if not _is_time(at):
        raise ValueError("it has no time")
    if not isinstance(lost, int):
        raise ValueError(f"lost must be a number, not {lost!r}")
    if job_id is None:
        return Entry(at, lost=lost)
    if not isinstance(job_id, str):
        raise ValueError(f"job must be a name, not {job_id!r}")
    if "began" in line_data:
        return Entry(at, job_id, began=line_data["began"], open=line_data.get("open", ()))
    kind = next((kind for kind in KINDS if kind in line_data), None)
    if kind is None:
        raise ValueError(f"it holds no event; known are: {', '.join(KINDS)}")
    ticked = line_data.get("ticked")
    if ticked is not None and not _is_time(ticked):
        raise ValueError(f"ticked must be a time, not {ticked!r:.60}")
    return Entry(at, job_id, read(KINDS[kind], line_data[kind], own=True), ticked=ticked)


def _is_time(value: object) -> TypeGuard[float]:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= LATEST
