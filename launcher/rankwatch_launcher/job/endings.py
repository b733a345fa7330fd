"""The outcome of a launch that did not end with its agent: what was raised, in words and as an outcome. Pure."""

from __future__ import annotations

import logging
import signal
from dataclasses import dataclass

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError

from rankwatch.contract.exits import signal_name
from rankwatch.contract.messages import Directive
from rankwatch_launcher.coordination.decisions import ended_by
from rankwatch_launcher.coordination.rendezvous import Interrupted, JobOver
from rankwatch_launcher.core import attempt_end
from rankwatch_launcher.outcome import CODE_FAILED, CODE_INTERRUPTED, FAILED, PREEMPTED, STOPPED, Outcome
from rankwatch_launcher.torch_compat import DistError

ENDINGS = (JobOver, Interrupted, SignalException, RendezvousError, DistError, TimeoutError)
"""What may be raised to end a launch; all else is a defect."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What is known of a launcher when something ends its launch."""

    host: str
    endpoint: str
    """Of the rendezvous."""
    standing_by: bool
    """It ran no rank."""
    stop_signal: signal.Signals | None
    """The signal that requests a graceful stop."""
    received: signal.Signals | None = None
    """The stop signal, if it was received."""
    directive: Directive | None = None
    """A stop directive that has not been carried out."""


def outcome_of(raised: BaseException, at: Whereabouts) -> tuple[Outcome, int, str]:
    """The outcome, with the level and the text of its log line."""
    match raised:
        case JobOver():
            over = raised.outcome
            text = f"the job has ended ({over.state})" + (f": {over.reason}" if over.reason else "")
            return Outcome(over.state, over.code, over.reason, **over.failure()), logging.INFO, text
        case Interrupted() if at.received is not None:
            return _by_signal(at.received, at)
        case Interrupted():
            assert at.directive is not None
            return _by_directive(at.directive), logging.INFO, f"stopped during rendezvous: {at.directive.reason}"
        case SignalException():
            return _by_signal(raised.sigval, at)
    # Without the store nothing can be agreed on, and the job cannot be closed.
    reason = _store_lost_reason(raised, at.endpoint)
    return Outcome(FAILED, CODE_FAILED, reason), logging.ERROR, reason


def store_timeout_reason(endpoint: str, host: str, silence: float, links: frozenset[str]) -> str:
    """The store's host is frozen or unreachable; ``links``: this host's network links that are down."""
    down = ", ".join(sorted(links))
    why = (
        f"the network link of {host} is down ({down})" if down else "the machine that hosts it is frozen or unreachable"
    )
    return (
        f"the rendezvous store at {endpoint} has not responded for {silence:.0f} s: {why}; no rank here made progress "
        "meanwhile, so they have been killed"
    )


def _by_directive(directive: Directive) -> Outcome:
    decision = attempt_end.on_directive(directive)
    return Outcome(STOPPED, CODE_FAILED, directive.reason) if decision is None else ended_by(decision)


def _by_signal(number: signal.Signals, at: Whereabouts) -> tuple[Outcome, int, str]:
    reason = f"the launcher on {at.host} got {signal_name(number)}"
    state = PREEMPTED if number == at.stop_signal else STOPPED
    if at.standing_by:
        return Outcome(state, 0, reason), logging.WARNING, f"{reason}; it ran no rank"
    code = CODE_INTERRUPTED if number == signal.SIGINT else CODE_FAILED
    # The summary that follows states what became of the ranks.
    return Outcome(state, code, reason), logging.WARNING, reason


def _store_lost_reason(error: BaseException, endpoint: str) -> str:
    detail = f"{type(error).__name__}: {error or error.__cause__ or 'no details'}".splitlines()[0]
    if isinstance(error, DistError | RendezvousConnectionError):
        return (
            f"the rendezvous store at {endpoint} does not respond: the launcher that hosts it has ended or is "
            f"unreachable, so the ranks here have been killed ({detail})"
        )
    return f"rendezvous failed: {detail}"
