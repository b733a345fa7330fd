"""The pure core: every way through the table, and every verdict."""

from __future__ import annotations

import pytest

from rankwatch.rerun.verdicts import (
    ENDINGS,
    PENDING,
    RERUNS,
    TRANSITIONS,
    Ending,
    Kind,
    RerunState,
    Wish,
    after,
    ending,
    judge,
    not_repeated,
)

S = RerunState


@pytest.mark.parametrize(
    ("wishes", "state", "checkpoint", "code"),
    [
        ((Wish.GO_ON,), S.NOT_RUNNING_YET, False, None),
        ((Wish.RERUN, Wish.GO_ON), S.NOT_RUNNING_YET, False, None),
        ((Wish.RERUN, Wish.GIVE_UP), S.RERUNNING_IN_PLACE, True, 17),
        ((Wish.RERUN, Wish.ELSEWHERE), S.WILL_RERUN_FROM_CHECKPOINT, True, 16),
    ],
)
def test_a_step_from_its_first_run_on(
    wishes: tuple[Wish, ...], state: RerunState, checkpoint: bool, code: int | None
) -> None:
    at = S.INITIAL_RUN
    for number, wish in enumerate(wishes):
        following = after(at, wish)
        assert following.run == (number < len(wishes) - 1)
        at = following.state
    assert at is state
    assert ending(at) == Ending(checkpoint, code)


@pytest.mark.parametrize(
    ("wish", "state", "code"),
    [
        (Wish.GO_ON, S.NOT_RUNNING_YET, None),
        (Wish.GIVE_UP, S.RERUNNING_FROM_CHECKPOINT, 17),
        (Wish.ELSEWHERE, S.RERUNNING_AGAIN_FROM_CHECKPOINT, 16),
        (Wish.FOUND, S.RERUNNING_FROM_CHECKPOINT, 17),
    ],
)
def test_a_step_from_its_checkpoint_on(wish: Wish, state: RerunState, code: int | None) -> None:
    following = after(S.RERUNNING_FROM_CHECKPOINT, wish)
    assert following.state is state
    assert not following.run
    assert ending(state) == Ending(False, code), "the checkpoint that is there stays"


def test_whatever_ends_a_job_leaves_the_beginning_of_the_step() -> None:
    """What is rewound is what a checkpoint or a re-run needs; a step that is over is not."""
    for following in TRANSITIONS.values():
        assert following.rewind == (following.run or following.state in ENDINGS)


def test_every_state_has_its_place() -> None:
    assert {state for state, _ in TRANSITIONS} == {S.INITIAL_RUN, *RERUNS}
    assert set(S) - {state for state, _ in TRANSITIONS} == {S.NOT_RUNNING_YET, *PENDING}


def test_the_worst_wish_of_all_ranks_is_the_largest() -> None:
    assert sorted(Wish) == [Wish.GO_ON, Wish.RERUN, Wish.GIVE_UP, Wish.ELSEWHERE, Wish.FOUND]


@pytest.mark.parametrize(
    ("state", "differs", "same_device", "fatal", "kind", "wish"),
    [
        (S.RERUNNING_IN_PLACE, True, True, True, Kind.TRANSIENT_ERROR, Wish.GIVE_UP),
        (S.RERUNNING_IN_PLACE, True, True, False, Kind.TRANSIENT_ERROR, Wish.GO_ON),
        (S.RERUNNING_IN_PLACE, False, True, True, Kind.REPRODUCIBLE, Wish.ELSEWHERE),
        (S.RERUNNING_IN_PLACE, False, True, False, Kind.REPRODUCIBLE, Wish.GO_ON),
        (S.RERUNNING_FROM_CHECKPOINT, True, False, True, Kind.PERSISTENT_ERROR, Wish.FOUND),
        (S.RERUNNING_FROM_CHECKPOINT, True, False, False, Kind.PERSISTENT_ERROR, Wish.GO_ON),
        (S.RERUNNING_FROM_CHECKPOINT, False, False, True, Kind.CORRECT_RESULT, Wish.GIVE_UP),
        (S.RERUNNING_FROM_CHECKPOINT, False, False, False, Kind.CORRECT_RESULT, Wish.GO_ON),
        (S.RERUNNING_FROM_CHECKPOINT, True, True, True, Kind.SAME_DEVICE, Wish.ELSEWHERE),
        (S.RERUNNING_FROM_CHECKPOINT, False, True, True, Kind.SAME_DEVICE, Wish.ELSEWHERE),
    ],
)
def test_verdicts(state: RerunState, differs: bool, same_device: bool, fatal: bool, kind: Kind, wish: Wish) -> None:
    verdict = judge(state, differs=differs, same_device=same_device, fatal=fatal)
    assert (verdict.kind, verdict.wish) == (kind, wish)
    assert (state, verdict.wish) in TRANSITIONS


def test_a_step_that_takes_another_way_is_not_called_a_faulty_device() -> None:
    assert not_repeated(fatal=True).wish is Wish.GIVE_UP
    assert not_repeated(fatal=False).wish is Wish.GO_ON
