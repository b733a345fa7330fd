"""An incident: what was found, who was blamed, what was done and when. Plain data; ``decide`` moves it along.

Phases
------
============  =======================================================  ==============================================
phase         left when                                                for
============  =======================================================  ==============================================
detected      the ranks go on by themselves → closed                   ``log``; ``capture`` once taken; what was refused
capturing     all launchers sent stacks, or the deadline passed        every action but ``log``
confirming    the window passed without progress → capturing again;    a limit that nobody configured was passed
              the ranks go on by themselves → closed
acting        the launchers begin a new attempt, or the job ends       restarts, ``save_and_stop``, ``stop``
recovering    a rank of the new attempt completes a step → closed      restarts
closed        -
============  =======================================================  ==============================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import Action, VerdictKind
from rankwatch.contract.messages import Evidence
from rankwatch_monitor.core.hang.stacks import Stacks
from rankwatch_monitor.core.hang.verdict import Culprit

RESTARTS: Final = (Action.RESTART, Action.RESTART_EXCLUDING_NODE)
"""Actions that start the ranks anew."""


class Phase(StrEnum):
    """How far an incident has got."""

    DETECTED = "detected"
    CAPTURING = "capturing"
    CONFIRMING = "confirming"
    ACTING = "acting"
    RECOVERING = "recovering"
    CLOSED = "closed"


@dataclass(slots=True)
class Timeline:
    """Unix seconds of each transition: when it happened rather than when it was noticed; None: not yet, or never."""

    since: float | None = None
    """When the trouble began: the section was entered, the last beat was given, the process ended."""
    detected: float | None = None
    decided: float | None = None
    captured: float | None = None
    restarted: float | None = None
    first_step: float | None = None


@dataclass(slots=True)
class Incident:
    """One thing that went wrong, or that a person ordered, from its beginning to its end."""

    id: str
    job_id: str
    kind: VerdictKind
    attempt: int
    opened_at: float
    reason: str
    culprits: tuple[Culprit, ...] = ()
    affected: tuple[int, ...] = ()
    section: str | None = None
    limit: float | None = None
    elapsed: float | None = None
    action: Action = Action.LOG
    action_reason: str = ""
    phase: Phase = Phase.DETECTED
    phase_since: float = 0.0
    outcome: str = ""
    closed_at: float | None = None
    timeline: Timeline = field(default_factory=Timeline)
    steps_lost: int | None = None
    launch: int = 0
    """Of the job, in which it was opened."""
    furthest_iteration: int | None = None
    """The last step any rank had completed when it was opened."""
    confirmed: bool = True
    """False while it is only suspected: a limit that nobody configured was passed, and the ranks may still go on."""
    stop_step: int | None = None
    directive: int = 0
    """The newest directive issued for it."""
    ordered: bool = False
    """A person ordered its action: it is carried out also when the ranks go on by themselves."""
    exclude: tuple[str, ...] = ()
    """Launchers that its restart leaves out."""
    excluded_anew: bool = False
    """The ranks were started anew, with those nodes, before the order was carried out; it was then given again."""
    refusals: tuple[str, ...] = ()
    """Launchers that could not carry out its newest directive."""
    heard_nodes: set[str] = field(default_factory=set)
    """Launchers whose stacks have arrived."""
    stacks: Stacks = field(default_factory=Stacks)

    @property
    def elective(self) -> bool:
        """Nothing had stopped: a person wanted something done, a rank is slow, or it tells something of itself."""
        return self.kind in (VerdictKind.ORDERED, VerdictKind.STRAGGLER) or self.self_reported

    @property
    def self_reported(self) -> bool:
        """A rank told of it: there is nothing to do."""
        return self.kind in (VerdictKind.WRONG_RESULT, VerdictKind.RESTARTED_IN_PROCESS)

    @property
    def decided(self) -> bool:
        """Its action is carried out whether or not a limit is passed."""
        return self.ordered or self.elective

    @property
    def open(self) -> bool:
        """Not yet closed."""
        return self.phase is not Phase.CLOSED

    def to_json(self) -> dict[str, Any]:
        """The incident as the API shows it, without its stacks."""
        return {
            "id": self.id,
            "job_id": self.job_id,
            "kind": str(self.kind),
            "attempt": self.attempt,
            "opened_at": self.opened_at,
            "closed_at": self.closed_at,
            "culprits": [
                {"rank": c.rank, "host": c.host, "class": str(c.kind), "reason": c.reason} for c in self.culprits
            ],
            "affected": list(self.affected),
            "reason": self.reason,
            "section": self.section,
            "limit": self.limit,
            "elapsed": self.elapsed,
            "action": str(self.action),
            "action_reason": self.action_reason,
            "exclude": list(self.exclude),
            "phase": str(self.phase),
            "confirmed": self.confirmed,
            "outcome": self.outcome,
            "timeline": asdict(self.timeline),
            "steps_lost": self.steps_lost,
        }


class Notice(NamedTuple):
    """What one rank has told; ``at`` is unix seconds."""

    kind: VerdictKind
    rank: int
    host: str
    reason: str
    seconds: float
    at: float
    attempt: int
    """In which it was told, which may be over by the time it is put down."""


def find_incident(incidents: Sequence[Incident], evidence: Evidence) -> Incident | None:
    """The incident that evidence belongs to: the one it names, else the newest of its attempt; None: there is none."""
    return next(
        (
            incident
            for incident in reversed(incidents)
            if incident.id == evidence.incident_id
            or (evidence.incident_id is None and incident.attempt == evidence.attempt)
        ),
        None,
    )
