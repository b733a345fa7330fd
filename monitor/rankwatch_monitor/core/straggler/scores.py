"""What straggler detection tells of a job: scores of all ranks, stragglers by name, and whose doing it is. Plain data.

Shapes: R ranks, S sections. A score is 1 for as fast as the reference, 0.5 for half as fast; NaN where there is
nothing to compare, and NaN is never flagged.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rankwatch.contract.enums import Action, Cause, ScoreReference, StragglerVerdict
from rankwatch.contract.semconv import UNEQUAL_SECTIONS
from rankwatch_monitor.core.ranks import Floats


@dataclass(slots=True)
class Scores:
    """Scores of all ranks as of one moment, by both references. All of them come from the same arrays."""

    at: float
    """Unix seconds."""
    gpu_relative_R: Floats
    """Kernels against the fastest rank (nvidia-resiliency-ext's formula)."""
    gpu_individual_R: Floats
    """Kernels against the rank's own best."""
    gpu_robust_R: Floats
    """Kernels against the middle of the rank's peers, the slower half of the calls included."""
    sections: tuple[str, ...]
    section_relative_RS: Floats
    section_individual_RS: Floats
    section_robust_RS: Floats
    lateness_R: Floats
    """Seconds of each step for which its peers wait for this rank; negative: it waits for others."""
    step_R: Floats
    """Seconds of a step, as this rank sees it."""
    seconds: float = 0.0
    """What computing them took."""

    @property
    def judged(self) -> dict[str, int]:
        """The sections, with their columns, in which a low score makes a straggler."""
        return {name: s for s, name in enumerate(self.sections) if name not in UNEQUAL_SECTIONS}

    @classmethod
    def empty(cls, ranks: int, at: float, sections: tuple[str, ...] = ()) -> Scores:
        """Scores of which nothing is known yet."""
        nothing_R, nothing_RS = np.full(ranks, np.nan), np.full((ranks, len(sections)), np.nan)
        return cls(
            at=at,
            gpu_relative_R=nothing_R,
            gpu_individual_R=nothing_R,
            gpu_robust_R=nothing_R,
            sections=sections,
            section_relative_RS=nothing_RS,
            section_individual_RS=nothing_RS,
            section_robust_RS=nothing_RS,
            lateness_R=nothing_R,
            step_R=nothing_R,
        )

    def lateness_share(self) -> Floats:
        """Lateness as a part of the step, for each rank."""
        return self.lateness_R / self.step_R


@dataclass(slots=True)
class Straggler:
    """One rank that is slow by its own fault, from when it began until it is as fast as its peers again."""

    id: str
    rank: int
    host: str
    device: str
    cause: Cause
    reference: ScoreReference
    """By which it was found."""
    reason: str
    """One sentence, the same wherever it is shown."""
    since: float
    """Unix seconds of the first window in which it was slow."""
    seen: float
    """Of the last one."""
    attempt: int = 0
    ended: float | None = None
    score: float | None = None
    """Relative score by its reference."""
    lateness: float | None = None
    """Seconds of each step for which the others wait."""
    share: float | None = None
    """The same as a part of the step."""
    cost_gpu_hours: float = 0.0
    action: Action = Action.LOG
    action_reason: str = ""

    @property
    def open(self) -> bool:
        """It is still slow."""
        return self.ended is None

    def to_json(self) -> dict[str, Any]:
        """For the API and for storing."""
        shown = asdict(self)
        return {**shown, "cause": str(self.cause), "reference": str(self.reference), "action": str(self.action)}


@dataclass(slots=True)
class Finding:
    """Whose doing it is that a job loses time, as a whole."""

    verdict: StragglerVerdict = StragglerVerdict.HEALTHY
    cause: Cause = Cause.UNEXPLAINED
    reason: str = ""
    """One sentence; empty while it is healthy."""
    since: float | None = None
    ranks: tuple[int, ...] = ()
    """Of a worker verdict the stragglers, of a stage its ranks, of a link the members of its group."""
    share: float = 0.0
    """Part of the step that is lost."""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return {**asdict(self), "verdict": str(self.verdict), "cause": str(self.cause), "ranks": list(self.ranks)}


@dataclass(slots=True)
class Told:
    """What the page, the API, the report and the publishers show of a job's performance: always the latest."""

    scores: Scores | None = None
    stragglers: list[Straggler] = field(default_factory=list)
    """Open and ended ones, the oldest first; a bounded number."""
    finding: Finding = field(default_factory=Finding)
    cost_gpu_hours: float = 0.0
    """All that stragglers have cost the job so far."""

    @property
    def open_stragglers(self) -> list[Straggler]:
        """Those that are slow now, the dearest first."""
        return sorted((s for s in self.stragglers if s.open), key=lambda s: -s.cost_gpu_hours)
