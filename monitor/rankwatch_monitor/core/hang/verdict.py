"""The results of hang detection: verdicts on ranks, and culprits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from rankwatch.contract.enums import CulpritClass, LimitSource, VerdictKind
from rankwatch_monitor.core.cause import Cause, NodeLost, Unnamed, class_of
from rankwatch_monitor.core.rank_runs import RankRuns
from rankwatch_monitor.core.ranks import Bools, Floats, Ints, RankColumns
from rankwatch_monitor.core.words.causes import reason


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
    node_loss: NodeLost | None = None
    """The launchers' report of the lost node this rank was on; they handle the loss."""

    @property
    def common(self) -> Common:
        """What it has in common with others of the same check."""
        return Common(self.kind, self.section, self.source, self.node_loss)


class Common(NamedTuple):
    """What the verdicts of one check have in common; see :class:`Verdict`."""

    kind: VerdictKind
    section: str | None = None
    source: LimitSource = LimitSource.CONFIGURED
    node_loss: NodeLost | None = None


class Verdicts:
    """Verdicts ordered by rank, as columns: while a large job hangs there are 100,000 at each tick. Shape: V verdicts.

    Iteration and indices make a :class:`Verdict` of each, which takes 50 times as long as to compute all columns.
    """

    def __init__(
        self,
        rank_V: Ints,
        limit_V: Floats,
        elapsed_V: Floats,
        since_V: Floats,
        commons: Sequence[Common],
        common_V: Ints | None = None,
    ) -> None:
        """Take columns; ``common_V`` has indices into ``commons``, and can be left out if there is one."""
        self.rank_V, self.limit_V, self.elapsed_V, self.since_V = rank_V, limit_V, elapsed_V, since_V
        self.commons = tuple(commons)
        self.common_V = np.zeros(len(rank_V), dtype=np.int64) if common_V is None else common_V

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Verdicts:
        """The columns of these."""
        several = sorted(verdicts, key=attrgetter("rank"))
        number_of: dict[Common, int] = {}
        common_V = [number_of.setdefault(v.common, len(number_of)) for v in several]
        return cls(
            np.array([v.rank for v in several], dtype=np.int64),
            np.array([v.limit for v in several], dtype=np.float64),
            np.array([v.elapsed for v in several], dtype=np.float64),
            np.array([v.since for v in several], dtype=np.float64),
            tuple(number_of),
            np.array(common_V, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.rank_V)

    def __getitem__(self, index: int) -> Verdict:
        common = self.commons[self.common_V[index]]
        return Verdict(
            common.kind,
            int(self.rank_V[index]),
            common.section,
            float(self.limit_V[index]),
            float(self.elapsed_V[index]),
            float(self.since_V[index]),
            common.source,
            common.node_loss,
        )

    def __iter__(self) -> Iterator[Verdict]:
        return map(self.__getitem__, range(len(self)))

    @property
    def ranks(self) -> Ints:
        """Each rank once, in order."""
        return _once(self.rank_V)

    @property
    def kinds(self) -> set[VerdictKind]:
        """The kinds that occur."""
        return {common.kind for common in self.occurring()}

    @property
    def act_at_once(self) -> bool:
        """Whether one needs no confirmation: its limit was configured."""
        return any(common.source.acts_at_once for common in self.occurring())

    @property
    def left_to_launchers(self) -> bool:
        """Whether the launchers act on one by themselves, at once and without a directive."""
        return any(c.kind is VerdictKind.PROCESS_EXITED or c.node_loss for c in self.occurring())

    def occurring(self) -> list[Common]:
        """What any of the verdicts has in common with others."""
        if len(self.commons) == 1:
            return list(self.commons) if len(self) else []
        count_C = np.bincount(self.common_V, minlength=len(self.commons))
        return [common for common, count in zip(self.commons, count_C.tolist(), strict=True) if count]

    def where(self, chosen_V: Bools) -> Verdicts:
        """Those that are chosen."""
        return Verdicts(
            self.rank_V[chosen_V],
            self.limit_V[chosen_V],
            self.elapsed_V[chosen_V],
            self.since_V[chosen_V],
            self.commons,
            self.common_V[chosen_V],
        )

    def that(self, holds: Callable[[Common], bool]) -> Verdicts:
        """Those for which something holds that they have in common."""
        holds_C = [holds(common) for common in self.commons]
        if all(holds_C):
            return self
        return self.where(np.array(holds_C)[self.common_V]) if any(holds_C) else NONE

    def of_kinds(self, *kinds: VerdictKind) -> Verdicts:
        """Those of these kinds."""
        return self.that(lambda common: common.kind in kinds)

    def of_rank(self, rank: int) -> Verdicts:
        """Those on one rank."""
        return self.where(self.rank_V == rank)


def _once(ranks: Ints) -> Ints:
    """Ranks in order, without repetitions: a tenth of the time of ``numpy.unique``, which does not use the order."""
    first = np.ones(len(ranks), dtype=np.bool_)
    np.not_equal(ranks[1:], ranks[:-1], out=first[1:])
    once: Ints = ranks[first]
    return once


def union(*several: Ints | Iterable[int]) -> RankRuns:
    """The ranks in any of these."""
    return RankRuns(
        np.concatenate([each if isinstance(each, np.ndarray) else np.fromiter(each, np.int64) for each in several])
    )


def joined(*several: Verdicts) -> Verdicts:
    """All of these, ordered by rank; of one rank in the order of the arguments."""
    several = tuple(each for each in several if len(each))
    if len(several) < 2:
        return several[0] if several else NONE
    order = np.argsort(np.concatenate([each.rank_V for each in several]), kind="stable")
    firsts = np.cumsum([0, *(len(each.commons) for each in several[:-1])]).tolist()
    return Verdicts(
        np.concatenate([each.rank_V for each in several])[order],
        np.concatenate([each.limit_V for each in several])[order],
        np.concatenate([each.elapsed_V for each in several])[order],
        np.concatenate([each.since_V for each in several])[order],
        tuple(common for each in several for common in each.commons),
        np.concatenate([each.common_V + first for each, first in zip(several, firsts, strict=True)])[order],
    )


NONE: Final = Verdicts.of(())
"""No verdicts."""


def past(
    kind: VerdictKind,
    elapsed_R: Floats,
    limit: float | Floats,
    where_R: Bools,
    section: str | None = None,
    *,
    end: Floats | float,
    source: LimitSource = LimitSource.CONFIGURED,
) -> Verdicts:
    """Of the ranks of ``where_R`` those whose ``elapsed_R``, in seconds until ``end`` (unix seconds), is over a limit.

    NaN compares false: a rank of which nothing is known is never over a limit.
    """
    (ranks,) = (where_R & (elapsed_R > limit)).nonzero()
    if not len(ranks):
        return NONE
    limit_V, end_V = (
        each[ranks] if isinstance(each, np.ndarray) else np.full(len(ranks), each, np.float64) for each in (limit, end)
    )
    return Verdicts(ranks, limit_V, elapsed_R[ranks], end_V - elapsed_R[ranks], [Common(kind, section, source)])


class Culprit(NamedTuple):
    """One rank that is to blame, and why."""

    rank: int
    host: str
    cause: Cause
    local_rank: int = -1
    """Which of the host's processes it was; -1: not known."""
    device: str = ""
    """The UUID of its device; empty: not known."""

    @property
    def kind(self) -> CulpritClass:
        """The class of its cause."""
        return class_of(self.cause)

    @property
    def reason(self) -> str:
        """Its cause as a clause: ``it has not entered ...``."""
        return reason(self.cause)

    @property
    def gpu_key(self) -> str:
        """Its GPU on its host, the same in all jobs: the UUID, else the local rank (-1: not known)."""
        return self.device or str(self.local_rank)


def culprit_of(columns: RankColumns, rank: int, cause: Cause, host: str | None = None) -> Culprit:
    """The culprit at a rank, with the place of its process; ``host``: where it ran, if it may run elsewhere now."""
    now_at = columns.hosts[rank] if rank < len(columns) else ""
    if rank >= len(columns) or host not in (None, now_at):
        return Culprit(rank, host or "", cause)
    return Culprit(rank, now_at, cause, int(columns.local_rank_R[rank]), columns.devices[rank])


def causes_to_json(culprits: Sequence[Culprit]) -> list[dict[str, Any]]:
    """The cause of each, for the store; not to be written to: thousands of ranks share one."""
    found = {cause: asdict(cause) for cause in {culprit.cause for culprit in culprits}}
    return [found[culprit.cause] for culprit in culprits]


def culprits_to_json(culprits: Sequence[Culprit]) -> list[dict[str, Any]]:
    """The culprits for the API; of thousands most have one cause in common, which is worded once."""
    found = {
        cause: {"class": str(class_of(cause)), "reason": reason(cause), "cause": asdict(cause)}
        for cause in {culprit.cause for culprit in culprits}
    }
    return [{"rank": each.rank, "host": each.host, **found[each.cause]} for each in culprits]


class Blame(NamedTuple):
    """The culprits; ``why_none`` if there are none."""

    culprits: tuple[Culprit, ...]
    why_none: Unnamed | None = None
