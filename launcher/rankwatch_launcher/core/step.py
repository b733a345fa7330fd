"""How an attempt runs and ends: ``step(state, event) -> (state, effects)``.

The ranks' exits and requests, the monitor's directives, stop signals, and the other launchers' decisions arrive as
events; whichever comes first ends the attempt. The decision
(:class:`~rankwatch_launcher.coordination.decisions.AttemptDecision`) holds for the whole job: a crash on one node ends
the attempt on all of them, and each captures its own stacks before it kills.

=================  ======================================  ===========================================================
phase              left by                                 for
=================  ======================================  ===========================================================
Running            exits                                   Settling, or at once what follows it
\\                  a directive, a request, a decision      Proposing
Settling           the last exit, its deadline             Running, WaitingForPeers, Explaining or Proposing
WaitingForPeers    all nodes have finished                 Over
\\                  a decision                              Proposing
Explaining         a decision, its deadline                Proposing
Proposing          the stored decision                     Capturing, Terminating or Killing
Capturing          stacks are captured                     Terminating or Killing
Terminating        the last exit, its deadline             Killing
Killing            the last exit, its deadline             Over
any but the last   the store is lost                       Killing; a graceful stop needs no store, nor do ranks that
                                                           work while only its host is out of sight
=================  ======================================  ===========================================================
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rankwatch.contract.enums import AckState, DirectiveKind
from rankwatch_launcher.coordination.decisions import FAIL, RESTART, STOP, AttemptDecision
from rankwatch_launcher.core import attempt_end, crash, graceful_stop
from rankwatch_launcher.core.effects import Ack, Log
from rankwatch_launcher.core.ending import Step, end_ranks, finish, kill, killed, propose, stored, then
from rankwatch_launcher.core.events import (
    Captured,
    Decided,
    Directed,
    Event,
    Exited,
    PeersFinished,
    Proposed,
    Requested,
    Signalled,
    StopStepSet,
    Stored,
    StoreLost,
    Stuck,
    Tick,
)
from rankwatch_launcher.core.state import (
    Alone,
    AttemptState,
    Capturing,
    Explaining,
    Killing,
    Proposing,
    Running,
    Settling,
    Terminating,
    WaitingForPeers,
)

LEFT_ALONE: Final = "the rendezvous store is out of sight; the ranks here are left alone while they make progress"


def takes_directives(state: AttemptState) -> bool:
    """Whether the monitor's next directive is for this attempt; later ones are for the next."""
    return isinstance(state.phase, Running | WaitingForPeers)


def step(state: AttemptState, event: Event) -> Step:
    """The next state and what is to be done."""
    phase = state.phase
    match event:
        case Exited():
            return _on_exits(state, event)
        case Tick():
            return _on_tick(state, event)
        case Decided():
            return _on_decision(state, event)
        case Directed():
            return _on_directive(state, event)
        case StoreLost():
            return _on_store_lost(state, event)
        case Stored() if isinstance(phase, Proposing):
            return stored(state, phase.proposed, event.decision, event.at)
        case Captured() if isinstance(phase, Capturing):
            return end_ranks(state, phase.proposed, phase.decision, event.at)
        case PeersFinished() if isinstance(phase, WaitingForPeers):
            return finish(state)
        case StopStepSet() if isinstance(phase, Running):
            return graceful_stop.on_step_set(state, event)
        case Proposed() if isinstance(phase, Running):
            return graceful_stop.on_proposal(state, event)
        case Stuck() if isinstance(phase, Running) and state.stopping is None:
            where = f"a rank on {state.site.hostname}"
            reason = f"{where} has been stuck in the kernel (state D) for {event.seconds:g} s"
            return propose(state, AttemptDecision(FAIL, reason, cause=reason))
        case Signalled() if takes_directives(state):
            return graceful_stop.on_signal(state, event)
        case Requested() if isinstance(phase, Settling):
            return replace(state, phase=replace(phase, requests=(*phase.requests, *event.requests))), ()
        case Requested() if takes_directives(state):
            return graceful_stop.on_requests(state, event.requests, event.at)
    return state, ()


def _on_exits(state: AttemptState, event: Exited) -> Step:
    state = replace(
        state,
        exited=state.exited.union(exit_.rank for exit_ in event.exits),
        stepped=event.stepped,
        complete=event.complete,
    )
    match state.phase:
        case Running() | Settling():
            return crash.on_exits(state, event)
        case Terminating(proposed, decision) if not state.live:
            return kill(state, proposed, decision, event.at)
        case Killing() as phase:
            return killed(state, phase, event.at)
    return state, ()


def _on_tick(state: AttemptState, event: Tick) -> Step:
    match state.phase:
        case Running():
            if state.alone is not None and state.stopping is None and state.requested is None:
                return _alone(state, state.alone, event)
            return graceful_stop.on_tick(state, event)
        case Settling() as phase:
            return crash.on_tick(state, phase, event)
        case Explaining(proposed, until) if event.at >= until:
            return propose(state, proposed)
        case Terminating(proposed, decision, until):
            if event.at >= until or (decision.verdict == STOP and event.ignored):
                return kill(state, proposed, decision, event.at)
        case Killing() as phase:
            return killed(state, phase, event.at)
    return state, ()


def _on_decision(state: AttemptState, event: Decided) -> Step:
    """Another launcher has decided how the attempt ends; ranks that save are left alone meanwhile."""
    match state.phase:
        case Running() if state.stopping is None:
            return propose(state, event.decision)
        case Settling() if state.stopping is None:
            return then(crash.settle(state, event.at), lambda state: step(state, event))
        case Explaining(proposed):
            return propose(state, proposed)
        case WaitingForPeers():
            # Ranks that have saved and stopped need not run again because another node was lost meanwhile.
            saved = state.stopping is not None and event.decision.verdict == RESTART
            return finish(state) if saved else propose(state, event.decision)
    return state, ()


def _on_directive(state: AttemptState, event: Directed) -> Step:
    directive = event.directive
    if not isinstance(state.phase, Running):
        return state, (Ack(directive, AckState.DONE, "the ranks here had already exited"),)
    decision = attempt_end.on_directive(directive)
    if decision is None:
        return graceful_stop.on_directive(state, directive, event.at)
    if directive.kind is DirectiveKind.RESTART and not event.restarts_left:
        # The job may be healthy: refusing is better than ending it.
        return state, (Ack(directive, AckState.REFUSED, "no restart is left (--max-restarts)"),)
    return propose(replace(state, directive=directive), decision)


def _alone(state: AttemptState, alone: Alone, event: Tick) -> Step:
    """Ranks that complete something need no store; those that wait for a peer behind a cut link go on with it."""
    if event.work != alone.work:
        return replace(state, alone=Alone(event.work, event.at)), ()
    if event.at >= alone.since + state.site.node_timeout:
        return kill(state, None, None, event.at)
    return state, ()


def _on_store_lost(state: AttemptState, event: StoreLost) -> Step:
    match state.phase:
        case Settling():
            return then(crash.settle(state, event.at), lambda state: step(state, event))
        case Running() if state.stopping is not None and not event.needed:
            return state, ()
        case Running() if state.requested is not None:
            return state, ()  # nobody agrees to the stop, so the ranks get SIGTERM
        case Running() if not (event.needed or event.ended):
            return replace(state, alone=Alone(-1, event.at)), (Log(LEFT_ALONE),)
        case Running() | WaitingForPeers() | Explaining() | Proposing():
            return kill(state, None, None, event.at)
    return state, ()
