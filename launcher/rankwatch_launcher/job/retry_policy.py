"""What follows when a launcher has ended: nothing, another launch, or an end without success. Pure: no clock, no IO.

How this works
--------------
The first line that fits counts. ``used`` and ``budget`` are retries, the first launch is none of them.

==========================================  =========  ==============================================================
what is known of the launch                 verdict    why
==========================================  =========  ==============================================================
the finished flag exists                    Done       nothing is left to train, however the launcher ended
state ``finished``; code 0 and no outcome   Done       all ranks ended with exit code 0
state ``stopped``                           Done       whoever ordered it does not want it run again
code 93                                     GiveUp 93  another launch would end the same way
code 17                                     GiveUp 17  the result is wrong; a person must look
code 2, no outcome                          GiveUp 2   the command line is wrong
state ``preempted``                         Again      not counted: the place was taken away, nothing failed
no step further in ``limit`` launches       GiveUp 93  the job does not get past where it is
no retry left                               GiveUp     with the launcher's code
code 16                                     Again      counted; on another node if that is possible
anything else, a killed launcher too        Again      counted
==========================================  =========  ==============================================================
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Final

from rankwatch_launcher.job.outcome import (
    CODE_DO_NOT_REQUEUE,
    CODE_RESULT_REJECTED,
    CODE_RESUME_ELSEWHERE,
    FAILED,
    FINISHED,
    PREEMPTED,
    STOPPED,
    Outcome,
)

CODE_USAGE: Final = 2
"""argparse's exit code for a command line that cannot be understood."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0
"""Seconds between two launches: enough for a storm of launches to stay harmless, little beside starting torch."""
CALM_SECONDS: Final = 300.0
"""A launch that lasted so long is no part of a storm."""

WORDS: Final = {
    FINISHED: "the job has finished",
    STOPPED: "the job was stopped",
    PREEMPTED: "the job was preempted",
    FAILED: "the job has failed",
}
"""How a launch ended that left no reason."""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is to be run any more."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Again:
    """Launch the job once more: it resumes from its checkpoint."""

    reason: str
    counted: bool = True
    """Whether it uses up a retry."""
    elsewhere: bool = False
    """Better on other nodes than those it ran on."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It has not succeeded, and is not to be run again."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the launches of a job have come. A job whose steps nobody knows is not judged by it."""

    limit: int = 3
    """Launches in a row without progress after which the job is given up; 0: never."""
    furthest: int | None = None
    """The furthest step of all launches so far."""
    standing: int = 0
    """Launches in a row that got no further."""

    def then(self, outcome: Outcome | None) -> Progress:
        """Take one more launch in.

        A killed launcher leaves no word of how far it came, and a preempted one may have had no time: neither counts.
        """
        if outcome is None:
            return self
        reached = outcome.iteration
        if self.furthest is None or (reached is not None and reached > self.furthest):
            return replace(self, furthest=reached, standing=0)
        return self if outcome.state == PREEMPTED else replace(self, standing=self.standing + 1)

    @property
    def stuck(self) -> bool:
        """Whether the job does not get any further."""
        return 0 < self.limit <= self.standing


def after(
    outcome: Outcome | None,
    code: int,
    finished: bool,
    used: int,
    budget: int,
    progress: Progress | None = None,
) -> Done | Again | GiveUp:
    """Decide what follows on a launch.

    ``outcome`` is what the launcher left, None when it left nothing; ``code`` its exit code, minus the signal that
    killed it; ``finished`` whether the finished flag exists; ``progress`` has taken this launch in.
    """
    if finished:
        return Done(0, "training is complete: the finished flag exists")
    if outcome is not None:
        # The code that the launcher meant; its interpreter may have been aborted while it shut down.
        code = outcome.code
    what = _what(outcome, code)
    ended = _ended(outcome, code, what)
    if ended is not None:
        return ended
    if outcome is not None and outcome.state == PREEMPTED:
        return Again(f"{what}: it resumes from its checkpoint, and no retry is counted", counted=False)
    if progress is not None and progress.stuck:
        reason = f"{progress.standing} launches in a row got no further than step {progress.furthest}"
        return GiveUp(CODE_DO_NOT_REQUEUE, f"{reason}; the last one: {what}")
    if used >= budget:
        left = f"all {budget} retries of the job are used up" if budget else "no retry of the job is allowed"
        return GiveUp(exit_status(code), f"{what}; {left} (--job-retries)")
    return Again(what, elsewhere=code == CODE_RESUME_ELSEWHERE)


def _ended(outcome: Outcome | None, code: int, what: str) -> Done | GiveUp | None:
    """The verdict on a launch that is the last one whatever the budget is."""
    if outcome is None and code == 0:
        return Done(0, what)
    if outcome is not None and outcome.state in (FINISHED, STOPPED):
        return Done(code, what if outcome.state == FINISHED else f"{what}; it was ordered, so it stays so")
    if code == CODE_DO_NOT_REQUEUE:
        return GiveUp(code, f"{what}; exit code {code} says that another launch would end the same way")
    if code == CODE_RESULT_REJECTED:
        return GiveUp(
            code, f"{what}; exit code {code} says that a result is wrong: a person must look before it goes on"
        )
    if outcome is None and code == CODE_USAGE:
        return GiveUp(code, "the command line was refused, and would be again")
    return None


def _what(outcome: Outcome | None, code: int) -> str:
    """How the launch ended, in one sentence without its full stop."""
    if outcome is not None:
        return f"{outcome.state}: {outcome.reason}" if outcome.reason else WORDS.get(outcome.state, outcome.state)
    if code < 0:
        return f"the launcher was killed by {_signal(-code)}"
    return f"the launcher ended with exit code {code}"


def exit_status(code: int) -> int:
    """The status that a shell shows for a ``Popen`` exit code: 128 more than the signal that killed the process."""
    return 128 - code if code < 0 else code


def pause(previous: float, lasted: float) -> float:
    """Seconds to wait before the next launch, from the last wait (0: there was none) and how long the launch lasted."""
    if previous <= 0 or lasted >= CALM_SECONDS:
        return FIRST_PAUSE
    return min(LONGEST_PAUSE, 2 * previous)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
