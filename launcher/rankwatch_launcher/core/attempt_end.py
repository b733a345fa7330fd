"""Why an attempt ends: turns exits, directives and requests into an attempt decision, and describes them. Pure.

The log line, the process event and the stored decision carry the same description.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rankwatch.contract.enums import DirectiveKind, NoRestart
from rankwatch.contract.exits import LEFT_EARLY, exit_phrase, lost_peer
from rankwatch.contract.messages import Directive, RankRequest
from rankwatch_launcher.coordination.decisions import FAIL, RESTART, STOP, AttemptDecision, StopRequest, failed
from rankwatch_launcher.core.exits import RankExit
from rankwatch_launcher.outcome import CODE_DO_NOT_REQUEUE, CODE_RESULT_REJECTED, CODE_RESUME_ELSEWHERE

ABORT_AT_EXIT: Final = "; it aborted while it was ending, so what it had saved is likely complete"
START_SECONDS: Final = 60.0
"""Seconds in which an exception of all ranks counts as one of the start."""


class Futile(NamedTuple):
    """A restart would end like the attempt before: why, and in words."""

    no_restart: NoRestart
    why: str


# Decisions ------------------------------------------------------------------------------------------------------------


def on_crash(
    exits: Sequence[RankExit],
    node: str,
    hostname: str,
    *,
    elsewhere: bool,
    futile: Futile | None = None,
    left: Sequence[RankExit] = (),
) -> AttemptDecision:
    """Ranks exited with an error; two exit codes are results of the re-run state machine.

    Args:
        exits: the likely cause first.
        elsewhere: whether the ranks of this node could be resumed on another one.
        futile: why a restart of the ranks of this node here would not help; None: it may.
        left: ranks that exited with code 0, to which the others then lost their connection.
    """
    codes = {e.code for e in exits}
    if CODE_RESULT_REJECTED in codes:
        described = describe_exit(_explained(exits, CODE_RESULT_REJECTED), hostname)
        why = "it rejected a result, so the job is not restarted automatically"
        return failed(AttemptDecision(FAIL, described, code=CODE_RESULT_REJECTED), NoRestart.RESULT_REJECTED, why)
    if CODE_RESUME_ELSEWHERE in codes:
        described = describe_exit(_explained(exits, CODE_RESUME_ELSEWHERE), hostname)
        asks = "it asks to be resumed elsewhere, to tell a faulty device from a correct result"
        if elsewhere:
            return AttemptDecision(RESTART, f"{described}: {asks}", code=CODE_RESUME_ELSEWHERE, avoid=node)
        alone = AttemptDecision(FAIL, described, code=CODE_RESUME_ELSEWHERE, avoid=node)
        return failed(alone, NoRestart.RESUME_ELSEWHERE, f"{asks}, and the job has no other node")
    if futile is not None and not elsewhere:
        crash = AttemptDecision(FAIL, describe_crash(exits, hostname), code=CODE_DO_NOT_REQUEUE)
        return failed(crash, futile.no_restart, futile.why)
    first = exits[0]
    place = f"rank {first.rank}: {first.first_line or exit_phrase(first.code, '', first.signal or '')}"
    # All ranks of one node alike, and there are others: it may lack what those have, a mounted folder or a package.
    avoid = None if futile is None else node
    return AttemptDecision(RESTART, describe_crash(exits, hostname, left=left), place=place, avoid=avoid)


def by_cause(exits: Sequence[RankExit]) -> list[RankExit]:
    """Exits ordered so that the first is the likely cause.

    An exception, or a signal, that does not follow from the end of another rank; the earliest of several exceptions.
    """

    def key(exit_: RankExit) -> tuple[bool, float]:
        unknown = math.inf if exit_.code > 0 and not exit_.message else 0.0
        return exit_.consequence, exit_.error.at if exit_.error is not None else unknown

    return sorted(exits, key=key)


def futile_restart(exits: Sequence[RankExit], ranks: int, elapsed: float) -> Futile | None:
    """Why a restart would end like this first attempt, in which no rank has completed a step; None: it may help.

    Args:
        elapsed: seconds since they were started.
    """
    if not exits or len(exits) < ranks or any(exit_.code <= 0 or exit_.expected for exit_ in exits):
        return None
    error = exits[0].error
    if error is None or any(e.error is None or e.error.first_line != error.first_line for e in exits):
        return None
    if error.may_pass or not (error.of_script or elapsed <= START_SECONDS):
        return None
    if error.of_script:
        return Futile(NoRestart.SCRIPT_BROKEN, "the script cannot be imported, so no restart follows")
    what = "it failed" if ranks == 1 else f"all {ranks} ranks here failed alike"
    return Futile(NoRestart.FAILED_AT_START, f"{what} before the first step, so no restart follows")


def on_directive(directive: Directive) -> AttemptDecision | None:
    """A directive that ends the attempt at once; None: it requests a graceful stop."""
    if directive.kind is DirectiveKind.SAVE_AND_STOP:
        return None
    if directive.kind is DirectiveKind.RESTART:
        exclude = dict.fromkeys(directive.exclude, f"excluded: {directive.reason}")
        return AttemptDecision(
            RESTART,
            directive.reason,
            incident=directive.incident_id,
            exclude=exclude,
            place=directive.place,
            proven=directive.proven,
            given_back=bool(directive.place),
        )
    stop = AttemptDecision(STOP, directive.reason, fault=False, incident=directive.incident_id)
    if not directive.no_restart:
        return stop
    allowed = "no restart is allowed" if directive.no_restart == NoRestart.NOT_ALLOWED else "no restart is left"
    return failed(stop, directive.no_restart, f"{allowed} (--max-restarts)")


def on_exclusion_request(request: RankRequest, node: str, host: str, *, elsewhere: bool) -> AttemptDecision:
    """A rank requested that its node is excluded; ``elsewhere`` as above."""
    reason = describe_request(request.rank, host, "its node to be excluded", request.reason)
    exclude = {node: reason}
    if not elsewhere:
        alone = AttemptDecision(FAIL, reason, fault=False, exclude=exclude)
        return failed(alone, NoRestart.NO_OTHER_NODE, "the job has no other node")
    return AttemptDecision(RESTART, reason, fault=False, exclude=exclude)


def during_stop(decision: AttemptDecision, request: StopRequest) -> AttemptDecision:
    """A restart that falls into a graceful stop becomes a stop."""
    reason = f"{request.reason}; before it had saved, {decision.reason}"
    return replace(decision, verdict=STOP, reason=reason, state=request.state)


def _explained(exits: Sequence[RankExit], code: int) -> RankExit:
    """Of the exits with a code, the first with a message: all ranks of a job exit with 16 or 17 together."""
    matching = [e for e in exits if e.code == code]
    return next((e for e in matching if e.message), matching[0])


# Descriptions ---------------------------------------------------------------------------------------------------------


def describe_exit(exit_: RankExit, hostname: str) -> str:
    """How a rank exited."""
    described = f"rank {exit_.rank} on {hostname} {exit_phrase(exit_.code, exit_.first_line, exit_.signal or '')}"
    return described + ABORT_AT_EXIT if exit_.code == -signal.SIGABRT and exit_.had_finished else described


def describe_crash(exits: Sequence[RankExit], hostname: str, *, left: Sequence[RankExit] = ()) -> str:
    """Which rank crashed first, and how many others; before it, those that ``left`` with code 0."""
    victims = 0 if exits[0].consequence else sum(each.consequence for each in exits)
    others = len(exits) - 1 - victims
    crash = describe_exit(exits[0], hostname) + (f" ({others} more at the same moment)" if others else "")
    if victims:
        crash += f"; {lost_peer(victims)}"
    if not left:
        return crash
    likewise = f" ({len(left) - 1} more did)" if len(left) > 1 else ""
    return f"{describe_exit(left[0], hostname)}{LEFT_EARLY}{likewise}; after that, {crash}"


def describe_place(exit_: RankExit) -> str:
    """Which process it was, and the innermost frames of its exception."""
    process = f"local rank {exit_.local_rank}, pid {exit_.pid}"
    where = exit_.error.where() if exit_.error is not None else ""
    return f"in {where}; {process}" if where else process


def describe_expected_exit(exit_: RankExit, hostname: str) -> str:
    """An exit that restarts nothing."""
    return f"{describe_exit(exit_, hostname)}; the other ranks continue, a reserve rank takes its place"


def describe_request(rank: int, host: str, request: str, reason: str) -> str:
    """What a rank requested."""
    return f"rank {rank} on {host} requested {request}" + (f": {reason.rstrip('. ')}" if reason.strip() else "")


def describe_preemption(host: str, name: str, rank: int | None = None) -> str:
    """A stop signal that reached the launcher, or one of its ranks."""
    return f"preempted: {'the launcher' if rank is None else f'rank {rank}'} on {host} got {name}"


def describe_restart(decision: AttemptDecision) -> str:
    """What follows a crash or a hang, with how much of the budget is used."""
    told = f"restarting all ranks ({decision.used} of {decision.max_restarts})"
    if decision.code == CODE_RESUME_ELSEWHERE:
        told += ", elsewhere: to tell a faulty device from a correct result"
    return told


def describe_stopped(reason: str, *, by_signal: bool) -> str:
    """A graceful stop after which all ranks here exited with code 0; ``by_signal``: they got SIGTERM, not a step."""
    if by_signal:
        return f"{reason}; all ranks here exited with code 0 after SIGTERM, and only the script knows what they saved"
    return f"{reason}; all ranks here left after the agreed step and exited with code 0"


def is_regrouping(decision: AttemptDecision) -> bool:
    """Whether a restart only regroups nodes, without a fault."""
    return not decision.fault and not decision.exclude
