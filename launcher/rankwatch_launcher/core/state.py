"""The state of one attempt on one node. Frozen: :func:`rankwatch_launcher.core.step.step` returns the next one."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from rankwatch.contract.messages import Directive, RankRequest
from rankwatch_launcher.coordination.decisions import AttemptDecision, StopRequest
from rankwatch_launcher.coordination.membership import poll_delay
from rankwatch_launcher.core.exits import RankExit
from rankwatch_launcher.outcome import FINISHED, STOPPED, Outcome

AGREEMENT_SECONDS: Final = 10.0
"""How long few launchers may take to agree on a stop step."""


@dataclass(frozen=True, slots=True)
class Site:
    """What does not change in an attempt."""

    node: str
    host: str
    """The node's name in its scheduler."""
    hostname: str
    attempt: int
    ranks: tuple[int, ...]
    """Ranks of this node, by local rank."""
    started_at: float
    nodes: int = 1
    """Nodes of the attempt."""
    spares: bool = False
    """The job has nodes to spare."""
    first: bool = False
    """It is the job's first attempt."""
    stop_grace: float = 50.0
    shutdown_timeout: float | None = None
    """torchrun's, from SIGTERM to SIGKILL, where it is given."""
    kill_signal: int = signal.SIGKILL
    """What ends the ranks for a restart; another than SIGKILL precedes it."""
    node_timeout: float = 180.0
    """Seconds without progress after which ranks are ended whose launcher has lost the store."""

    @property
    def agreement_seconds(self) -> float:
        """How long the launchers may take to agree on a stop step before the ranks here get SIGTERM."""
        return AGREEMENT_SECONDS + 3 * poll_delay(self.nodes)

    @property
    def elsewhere(self) -> bool:
        """Whether the ranks of this node could run on another one."""
        return self.nodes > 1 or self.spares


@dataclass(frozen=True, slots=True)
class Stopping:
    """A graceful stop in progress."""

    reason: str
    until: float
    grace: float
    """Seconds that the ranks have."""
    state: str = STOPPED
    """The job's state once the ranks have saved: ``stopped`` or ``preempted``."""
    incident: str | None = None
    by_signal: bool = False
    """The ranks got SIGTERM, since no step was agreed on."""


@dataclass(frozen=True, slots=True)
class Alone:
    """The store is out of sight: nothing is agreed on any more, and the ranks here are left alone while they work."""

    work: int
    """As last seen; see :class:`~rankwatch_launcher.core.events.Tick`."""
    since: float
    """When it last changed."""


# Phases ---------------------------------------------------------------------------------------------------------------


class Stage(IntEnum):
    """What further exits are waited for."""

    NONE = 0
    ABORT = 1
    """Whether the peers of a rank that aborted had finished, too."""
    CAUSE = 2
    """The exit that others follow from."""
    LAST = 3
    """Those of ranks that are known to end soon."""


@dataclass(frozen=True, slots=True)
class Running:
    """The ranks train, or some of them do."""


@dataclass(frozen=True, slots=True)
class Settling:
    """Ranks have exited, and those of the next moments belong to it."""

    exits: tuple[RankExit, ...]
    requests: tuple[RankRequest, ...]
    until: float
    stage: Stage


@dataclass(frozen=True, slots=True)
class WaitingForPeers:
    """All ranks here exited with code 0, those of other nodes have not, without a limit in time."""


@dataclass(frozen=True, slots=True)
class Explaining:
    """The decision is left to the launcher whose rank has the reason."""

    proposed: AttemptDecision
    until: float


@dataclass(frozen=True, slots=True)
class Proposing:
    """The store is asked which decision holds."""

    proposed: AttemptDecision


@dataclass(frozen=True, slots=True)
class Capturing:
    """Stacks are captured."""

    proposed: AttemptDecision
    decision: AttemptDecision


@dataclass(frozen=True, slots=True)
class Terminating:
    """The ranks got a signal and may end by themselves."""

    proposed: AttemptDecision
    decision: AttemptDecision
    until: float


@dataclass(frozen=True, slots=True)
class Killing:
    """The ranks got SIGKILL; None: without a decision, since the store is lost."""

    proposed: AttemptDecision | None
    decision: AttemptDecision | None
    until: float


@dataclass(frozen=True, slots=True)
class Over:
    """No rank is left."""

    restart: bool = False
    """Another attempt follows."""
    lost: bool = False
    """The store was lost: there is no outcome."""


Phase: TypeAlias = (
    Running | Settling | WaitingForPeers | Explaining | Proposing | Capturing | Terminating | Killing | Over
)


@dataclass(frozen=True, slots=True)
class AttemptState:
    """One attempt on this node."""

    site: Site
    phase: Phase = Running()  # frozen
    exited: frozenset[int] = frozenset()
    """Ranks that have exited."""
    exits: tuple[RankExit, ...] = ()
    """Those that were judged and reported, in that order; not of ranks that were killed."""
    stepped: bool = False
    complete: bool = False
    """See :class:`~rankwatch_launcher.core.events.Exited`."""
    stopping: Stopping | None = None
    requested: tuple[StopRequest, float] | None = None
    """The request for a stop sent to the coordinator, and when."""
    answered: int = -1
    """Number of the last answered stop proposal."""
    directive: Directive | None = None
    """The directive that ends the attempt, to be acknowledged."""
    alone: Alone | None = None
    """None: the store answers."""
    outcome: Outcome = Outcome(FINISHED, 0)  # noqa: RUF009  # frozen
    """How the job ended here, once it is over without a restart."""

    @property
    def live(self) -> tuple[int, ...]:
        """Ranks that have not exited."""
        return tuple(rank for rank in self.site.ranks if rank not in self.exited)

    def errors(self) -> list[RankExit]:
        """Unexpected exits with an error, in the order of detection."""
        return [exit_ for exit_ in self.exits if exit_.code != 0 and not exit_.expected]

    @property
    def deadline(self) -> float:
        """When a :class:`~rankwatch_launcher.core.events.Tick` changes something at the latest."""
        phase = self.phase
        if isinstance(phase, Settling | Explaining | Terminating | Killing):
            return phase.until
        if isinstance(phase, Running):
            if self.alone is not None and self.stopping is None:
                return self.alone.since + self.site.node_timeout
            if self.stopping is not None:
                return self.stopping.until
            if self.requested is not None:
                return self.requested[1] + self.site.agreement_seconds
        return math.inf
