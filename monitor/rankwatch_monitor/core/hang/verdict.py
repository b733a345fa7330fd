"""The results of hang detection: verdicts on ranks, and culprits."""

from __future__ import annotations

from typing import NamedTuple

from rankwatch.contract.enums import CulpritClass, LimitSource, VerdictKind


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
    def left_to_launchers(self) -> bool:
        """Whether the launchers act at once and without a directive: a rank crashed, or they lost a node."""
        return self.kind is VerdictKind.PROCESS_EXITED or bool(self.node_loss)


class Culprit(NamedTuple):
    """One rank that is to blame, and why in one sentence."""

    rank: int
    host: str
    kind: CulpritClass
    reason: str


class Blame(NamedTuple):
    """The culprits. If there are none, ``explanation`` is the reason."""

    culprits: tuple[Culprit, ...]
    explanation: str
