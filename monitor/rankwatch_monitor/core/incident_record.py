"""The record of an incident, frozen: only :mod:`.incident.state_machine` replaces or adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rankwatch.cli.formatting import count
from rankwatch.contract.enums import Action, Proof, VerdictKind
from rankwatch.contract.messages import Evidence, RankLog, Wait
from rankwatch.contract.nccl_ras import RasReport
from rankwatch.contract.node_checks import CheckResult
from rankwatch.contract.node_checks import sentence as sentence_of_check
from rankwatch_monitor.core.cause import Detection, Shown, Site, Unnamed
from rankwatch_monitor.core.hang.proof import PROVEN
from rankwatch_monitor.core.hang.stacks import Stacks
from rankwatch_monitor.core.hang.verdict import Culprit, culprits_to_json
from rankwatch_monitor.core.plain import named
from rankwatch_monitor.core.words import sentence

HELD_BECAUSE: Final = {
    Proof.UNINTERRUPTIBLE: "all ranks wait for storage, which a restart does not bring back",
    Proof.SUSPENDED: "all ranks are stopped, as by a scheduler, which continues them",
    Proof.DEBUGGED: "a rank is in a debugger",
    Proof.STALLED: "the ranks move and complete no step, which a restart may not change",
}
"""Suspicions that are announced although no action follows, by what the looks show."""

SETTLED_AFTER: Final = 30.0
"""Seconds after an incident's end, and without further stacks, from which on none are expected."""


MAX_WAITS: Final = 64
"""Ranks of an incident of which it is kept what they wait for: the first that are not waiting for their peers."""


class RankWait(NamedTuple):
    """What a rank waits for, by the look at unix seconds ``at``."""

    rank: int
    wait: Wait
    at: float
    until: float | None = None
    """Unix seconds at which it wakes by itself, by the first look that showed it; None: not known."""
    again: bool = False
    """It slept before, and sleeps anew: it polls, so that the end of a sleep ends no wait."""


class Standstill(NamedTuple):
    """Where an attempt stood when it was restarted for it, in terms that are the same in the next one."""

    attempt: int
    ranks: tuple[int, ...]
    """Empty: all alike."""
    step: int | None
    section: str | None
    where: str
    """The innermost function of the script, with file and line; empty: not known."""
    wait: str
    """A :class:`~rankwatch.contract.enums.WaitKind`; empty: not known."""
    given_back: bool = False
    """Training got past it, and its restart counts no longer."""

    @property
    def text(self) -> str:
        """The same text for the same place."""
        ranks = ", ".join(map(str, self.ranks[:16])) or "all"
        return f"ranks {ranks} in {self.section or 'no section'}, {self.where or self.wait}"


class Withheld(StrEnum):
    """Why nothing is done about an incident, or nothing that the policy wants."""

    NO_LAUNCHER = "no_launcher"
    OBSERVE_ONLY = "observe_only"
    POLICY = "policy"
    """It only records."""
    NO_RESTART = "no_restart"
    """None is left, and a limit that nobody configured ends no job."""
    REFUSED = "refused"
    """By every launcher."""


class Ended(StrEnum):
    """How an incident ended."""

    WENT_ON = "went_on"
    """The ranks, by themselves."""
    RECOVERED = "recovered"
    """A new attempt goes on."""
    SUPERSEDED = "superseded"
    """The new attempt had another incident before its first step."""
    RANKS_ENDED = "ranks_ended"
    JOB_ENDED = "job_ended"
    LAUNCHED_AGAIN = "launched_again"
    LIMIT_CHANGED = "limit_changed"
    """The ranks have not moved."""
    HEARD = "heard"
    """Silent ranks report again; they have made no progress."""
    DETECTION_OFF = "detection_off"
    CAPTURED = "captured"
    """Only stacks were wanted."""
    HANDLED = "handled"
    """By the rank."""
    NOT_CARRIED_OUT = "not_carried_out"
    """No launcher was there for the order."""
    UNSEEN = "unseen"
    """The monitor was away."""


class Phase(StrEnum):
    """Phase of an incident; the transitions are in :mod:`.incident.state_machine`."""

    DETECTED = "detected"
    CAPTURING = "capturing"
    CONFIRMING = "confirming"
    ACTING = "acting"
    RECOVERING = "recovering"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Unix seconds of each transition: when it happened, not when it was noticed; None: not yet, or never."""

    since: float | None = None
    """When the trouble began: the section was entered, the last heartbeat sent, the process ended."""
    detected: float | None = None
    decided: float | None = None
    captured: float | None = None
    restarted: float | None = None
    first_step: float | None = None


MOST_NODES_CHECKED: Final = 8


MOST_ERRORS: Final = 16


@dataclass(frozen=True, slots=True)
class RankError:
    """The exception that ended one rank, which was not about another rank's end."""

    rank: int
    host: str
    text: str
    site: Site | None = None
    at: float | None = None
    """Unix seconds at which it was raised; None: unknown."""


@dataclass(frozen=True, slots=True)
class NodeChecked:
    """A node that failed a check."""

    node: str
    host: str
    result: CheckResult

    def to_json(self) -> dict[str, Any]:
        """As the API returns it."""
        return {"node": self.node, "host": self.host, **shown_check(self.result)}


def shown_check(result: CheckResult) -> dict[str, Any]:
    """A result as the API returns it, with its words."""
    return {
        "name": result.name,
        "state": str(result.state),
        "reason": result.reason or None,
        "evidence": dict(result.evidence),
        "text": sentence_of_check(result) if result.reason else "",
    }


class Witness(StrEnum):
    """How an answer of NCCL stands to an incident."""

    AGREES = "agrees"
    """It accuses a rank that the incident blames."""
    OTHERS = "others"
    """It accuses other ranks than the incident blames, or the incident blames none because of it."""
    NOBODY = "nobody"
    """It accuses no rank that is known."""


MOST_ANSWERS: Final = 2
"""Nodes whose launchers ask NCCL about the job are no more."""


@dataclass(frozen=True, slots=True)
class NcclAnswer:
    """What NCCL answered the launcher of one node about the whole job."""

    node: str
    host: str
    report: RasReport
    accused: tuple[int, ...] = ()
    """Ranks that this answer alone accuses; see :mod:`.hang.nccl`."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault, or one order of a person, from detection to recovery. Field names are those of the stored JSON."""

    id: str
    job_id: str
    kind: VerdictKind
    attempt: int
    opened_at: float
    reason: str
    culprits: tuple[Culprit, ...] = ()
    affected: Sequence[int] = ()
    """Of a large job :class:`~.rank_runs.RankRuns`, at most 4 bytes a rank: 200 incidents of a job are kept."""
    aborted: tuple[int, ...] = ()
    """Ranks whose process was aborted; blamed unless the survivors' flight recorders show another to be the cause."""
    why_none: Unnamed | None = None
    """Why no rank is to blame."""
    found: Detection | None = None
    """The limit that was passed; None: none was."""
    action: Action = Action.LOG
    action_reason: str = ""
    withheld: Withheld | None = None
    phase: Phase = Phase.DETECTED
    phase_since: float = 0.0
    outcome: str = ""
    ended: Ended | None = None
    closed_at: float | None = None
    timeline: Timeline = field(default_factory=Timeline)
    steps_lost: int | None = None
    launch: int = 0
    """Launch of the job in which it was opened."""
    furthest_iteration: int | None = None
    """The last step that any rank completed in its attempt."""
    confirmed: bool = True
    """False while suspected: a limit that is not configured was passed, and the ranks may still make progress."""
    shown: Shown | None = None
    """What repeated samples of the ranks of a suspicion show; None: nothing yet."""
    proof_at: float = 0.0
    waits: tuple[RankWait, ...] = ()
    """What its ranks wait for that do not wait for their peers."""
    acts_at: float | None = None
    """Unix seconds at which a suspicion is acted on if it still holds; None: not by patience, or it is confirmed."""
    restart_cost: float | None = None
    """Seconds that a restart would lose, for which it is waited; None: unknown."""
    attempts_here: int = 0
    """Earlier attempts that stood at the same place."""
    watched_at: float = 0.0
    """When the launchers were last asked to look again and again; 0: never."""
    stop_step: int | None = None
    directive: int = 0
    """Number of its newest directive; 0: none, the launchers act by themselves."""
    ordered: bool = False
    """An operator ordered its action, which is carried out even if the ranks make progress again."""
    exclude: tuple[str, ...] = ()
    """Launchers that its restart excludes."""
    excluded_anew: bool = False
    """The ranks were restarted with the excluded nodes before the order was carried out; the order was repeated."""
    refusals: tuple[str, ...] = ()
    """Launchers that could not carry out its newest directive."""
    heard_nodes: set[str] = field(default_factory=set)
    """Launchers whose stacks have arrived."""
    heard_at: float = 0.0
    """Unix seconds at which the last of them did."""
    stacks: Stacks = field(default_factory=Stacks)
    logs: tuple[RankLog, ...] = ()
    """Ends of the logs of the first ranks that failed; see :data:`~rankwatch.contract.messages.LOGGED_RANKS`."""
    errors: tuple[RankError, ...] = ()
    """The first error of each rank, the earliest first, at most :data:`MOST_ERRORS`."""
    lost_peer: Sequence[int] = ()
    """Ranks whose exception is about the end of another one; kept as ``affected`` is."""
    node_checks: tuple[NodeChecked, ...] = ()
    """Nodes that failed a check while it was open, at most :data:`MOST_NODES_CHECKED`."""
    dumps: Mapping[int, int] = field(default_factory=dict)
    """Characters of the stored flight recorder dump of each rank; of an older incident they were removed."""
    nccl: tuple[NcclAnswer, ...] = ()
    """What NCCL itself answers about the job's communicators: of each node that asked the newest, the newest last."""

    @property
    def section(self) -> str | None:
        """The section in which the limit was passed."""
        return None if self.found is None else self.found.section

    @property
    def limit(self) -> float | None:
        """The limit that was passed, in seconds."""
        return None if self.found is None else self.found.limit or None

    @property
    def elapsed(self) -> float | None:
        """Seconds from its beginning to its detection; where another limit was passed since, to when that was."""
        if self.found is None or not self.found.elapsed:
            return None
        since, detected = self.timeline.since, self.timeline.detected
        first = None if since is None or detected is None else detected - since
        return first if first is not None and first >= self.found.limit else self.found.elapsed

    @property
    def limit_source(self) -> str:
        """The :class:`~rankwatch.contract.enums.LimitSource` of a limit that may be configured or learned."""
        return "" if self.found is None else self.found.stated_source

    @property
    def proof(self) -> str:
        """The :class:`~rankwatch.contract.enums.Proof` of a suspicion; empty: none."""
        return "" if self.shown is None else str(self.shown.proof)

    @property
    def proof_reason(self) -> str:
        """The same in a sentence or two; empty: nothing."""
        return "" if self.shown is None else stated(self.shown, self)

    @property
    def elective(self) -> bool:
        """Nothing had stopped: an operator ordered an action, a rank is slow, or a rank reported something."""
        return self.kind in (VerdictKind.ORDERED, VerdictKind.STRAGGLER) or self.self_reported

    @property
    def self_reported(self) -> bool:
        """A rank reported it and handles it by itself: no action is taken."""
        return self.kind in (VerdictKind.WRONG_RESULT, VerdictKind.RESTARTED_IN_PROCESS)

    @property
    def decided(self) -> bool:
        """Its action is carried out whether or not a limit is passed."""
        return self.ordered or self.elective

    @property
    def held_because(self) -> str:
        """Why it is announced although no action follows, without figures; empty: it is not held."""
        return "" if self.confirmed or self.shown is None else HELD_BECAUSE.get(self.shown.proof, "")

    @property
    def held(self) -> bool:
        """It is announced, and no action follows by itself: see :data:`HELD_BECAUSE`."""
        return bool(self.held_because)

    @property
    def provisional(self) -> bool:
        """Evidence is on its way: its reason and culprits are not announced yet, since it may change them."""
        return bool(self.aborted) or (self.phase is Phase.CAPTURING and not self.elective)

    @property
    def undecided(self) -> bool:
        """Nothing was done about it yet."""
        return self.phase in (Phase.DETECTED, Phase.CAPTURING, Phase.CONFIRMING)

    @property
    def open(self) -> bool:
        """Not yet closed."""
        return self.phase is not Phase.CLOSED

    def may_settle(self, now: float) -> bool:
        """Whether no further stacks are expected at ``now`` (unix seconds)."""
        last = max(self.closed_at or 0.0, self.heard_at)
        return not self.open and now - last >= SETTLED_AFTER

    def to_json(self) -> dict[str, Any]:
        """The incident as the API returns it, without its stacks and logs."""
        return {
            **named(self, _SHOWN),
            "affected": list(self.affected),
            "culprits": culprits_to_json(self.culprits),
            "limit_source": self.limit_source or None,
            "proof": self.proof or None,
            "waits": [{"rank": each.rank, **asdict(each.wait)} for each in self.waits],
            "node_checks": [each.to_json() for each in self.node_checks],
        }


_SHOWN: Final = (
    *("id", "job_id", "kind", "attempt", "opened_at", "closed_at", "reason", "section", "limit", "elapsed"),
    *("action", "action_reason", "withheld", "exclude", "phase", "confirmed", "provisional", "proof_reason"),
    *("acts_at", "restart_cost", "attempts_here", "outcome", "ended", "timeline", "steps_lost", "furthest_iteration"),
)
"""Fields and properties that the API has as they are."""


def stated(shown: Shown, incident: Incident) -> str:
    """What samples of an incident's ranks show, in a sentence or two; empty: nothing."""
    text = sentence.shown(shown)
    if text and incident.attempts_here and shown.proof not in PROVEN:
        earlier = count(incident.attempts_here, "earlier one")
        text += f" Attempt {incident.attempt} stands at the same place as {earlier}."
    return text


def settle(incidents: Sequence[Incident], now: float) -> None:
    """Reduce the stacks of incidents that are over to what is shown of them, the newest first.

    Ends at the first that is settled: nearly always the last one or the one before.
    """
    for incident in reversed(incidents):
        if incident.stacks.settled:
            break
        if incident.may_settle(now):
            incident.stacks.settle()


class Notice(NamedTuple):
    """What one rank reported of itself; ``at`` is unix seconds."""

    kind: VerdictKind
    rank: int
    host: str
    reason: str
    seconds: float
    at: float
    attempt: int
    """In which it was reported; it may be over by the time the notice is recorded."""
    local_rank: int = -1
    device: str = ""


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
