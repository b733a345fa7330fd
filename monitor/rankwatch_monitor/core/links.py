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
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple, Protocol

OTHERS: Final = 2
"""Other groups of the same kind from which on they are the measure."""
SMOOTHED: Final = 3
"""Windows whose median counts as a group's transfer; also what its own best is made of."""
EARLIER: Final = 5
"""Windows after which a group's own best is a measure."""


class TransferLike(Protocol):
    """What is known of one window of a group (:class:`.performance.Transfer`)."""

    members: int
    calls: int
    shortest: float
    exposed: float


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


def kind_of(group: str) -> str:
    """A group's name without its numbers: what it has in common with its siblings."""
    return re.sub(r"\d+", "#", group)


class Links:
    """The transfers of a job's process groups, lately and at their best; as many as the job's groups are bounded to."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def take(self, transfers: Mapping[str, TransferLike]) -> None:
        """Take in one window."""
        for group, told in transfers.items():
            if told.members < 2:
                continue  # one member knows how long it took, but not whether it waited
            seconds = told.calls * told.shortest if told.shortest < float("inf") else told.exposed
            known = self._known.setdefault(group, _Known())
            known.recent.append(seconds)
            known.windows += 1
            if len(known.recent) == SMOOTHED:
                known.best = min(known.best, median(known.recent))

    def slowest(self) -> SlowLink | None:
        """The group that loses most against what is usual, if any loses at all."""
        now = {group: median(known.recent) for group, known in self._known.items() if len(known.recent) == SMOOTHED}
        kinds: dict[str, list[str]] = {}
        for group in now:
            kinds.setdefault(kind_of(group), []).append(group)
        found: list[SlowLink] = []
        for groups in kinds.values():
            for group in groups:
                others = [now[other] for other in groups if other != group]
                if len(others) >= OTHERS:
                    found.append(SlowLink(group, now[group], median(others), "others"))
                known = self._known[group]
                if known.windows >= EARLIER:
                    found.append(SlowLink(group, now[group], known.best, "itself"))
        slow = [link for link in found if link.seconds > link.usual]
        return max(slow, key=lambda link: link.seconds - link.usual, default=None)
