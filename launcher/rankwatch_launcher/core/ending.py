"""From a proposed decision to the end of the attempt: store it, capture stacks, end the ranks, acknowledge.

The order cannot be another one: each phase is left by the answer to its effect, or at its deadline.

Explaining -> Proposing -> Capturing -> Terminating -> Killing -> Over
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeAlias

from rankwatch.contract.enums import AckState, ConsoleWord, ProcessEventKind
from rankwatch_launcher.coordination.decisions import FAIL, RESTART, STOP, AttemptDecision, ended_by
from rankwatch_launcher.core import attempt_end
from rankwatch_launcher.core.effects import (
    Ack,
    Capture,
    Close,
    Effect,
    Kill,
    Log,
    Propose,
    PublishFinish,
    Report,
    Show,
    SignalRanks,
)
from rankwatch_launcher.core.state import (
    AttemptState,
    Capturing,
    Killing,
    Over,
    Proposing,
    Terminating,
    WaitingForPeers,
)
from rankwatch_launcher.outcome import Outcome

KILL_SECONDS: Final = 10.0
TERM_SECONDS: Final = 15.0
"""Between SIGTERM and SIGKILL when ranks are stopped on request."""
CRASH_CAPTURE_SECONDS: Final = 0.6
"""A crash is restarted within a second, so capturing the survivors' stacks gets less than that."""

Step: TypeAlias = tuple[AttemptState, tuple[Effect, ...]]


def then(first: Step, following: Callable[[AttemptState], Step]) -> Step:
    """One step after another."""
    state, effects = first
    state, more = following(state)
    return state, effects + more


def propose(state: AttemptState, decision: AttemptDecision) -> Step:
    """End the attempt; the decision that is stored first holds for all launchers."""
    return replace(state, phase=Proposing(decision)), (Propose(decision, yields=state.directive is None),)


def stored(state: AttemptState, proposed: AttemptDecision, decision: AttemptDecision, at: float) -> Step:
    """A decision holds: announce it, then capture stacks if something went wrong."""
    effects: list[Effect] = []
    if decision.verdict in (FAIL, STOP):
        state = replace(state, outcome=ended_by(decision))
    elif not attempt_end.is_regrouping(decision):
        effects.append(Report(ProcessEventKind.RESTARTING, decision.reason, {"incident_id": decision.incident}))
    effects += _shown(state, decision)
    if not decision.fault:
        return then((state, tuple(effects)), lambda state: end_ranks(state, proposed, decision, at))
    deadline = state.directive.deadline if state.directive is not None else CRASH_CAPTURE_SECONDS
    effects.append(Capture(deadline, proposed.incident))
    return replace(state, phase=Capturing(proposed, decision)), tuple(effects)


def _shown(state: AttemptState, decision: AttemptDecision) -> Iterable[Effect]:
    """What the console shows of the end of an attempt; a hang was shown with its directive."""
    crashed = attempt_end.by_cause(state.errors())
    if decision.incident is None and decision.verdict != STOP:
        word = ConsoleWord.CRASH if decision.fault else ConsoleWord.RESTART
        where = (attempt_end.describe_place(crashed[0]),) if crashed else ()
        yield Show(word, decision.cause or decision.reason, where)
    elif decision.incident is None and state.stopping is None:
        yield Show(ConsoleWord.STOP, decision.reason)
    if decision.verdict == RESTART and not attempt_end.is_regrouping(decision):
        yield Show(None, attempt_end.describe_restart(decision))


def end_ranks(state: AttemptState, proposed: AttemptDecision, decision: AttemptDecision, at: float) -> Step:
    """End the ranks, first by a signal that they can handle where one is wanted."""
    number = signal.SIGTERM if decision.verdict == STOP else state.site.kill_signal
    if number == signal.SIGKILL or not state.live:
        return kill(state, proposed, decision, at)
    phase = Terminating(proposed, decision, at + _term_seconds(state))
    return replace(state, phase=phase), (SignalRanks(number, ending=True),)


def _term_seconds(state: AttemptState) -> float:
    """What ranks get after SIGTERM; those that got it for this stop already have had their time."""
    if state.site.shutdown_timeout is None:
        return TERM_SECONDS
    return 0.0 if state.stopping is not None and state.stopping.by_signal else state.site.shutdown_timeout


def kill(state: AttemptState, proposed: AttemptDecision | None, decision: AttemptDecision | None, at: float) -> Step:
    """Kill what is left of the ranks; without a decision if the store is lost: torch would give them 30 s."""
    phase = Killing(proposed, decision, at + KILL_SECONDS)
    return then((replace(state, phase=phase), (Kill(),)), lambda state: killed(state, phase, at))


def killed(state: AttemptState, phase: Killing, at: float) -> Step:
    """The attempt is over once no rank exists, or none of them ends."""
    if state.live and at < phase.until:
        return state, ()
    left = (Log(f"rank {rank} still exists {KILL_SECONDS:g} s after SIGKILL") for rank in state.live)
    decision = phase.decision
    over = Over(restart=decision is not None and decision.verdict == RESTART, lost=decision is None)
    return replace(state, phase=over), (*left, Close(reap=True), *_acknowledgement(state, phase))


def finish(state: AttemptState) -> Step:
    """All ranks, here and elsewhere, exited with code 0, or saved and stopped."""
    effects: tuple[Effect, ...] = (Close(),)
    if (stopping := state.stopping) is not None and not state.complete:
        state = replace(state, outcome=Outcome(stopping.state, 0, stopping.reason, agreed=not stopping.by_signal))
        text = f"stopped: {attempt_end.describe_stopped(stopping.reason, by_signal=stopping.by_signal)}"
        effects = (Log(text, warning=False), Close())
    return replace(state, phase=Over()), effects


def after_last_exit(state: AttemptState) -> Step:
    """All ranks have exited; with errors only during a graceful stop, since a crash ends the attempt at once."""
    stopping = state.stopping
    if stopping is not None and (errors := state.errors()):
        crash = attempt_end.describe_crash(attempt_end.by_cause(errors), state.site.hostname)
        reason = f"{stopping.reason}; {crash} before it had saved"
        stop = AttemptDecision(STOP, reason, fault=False, incident=stopping.incident, state=stopping.state)
        return propose(state, stop)
    if state.site.nodes == 1 or state.alone is not None:  # torchrun's exit barrier needs no store either
        return finish(state)
    return replace(state, phase=WaitingForPeers()), (PublishFinish(),)


def _acknowledgement(state: AttemptState, phase: Killing) -> Iterable[Effect]:
    directive, proposed, decision = state.directive, phase.proposed, phase.decision
    if directive is None or proposed is None or decision is None:
        return
    refused = proposed.verdict == RESTART and decision.verdict != RESTART
    yield Ack(directive, AckState.REFUSED if refused else AckState.DONE, decision.reason if refused else "")
