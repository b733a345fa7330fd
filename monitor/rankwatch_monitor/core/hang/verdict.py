"""The results of hang detection: verdicts on ranks, and culprits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from rankwatch.contract.enums import CulpritClass, LimitSource, VerdictKind
from rankwatch_monitor.core.ranks import RankColumns

OF_A_SECTION: Final = (VerdictKind.SECTION_OVERRUN, VerdictKind.OUT_OF_SECTION_OVERRUN, VerdictKind.HEARTBEAT_OVERRUN)
"""Verdicts of limits that are configured or learned: of a section, of the time between sections, of heartbeats."""


class Verdict(NamedTuple):
    """One rank is over one limit. ``elapsed`` and ``limit`` are seconds; ``since`` is when it began."""

    kind: VerdictKind
    rank: int
    section: str | None
    limit: float
    elapsed: float
    since: float
    source: LimitSource = LimitSource.CONFIGURED
    """Of the limit. Only limits that were not configured need a confirmation."""
    node_loss: str = ""
    """The launchers' report of the lost node this rank was on, as a sentence; the launchers handle the loss."""

    @property
    def stated_source(self) -> str:
        """The source of a limit of a section, the time between sections, or heartbeats; empty: it has but one."""
        return str(self.source) if self.limit and self.kind in OF_A_SECTION else ""

    @property
    def left_to_launchers(self) -> bool:
        """Whether the launchers act at once and without a directive: a rank crashed, or they lost a node."""
        return self.kind is VerdictKind.PROCESS_EXITED or bool(self.node_loss)


rank_of: Final = itemgetter(Verdict._fields.index("rank"))
"""What the attribute gives, for loops over 100,000 verdicts."""


def kinds_of(verdicts: Iterable[Verdict]) -> set[VerdictKind]:
    """The kinds of verdicts. Most of 100,000 are of one, so this is several times as fast as a look at each."""
    return {kind for kind, _ in groupby(map(itemgetter(0), verdicts))}


def of_kinds(verdicts: Sequence[Verdict], *kinds: VerdictKind) -> list[Verdict]:
    """The verdicts of these kinds."""
    return [] if kinds_of(verdicts).isdisjoint(kinds) else [v for v in verdicts if v.kind in kinds]


def left_to_launchers(verdicts: Sequence[Verdict]) -> bool:
    """Whether the launchers act on one of them by themselves."""
    return any(v.left_to_launchers for v in of_kinds(verdicts, VerdictKind.PROCESS_EXITED, VerdictKind.NODE_LOST))


class Culprit(NamedTuple):
    """One rank that is to blame, and why in one sentence."""

    rank: int
    host: str
    kind: CulpritClass
    reason: str
    local_rank: int = -1
    """Which of the host's processes it was; -1: not known."""
    device: str = ""
    """The UUID of its device; empty: not known."""

    @property
    def gpu_key(self) -> str:
        """Its GPU on its host, the same in all jobs: the UUID, else the local rank (-1: not known)."""
        return self.device or str(self.local_rank)


def culprit_of(columns: RankColumns, rank: int, kind: CulpritClass, reason: str, host: str | None = None) -> Culprit:
    """The culprit at a rank, with the place of its process; ``host``: where it ran, if it may run elsewhere now."""
    now_at = columns.hosts[rank] if rank < len(columns) else ""
    if rank >= len(columns) or host not in (None, now_at):
        return Culprit(rank, host or "", kind, reason)
    return Culprit(rank, now_at, kind, reason, int(columns.local_rank_R[rank]), columns.devices[rank])


class Blame(NamedTuple):
    """The culprits. If there are none, ``explanation`` is the reason."""

    culprits: tuple[Culprit, ...]
    explanation: str
