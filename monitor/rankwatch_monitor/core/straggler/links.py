"""Slow links: how long the transfers of each process group take without waiting, against the others or its past. Pure.

The last rank to enter a collective does not wait in it, so the shortest time of one collective over all members and
calls is the transfer itself. A group is compared with the others of its kind (the same name but for numbers: the
all-reduces of all data-parallel groups move as much as each other); where there are too few of those, with its own
earlier best. Ranks that get no CPU enter late one after the other, so that a collective has no time without waiting;
and no network is between members on one host.

Times are seconds of one step.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from statistics import median
from typing import Final

from rankwatch.contract.statistics import CollectiveWindow
from rankwatch_monitor.core.slow_cause import SlowLink

SIBLINGS: Final = 2
"""Other groups of the same kind from which on they are the reference."""
SMOOTHED: Final = 3
"""Windows whose median is a group's transfer time; its own best is the best of those medians."""
EARLIER: Final = 5
"""Windows after which a group's own best is a reference."""
MAX_TRANSFERS: Final = 8_192
"""Process groups, by number of collectives, whose transfer times are kept."""


@dataclass(slots=True)
class Transfer:
    """The collectives of one process group in one window: how long they take without waiting."""

    members: int = 0
    calls: int = 0
    shortest: float = inf
    """The least time of one collective over all members."""
    exposed: float = inf
    """The least exposed time of a member in the step."""

    host: str | None = None
    """The host of all members; empty: they are on several ones, or it is not known."""

    def take(self, collectives: CollectiveWindow, host: str = "") -> None:
        """Add the report of one member."""
        self.host = host if self.host in (None, host) else ""
        self.members += 1
        self.calls = max(self.calls, collectives.calls)
        self.exposed = min(self.exposed, collectives.exposed)
        if collectives.shortest > 0:
            self.shortest = min(self.shortest, collectives.shortest)


@dataclass(slots=True)
class _Times:
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTHED))
    best: float = inf
    windows: int = 0
    host: str = ""


class TransferTimes:
    """Transfer times of a job's process groups: the last ones and the best."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, int], _Times] = {}
        """By group and number of collectives: a step with fewer of them is no reference for one with more."""
        self._newest: set[tuple[str, int]] = set()

    def take(self, transfers: Mapping[str, Transfer]) -> None:
        """Add one window, by process group."""
        self._newest = set()
        for group, transfer in transfers.items():
            if transfer.members < 2:
                continue  # of one member it is unknown whether it waited
            seconds = transfer.calls * transfer.shortest if transfer.shortest < inf else transfer.exposed
            key = (group, transfer.calls)
            self._newest.add(key)
            times = self._times.pop(key, None) or _Times()
            self._times[key] = times  # re-inserted, so that the first one is the least recently used
            times.recent.append(seconds)
            times.windows += 1
            times.host = transfer.host or ""
            if len(times.recent) == SMOOTHED:
                times.best = min(times.best, median(times.recent))
        while len(self._times) > MAX_TRANSFERS:
            del self._times[next(iter(self._times))]

    def slowest(self) -> SlowLink | None:
        """The group that loses most against its reference; None: none loses anything."""
        now = {key: median(times.recent) for key in self._newest if len((times := self._times[key]).recent) == SMOOTHED}
        kinds: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for group, calls in now:
            kinds.setdefault((kind_of(group), calls), []).append((group, calls))
        found: list[SlowLink] = []
        for keys in kinds.values():
            ordered = sorted(now[key] for key in keys)
            for key in keys:
                times = self._times[key]
                if len(keys) > SIBLINGS:
                    found.append(SlowLink(key[0], now[key], median_without(ordered, now[key]), "others", times.host))
                if times.windows >= EARLIER:
                    found.append(SlowLink(key[0], now[key], times.best, "itself", times.host))
        slow = [link for link in found if link.seconds > link.usual]
        return max(slow, key=lambda link: link.seconds - link.usual, default=None)


@lru_cache(maxsize=MAX_TRANSFERS)
def kind_of(group: str) -> str:
    """A group's name without its numbers: what it has in common with its siblings."""
    return re.sub(r"\d+", "#", group)


def median_without(ordered: list[float], one: float) -> float:
    """The median of all values but one of them."""
    place, others = bisect_left(ordered, one), len(ordered) - 1
    low, high = ((others - 1) // 2, others // 2)
    return 0.5 * (ordered[low + (low >= place)] + ordered[high + (high >= place)])
