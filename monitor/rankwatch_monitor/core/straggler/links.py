"""Which process groups' collectives take long by themselves, nobody being late in them: a slow link. Pure.

How this works
--------------
Whoever comes last to a collective does not wait in it, so the shortest time of one collective over all members and
calls is the transfer itself. A group is compared with the others of its kind (the same name but for numbers: the
all-reduces of all data-parallel groups move as much as each other); where there are too few of those, with its own
earlier best.
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
from typing import Final, NamedTuple

from rankwatch_monitor.core.events import CollectiveWindow

OTHERS: Final = 2
"""Other groups of the same kind from which on they are the measure."""
SMOOTHED: Final = 3
"""Windows whose median counts as a group's transfer; also what its own best is made of."""
MAX_KNOWN: Final = 8_192
"""Process groups, by number of collectives, of which transfers are remembered."""
EARLIER: Final = 5
"""Windows after which a group's own best is a measure."""


@dataclass(slots=True)
class Transfer:
    """What the members of one process group have told of one window: how long a collective takes without waiting."""

    members: int = 0
    calls: int = 0
    shortest: float = inf
    """The least time of one collective over all members: nobody waits in it, so it is the transfer itself."""
    exposed: float = inf
    """The least exposed time of a member in the step."""

    def take(self, told: CollectiveWindow) -> None:
        """Take in what one member tells."""
        self.members += 1
        self.calls = max(self.calls, told.calls)
        self.exposed = min(self.exposed, told.exposed)
        if told.shortest > 0:
            self.shortest = min(self.shortest, told.shortest)


class SlowLink(NamedTuple):
    """A process group whose transfers take too long."""

    group: str
    seconds: float
    """Of one step."""
    usual: float
    """What they should take."""
    against: str
    """``others``: the other groups of its kind; ``itself``: its own earlier best."""


@dataclass(slots=True)
class _Known:
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTHED))
    best: float = float("inf")
    windows: int = 0


@lru_cache(maxsize=MAX_KNOWN)
def kind_of(group: str) -> str:
    """A group's name without its numbers: what it has in common with its siblings."""
    return re.sub(r"\d+", "#", group)


class Links:
    """The transfers of a job's process groups, lately and at their best; as many as the job's groups are bounded to."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Known] = {}
        """By group and number of collectives: a step that makes fewer of them is no measure for one that makes more."""
        self._newest: set[tuple[str, int]] = set()

    def take(self, transfers: Mapping[str, Transfer]) -> None:
        """Take in one window."""
        self._newest = set()
        for group, told in transfers.items():
            if told.members < 2:
                continue  # one member knows how long it took, but not whether it waited
            seconds = told.calls * told.shortest if told.shortest < float("inf") else told.exposed
            key = (group, told.calls)
            self._newest.add(key)
            known = self._known.pop(key, None) or _Known()
            self._known[key] = known  # the last one that is forgotten
            known.recent.append(seconds)
            known.windows += 1
            if len(known.recent) == SMOOTHED:
                known.best = min(known.best, median(known.recent))
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def slowest(self) -> SlowLink | None:
        """The group that loses most against what is usual, if any loses at all."""
        now = {key: median(known.recent) for key in self._newest if len((known := self._known[key]).recent) == SMOOTHED}
        kinds: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for group, calls in now:
            kinds.setdefault((kind_of(group), calls), []).append((group, calls))
        found: list[SlowLink] = []
        for keys in kinds.values():
            others = sorted(now[key] for key in keys)
            for key in keys:
                known = self._known[key]
                if len(keys) > OTHERS:
                    found.append(SlowLink(key[0], now[key], _middle_without(others, now[key]), "others"))
                if known.windows >= EARLIER:
                    found.append(SlowLink(key[0], now[key], known.best, "itself"))
        slow = [link for link in found if link.seconds > link.usual]
        return max(slow, key=lambda link: link.seconds - link.usual, default=None)


def _middle_without(ordered: list[float], one: float) -> float:
    """The median of all values but one of them."""
    place, others = bisect_left(ordered, one), len(ordered) - 1
    low, high = ((others - 1) // 2, others // 2)
    return 0.5 * (ordered[low + (low >= place)] + ordered[high + (high >= place)])
