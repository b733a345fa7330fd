"""What :func:`rankwatch_launcher.core.step.step` has the shell do, in this order; some are answered by an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rankwatch.contract.enums import AckState, ConsoleWord, ProcessEventKind
from rankwatch.contract.messages import Directive
from rankwatch_launcher.coordination.decisions import AttemptDecision, StopProposal, StopRequest


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line on the console; without ``warning`` it is a detail that ``--verbose`` shows."""

    text: str
    warning: bool = True


@dataclass(frozen=True, slots=True)
class Show:
    """Show an event on the console; without a word: a line below the last one, with where to look."""

    word: ConsoleWord | None
    what: str
    more: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Post a process event to the monitor."""

    kind: ProcessEventKind
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledge a directive."""

    directive: Directive
    state: AckState
    detail: str = ""
    furthest: int | None = None


@dataclass(frozen=True, slots=True)
class RequestStop:
    """Request a graceful stop of all launchers. The first request holds."""

    request: StopRequest


@dataclass(frozen=True, slots=True)
class AnswerStop:
    """Answer a stop proposal of the coordinator."""

    number: int
    agreed: bool
    furthest: int | None


@dataclass(frozen=True, slots=True)
class SetStopStep:
    """Have the ranks stop after a step; answered by :class:`~rankwatch_launcher.core.events.StopStepSet`."""

    step: int
    origin: StopProposal | Directive


@dataclass(frozen=True, slots=True)
class PublishFinish:
    """Publish that all ranks here have exited with code 0."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Store how the attempt ends; answered by :class:`~rankwatch_launcher.core.events.Stored`. The first one holds."""

    decision: AttemptDecision
    yields: bool
    """A restart becomes a stop if one is requested (:func:`~rankwatch_launcher.core.attempt_end.during_stop`)."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Capture stacks, before any signal; answered by :class:`~rankwatch_launcher.core.events.Captured`."""

    deadline: float
    incident: str | None


@dataclass(frozen=True, slots=True)
class SignalRanks:
    """Send a signal to every live rank; ``ending``: also continue those that are stopped, which cannot handle it."""

    number: int
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL the process groups of all ranks, also of those that have exited: their data loaders may still run."""


@dataclass(frozen=True, slots=True)
class Close:
    """The attempt is over; ``reap``: it was killed."""

    reap: bool = False


Effect: TypeAlias = (
    Log
    | Show
    | Report
    | Ack
    | RequestStop
    | AnswerStop
    | SetStopStep
    | PublishFinish
    | Propose
    | Capture
    | SignalRanks
    | Kill
    | Close
)
