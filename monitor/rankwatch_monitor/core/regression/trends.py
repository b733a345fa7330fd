"""What a job's figures were over time: goodput, speed, scores and logged values, for the page's charts.

A :class:`Point` is added every 15 s and at events. Points are kept as they are for two hours at least, and for a week
as means of a minute and an attempt, both in blocks of an hour: float32 columns, compressed once the hour is over. Each
block has a slot, a number that repeats, so the store overwrites the rows of hours that are no longer kept and never has
to delete one. Only the blocks of the current hour are written again.

An hour of 12 columns takes 8 KB in points and 2 KB in minutes, a week of a job 400 KB; with 32 logged values besides,
2 MB.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf, isfinite, isnan, nan
from operator import attrgetter
from statistics import fmean
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar

from rankwatch_monitor.core.regression import sparkline
from rankwatch_monitor.core.regression.sample import Sample
from rankwatch_monitor.core.regression.sparkline import Sparkline

HOUR: Final = 3600.0
MINUTE: Final = 60.0
MAX_VALUES: Final = 96
"""Different values in a block; further ones are left out."""
LOGGED: Final = "log."
"""Prefix of the names of values that the training script logged."""
NON_FINITE: Final = "nan."
"""Prefix of the numbers of those values that were NaN or infinite; a point has only names with any."""
MIN: Final = ".min"
RANK: Final = ".rank"
"""Ends of the names of a least value over the ranks, and of its rank."""
_LARGEST: Final = 3e38
"""Larger numbers do not fit into 32 bits."""
_HEAD: Final = Struct("<dqq")


SHOWN: Final = 1500
"""Rows in one response; neighbouring rows are merged where there are more."""
OfAttempt = TypeVar("OfAttempt", "Point", Sample)


class Point(NamedTuple):
    """One moment of a job, or the mean of several."""

    at: float
    """Unix seconds."""
    attempt: int
    iteration: int
    """The last completed step; -1: unknown."""
    values: Mapping[str, float]
    """Those known, by name."""


class Tier(NamedTuple):
    """Points of one spacing."""

    first_slot: int
    hours: int
    """Blocks that are kept."""

    def slot(self, hour: int) -> int:
        """Where the store keeps the block of this hour."""
        return self.first_slot + hour % self.hours


FINE: Final = Tier(0, 3)
COARSE: Final = Tier(3, 170)
TIERS: Final = (FINE, COARSE)


class Block:
    """The points of one hour."""

    def __init__(self, hour: int) -> None:
        self.hour = hour
        self.names: list[str] = []
        self._rows: list[bytes] = []
        self._packed = b""

    def add(self, point: Point) -> None:
        """Append a point."""
        self._unpack()
        for name in point.values:
            if name not in self.names and len(self.names) < MAX_VALUES:
                self.names.append(name)
        known = [point.values.get(name, nan) for name in self.names]
        floats = [value if abs(value) < _LARGEST else nan for value in known]
        self._rows.append(_HEAD.pack(*point[:3]) + _floats(len(floats)).pack(*floats))

    def points(self) -> list[Point]:
        """The points, oldest first."""
        names, found = self.names, []
        for row in self._rows or _cut(self._packed):
            at, attempt, iteration = _HEAD.unpack_from(row)
            values = _floats((len(row) - _HEAD.size) // 4).unpack_from(row, _HEAD.size)
            found.append(
                Point(
                    at,
                    attempt,
                    iteration,
                    {name: value for name, value in zip(names, values, strict=False) if not isnan(value)},
                )
            )
        return found

    def pack(self) -> None:
        """Compress it; a later point unpacks it again."""
        if self._rows:
            self._packed, self._rows = _joined(self._rows), []

    def copy(self) -> Block:
        """A copy that another thread may read; rows are shared, as they never change."""
        made = Block(self.hour)
        made.names, made._rows, made._packed = list(self.names), list(self._rows), self._packed
        return made

    def to_json(self) -> dict[str, Any]:
        """For the store."""
        data = _joined(self._rows) if self._rows else self._packed
        return {"hour": self.hour, "names": self.names, "rows": base64.b64encode(data).decode()}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Block:
        """From the store.

        Raises:
            ValueError, KeyError, TypeError: it was written by an incompatible version.
        """
        made = cls(int(stored["hour"]))
        made.names = [str(name) for name in stored["names"]]
        made._packed = base64.b64decode(stored["rows"])
        made.points()  # unreadable now rather than at each request
        return made

    def _unpack(self) -> None:
        if self._packed:
            self._rows, self._packed = _cut(self._packed), b""


class Selection(NamedTuple):
    """Which rows of a history are wanted; unix seconds, both included."""

    since: float | None = None
    until: float | None = None
    attempt: int | None = None
    most: int = SHOWN

    def begin(self, latest: float, span: float) -> float:
        """Where it begins: unless ``since`` is given, a span of seconds before its end, or before the latest row."""
        return (latest if self.until is None else self.until) - span if self.since is None else self.since


class TrendHistory:
    """The points of one job."""

    def __init__(self) -> None:
        self._blocks: dict[Tier, dict[int, Block]] = {tier: {} for tier in TIERS}
        """By hour, oldest first."""
        self._minute: list[Point] = []
        """Points of the unfinished minute."""
        self._unsaved: set[tuple[Tier, int]] = set()
        self.latest_at = float("-inf")
        self.event: object = None
        """The state of the job at the last look, to detect events; None: there was none."""
        self.sparkline = Sparkline()
        """The speed of the last hours."""

    def add(self, point: Point) -> None:
        """Add a point; one that is older than the last is ignored."""
        if point.at <= self.latest_at:
            return
        self.latest_at = point.at
        if self._minute and _apart(self._minute[-1], point):
            self._append(COARSE, mean(self._minute))
            self._minute = []
        self._minute.append(point)
        self._append(FINE, point)
        self._draw(point)

    def window(self, since: float, until: float) -> list[Point]:
        """The points from ``since`` to ``until``, as fine as they are kept, oldest first."""
        fine = self._read(FINE, since, until)
        begins = min((block.points()[0].at for block in self._blocks[FINE].values()), default=until + 1)
        coarse = [point for point in self._read(COARSE, since, until) if point.at < begins]
        return [*coarse, *fine]

    def compact(self) -> None:
        """Compress all of it, as no point is expected for long."""
        for blocks in self._blocks.values():
            if blocks:
                blocks[max(blocks)].pack()

    def copy(self) -> TrendHistory:
        """A copy that another thread may read."""
        made = TrendHistory()
        made._blocks = {
            tier: {hour: block.copy() for hour, block in blocks.items()} for tier, blocks in self._blocks.items()
        }
        made._minute, made.latest_at = list(self._minute), self.latest_at
        return made

    # Stored -----------------------------------------------------------------------------------------------------------

    def take_unsaved(self) -> list[tuple[int, Callable[[], dict[str, Any]]]]:
        """The blocks that have changed since the last call: the slot of each, and what encodes it on any thread."""
        unsaved, self._unsaved = self._unsaved, set()
        found = []
        for tier, hour in sorted(unsaved):
            if (block := self._blocks[tier].get(hour)) is not None:
                found.append((tier.slot(hour), block.copy().to_json))
        return found

    @property
    def unsaved(self) -> bool:
        """Whether there is anything to be saved."""
        return bool(self._unsaved)

    def restore(self, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Load the stored blocks, by slot.

        Raises:
            ValueError, KeyError, TypeError: one was written by an incompatible version.
        """
        for slot, body in rows:
            tier, block = FINE if slot < COARSE.first_slot else COARSE, Block.of_json(body)
            self._blocks[tier][block.hour] = block
        for tier in TIERS:
            self._blocks[tier] = dict(sorted(self._blocks[tier].items()))
            if blocks := self._blocks[tier]:
                self._forget(tier, max(blocks))
        ends = [list(blocks.values())[-1].points()[-1].at for blocks in self._blocks.values() if blocks]
        self.latest_at = max(ends, default=self.latest_at)
        self._draw_again()

    def merge_stored(self, past: TrendHistory) -> None:
        """Put the points of ``past``, which ended before these began, before them."""
        for tier in TIERS:
            own, self._blocks[tier] = self._blocks[tier], past._blocks[tier]
            for block in own.values():
                for point in block.points():
                    self._append(tier, point)
        self._draw_again()

    # Blocks -----------------------------------------------------------------------------------------------------------

    def _draw(self, point: Point) -> None:
        if (speed := point.values.get("speed")) is not None:
            self.sparkline.add(point.at, speed)

    def _draw_again(self) -> None:
        self.sparkline = Sparkline()
        for point in self.window(self.latest_at - sparkline.POINTS * sparkline.SECONDS, self.latest_at):
            self._draw(point)

    def _append(self, tier: Tier, point: Point) -> None:
        blocks, hour = self._blocks[tier], int(point.at // HOUR)
        if hour not in blocks:
            if blocks:
                blocks[max(blocks)].pack()
            blocks[hour] = Block(hour)
            self._forget(tier, hour)
        blocks[hour].add(point)
        self._unsaved.add((tier, hour))

    def _forget(self, tier: Tier, newest: int) -> None:
        for hour in [hour for hour in self._blocks[tier] if hour <= newest - tier.hours]:
            del self._blocks[tier][hour]

    def _read(self, tier: Tier, since: float, until: float) -> list[Point]:
        found = [
            point
            for hour, block in self._blocks[tier].items()
            if since < (hour + 1) * HOUR and hour * HOUR <= until
            for point in block.points()
            if since <= point.at <= until
        ]
        if tier is COARSE and self._minute:
            found += [mean(self._minute)] if since <= self._minute[-1].at <= until else []
        return found


def _apart(one: Point, other: Point) -> bool:
    """Whether two points belong to different means of a minute."""
    return one.at // MINUTE != other.at // MINUTE or one.attempt != other.attempt


def neighbours(rows: Sequence[OfAttempt], most: int) -> Iterator[Sequence[OfAttempt]]:
    """Neighbouring rows that are to be merged so that about ``most`` remain; never of two attempts."""
    each = max(1, -(-len(rows) // most))
    for _, some in groupby(rows, attrgetter("attempt")):
        of_attempt = list(some)
        yield from (of_attempt[i : i + each] for i in range(0, len(of_attempt), each))


def mean(points: Sequence[Point]) -> Point:
    """Several points as one, at the time of the last: means, least minima and their ranks, largest maxima, sums."""
    if len(points) == 1:
        return points[0]
    known: dict[str, list[float]] = {}
    for point in points:
        for name, value in point.values.items():
            known.setdefault(name, []).append(value)
    return points[-1]._replace(values={name: _reduced(name, values) for name, values in known.items()} | _ranks(points))


def _ranks(points: Sequence[Point]) -> dict[str, float]:
    """The rank of each least minimum."""
    found: dict[str, tuple[float, float]] = {}
    for point in points:
        for name, value in point.values.items():
            if name.endswith(RANK) and not name.startswith((LOGGED, NON_FINITE)):
                least = point.values.get(name.removesuffix(RANK) + MIN, inf)
                found[name] = min(found.get(name, (inf, value)), (least, value))
    return {name: rank for name, (_, rank) in found.items()}


def _reduced(name: str, values: Sequence[float]) -> float:
    if name.startswith(LOGGED):
        return fmean(values)
    if name.startswith(NON_FINITE):
        return sum(values)
    return min(values) if name.endswith(MIN) else max(values) if name.endswith(".max") else fmean(values)


def finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """The known ones."""
    return {name: value for name, value in values.items() if value is not None and isfinite(value)}


def _floats(count: int) -> Struct:
    return Struct(f"<{count}f")


_LENGTH: Final = Struct("<H")


def _joined(rows: Sequence[bytes]) -> bytes:
    return zlib.compress(b"".join(_LENGTH.pack(len(row)) + row for row in rows), 6)


def _cut(packed: bytes) -> list[bytes]:
    """The rows of packed ones; a later row may be longer, as it has further values.

    Raises:
        ValueError: they are damaged.
    """
    if not packed:
        return []
    try:
        data, at, rows = zlib.decompress(packed), 0, []
    except zlib.error as error:
        raise ValueError(str(error)) from None
    while at < len(data):
        end = at + 2 + _LENGTH.unpack_from(data, at)[0]
        rows.append(data[at + 2 : end])
        at = end
    return rows
