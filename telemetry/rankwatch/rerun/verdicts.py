"""What a re-run of a step says about a rejected result, and what the whole job does then. Pure: no IO, no torch.

How this works
--------------
The ranks run a step. A rank that rejects a result wishes for the step to be run again; the wishes of all ranks are
compared at the end of each run, and the largest one is done by all of them.

=============================  ===========  ==========  ===================  =====================================
state at the end of a run      the wish     run again?  next state           the step then ends with
=============================  ===========  ==========  ===================  =====================================
INITIAL_RUN                    GO_ON        no          NOT_RUNNING_YET      the optimizer's step
INITIAL_RUN                    RERUN        yes         RERUNNING_IN_PLACE
RERUNNING_IN_PLACE             GO_ON        no          NOT_RUNNING_YET      the optimizer's step
RERUNNING_IN_PLACE             GIVE_UP      no          the same             a checkpoint and exit code 17
RERUNNING_IN_PLACE             ELSEWHERE    no          WILL_RERUN_FROM_...  a checkpoint and exit code 16
WILL_RERUN_FROM_CHECKPOINT     (at once)    yes         RERUNNING_FROM_...
RERUNNING_FROM_CHECKPOINT      GO_ON        no          NOT_RUNNING_YET      the optimizer's step
RERUNNING_FROM_CHECKPOINT      GIVE_UP      no          the same             exit code 17
RERUNNING_FROM_CHECKPOINT      ELSEWHERE    no          RERUNNING_AGAIN_...  exit code 16
RERUNNING_FROM_CHECKPOINT      FOUND        no          the same             exit code 17
=============================  ===========  ==========  ===================  =====================================

Between WILL_RERUN_FROM_CHECKPOINT and the run from it lies the checkpoint: another process, on another device if all is
well. Determinism statistics wish for RERUN in every step and for GO_ON after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Final

from rankwatch.contract import env

EXIT_CODE_RESUME_TO_DISAMBIGUATE: Final = env.EXIT_RESUME_ELSEWHERE
"""The job is to be resumed from its checkpoint, on another device, to tell a faulty device from a correct result."""
EXIT_CODE_FAILED_ON_RESULT_VALIDATION: Final = env.EXIT_RESULT_REJECTED
"""A result is wrong, or right but rejected; a person must look."""


class RerunMode(StrEnum):
    """What the machine is for. The values are those of Megatron's ``--rerun-mode``."""

    DISABLED = "disabled"
    VALIDATE_RESULTS = "validate_results"
    REPORT_DETERMINISM_STATS = "report_determinism_stats"


class RerunState(Enum):
    """Where the machine is; see the table above."""

    NOT_RUNNING_YET = 0
    INITIAL_RUN = 1
    RERUNNING_IN_PLACE = 2
    WILL_RERUN_FROM_CHECKPOINT = 3
    RERUNNING_FROM_CHECKPOINT = 4
    RERUNNING_AGAIN_FROM_CHECKPOINT = 5


class Wish(IntEnum):
    """What a rank wants at the end of a run. The largest wish of all ranks is granted."""

    GO_ON = 0
    RERUN = 1
    GIVE_UP = 2
    ELSEWHERE = 3
    FOUND = 4
    """A device is found to be faulty. Ranks that were resumed on their own device, and cannot tell, need not."""


class RerunDiagnostic(StrEnum):
    """What was wrong in the end; also the classes of error that can be injected."""

    CORRECT_RESULT = "correct_result"
    """Another device computes the same: data or code make the result what it is."""
    TRANSIENT_ERROR = "transient_error"
    """The same device computes something else from the same inputs."""
    PERSISTENT_ERROR = "persistent_error"
    """The first device computes the same each time, another one does not."""


class RerunValidationStatus(StrEnum):
    """What a line of the file of rejected results is about."""

    RERUN_DISABLED = "rerun_disabled"
    INITIAL_RUN = "initial_run"
    FIRST_RERUN_NOT_REPRODUCIBLE = "first_rerun_not_reproducible"
    FIRST_RERUN_REPRODUCIBLE = "first_rerun_reproducible"
    SECOND_RERUN_NOT_REPRODUCIBLE = "second_rerun_not_reproducible"
    SECOND_RERUN_REPRODUCIBLE = "second_rerun_reproducible"


class Kind(Enum):
    """The verdicts that a rank can come to."""

    TRANSIENT_ERROR = RerunDiagnostic.TRANSIENT_ERROR.value
    NOT_REPEATED = "not_repeated"
    """The re-run did not come to the rejected call: the step does not take the same way twice."""
    REPRODUCIBLE = "reproducible"
    """Only another device can tell."""
    SAME_DEVICE = "same_device"
    """Resumed on the device that is to be judged."""
    PERSISTENT_ERROR = RerunDiagnostic.PERSISTENT_ERROR.value
    CORRECT_RESULT = RerunDiagnostic.CORRECT_RESULT.value


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rank found, and what it therefore wants."""

    kind: Kind
    wish: Wish
    status: RerunValidationStatus | None = None
    """As what it is noted in the file of rejected results; None: it is not."""


@dataclass(frozen=True, slots=True)
class Next:
    """What follows on a run."""

    state: RerunState
    run: bool = False
    """Whether forward and backward are run again."""
    rewind: bool = False
    """Whether random numbers and data go back to the beginning of the step."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What the training loop does with the step."""

    checkpoint: bool = False
    code: int | None = None
    """The exit code, None to go on."""


_S = RerunState

TRANSITIONS: Final[Mapping[tuple[RerunState, Wish], Next]] = {
    (_S.INITIAL_RUN, Wish.GO_ON): Next(_S.NOT_RUNNING_YET),
    (_S.INITIAL_RUN, Wish.RERUN): Next(_S.RERUNNING_IN_PLACE, run=True, rewind=True),
    (_S.RERUNNING_IN_PLACE, Wish.GO_ON): Next(_S.NOT_RUNNING_YET),
    # Rewound for the checkpoint that follows: it has to be one of the beginning of the step.
    (_S.RERUNNING_IN_PLACE, Wish.GIVE_UP): Next(_S.RERUNNING_IN_PLACE, rewind=True),
    (_S.RERUNNING_IN_PLACE, Wish.ELSEWHERE): Next(_S.WILL_RERUN_FROM_CHECKPOINT, rewind=True),
    (_S.RERUNNING_FROM_CHECKPOINT, Wish.GO_ON): Next(_S.NOT_RUNNING_YET),
    (_S.RERUNNING_FROM_CHECKPOINT, Wish.GIVE_UP): Next(_S.RERUNNING_FROM_CHECKPOINT, rewind=True),
    (_S.RERUNNING_FROM_CHECKPOINT, Wish.ELSEWHERE): Next(_S.RERUNNING_AGAIN_FROM_CHECKPOINT, rewind=True),
    (_S.RERUNNING_FROM_CHECKPOINT, Wish.FOUND): Next(_S.RERUNNING_FROM_CHECKPOINT, rewind=True),
}

ENDINGS: Final[Mapping[RerunState, Ending]] = {
    _S.RERUNNING_IN_PLACE: Ending(checkpoint=True, code=EXIT_CODE_FAILED_ON_RESULT_VALIDATION),
    _S.WILL_RERUN_FROM_CHECKPOINT: Ending(checkpoint=True, code=EXIT_CODE_RESUME_TO_DISAMBIGUATE),
    # The checkpoint that this process was resumed from is still the one to look at.
    _S.RERUNNING_FROM_CHECKPOINT: Ending(code=EXIT_CODE_FAILED_ON_RESULT_VALIDATION),
    _S.RERUNNING_AGAIN_FROM_CHECKPOINT: Ending(code=EXIT_CODE_RESUME_TO_DISAMBIGUATE),
}

RERUNS: Final = frozenset({_S.RERUNNING_IN_PLACE, _S.RERUNNING_FROM_CHECKPOINT})
"""States in which a step is run once more."""
PENDING: Final = frozenset({_S.WILL_RERUN_FROM_CHECKPOINT, _S.RERUNNING_AGAIN_FROM_CHECKPOINT})
"""States that have to outlive the process: a step is to be re-run after a resume."""


def after(state: RerunState, wish: Wish) -> Next:
    """What all ranks do at the end of a run for which the largest wish was ``wish``."""
    return TRANSITIONS[state, wish]


def ending(state: RerunState) -> Ending:
    """What the training loop does when there is nothing to run again."""
    return ENDINGS.get(state, Ending())


def judge(state: RerunState, *, differs: bool, same_device: bool, fatal: bool) -> Verdict:
    """The verdict of a rank whose step came to the rejected call once more.

    Args:
        state: one of those in ``RERUNS``.
        differs: whether the result is another one than before, by more than the tolerance.
        same_device: whether it was computed by the device that computed it first.
        fatal: whether whoever validates wants the job to end for it.
    """
    status = RerunValidationStatus
    if state is _S.RERUNNING_IN_PLACE:
        if differs:
            wish = Wish.GIVE_UP if fatal else Wish.GO_ON
            return Verdict(Kind.TRANSIENT_ERROR, wish, status.FIRST_RERUN_NOT_REPRODUCIBLE)
        wish = Wish.ELSEWHERE if fatal else Wish.GO_ON
        return Verdict(Kind.REPRODUCIBLE, wish, status.FIRST_RERUN_REPRODUCIBLE)
    assert state is _S.RERUNNING_FROM_CHECKPOINT, state
    if same_device:
        return Verdict(Kind.SAME_DEVICE, Wish.ELSEWHERE)
    if differs:
        wish = Wish.FOUND if fatal else Wish.GO_ON
        return Verdict(Kind.PERSISTENT_ERROR, wish, status.SECOND_RERUN_NOT_REPRODUCIBLE)
    wish = Wish.GIVE_UP if fatal else Wish.GO_ON
    return Verdict(Kind.CORRECT_RESULT, wish, status.SECOND_RERUN_REPRODUCIBLE)


def not_repeated(*, fatal: bool) -> Verdict:
    """The verdict of a rank whose re-run did not come to the rejected call."""
    return Verdict(Kind.NOT_REPEATED, Wish.GIVE_UP if fatal else Wish.GO_ON)
