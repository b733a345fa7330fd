"""The verdict on a rejected result, and the transition of the state machine that follows. Pure.

How this works
--------------
The ranks run a step. At the end of each run every rank votes; all ranks act on the largest vote.

=============================  ================  ==========  ===================  ================================
state at the end of a run      largest vote      run again?  next state           the step then ends with
=============================  ================  ==========  ===================  ================================
INITIAL_RUN                    CONTINUE          no          NOT_RUNNING_YET      the optimizer's step
INITIAL_RUN                    RERUN             yes         RERUNNING_IN_PLACE
RERUNNING_IN_PLACE             CONTINUE          no          NOT_RUNNING_YET      the optimizer's step
RERUNNING_IN_PLACE             FAIL              no          the same             a checkpoint and exit code 17
RERUNNING_IN_PLACE             RESUME_ELSEWHERE  no          WILL_RERUN_FROM_...  a checkpoint and exit code 16
WILL_RERUN_FROM_CHECKPOINT     (no vote)         yes         RERUNNING_FROM_...
RERUNNING_FROM_CHECKPOINT      CONTINUE          no          NOT_RUNNING_YET      the optimizer's step
RERUNNING_FROM_CHECKPOINT      FAIL              no          the same             exit code 17
RERUNNING_FROM_CHECKPOINT      RESUME_ELSEWHERE  no          RERUNNING_AGAIN_...  exit code 16
RERUNNING_FROM_CHECKPOINT      FAULT_FOUND       no          the same             exit code 17
=============================  ================  ==========  ===================  ================================

WILL_RERUN_FROM_CHECKPOINT is saved in the checkpoint and re-run by another process, if possible on another device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Final

from rankwatch.contract import env

EXIT_CODE_RESUME_TO_DISAMBIGUATE: Final = env.EXIT_RESUME_ELSEWHERE
"""The job is to be resumed from its checkpoint on another device, which shows whether the first one is faulty."""
EXIT_CODE_FAILED_ON_RESULT_VALIDATION: Final = env.EXIT_RESULT_REJECTED
"""A result is wrong, or correct but rejected; it needs manual inspection."""


class RerunMode(StrEnum):
    """Mode of the state machine; values of Megatron's ``--rerun-mode``."""

    DISABLED = "disabled"
    VALIDATE_RESULTS = "validate_results"


class RerunState(Enum):
    """State of the machine; see the table above."""

    NOT_RUNNING_YET = 0
    INITIAL_RUN = 1
    RERUNNING_IN_PLACE = 2
    WILL_RERUN_FROM_CHECKPOINT = 3
    RERUNNING_FROM_CHECKPOINT = 4
    RERUNNING_AGAIN_FROM_CHECKPOINT = 5


class Vote(IntEnum):
    """Vote of a rank at the end of a run. The largest vote of all ranks wins."""

    CONTINUE = 0
    RERUN = 1
    FAIL = 2
    RESUME_ELSEWHERE = 3
    FAULT_FOUND = 4
    """A device was found faulty; this overrides ranks that were resumed on their own device and have no verdict."""


class RerunDiagnostic(StrEnum):
    """The final diagnosis, and the error types that can be injected."""

    CORRECT_RESULT = "correct_result"
    """Another device computes the same: the result follows from data or code."""
    TRANSIENT_ERROR = "transient_error"
    """The same device computes a different result from the same inputs."""
    PERSISTENT_ERROR = "persistent_error"
    """The first device computes the same result each time, another device a different one."""


class RerunValidationStatus(StrEnum):
    """Status of a line in the file of rejected results."""

    RERUN_DISABLED = "rerun_disabled"
    INITIAL_RUN = "initial_run"
    FIRST_RERUN_NOT_REPRODUCIBLE = "first_rerun_not_reproducible"
    FIRST_RERUN_REPRODUCIBLE = "first_rerun_reproducible"
    SECOND_RERUN_NOT_REPRODUCIBLE = "second_rerun_not_reproducible"
    SECOND_RERUN_REPRODUCIBLE = "second_rerun_reproducible"


class RerunFinding(Enum):
    """The verdicts of a rank."""

    TRANSIENT_ERROR = RerunDiagnostic.TRANSIENT_ERROR.value
    NOT_REACHED = "not_reached"
    """The re-run did not reach the rejected call: the step's control flow is not deterministic."""
    REPRODUCIBLE = "reproducible"
    """The same device computes the same; another device has to decide."""
    SAME_DEVICE = "same_device"
    """Resumed on the suspected device; another device has to decide."""
    PERSISTENT_ERROR = RerunDiagnostic.PERSISTENT_ERROR.value
    CORRECT_RESULT = RerunDiagnostic.CORRECT_RESULT.value


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """A rank's verdict and its vote."""

    finding: RerunFinding
    vote: Vote
    status: RerunValidationStatus | None = None
    """Status in the file of rejected results; None: no line is written."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What follows after a run."""

    state: RerunState
    run: bool = False
    """Whether forward and backward are run again."""
    rewind: bool = False
    """Whether random numbers and data are reset to the beginning of the step."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What the training loop does after the step."""

    checkpoint: bool = False
    code: int | None = None
    """The exit code; None to continue."""


_S = RerunState

TRANSITIONS: Final[Mapping[tuple[RerunState, Vote], Transition]] = {
    (_S.INITIAL_RUN, Vote.CONTINUE): Transition(_S.NOT_RUNNING_YET),
    (_S.INITIAL_RUN, Vote.RERUN): Transition(_S.RERUNNING_IN_PLACE, run=True, rewind=True),
    (_S.RERUNNING_IN_PLACE, Vote.CONTINUE): Transition(_S.NOT_RUNNING_YET),
    # Rewound because the checkpoint that follows must be of the beginning of the step.
    (_S.RERUNNING_IN_PLACE, Vote.FAIL): Transition(_S.RERUNNING_IN_PLACE, rewind=True),
    (_S.RERUNNING_IN_PLACE, Vote.RESUME_ELSEWHERE): Transition(_S.WILL_RERUN_FROM_CHECKPOINT, rewind=True),
    (_S.RERUNNING_FROM_CHECKPOINT, Vote.CONTINUE): Transition(_S.NOT_RUNNING_YET),
    (_S.RERUNNING_FROM_CHECKPOINT, Vote.FAIL): Transition(_S.RERUNNING_FROM_CHECKPOINT, rewind=True),
    (_S.RERUNNING_FROM_CHECKPOINT, Vote.RESUME_ELSEWHERE): Transition(_S.RERUNNING_AGAIN_FROM_CHECKPOINT, rewind=True),
    (_S.RERUNNING_FROM_CHECKPOINT, Vote.FAULT_FOUND): Transition(_S.RERUNNING_FROM_CHECKPOINT, rewind=True),
}

STEP_ENDS: Final[Mapping[RerunState, StepEnd]] = {
    _S.RERUNNING_IN_PLACE: StepEnd(checkpoint=True, code=EXIT_CODE_FAILED_ON_RESULT_VALIDATION),
    _S.WILL_RERUN_FROM_CHECKPOINT: StepEnd(checkpoint=True, code=EXIT_CODE_RESUME_TO_DISAMBIGUATE),
    # No new checkpoint: the one that this process was resumed from already holds the step.
    _S.RERUNNING_FROM_CHECKPOINT: StepEnd(code=EXIT_CODE_FAILED_ON_RESULT_VALIDATION),
    _S.RERUNNING_AGAIN_FROM_CHECKPOINT: StepEnd(code=EXIT_CODE_RESUME_TO_DISAMBIGUATE),
}

PENDING: Final = frozenset({_S.WILL_RERUN_FROM_CHECKPOINT, _S.RERUNNING_AGAIN_FROM_CHECKPOINT})
"""States that are saved in the checkpoint: a step is to be re-run after a resume."""


def transition(state: RerunState, vote: Vote) -> Transition:
    """Return what all ranks do after a run whose largest vote was ``vote``."""
    return TRANSITIONS[state, vote]


def step_end(state: RerunState) -> StepEnd:
    """Return what the training loop does when the step is not run again."""
    return STEP_ENDS.get(state, StepEnd())


def judge(state: RerunState, *, differs: bool, same_device: bool, fatal: bool) -> RankVerdict:
    """Return the verdict of a rank whose re-run reached the rejected call.

    Args:
        state: one in which a step is run again.
        differs: whether the result differs from the first one by more than the tolerance.
        same_device: whether the device is the one that computed the first result.
        fatal: whether the rejected result is to end the job.
    """
    status = RerunValidationStatus
    if state is _S.RERUNNING_IN_PLACE:
        if differs:
            vote = Vote.FAIL if fatal else Vote.CONTINUE
            return RankVerdict(RerunFinding.TRANSIENT_ERROR, vote, status.FIRST_RERUN_NOT_REPRODUCIBLE)
        vote = Vote.RESUME_ELSEWHERE if fatal else Vote.CONTINUE
        return RankVerdict(RerunFinding.REPRODUCIBLE, vote, status.FIRST_RERUN_REPRODUCIBLE)
    assert state is _S.RERUNNING_FROM_CHECKPOINT, state
    if same_device:
        return RankVerdict(RerunFinding.SAME_DEVICE, Vote.RESUME_ELSEWHERE)
    if differs:
        vote = Vote.FAULT_FOUND if fatal else Vote.CONTINUE
        return RankVerdict(RerunFinding.PERSISTENT_ERROR, vote, status.SECOND_RERUN_NOT_REPRODUCIBLE)
    vote = Vote.FAIL if fatal else Vote.CONTINUE
    return RankVerdict(RerunFinding.CORRECT_RESULT, vote, status.SECOND_RERUN_REPRODUCIBLE)


def not_reached(*, fatal: bool) -> RankVerdict:
    """Return the verdict of a rank whose re-run did not reach the rejected call."""
    return RankVerdict(RerunFinding.NOT_REACHED, Vote.FAIL if fatal else Vote.CONTINUE)
