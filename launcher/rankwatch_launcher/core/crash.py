"""Exits of ranks: which belong together, what caused them, and whether they end the attempt."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rankwatch.contract.enums import ProcessEventKind
from rankwatch_launcher.core import attempt_end, graceful_stop
from rankwatch_launcher.core.attempt_end import START_SECONDS, Futile
from rankwatch_launcher.core.effects import Effect, Log, Report
from rankwatch_launcher.core.ending import Step, after_last_exit, propose, then
from rankwatch_launcher.core.events import Exited, Tick
from rankwatch_launcher.core.exits import RankExit
from rankwatch_launcher.core.state import AttemptState, Explaining, Running, Settling, Stage
from rankwatch_launcher.outcome import CODE_RESULT_REJECTED, CODE_RESUME_ELSEWHERE

RERUN_CODES: Final = (CODE_RESULT_REJECTED, CODE_RESUME_ELSEWHERE)
"""Exit codes of the re-run state machine: all ranks of the job exit with them, and one has the reason."""
RERUN_SECONDS: Final = 5.0
"""How long ranks that exit with such a code, and the launcher that knows the reason, are waited for."""
ABORT_SECONDS: Final = 0.3
CAUSE_SECONDS: Final = 0.5
"""How long another rank, or launcher, may take to show the cause of exits that only follow from it."""
EXITING_SECONDS: Final = 2.0
"""How long ranks that have failed may take to exit."""


def on_exits(state: AttemptState, event: Exited) -> Step:
    """Ranks have exited while the attempt runs."""
    phase = state.phase
    if isinstance(phase, Settling):
        exits, requests = (*phase.exits, *event.exits), (*phase.requests, *event.requests)
        state = replace(state, phase=replace(phase, exits=exits, requests=requests))
        return (state, ()) if state.live else settle(state, event.at)
    settling = Settling(event.exits, event.requests, event.at, Stage.NONE)
    return _wait(replace(state, phase=settling), settling, event.at, failing=False)


def on_tick(state: AttemptState, settling: Settling, event: Tick) -> Step:
    """The exits that were waited for have not come."""
    return (state, ()) if event.at < settling.until else _wait(state, settling, event.at, failing=event.failing)


def settle(state: AttemptState, at: float) -> Step:
    """Judge the exits, report them, and end the attempt if they are a crash."""
    settling = state.phase
    assert isinstance(settling, Settling)
    judged = _judged(state, settling.exits)
    state = replace(state, phase=Running(), exits=(*state.exits, *judged))
    crashed = attempt_end.by_cause([exit_ for exit_ in judged if exit_.code != 0 and not exit_.expected])
    left = _left(state) if crashed and crashed[0].consequence else []
    futile = _futile(state, crashed, at)
    # The monitor names a culprit as soon as it knows of a failure, so the likely cause goes first.
    causes = [*(exit_ for exit_ in judged if exit_ in left), *crashed]
    effects: list[Effect] = []
    for exit_ in [*causes, *(exit_ for exit_ in judged if exit_ not in causes)]:
        effects += _reported(state, exit_, final=futile is not None and not state.site.elsewhere and exit_ in crashed)
    done = state, tuple(effects)
    if crashed:
        return then(done, lambda state: _on_crash(state, crashed, left, futile, settling, at))
    if not state.live:
        done = then(done, after_last_exit)
    return then(done, lambda state: graceful_stop.on_requests(state, settling.requests, at))


def _on_crash(
    state: AttemptState,
    crashed: Sequence[RankExit],
    left: Sequence[RankExit],
    futile: Futile | None,
    settling: Settling,
    at: float,
) -> Step:
    # A rank may have requested a stop or its exclusion before it crashed; the request takes precedence.
    asked = graceful_stop.on_requests(state, settling.requests, at)
    if not isinstance(asked[0].phase, Running):
        return asked
    site = state.site
    decision = attempt_end.on_crash(
        crashed, site.node, site.hostname, elsewhere=site.elsewhere, futile=futile, left=left
    )
    if state.stopping is not None and decision.code != CODE_RESULT_REJECTED:
        text = f"{attempt_end.describe_crash(crashed, site.hostname)}, during a graceful stop"
        asked = then(asked, lambda state: (state, (Log(text, warning=False),)))
        return asked if state.live else then(asked, after_last_exit)
    seconds = 0.0
    if site.nodes > 1:
        if decision.code in RERUN_CODES and not any(exit_.message for exit_ in crashed):
            seconds = RERUN_SECONDS
        elif crashed[0].consequence:
            seconds = CAUSE_SECONDS
    if seconds:
        return then(asked, lambda state: (replace(state, phase=Explaining(decision, at + seconds)), ()))
    return then(asked, lambda state: propose(state, decision))


# Waiting for further exits --------------------------------------------------------------------------------------------


def _wait(state: AttemptState, settling: Settling, at: float, *, failing: bool) -> Step:
    stage, seconds = _next_stage(state, settling, at, failing=failing)
    if not seconds or not state.live:
        return settle(state, at)
    return replace(state, phase=replace(settling, stage=stage, until=at + seconds)), ()


def _next_stage(state: AttemptState, settling: Settling, at: float, *, failing: bool) -> tuple[Stage, float]:
    """What is waited for next, and how long; 0: nothing."""
    codes = [exit_.code for exit_ in settling.exits]
    if settling.stage is Stage.NONE and -signal.SIGABRT in codes:
        # The peers' exits tell a crash in training from torch's abort in the exit of a finished process.
        return Stage.ABORT, ABORT_SECONDS
    if settling.stage < Stage.CAUSE:
        if any(code in RERUN_CODES for code in codes):
            return Stage.LAST, RERUN_SECONDS
        failed = [exit_ for exit_ in settling.exits if exit_.code]
        if not failed or state.stopping is not None:
            return Stage.LAST, 0.0
        errors = [exit_.error for exit_ in failed]
        if all(error is not None and error.consequence for error in errors):
            return Stage.CAUSE, CAUSE_SECONDS
        late = at - state.site.started_at > START_SECONDS
        lasting = all(e is not None and not e.may_pass and (e.of_script or not late) for e in errors)
        starting = state.site.first and not state.stepped
        return Stage.LAST, EXITING_SECONDS if starting and lasting else 0.0
    return Stage.LAST, EXITING_SECONDS if settling.stage is Stage.CAUSE and failing else 0.0


# Judging --------------------------------------------------------------------------------------------------------------


def _judged(state: AttemptState, exits: Sequence[RankExit]) -> list[RankExit]:
    """The exits, with what those of the peers say about them."""
    codes: dict[int, int | None] = dict.fromkeys(state.site.ranks)
    codes |= {exit_.rank: exit_.code for exit_ in (*state.exits, *exits)}
    judged = []
    for exit_ in exits:
        others = [code for rank, code in codes.items() if rank != exit_.rank]
        # When all ranks here failed, none was expendable. A script that ends by an exception shuts Rankwatch down, too.
        spared = exit_.expected and exit_.code not in (0, *RERUN_CODES) and any(not code for code in others)
        alike = bool(others) and all(code == 0 for code in others)
        judged.append(
            replace(exit_, expected=spared, had_finished=exit_.error is None and (exit_.had_finished or alike))
        )
    return judged


def _left(state: AttemptState) -> list[RankExit]:
    """Those with code 0; empty if they are the majority here, since then the others have not ended in time."""
    left = [exit_ for exit_ in state.exits if exit_.code == 0]
    return left if 2 * len(left) <= len(state.site.ranks) else []


def _futile(state: AttemptState, crashed: Sequence[RankExit], at: float) -> Futile | None:
    if not crashed or state.stopping is not None or not state.site.first or state.stepped:
        return None
    elapsed = at - state.site.started_at
    return attempt_end.futile_restart(crashed, len(state.site.ranks), elapsed)


def _reported(state: AttemptState, exit_: RankExit, *, final: bool) -> list[Effect]:
    describe = attempt_end.describe_expected_exit if exit_.expected else attempt_end.describe_exit
    reason = describe(exit_, state.site.hostname)
    details = {
        "rank": exit_.rank,
        "local_rank": exit_.local_rank,
        "pid": exit_.pid,
        "exit_code": exit_.code if exit_.code >= 0 else None,
        "signal": exit_.signal,
        "message": exit_.first_line,
        "iteration": exit_.iteration,
        "spared": exit_.expected,
        "final": final,
    }
    report = Report(ProcessEventKind.EXITED, reason, details)
    return [report, Log(reason)] if exit_.expected else [report]
