"""The graceful stop of one attempt on this node: all ranks save after the same step and stop.

A launcher or rank that wants to stop sends a request to the coordinator, which proposes a step ahead of all ranks
(:mod:`~rankwatch_launcher.coordination.coordinator`); a save-and-stop directive carries a step chosen by the monitor.
When some rank would not follow a step, all ranks get SIGTERM instead.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from rankwatch.contract.enums import AckState, ConsoleWord, ProcessEventKind, RankRequestKind
from rankwatch.contract.messages import Directive, RankRequest
from rankwatch_launcher.coordination.decisions import STOP, AttemptDecision, StopProposal, StopRequest
from rankwatch_launcher.core import attempt_end
from rankwatch_launcher.core.effects import (
    Ack,
    AnswerStop,
    Effect,
    Log,
    Report,
    RequestStop,
    SetStopStep,
    Show,
    SignalRanks,
)
from rankwatch_launcher.core.ending import Step, propose, then
from rankwatch_launcher.core.events import Proposed, Signalled, StopStepSet, Tick
from rankwatch_launcher.core.state import AttemptState, Running, Stopping, WaitingForPeers
from rankwatch_launcher.outcome import PREEMPTED, STOPPED

BY_SIGNAL = "the ranks get SIGTERM"


def on_requests(state: AttemptState, requests: Sequence[RankRequest], at: float) -> Step:
    """Ranks request a stop of the job, or, which ends the attempt, the exclusion of their node."""
    site, effects = state.site, list[Effect]()
    open_to_them = isinstance(state.phase, Running | WaitingForPeers) and state.stopping is None
    for request in requests if open_to_them else ():
        if request.action != RankRequestKind.EXCLUDE_NODE:
            reason = attempt_end.describe_request(request.rank, site.hostname, "the job to stop", request.reason)
            state, more = _ask(state, reason, STOPPED, at)
            effects += more
        elif isinstance(state.phase, Running):
            decision = attempt_end.on_exclusion_request(request, site.node, site.hostname, elsewhere=site.elsewhere)
            state, more = propose(state, decision)
            return state, (*effects, *more)
    return state, tuple(effects)


def on_signal(state: AttemptState, event: Signalled) -> Step:
    """A stop signal reached the launcher or one of its ranks."""
    if state.stopping is not None:
        return state, ()
    return _ask(state, attempt_end.describe_preemption(state.site.host, event.name, event.rank), PREEMPTED, event.at)


def on_proposal(state: AttemptState, event: Proposed) -> Step:
    """Answer and follow the coordinator's newest proposal."""
    proposal = event.proposal
    if proposal.number <= state.answered:
        return state, ()
    state = replace(state, answered=proposal.number)
    if proposal.number == 0:
        return state, (AnswerStop(0, True, None),)
    return _follow(state, proposal, event.at)


def on_directive(state: AttemptState, directive: Directive, at: float) -> Step:
    """A save-and-stop directive."""
    if directive.stop_step is not None:
        return state, (SetStopStep(directive.stop_step, directive),)
    return _begin(state, directive, at), (
        Show(ConsoleWord.SAVE, directive.reason, (BY_SIGNAL,)),
        SignalRanks(signal.SIGTERM),
        Ack(directive, AckState.DONE),
    )


def on_step_set(state: AttemptState, event: StopStepSet) -> Step:
    """The ranks will stop after a step, or cannot."""
    origin, furthest = event.origin, event.furthest
    if isinstance(origin, StopProposal):
        answer = AnswerStop(origin.number, event.agreed, furthest)
        if not event.agreed:
            return state, (answer,)
        request, grace = origin.request, state.site.stop_grace
        how = f"all ranks save and stop after step {origin.step}, within {grace:g} s"
        log = Show(ConsoleWord.SAVE, request.reason, (how,))
        return _begin(state, origin, event.at), (answer, log, *_announcement(state, request))
    step = origin.stop_step
    if event.agreed:
        shown = Show(ConsoleWord.SAVE, origin.reason, (f"all ranks save and stop after step {step}",))
        return _begin(state, origin, event.at), (shown, Ack(origin, AckState.DONE))
    if furthest is not None and step is not None and furthest >= step:
        return state, (Ack(origin, AckState.REFUSED, f"a rank here has completed step {furthest}", furthest),)
    return state, (Ack(origin, AckState.REFUSED, "a rank here has no slots: it did not call rankwatch.init()"),)


def on_tick(state: AttemptState, event: Tick) -> Step:
    """End the attempt once waiting for the ranks is futile; SIGTERM once no step was agreed on."""
    stopping, site = state.stopping, state.site
    if stopping is None:
        if state.requested is None or event.at < state.requested[1] + site.agreement_seconds:
            return state, ()
        log = Log(f"no stop step was agreed on within {site.agreement_seconds:g} s")
        proposal = StopProposal(max(1, state.answered), None, state.requested[0])
        return then((state, (log,)), lambda state: _follow(state, proposal, event.at))
    if event.at >= stopping.until:
        why = f"the ranks did not end within the grace period of {stopping.grace:g} s"
    elif stopping.by_signal and event.ignored:
        why = "the ranks only record SIGTERM as a stop request, and never call rankwatch.should_stop()"
    else:
        return state, ()
    reason = f"{stopping.reason}; {why}"
    return propose(state, AttemptDecision(STOP, reason, fault=False, incident=stopping.incident, state=stopping.state))


def _ask(state: AttemptState, reason: str, outcome: str, at: float) -> Step:
    if state.requested is not None:
        return state, ()
    request = StopRequest(reason, state.site.node, outcome)
    log = Log(f"{reason}; requesting a graceful stop of all ranks", warning=False)
    return replace(state, requested=(request, at)), (log, RequestStop(request))


def _follow(state: AttemptState, proposal: StopProposal, at: float) -> Step:
    if proposal.step is not None:
        return state, (SetStopStep(proposal.step, proposal),)
    why = f"{BY_SIGNAL}: not every rank has called rankwatch.should_stop()"
    log = Show(ConsoleWord.SAVE, proposal.request.reason, (why,))
    announced = _announcement(state, proposal.request)
    return _begin(state, proposal, at), (log, SignalRanks(signal.SIGTERM), *announced)


def _announcement(state: AttemptState, request: StopRequest) -> tuple[Effect, ...]:
    return (Report(ProcessEventKind.STOPPING, request.reason),) if state.stopping is None else ()


def _begin(state: AttemptState, origin: StopProposal | Directive, at: float) -> AttemptState:
    if isinstance(origin, StopProposal):
        grace, by_signal, request = state.site.stop_grace, origin.step is None, origin.request
        if by_signal and state.site.shutdown_timeout is not None:
            grace = state.site.shutdown_timeout
        return replace(state, stopping=Stopping(request.reason, at + grace, grace, request.state, by_signal=by_signal))
    grace, by_signal = origin.deadline, origin.stop_step is None
    return replace(state, stopping=Stopping(origin.reason, at + grace, grace, STOPPED, origin.incident_id, by_signal))
