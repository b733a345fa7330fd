"""The pure core: every way through the table, and every verdict."""

from __future__ import annotations

import pytest

from rankwatch.rerun.verdicts import (
    PENDING,
    STEP_ENDS,
    TRANSITIONS,
    RerunFinding,
    RerunState,
    StepEnd,
    Vote,
    judge,
    not_reached,
    step_end,
    transition,
)

S = RerunState


@pytest.mark.parametrize(
    ("votes", "state", "checkpoint", "code"),
    [
        ((Vote.CONTINUE,), S.NOT_RUNNING_YET, False, None),
        ((Vote.RERUN, Vote.CONTINUE), S.NOT_RUNNING_YET, False, None),
        ((Vote.RERUN, Vote.FAIL), S.RERUNNING_IN_PLACE, True, 17),
        ((Vote.RERUN, Vote.RESUME_ELSEWHERE), S.WILL_RERUN_FROM_CHECKPOINT, True, 16),
    ],
)
def test_a_step_from_its_first_run_on(
    votes: tuple[Vote, ...], state: RerunState, checkpoint: bool, code: int | None
) -> None:
    at = S.INITIAL_RUN
    for number, vote in enumerate(votes):
        following = transition(at, vote)
        assert following.run == (number < len(votes) - 1)
        at = following.state
    assert at is state
    assert step_end(at) == StepEnd(checkpoint, code)


@pytest.mark.parametrize(
    ("vote", "state", "code"),
    [
        (Vote.CONTINUE, S.NOT_RUNNING_YET, None),
        (Vote.FAIL, S.RERUNNING_FROM_CHECKPOINT, 17),
        (Vote.RESUME_ELSEWHERE, S.RERUNNING_AGAIN_FROM_CHECKPOINT, 16),
        (Vote.FAULT_FOUND, S.RERUNNING_FROM_CHECKPOINT, 17),
    ],
)
def test_a_step_from_its_checkpoint_on(vote: Vote, state: RerunState, code: int | None) -> None:
    following = transition(S.RERUNNING_FROM_CHECKPOINT, vote)
    assert following.state is state
    assert not following.run
    assert step_end(state) == StepEnd(False, code), "the checkpoint that is there stays"


def test_whatever_ends_a_job_leaves_the_beginning_of_the_step() -> None:
    """What is rewound is what a checkpoint or a re-run needs; a step that is over is not."""
    for following in TRANSITIONS.values():
        assert following.rewind == (following.run or following.state in STEP_ENDS)


def test_every_state_has_its_place() -> None:
    assert {state for state, _ in TRANSITIONS} == {S.INITIAL_RUN, S.RERUNNING_IN_PLACE, S.RERUNNING_FROM_CHECKPOINT}
    assert set(S) - {state for state, _ in TRANSITIONS} == {S.NOT_RUNNING_YET, *PENDING}


def test_the_worst_vote_of_all_ranks_is_the_largest() -> None:
    assert sorted(Vote) == [Vote.CONTINUE, Vote.RERUN, Vote.FAIL, Vote.RESUME_ELSEWHERE, Vote.FAULT_FOUND]


@pytest.mark.parametrize(
    ("state", "differs", "same_device", "fatal", "kind", "vote"),
    [
        (S.RERUNNING_IN_PLACE, True, True, True, RerunFinding.TRANSIENT_ERROR, Vote.FAIL),
        (S.RERUNNING_IN_PLACE, True, True, False, RerunFinding.TRANSIENT_ERROR, Vote.CONTINUE),
        (S.RERUNNING_IN_PLACE, False, True, True, RerunFinding.REPRODUCIBLE, Vote.RESUME_ELSEWHERE),
        (S.RERUNNING_IN_PLACE, False, True, False, RerunFinding.REPRODUCIBLE, Vote.CONTINUE),
        (S.RERUNNING_FROM_CHECKPOINT, True, False, True, RerunFinding.PERSISTENT_ERROR, Vote.FAULT_FOUND),
        (S.RERUNNING_FROM_CHECKPOINT, True, False, False, RerunFinding.PERSISTENT_ERROR, Vote.CONTINUE),
        (S.RERUNNING_FROM_CHECKPOINT, False, False, True, RerunFinding.CORRECT_RESULT, Vote.FAIL),
        (S.RERUNNING_FROM_CHECKPOINT, False, False, False, RerunFinding.CORRECT_RESULT, Vote.CONTINUE),
        (S.RERUNNING_FROM_CHECKPOINT, True, True, True, RerunFinding.SAME_DEVICE, Vote.RESUME_ELSEWHERE),
        (S.RERUNNING_FROM_CHECKPOINT, False, True, True, RerunFinding.SAME_DEVICE, Vote.RESUME_ELSEWHERE),
    ],
)
def test_verdicts(
    state: RerunState, differs: bool, same_device: bool, fatal: bool, kind: RerunFinding, vote: Vote
) -> None:
    verdict = judge(state, differs=differs, same_device=same_device, fatal=fatal)
    assert (verdict.finding, verdict.vote) == (kind, vote)
    assert (state, verdict.vote) in TRANSITIONS


def test_a_step_that_takes_another_way_is_not_called_a_faulty_device() -> None:
    assert not_reached(fatal=True).vote is Vote.FAIL
    assert not_reached(fatal=False).vote is Vote.CONTINUE
