"""Bandwidths of collectives: of each operation in each process group, beside its peers and its own past. Pure.

The last rank to enter a collective does not wait in it, so the least time that any member took for a collective of the
largest size is the transfer itself, and that size over it the algorithm bandwidth. NCCL's kernels wait for the other
members too, so the same holds for them. Peers are the groups of the same kind: the same name but for numbers.

A slow member is a host that is in all groups that are about as slow as the one in question, and in no other whose
members are on several hosts. Which of the two a group is is decided by the square root of that one's slowdown: half of
it on a logarithmic scale, so that noise makes no group slow beside one that is ten times slower.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Final, NamedTuple

from rankwatch.contract.collectives import parsed
from rankwatch.contract.statistics import OperationWindow
from rankwatch_monitor.core.slow_cause import SlowLink
from rankwatch_monitor.core.straggler.links import EARLIER, SIBLINGS, SMOOTHED, kind_of, median_without

MAX_KEPT: Final = 4_096
"""Operations of groups whose bandwidths are kept."""
MAX_MEMBERS: Final = 1_024
"""Members of a group that are known; of a larger one, its hosts are not."""
SLOW: Final = 2.0
"""How many times less than usual a bandwidth is in a slow group: on a busy machine it varies by less than that."""


@dataclass(slots=True)
class Moved:
    """The collectives of one operation in one process group and window."""

    members: int = 0
    calls: int = 0
    total: float = inf
    """Seconds of all calls, of the member that waited least."""
    bytes: int = 0
    largest: int = 0
    shortest: float = inf
    """The least seconds of any member for a collective of the largest size."""
    bus: int = 0
    ranks: list[int] = field(default_factory=list)

    def take(self, rank: int, reported: OperationWindow) -> None:
        """Add the report of one member."""
        self.members += 1
        self.calls, self.bytes = max(self.calls, reported.calls), max(self.bytes, reported.bytes)
        self.total = min(self.total, reported.total)
        if len(self.ranks) < MAX_MEMBERS:
            self.ranks.append(rank)
        if reported.largest > self.largest:
            self.largest, self.shortest, self.bus = reported.largest, inf, reported.bus
        if reported.largest == self.largest and reported.shortest > 0:
            self.shortest = min(self.shortest, reported.shortest)


class Bandwidth(NamedTuple):
    """One operation in one process group, as of the last windows; bytes a second."""

    operation: str
    group: str
    members: int
    """That report it."""
    hosts: tuple[str, ...]
    """Of its members; empty: unknown."""
    calls: int
    seconds: float
    """Of a step, of the member that waits least."""
    bytes: int
    """Of a step."""
    largest: int
    """Bytes of the largest call, of which the bandwidths are."""
    algorithm: float
    bus: float
    """0: unknown."""
    peers: float | None
    """Median bus bandwidth of the other groups of its kind; None: there is none."""
    siblings: int
    """How many those are."""
    best: float | None
    """Its own best bus bandwidth; None: too few windows."""

    @property
    def usual(self) -> float | None:
        """What it is compared with: enough peers, else its own best; None: neither is known."""
        return self.peers if self.siblings >= SIBLINGS else self.best

    @property
    def slowdown(self) -> float | None:
        """How many times more is usual; None: unknown."""
        return self.usual / self.bus if self.usual is not None and self.bus else None

    @property
    def slow(self) -> bool:
        """Whether it moves clearly less than usual."""
        return (self.slowdown or 0.0) >= SLOW


@dataclass(slots=True)
class _Kept:
    moved: Moved = field(default_factory=Moved)
    hosts: tuple[str, ...] = ()
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SMOOTHED))
    """Algorithm and bus bandwidth of the last windows."""
    best: float = 0.0
    windows: int = 0

    def middle(self) -> tuple[float, float]:
        """The medians of the last windows; 0: unknown."""
        if not self.recent:
            return 0.0, 0.0
        return median(each[0] for each in self.recent), median(each[1] for each in self.recent)

    def take(self, moved: Moved, hosts: tuple[str, ...]) -> None:
        """Add one window."""
        self.moved, self.hosts = moved, hosts
        if not (moved.largest and 0 < moved.shortest < inf):
            return
        self.recent.append((moved.largest / moved.shortest, moved.bus / moved.shortest))
        self.windows += 1
        if len(self.recent) == SMOOTHED:
            self.best = max(self.best, self.middle()[1])


class Bandwidths:
    """The bandwidths of a job's process groups."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, int], _Kept] = {}
        """By operation, group and largest size: a small message is no reference for a large one."""
        self._rows: Sequence[Bandwidth] = ()
        self.at: float | None = None
        """Unix seconds of the last window that had any."""

    def take(self, operations: Mapping[str, Moved], hosts_R: Sequence[str], now: float) -> None:
        """Add one window, by :func:`rankwatch.contract.collectives.series`; ``hosts_R``: the host of each rank."""
        if not operations:
            return
        self.at = now
        newest = list[tuple[str, str, int]]()
        for name, moved in operations.items():
            if moved.members < 2:
                continue  # of one member it is unknown whether it waited
            key = (*parsed(name), moved.largest)
            kept = self._kept.pop(key, None) or _Kept()
            self._kept[key] = kept  # re-inserted, so that the first one is the least recently used
            newest.append(key)
            known = moved.members <= MAX_MEMBERS and all(r < len(hosts_R) and hosts_R[r] for r in moved.ranks)
            kept.take(moved, tuple(sorted({hosts_R[rank] for rank in moved.ranks})) if known else ())
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        rows = _beside_peers([_row(*key, self._kept[key]) for key in newest if key in self._kept])
        self._rows = sorted(rows, key=lambda row: -row.seconds)

    def rows(self) -> Sequence[Bandwidth]:
        """All of the last window, the one that takes longest first."""
        return self._rows

    def of_groups(self) -> dict[str, Bandwidth]:
        """Of each group the operation that takes longest and has a bandwidth."""
        return {row.group: row for row in reversed(self.rows()) if row.bus}

    def explained(self, link: SlowLink) -> SlowLink:
        """A slow link with its bandwidth, where that is less than usual, and the member that is slow."""
        row = self.of_groups().get(link.group)
        if row is None:
            return link
        usual = row.peers if link.against == "others" else row.best
        link = link._replace(hosts=row.hosts, slow_host=self.slow_host(link.group))
        if usual is None or row.bus >= usual:
            return link
        return link._replace(operation=row.operation, bandwidth=row.bus, usual_bandwidth=usual)

    def slow_host(self, group: str) -> str:
        """The host that makes this group slow, as other groups show; empty: they show none."""
        rows = {row.group: row for row in self.of_groups().values() if len(row.hosts) > 1}
        accused = rows.get(group)
        if accused is None or not accused.slow or accused.slowdown is None:
            return ""
        limit, known = accused.slowdown**0.5, [row for row in rows.values() if row.slowdown is not None]
        slow = [set(row.hosts) for row in known if (row.slowdown or 0.0) >= limit]
        fast = [set(row.hosts) for row in known if (row.slowdown or 0.0) < limit]
        suspects = set.intersection(*slow).difference(*fast)
        return suspects.pop() if len(suspects) == 1 else ""


def _row(operation: str, group: str, largest: int, kept: _Kept) -> Bandwidth:
    moved, (algorithm, bus) = kept.moved, kept.middle()
    seconds = moved.total if moved.total < inf else 0.0
    figures = (moved.calls, seconds, moved.bytes, largest, algorithm, bus)
    best = kept.best if kept.windows >= EARLIER else None
    return Bandwidth(operation, group, moved.members, kept.hosts, *figures, None, 0, best)


def _beside_peers(rows: Sequence[Bandwidth]) -> list[Bandwidth]:
    kinds: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        if row.bus:
            kinds.setdefault((row.operation, kind_of(row.group), row.largest), []).append(row.bus)
    found = []
    for row in rows:
        alike = kinds.get((row.operation, kind_of(row.group), row.largest), [])
        if row.bus and len(alike) > 1:
            alike.sort()
            row = row._replace(peers=median_without(alike, row.bus), siblings=len(alike) - 1)
        found.append(row)
    return found
