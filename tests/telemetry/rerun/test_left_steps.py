"""A step that an exception leaves, a mode that is switched off: no step is left out, and nothing is kept for long."""

from __future__ import annotations

import contextlib
import math
import weakref

import pytest

from rankwatch.rerun import RerunDataIterator, RerunState, RerunStateMachine
from telemetry.rerun.one_rank import validating


@pytest.mark.parametrize("mode", ["disabled", "validate_results"])
@pytest.mark.parametrize("numbered", [True, False], ids=["by its number", "by its data"])
def test_the_step_after_an_exception_is_run(mode: str, numbered: bool) -> None:
    """As at the end of each epoch, when the data are at an end in the middle of a step."""
    machine, ran = RerunStateMachine(mode=mode), 0
    for epoch in range(3):
        data = None if numbered else RerunDataIterator(range(2))
        for step in range(3 * epoch, 3 * epoch + 3):
            before = ran
            with contextlib.suppress(StopIteration):
                while machine.should_run_forward_backward(data, step if numbered else None):
                    ran += 1
                    if data is not None:
                        next(data)
                    elif step % 3 == 2:
                        raise StopIteration
            assert ran > before, f"epoch {epoch}, step {step}"


def test_the_step_after_an_exception_in_a_re_run_is_a_first_run(reported: list[str]) -> None:
    machine, first, second = validating(), RerunDataIterator(range(9)), RerunDataIterator(range(9))
    with contextlib.suppress(ValueError):
        while machine.should_run_forward_backward([first, None]):
            machine.validate_result(math.nan, math.isnan, "NaN")
            if machine.state is RerunState.RERUNNING_IN_PLACE:
                raise ValueError
    while machine.should_run_forward_backward([second, None]):
        machine.validate_result(1.0, math.isnan, "NaN")
        assert next(second) == 0
    assert machine.should_checkpoint_and_exit() == (False, False, 0)
    assert next(second) == 1
    assert len(reported) == 1, "the verdict of the first re-run, and no other"


def test_a_resumed_step_may_have_another_number(reported: list[str]) -> None:
    before = validating()
    while before.should_run_forward_backward():
        before.validate_result(math.nan, math.isnan, "NaN")
    after = validating(device="board B")
    after.load_state_dict(before.state_dict())
    ran = 0
    while after.should_run_forward_backward(None, 77):
        after.validate_result(math.nan, math.isnan, "NaN")
        ran += 1
    assert ran == 1
    assert after.should_checkpoint_and_exit() == (False, True, 17)


def test_a_mode_can_be_switched_off_while_a_step_is_to_be_run_again() -> None:
    before = validating()
    while before.should_run_forward_backward():
        before.validate_result(math.nan, math.isnan, "NaN")
    after = validating()
    after.load_state_dict(before.state_dict())
    after.set_mode("disabled")
    assert after.should_run_forward_backward(), "the next step is not left out"
    assert not after.should_run_forward_backward()


def test_nothing_is_kept_of_data_that_are_not_run_again() -> None:
    """Neither of an evaluation between two steps, nor once nothing is validated any more."""
    machine, drawn = validating(), []

    class Batch:
        def __init__(self) -> None:
            drawn.append(weakref.ref(self))

    data = RerunDataIterator(iter(Batch, None))
    while machine.should_run_forward_backward(data):
        next(data)
    for _ in range(3):
        next(data)
    assert [batch() for batch in drawn] == [None] * 4
    machine.set_mode("disabled")
    for _ in range(3):
        while machine.should_run_forward_backward(data):
            next(data)
    assert [batch() for batch in drawn] == [None] * 7
