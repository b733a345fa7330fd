"""Reports that a job does not apply: what they claim, and what is needed to return to the attempt before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any, Final, NamedTuple

from rankwatch_monitor.core.events import RankIdentity
from rankwatch_monitor.core.ranks import RankColumns

SUSTAINED: Final = 3
"""Reports of one process that make its claim of an attempt a lasting one; an ending process sends fewer."""
TROUBLE_AFTER: Final = 5.0
"""Seconds of stale reports after which they are trouble: a restart leaves a few behind."""
TROUBLE_LASTS: Final = 60.0
"""Seconds after the last stale report."""
SPARE_CLAIMS: Final = 1024
"""Claims that are kept beyond two for each rank of the job."""


class Claim(NamedTuple):
    """A process that goes on reporting another attempt."""

    attempt: int
    instance: str
    reports: int


class Previous(NamedTuple):
    """The attempt before the current one, kept until the current one is known to be real."""

    attempt: int
    since: float
    world_size: int
    columns: RankColumns
    nodes: Mapping[str, Any]
    """Its launchers, each a :class:`~.job.Node`."""
    ranks: Mapping[str, frozenset[int]]
    """Of each launcher."""
    reporters: int
    """Ranks that had reported."""


@dataclass(slots=True)
class StaleReports:
    """Counts reports that were not applied, and keeps one claim for each rank."""

    count: int = 0
    claims: dict[int, Claim] = field(default_factory=dict)
    checked: float = -inf
    """When they were last compared with the attempt before."""
    survivors: Counter[int] = field(default_factory=Counter)
    """Reports of processes of the attempt before, by rank; another sender cannot know their instance."""
    surviving: int = 0
    """Ranks of which there are enough."""
    sustained: Counter[int] = field(default_factory=Counter)
    """Ranks with a lasting claim, by attempt."""
    _since: float = nan
    _last: float = nan

    def add(self, identity: RankIdentity, now: float, ranks: int) -> None:
        """Count a report of another attempt and note what it claims; ``ranks`` of the job bound what is kept."""
        self.ignore(now)
        known = self.claims.get(identity.rank)
        if known is None and len(self.claims) >= 2 * ranks + SPARE_CLAIMS:
            return
        same = known is not None and (known.attempt, known.instance) == (identity.attempt, identity.instance)
        if not same:
            self.withdraw(identity.rank)
        reports = 1 + (known.reports if known is not None and same else 0)
        self.claims[identity.rank] = Claim(identity.attempt, identity.instance, reports)
        if reports == SUSTAINED:
            self.sustained[identity.attempt] += 1

    def survive(self, rank: int, now: float) -> None:
        """Count a report of a process that reported in the attempt before."""
        self.ignore(now)
        self.survivors[rank] += 1
        self.surviving += self.survivors[rank] == SUSTAINED

    def ignore(self, now: float) -> None:
        """Count a report that was not applied."""
        self.count += 1
        if not now - self._last <= TROUBLE_LASTS:
            self._since = now
        self._last = now

    def withdraw(self, rank: int) -> None:
        """Forget what was claimed for a rank: its owner has reported."""
        claim = self.claims.pop(rank, None)
        if claim is not None and claim.reports >= SUSTAINED:
            self.sustained[claim.attempt] -= 1
            if not self.sustained[claim.attempt]:
                del self.sustained[claim.attempt]

    def forget(self) -> None:
        """Forget all claims."""
        self.claims.clear()
        self.sustained.clear()
        self.survivors.clear()
        self.surviving = 0

    def trouble(self, now: float) -> bool:
        """Whether stale reports have come for a while, and still do."""
        return now - self._last <= TROUBLE_LASTS and self._last - self._since >= TROUBLE_AFTER
