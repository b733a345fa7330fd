"""What the launchers of a job agree on: how an attempt ends, the restart budget, the stop step. Pure.

How an attempt ends
-------------------
A launcher that sees a reason to end an attempt proposes an :class:`AttemptDecision` for it. The first one stored holds
for all launchers (:meth:`~rankwatch_launcher.coordination.store.JobStore.end_attempt`), so all restart or all stop for
the same reason, and one restart is counted however many launchers noticed the failure.

What bounds restarts
--------------------
A counted restart is taken from the budget (``max_restarts``); one that only regroups nodes is not counted. An attempt
that gets no further than an earlier one made no progress: after ``max_no_progress`` of them in a row the job fails with
exit code 93. One that ends at the same place as the two before it (the same crash, the same proven hang, at the same
step) is deterministic, and fails so at once. Steps counted from 0 in every attempt may be the script's own count since
its last checkpoint; of those, only exactly the same step again counts as no progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rankwatch.contract.enums import NoRestart
from rankwatch_launcher.outcome import CODE_DO_NOT_REQUEUE, CODE_FAILED, CODE_RESUME_ELSEWHERE, FAILED, STOPPED, Outcome

RESTART: Final = "restart"
FAIL: Final = "fail"
STOP: Final = "stop"
DETERMINISTIC: Final = 3
"""Attempts in a row that end at the same place until no further one is made."""


@dataclass(frozen=True, slots=True)
class AttemptDecision:
    """How an attempt of the whole job ends, and why."""

    verdict: str
    """``restart``, ``fail`` (no restart is possible) or ``stop`` (on request)."""
    reason: str
    counted: bool = True
    """Whether a restart is taken from the budget."""
    fault: bool = True
    """Whether something went wrong, so that stacks are captured; False when nodes only regroup."""
    incident: str | None = None
    code: int = CODE_FAILED
    """The launchers' exit code when the job ends and ranks had to be killed."""
    exclude: Mapping[str, str] = field(default_factory=dict)
    """Nodes excluded from further attempts, and why."""
    avoid: str | None = None
    """A node whose ranks should run elsewhere in the next attempt, if possible."""
    cause: str = ""
    """Of a ``fail``: what happened; empty: not stated apart from ``reason``."""
    no_restart: str = ""
    """Of a ``fail``: why no restart follows, a :class:`~rankwatch.contract.enums.NoRestart`; empty: not stated."""
    why_none: str = ""
    """The same as a clause."""
    place: str = ""
    """Where it ended: of a crash the rank and its error, of a hang where the ranks stand; the same text for the same
    place."""
    proven: bool = True
    """Of a hang: looks at the ranks prove it."""
    given_back: bool = False
    """The restart counts no longer once training got past the step: nobody configured the limit that caused it."""
    state: str = STOPPED
    """The job's state after a ``stop``: ``stopped`` or ``preempted``."""
    by: str = ""
    """The node that decided. This field and those below are set when the decision is stored."""
    used: int = 0
    """Restarts used, this one included."""
    max_restarts: int = 0
    token: str = ""
    """Unique per proposal: shows its author whether it was the one stored."""


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """Limits on restarts."""

    max_restarts: int
    max_no_progress: int = 0
    """Attempts in a row without progress; 0: unlimited."""


@dataclass(frozen=True, slots=True)
class StepRange:
    """The first and the furthest step that the ranks completed in an attempt."""

    first: int
    furthest: int


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Progress over all attempts that have ended."""

    furthest: int = -1
    stalled: int = 0
    """Attempts in a row without progress."""
    last: int = -1
    """The furthest step of the last attempt."""
    place: str = ""
    """Where the last attempt ended."""
    alike: int = 0
    """Attempts in a row that ended there, at the same step."""
    to_give_back: tuple[int, ...] = ()
    """Of restarts that are given back once training gets past it: the furthest step then."""
    restarts: int = 0
    """Counted restarts, without those given back."""

    def including(self, steps: StepRange | None, ended: AttemptDecision) -> JobProgress:
        """Progress with one more attempt; without its steps, which are unknown, it does not count."""
        if steps is None:
            return replace(self, place="", alike=0)
        stalled = steps.furthest <= self.furthest if steps.first > 0 else steps.furthest == self.last
        # Steps that the script counts from 0 after each restart are fewer once, for those since the checkpoint.
        counts_anew = self.alike == 1 and steps.first == 0 and steps.furthest <= self.last
        same = bool(ended.place) and ended.proven and ended.place == self.place
        alike = self.alike + 1 if same and (steps.furthest == self.last or counts_anew) else 1
        furthest = max(self.furthest, steps.furthest)
        waiting = (*self.to_give_back, furthest) if ended.given_back else self.to_give_back
        stalled_now = self.stalled + 1 if stalled else 0
        return JobProgress(furthest, stalled_now, steps.furthest, ended.place, alike, waiting, self.restarts)

    def given_back(self) -> JobProgress:
        """Progress without the restarts that training has got past."""
        return replace(self, to_give_back=tuple(step for step in self.to_give_back if self.furthest <= step))


def within_limits(
    proposed: AttemptDecision, budget: RestartBudget, used: int, progress: JobProgress
) -> AttemptDecision:
    """Turn a counted restart into a failure when the budget is used up or the job makes no progress.

    ``used`` counts the restarts before this one; ``progress`` includes the attempt that ends.
    """
    proposed = replace(proposed, used=used, max_restarts=budget.max_restarts)
    if proposed.verdict != RESTART or not proposed.counted:
        return proposed
    if budget.max_no_progress and proposed.place and proposed.proven and progress.alike >= DETERMINISTIC:
        why = f"{progress.alike} attempts in a row ended so at step {progress.last}: a restart would end the same way"
        return failed(replace(proposed, code=CODE_DO_NOT_REQUEUE), NoRestart.DETERMINISTIC, why)
    if 0 < budget.max_no_progress <= progress.stalled:
        why = (
            f"{progress.stalled} attempts in a row made no progress beyond step "
            f"{progress.furthest} (--max-no-progress {progress.stalled})"
        )
        return failed(replace(proposed, code=CODE_DO_NOT_REQUEUE), NoRestart.NO_PROGRESS, why)
    if used >= budget.max_restarts:
        if not budget.max_restarts:
            return failed(proposed, NoRestart.NOT_ALLOWED, "no restart is allowed (--max-restarts 0)")
        spent = f"all {budget.max_restarts} restarts are" if budget.max_restarts > 1 else "the only restart is"
        why = f"{spent} used up (--max-restarts)"
        return failed(proposed, NoRestart.USED_UP, why)
    return replace(proposed, used=used + 1)


def failed(proposed: AttemptDecision, no_restart: str, why: str) -> AttemptDecision:
    """The failure that follows instead, and why it does, as a code and as a clause."""
    cause = proposed.reason
    if proposed.code == CODE_RESUME_ELSEWHERE:
        no_restart = NoRestart.RESUME_ELSEWHERE
    reason = f"{cause.rstrip('. ')}; {why}"
    return replace(proposed, verdict=FAIL, reason=reason, cause=cause, no_restart=no_restart, why_none=why)


def ended_by(decision: AttemptDecision) -> Outcome:
    """How the job ends by a decision that fails or stops it."""
    if decision.verdict != FAIL:
        return Outcome(decision.state, CODE_FAILED, decision.reason)
    outcome = Outcome(FAILED, decision.code, decision.reason, cause=decision.cause)
    return replace(outcome, no_restart=decision.no_restart, why_none=decision.why_none)


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request for all ranks to save and stop."""

    reason: str
    by: str
    state: str
    """The job's state afterwards: ``preempted`` or ``stopped``."""


@dataclass(frozen=True, slots=True)
class StopProposal:
    """A step after which all ranks are to stop; a later proposal replaces one that came too late."""

    number: int
    """0 only asks for the ranks' current steps: those in the heartbeats are up to a second old."""
    step: int | None
    """None with a number above 0: some rank would not follow a stop step, so all ranks get SIGTERM."""
    request: StopRequest
