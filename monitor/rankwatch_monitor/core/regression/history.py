"""The history of a job's steps: an hour in samples of 10 s and a week in samples of a minute, without a database.

Windows that end in the same 10 s are merged into one sample, and the samples of a minute into one of the longer row.
Samples are never merged across another attempt, number of ranks or set of hosts. The samples of a row are packed, every
:data:`OPEN` of them, into blocks of :data:`BLOCK`: compressed JSON, in which names cost little. A full week with 6
sections, 8 kernels and 2 process groups takes 4 MB of memory and 2.4 MB in the store; with every table at its limit,
6.5 MB each.
A block is unpacked only when its time is read: an hour takes 0.01 s, the week 0.5 s.

Sets of hosts are stored in a table of their own, as most samples have the same one.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rankwatch_monitor.core.regression.comparison import HOUR, Comparison, Evidence, began, recent
from rankwatch_monitor.core.regression.sample import (
    CollectiveSample,
    DeviceSample,
    PolicyChange,
    Sample,
    SectionSample,
    SlowRank,
    Waited,
    merged,
)

SHORT: Final = 10
LONG: Final = 60
"""Seconds of a sample of each row."""
KEPT_SHORT: Final = 360
KEPT_LONG: Final = 10_080
"""Samples kept at least, at most a block more: an hour and seven days."""
BLOCK: Final = 60
OPEN: Final = 20
"""Unpacked samples of a row at most: 3 KB each, a tenth of that in a block."""
PENDING: Final = 32
"""Windows of an unfinished sample that are kept apart; with more of them, they are merged early."""
HOST_SETS: Final = 64
"""Different sets of hosts that are kept; samples of a dropped one have no hosts."""
FORMAT: Final = 1
"""Version of the stored form; other versions are not read."""


class Block(NamedTuple):
    """Packed samples: unix seconds of the first and the last, how many, and the compressed rows."""

    first: float
    last: float
    size: int
    data: bytes


class Row:
    """Samples of one length, the oldest first: packed blocks, then unpacked samples."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.blocks: deque[Block] = deque()
        self.open: list[Sample] = []

    def __len__(self) -> int:
        return sum(block.size for block in self.blocks) + len(self.open)

    def forget(self) -> None:
        """Drop blocks beyond the samples to be kept."""
        while self.blocks and len(self) - self.blocks[0].size >= self.keep:
            self.blocks.popleft()


class History:
    """The steps of one job over time. Its size depends on the number of ranks only by the names of hosts."""

    def __init__(self) -> None:
        self._short, self._long = Row(KEPT_SHORT), Row(KEPT_LONG)
        self._window: list[Sample] = []
        """Windows of the unfinished sample of 10 s."""
        self._minute: list[Sample] = []
        """Samples of 10 s of the unfinished minute."""
        self._hosts: dict[int, tuple[str, ...]] = {}
        self._last_hosts = 0
        self._latest: Sample | None = None
        self._compared: tuple[object, Comparison | None, float] | None = None
        """The last comparison, with what it was made of."""

    def __len__(self) -> int:
        return len(self._short) + len(self._long)

    def add(self, sample: Sample | None) -> None:
        """Add one window; None (no rank reported how long its steps take) is ignored."""
        if sample is None:
            return
        if (latest := self._latest) is not None:
            if sample.hosts == latest.hosts:
                sample = sample._replace(hosts=latest.hosts)  # share one tuple
            if sample.at < latest.at:
                sample = sample._replace(at=latest.at)
        self._latest = sample
        if self._window and not _together(self._window[-1], sample, SHORT):
            self._close_window()
        self._window.append(sample)
        if len(self._window) >= PENDING:
            self._window = [merged(self._window)]

    def window(self, since: float | None = None, until: float | None = None) -> list[Sample]:
        """Samples that ended from ``since`` to ``until`` (unix seconds), as fine as they are kept, oldest first."""
        low, high = -float("inf") if since is None else since, float("inf") if until is None else until
        short = [*self._read(self._short, low, high), *([merged(self._window)] if self._window else [])]
        begins = self._begins()
        long = self._read(self._long, low, high) if begins is None or low < begins else []
        before = [sample for sample in long if begins is None or sample.at < begins]
        return [sample for sample in (*before, *short) if low <= sample.at <= high]

    def compared(self, slow_since: Sequence[float]) -> tuple[Comparison | None, float]:
        """:func:`~.comparison.recent` of the last hour, and the unix seconds of its moment; once for each window."""
        key = (self._latest, *slow_since)
        if self._compared is None or self._compared[0] != key:
            samples = self.window(self._latest.at - HOUR) if self._latest else []
            found = recent(samples, slow_since)
            at = 0.0 if found is None else began(samples, 0 if found.evidence is Evidence.DRIFT else found.at)
            self._compared = (key, found, at)
        return self._compared[1:]

    @property
    def latest(self) -> Sample | None:
        """The last window."""
        return self._latest

    @property
    def first_at(self) -> float | None:
        """Unix seconds at which the oldest sample begins; None: the history is empty."""
        firsts = [next(iter(self._unpack(row.blocks[0]))) for row in (self._long, self._short) if row.blocks]
        firsts += [some[0] for some in (self._long.open, self._short.open, self._window) if some]
        return min((sample.at - sample.seconds for sample in firsts), default=None)

    def compact(self) -> None:
        """Pack all of it, as no samples are expected for long; later ones are appended as usual."""
        if self._window:
            self._close_window()
        if self._minute:
            self._append(self._long, merged(self._minute))
            self._minute = []
        for row in (self._short, self._long):
            self._pack_open(row)

    def copy(self) -> History:
        """A snapshot that may be read on another thread; shares the packed blocks."""
        made = History()
        for mine, other in ((self._short, made._short), (self._long, made._long)):
            other.blocks, other.open = deque(mine.blocks), list(mine.open)
        made._window, made._minute, made._latest = list(self._window), list(self._minute), self._latest
        made._hosts, made._last_hosts = dict(self._hosts), self._last_hosts
        return made

    # Stored -----------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """For the store. Packed blocks give the same text every time."""
        window = [merged(self._window)] if self._window else []
        rows = {
            "short": [*map(_block_json, self._short.blocks), *self._loose([*self._short.open, *window])],
            "long": [*map(_block_json, self._long.blocks), *self._loose(self._long.open)],
            "minute": self._loose(self._minute),
        }
        hosts = zlib.compress(json.dumps(self._hosts, separators=(",", ":")).encode())
        return {"format": FORMAT, "hosts": base64.b64encode(hosts).decode(), **rows}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> History:
        """From the store; empty when another version wrote it."""
        made = cls()
        if stored.get("format") != FORMAT:
            return made
        hosts = json.loads(zlib.decompress(base64.b64decode(stored["hosts"])))
        made._hosts = {int(number): tuple(names) for number, names in hosts.items()}
        made._last_hosts = max(made._hosts, default=0)
        for row, kept in ((made._short, stored["short"]), (made._long, stored["long"])):
            blocks = [_block_of(each) for each in kept]
            full = [block for block in blocks if block.size >= BLOCK]
            row.blocks = deque(full)
            row.open = [sample for block in blocks if block.size < BLOCK for sample in made._unpack(block)]
            row.forget()
        made._minute = [sample for each in stored["minute"] for sample in made._unpack(_block_of(each))]
        last = made._short.open[-1:] or made._read(made._short, -float("inf"), float("inf"))[-1:]
        made._latest = last[0] if last else None
        return made

    # Rows -------------------------------------------------------------------------------------------------------------

    def _close_window(self) -> None:
        sample, self._window = merged(self._window), []
        self._append(self._short, sample)
        if self._minute and not _together(self._minute[-1], sample, LONG):
            self._append(self._long, merged(self._minute))
            self._minute = []
        self._minute.append(sample)

    def _append(self, row: Row, sample: Sample) -> None:
        row.open.append(sample)
        if len(row.open) >= OPEN:
            self._pack_open(row)
        row.forget()

    def _pack_open(self, row: Row) -> None:
        """Pack the unpacked samples; a last block that is not full is extended."""
        if row.open:
            begun = self._unpack(row.blocks.pop()) if row.blocks and row.blocks[-1].size < BLOCK else ()
            row.blocks.append(self._pack([*begun, *row.open]))
            row.open = []

    def _begins(self) -> float | None:
        """When the first of the shorter samples ended."""
        if self._short.blocks:
            return self._short.blocks[0].first
        first = self._short.open or self._window
        return first[0].at if first else None

    def _read(self, row: Row, low: float, high: float) -> list[Sample]:
        packed = [block for block in row.blocks if block.last >= low and block.first <= high]
        return [*(sample for block in packed for sample in self._unpack(block)), *row.open]

    def _loose(self, samples: list[Sample]) -> list[list[Any]]:
        return [_block_json(self._pack(samples[i : i + BLOCK - 1])) for i in range(0, len(samples), BLOCK - 1)]

    def _pack(self, samples: list[Sample]) -> Block:
        rows = [sample._replace(hosts=(str(self._host_set(sample.hosts)),)) for sample in samples]
        data = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 6)
        return Block(samples[0].at, samples[-1].at, len(samples), data)

    def _unpack(self, block: Block) -> Iterable[Sample]:
        for row in json.loads(zlib.decompress(block.data)):
            yield _sample(row, self._hosts)

    def _host_set(self, hosts: tuple[str, ...]) -> int:
        for number in reversed(self._hosts):  # nearly always the last one
            if self._hosts[number] is hosts or self._hosts[number] == hosts:
                return number
        self._last_hosts += 1
        self._hosts[self._last_hosts] = hosts
        if len(self._hosts) > HOST_SETS:
            del self._hosts[min(self._hosts)]
        return self._last_hosts


def _together(one: Sample, other: Sample, seconds: int) -> bool:
    """Whether two samples belong to one of that length."""
    same = (one.attempt, one.ranks) == (other.attempt, other.ranks) and one.hosts == other.hosts
    return same and one.at // seconds == other.at // seconds


def _sample(row: list[Any], hosts: Mapping[int, tuple[str, ...]]) -> Sample:
    stored = Sample(*row)
    return stored._replace(
        hosts=hosts.get(int(stored.hosts[0]), ()),
        sections={name: SectionSample(*each) for name, each in stored.sections.items()},
        collectives={name: CollectiveSample(*each) for name, each in stored.collectives.items()},
        device=None if stored.device is None else DeviceSample(*stored.device),
        waited=None if stored.waited is None else Waited(*stored.waited),
        changes=tuple(PolicyChange(*each) for each in stored.changes),
        slowest=tuple(SlowRank(*each[:4], tuple(each[4])) for each in stored.slowest),
    )


def _block_json(block: Block) -> list[Any]:
    return [block.first, block.last, block.size, base64.b64encode(block.data).decode()]


def _block_of(stored: list[Any]) -> Block:
    first, last, size, data = stored
    return Block(first, last, size, base64.b64decode(data))
