"""Decides what follows a launch: nothing, another launch, or giving up. Pure: no clock, no IO.

The first row that matches decides. ``used`` and ``budget`` count retries; the first launch is not a retry.

==========================================  =========  ==============================================================
what is known of the launch                 verdict    why
==========================================  =========  ==============================================================
the finished flag exists                    Done       training is complete, however the launcher ended
state ``finished``; code 0 and no outcome   Done       all ranks ended with exit code 0
state ``stopped``                           Done       the stop was requested
code 93                                     GiveUp 93  another launch would end the same way
code 17                                     GiveUp 17  a result was rejected; a person must decide
code 2, no outcome                          GiveUp 2   the command line is invalid
state ``preempted``                         Again      not counted: the resources were taken away, nothing failed
no further step in ``limit`` launches       GiveUp 93  the job makes no progress
no retry left                               GiveUp     with the launcher's code
code 16                                     Again      counted; on other nodes if possible
anything else, also a killed launcher       Again      counted
==========================================  =========  ==============================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rankwatch.contract.enums import NoRestart
from rankwatch.contract.exits import signal_name
from rankwatch_launcher.outcome import (
    CODE_DO_NOT_REQUEUE,
    CODE_RESULT_REJECTED,
    FAILED,
    FINISHED,
    PREEMPTED,
    STOPPED,
    Outcome,
)

CODE_USAGE: Final = 2
"""argparse's exit code for an invalid command line."""
FIRST_BACKOFF: Final = 1.0
MAX_BACKOFF: Final = 30.0
"""Bounds of the exponential backoff between launches, in seconds: short compared with starting torch."""
RESET_SECONDS: Final = 300.0
"""A launch that lasted this long resets the backoff."""

DESCRIPTIONS: Final = {
    FINISHED: "the job has finished",
    STOPPED: "the job was stopped",
    PREEMPTED: "the job was preempted",
    FAILED: "the job has failed",
}
"""Descriptions of outcomes without a reason."""


@dataclass(frozen=True, slots=True)
class Done:
    """The job is over."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Again:
    """Launch the job again: it resumes from its checkpoint."""

    reason: str
    counted: bool = True
    """Whether it uses up a retry."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job failed and is not launched again."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress over the launches of a job. A job that reports no steps is never judged by it."""

    limit: int = 3
    """Consecutive launches without progress after which the job is given up; 0: unlimited."""
    furthest: int | None = None
    """The furthest step of any launch so far."""
    stalled_launches: int = 0
    """Consecutive launches without progress."""

    def then(self, outcome: Outcome | None) -> Progress:
        """Progress including one more launch.

        A killed launcher reports no step and a preempted one may have had no time: neither counts as stalled.
        """
        if outcome is None:
            return self
        reached = outcome.iteration
        if self.furthest is None or (reached is not None and reached > self.furthest):
            return replace(self, furthest=reached, stalled_launches=0)
        return self if outcome.state == PREEMPTED else replace(self, stalled_launches=self.stalled_launches + 1)

    @property
    def stuck(self) -> bool:
        """Whether the limit is reached."""
        return 0 < self.limit <= self.stalled_launches


def after(
    outcome: Outcome | None,
    code: int,
    finished: bool,
    used: int,
    budget: int,
    progress: Progress | None = None,
) -> Done | Again | GiveUp:
    """Decide what follows a launch.

    Args:
        outcome: what the launcher wrote, None when it wrote nothing.
        code: its exit code, or minus the signal that killed it.
        progress: of all launches, this one included.
    """
    if finished:
        return Done(0, "training is complete: the finished flag exists")
    if outcome is not None:
        # The interpreter may have aborted during shutdown, after the outcome was written.
        code = outcome.code
    what = _description(outcome, code)
    final = _final(outcome, code, what)
    if final is not None:
        return final
    if outcome is not None and outcome.state == PREEMPTED:
        return Again(f"{what}: it resumes from its checkpoint, and no retry is counted", counted=False)
    if progress is not None and progress.stuck:
        reason = f"{progress.stalled_launches} launches in a row made no progress beyond step {progress.furthest}"
        return GiveUp(CODE_DO_NOT_REQUEUE, f"{reason}; the last one: {what}")
    if used >= budget:
        spent = f"all {budget} retries of the job are" if budget > 1 else "the only retry of the job is"
        left = f"{spent} used up" if budget else "no retry of the job is allowed"
        return GiveUp(exit_status(code), f"{what}; {left} (--job-retries)")
    return Again(what)


def _final(outcome: Outcome | None, code: int, what: str) -> Done | GiveUp | None:
    """The verdict when no further launch is possible, whatever the budget."""
    if outcome is None and code == 0:
        return Done(0, what)
    if outcome is not None and outcome.state in (FINISHED, STOPPED):
        return Done(code, what if outcome.state == FINISHED else f"{what}; the stop was requested")
    if code == CODE_DO_NOT_REQUEUE:
        return GiveUp(code, f"{what}; exit code {code} means that another launch would end the same way")
    if code == CODE_RESULT_REJECTED:
        return GiveUp(
            code,
            f"{what}; exit code {code} means that a result was rejected: a person must decide whether it continues",
        )
    if outcome is not None and outcome.no_restart in (NoRestart.SCRIPT_MISSING, NoRestart.SCRIPT_BROKEN):
        return GiveUp(code, what)
    if outcome is None and code == CODE_USAGE:
        return GiveUp(code, "the command line is invalid")
    return None


def _description(outcome: Outcome | None, code: int) -> str:
    """How the launch ended, in one phrase."""
    if outcome is not None:
        return (
            f"{outcome.state}: {outcome.reason}" if outcome.reason else DESCRIPTIONS.get(outcome.state, outcome.state)
        )
    if code < 0:
        return f"the launcher was killed by {signal_name(-code)}"
    return f"the launcher ended with exit code {code}"


def exit_status(code: int) -> int:
    """A shell's exit status for a ``Popen`` return code: 128 plus the signal that killed the process."""
    return 128 - code if code < 0 else code


def backoff(previous: float, lasted: float) -> float:
    """Seconds to wait before the next launch, from the previous wait (0: none) and the duration of the launch."""
    if previous <= 0 or lasted >= RESET_SECONDS:
        return FIRST_BACKOFF
    return min(MAX_BACKOFF, 2 * previous)
