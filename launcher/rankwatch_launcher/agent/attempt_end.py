"""Why an attempt ends on this node, and a save-and-stop under way. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rankwatch.contract.enums import DirectiveKind
from rankwatch.contract.messages import Directive, RankRequest
from rankwatch_launcher.agent import reasons
from rankwatch_launcher.agent.reasons import Exit
from rankwatch_launcher.coordination import decisions
from rankwatch_launcher.coordination.decisions import Ruling, StopRequest
from rankwatch_launcher.job.outcome import CODE_FAILED, CODE_RESULT_REJECTED, CODE_RESUME_ELSEWHERE, STOPPED

CRASH_CAPTURE_SECONDS = 0.6
"""A crash is restarted within a second, so the survivors' stacks get less than that."""


@dataclass(frozen=True, slots=True)
class End:
    """Why the attempt is over on this node."""

    verdict: str
    """What this node wants: ``restart``, ``fail`` or ``stop``; the ledger may rule otherwise."""
    reason: str
    counted: bool = True
    """Whether the restart is taken from the budget."""
    fault: bool = True
    """Whether something went wrong, so that evidence is worth taking."""
    incident: str | None = None
    directive: Directive | None = None
    capture_seconds: float = CRASH_CAPTURE_SECONDS
    code: int = CODE_FAILED
    exclude: Mapping[str, str] = field(default_factory=dict)
    avoid: str | None = None
    state: str = STOPPED
    """What a ``stop`` makes of the job."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """A save-and-stop under way: the ranks are asked, and are given time."""

    reason: str
    until: float
    grace: float
    """Seconds that the ranks were given."""
    state: str = STOPPED
    """What becomes of the job when they have saved: ``stopped`` or ``preempted``."""
    incident: str | None = None
    by_signal: bool = False
    """The ranks were sent SIGTERM, since no step could be agreed on."""


def by_crash(exits: Sequence[Exit], node: str, host: str, *, elsewhere: bool) -> End:
    """Ranks have ended with an error; two exit codes of the re-run state machine mean something of their own.

    ``elsewhere`` says whether there is another node on which the ranks of this one could be resumed.
    """
    codes = {e.code for e in exits}
    if CODE_RESULT_REJECTED in codes:
        speaks = speaker(exits, CODE_RESULT_REJECTED)
        return End(decisions.FAIL, reasons.result_rejected(speaks, host), code=CODE_RESULT_REJECTED)
    if CODE_RESUME_ELSEWHERE in codes:
        reason = reasons.resume_elsewhere(speaker(exits, CODE_RESUME_ELSEWHERE), host, elsewhere)
        verdict = decisions.RESTART if elsewhere else decisions.FAIL
        return End(verdict, reason, code=CODE_RESUME_ELSEWHERE, avoid=node)
    return End(decisions.RESTART, reasons.crashed(exits, host))


def speaker(exits: Sequence[Exit], code: int) -> Exit:
    """Of those that ended with a code, the one that said why; all ranks of a job end with 16 or 17 together."""
    of = [e for e in exits if e.code == code]
    return next((e for e in of if e.message), of[0])


def by_order(order: Directive) -> End | None:
    """A directive ends the attempt at once; None: it asks the ranks to save and stop."""
    if order.kind is DirectiveKind.SAVE_AND_STOP:
        return None
    if order.kind is DirectiveKind.RESTART:
        return End(
            decisions.RESTART,
            order.reason,
            incident=order.incident_id,
            directive=order,
            capture_seconds=order.deadline,
            exclude=dict.fromkeys(order.exclude, f"excluded: {order.reason}"),
        )
    return End(decisions.STOP, order.reason, fault=False, incident=order.incident_id, directive=order)


def by_request(request: RankRequest, node: str, host: str, *, elsewhere: bool) -> End:
    """A rank asked for its node to be left out; ``elsewhere`` as above."""
    reason = reasons.rank_asks(request.rank, host, "to leave its node out", request.reason)
    if not elsewhere:
        return End(decisions.FAIL, f"{reason}; the job has no other node", fault=False, exclude={node: reason})
    return End(decisions.RESTART, reason, fault=False, exclude={node: reason})


def while_stopping(end: End, request: StopRequest) -> End:
    """A crash while the job is to save and stop: nothing is started anew."""
    return replace(
        end, verdict=decisions.STOP, reason=f"{request.reason}; before it had saved, {end.reason}", state=request.state
    )


def by_ruling(ruling: Ruling) -> End:
    """Another launcher has ruled."""
    return End(
        ruling.verdict,
        ruling.reason,
        fault=ruling.fault,
        incident=ruling.incident,
        code=ruling.code,
        state=ruling.state,
    )


def signal_of(name: str) -> signal.Signals | None:
    """The signal of a name that was checked; None for an empty one."""
    return signal.Signals[name] if name else None
