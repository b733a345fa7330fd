"""What happens to an attempt: input of :func:`rankwatch_launcher.core.step.step`. ``at`` is on the monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rankwatch.contract.messages import Directive, RankRequest
from rankwatch_launcher.coordination.decisions import AttemptDecision, StopProposal
from rankwatch_launcher.core.exits import RankExit


@dataclass(frozen=True, slots=True)
class Exited:
    """Ranks have exited."""

    at: float
    exits: tuple[RankExit, ...]
    requests: tuple[RankRequest, ...] = ()
    """What the ranks requested before."""
    stepped: bool = False
    """A rank here has completed a step in this attempt."""
    complete: bool = False
    """A rank called ``rankwatch.mark_complete()``."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    at: float
    failing: bool = False
    """A rank that has not exited has written its exception."""
    ignored: bool = False
    """All live ranks only record SIGTERM (:mod:`rankwatch.liveness.stop_signal`)."""
    work: int = 0
    """Changes with everything that a rank here completes; while the store is out of sight."""


@dataclass(frozen=True, slots=True)
class Requested:
    """Ranks requested something of the whole job."""

    at: float
    requests: tuple[RankRequest, ...]


@dataclass(frozen=True, slots=True)
class Signalled:
    """The launcher, or one of its ranks, got the stop signal. Repeated while it lasts."""

    at: float
    name: str
    rank: int | None = None
    """None: the launcher."""


@dataclass(frozen=True, slots=True)
class Directed:
    """The monitor's next directive; taken only while :func:`~rankwatch_launcher.core.step.takes_directives`."""

    at: float
    directive: Directive
    restarts_left: bool = True


@dataclass(frozen=True, slots=True)
class Proposed:
    """The coordinator's newest stop proposal, seen in the store."""

    at: float
    proposal: StopProposal


@dataclass(frozen=True, slots=True)
class StopStepSet:
    """Answer to :class:`~rankwatch_launcher.core.effects.SetStopStep`."""

    at: float
    origin: StopProposal | Directive
    agreed: bool
    """All ranks here will see the step in time."""
    furthest: int | None
    """The furthest step completed here."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision about this attempt is in the store."""

    at: float
    decision: AttemptDecision


@dataclass(frozen=True, slots=True)
class Stored:
    """Answer to :class:`~rankwatch_launcher.core.effects.Propose`: the decision that holds, which may be another's."""

    at: float
    decision: AttemptDecision


@dataclass(frozen=True, slots=True)
class Captured:
    """Answer to :class:`~rankwatch_launcher.core.effects.Capture`."""

    at: float


@dataclass(frozen=True, slots=True)
class Stuck:
    """A rank has been stuck in the kernel for so many seconds."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PeersFinished:
    """The ranks of all nodes have exited with code 0."""

    at: float


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The store does not respond."""

    at: float
    needed: bool = True
    """Something had to be written; else it was only polled, without which ranks can save."""
    ended: bool = True
    """The launcher that holds it has ended; else the connection broke, and that one may train on."""


Event: TypeAlias = (
    Exited
    | Tick
    | Requested
    | Signalled
    | Directed
    | Proposed
    | StopStepSet
    | Decided
    | Stored
    | Captured
    | Stuck
    | PeersFinished
    | StoreLost
)
