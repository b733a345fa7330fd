"""What a checkpoint holds, when it is passed over, and what is reported of one that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankwatch.rerun import RerunDataIterator, RerunState, RerunStateMachine, checkpoint
from telemetry.rerun.one_rank import Job, nan_in, resumed, validating


def test_what_is_known_of_normal_losses_can_be_kept() -> None:
    machine = validating()
    for _ in range(3):
        machine.is_unexpectedly_large(2.0, 10, "loss", num_samples=3)
    state = machine.state_dict(force=True)
    assert not machine.validate_state_dict(state)
    again = validating()
    again.load_state_dict(state)
    assert again.state is RerunState.NOT_RUNNING_YET
    assert again.is_unexpectedly_large(20.0, 10, "loss", num_samples=3)
    again.load_state_dict(None)
    assert not again.validate_state_dict(None)


def reproducible() -> tuple[Job, dict[str, Any]]:
    job = Job(validating())
    job.step()
    job.wrong = nan_in(0, 1)
    job.step()
    state = job.machine.state_dict(job.data)
    assert state is not None
    assert job.machine.validate_state_dict(state)
    return job, state


def test_a_checkpoint_is_passed_over_where_nothing_is_run_again(caplog: pytest.LogCaptureFixture) -> None:
    job, _ = reproducible()
    again = resumed(job.checkpoint(), RerunStateMachine())
    assert again.step() == (False, False, 0)
    assert "mode disabled: a pending re-run in the checkpoint is ignored" in caplog.text


def test_what_a_checkpoint_must_be_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    job, state = reproducible()
    machine = validating()
    with pytest.raises(ValueError, match="not the state of a re-run state machine"):
        machine.load_state_dict({"model": 1})
    with pytest.raises(ValueError, match="version 99, and only 1 is supported"):
        machine.load_state_dict({**state, "version": 99})
    machine.load_state_dict(state)
    with pytest.raises(ValueError, match="had 1 data iterators, but now there are 2"):
        machine.should_run_forward_backward([job.data, job.data])
    assert job.machine.state_dict(job.data, "torch") is None
    assert "no step can be re-run from a checkpoint of format torch" in caplog.text


@pytest.mark.parametrize("missing", ["version", "sharded"], ids=["Megatron's own machine", "sharded in another way"])
def test_a_state_of_another_job_is_passed_over(missing: str, caplog: pytest.LogCaptureFixture) -> None:
    """Megatron hands over what it finds, and ends where the machine raises."""
    _, state = reproducible()
    machine = validating()
    machine.load_state_dict({name: value for name, value in state.items() if name != missing})
    assert machine.state is RerunState.NOT_RUNNING_YET
    assert "is not of this job and is ignored" in caplog.text


def test_an_ordinary_checkpoint_does_not_ask_for_data_that_can_be_rewound() -> None:
    state = RerunStateMachine().state_dict(iter([1]), force=True)
    assert state is not None
    assert "data_iterators" not in checkpoint.unpack(state["sharded"])


def test_the_state_of_another_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, state = reproducible()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match=r"the re-run state of rank 0, but rank 1 loads it.*gather_state_dict"):
        validating().load_state_dict(state)


def test_a_rank_that_was_not_there_runs_the_step_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    _, state = reproducible()
    monkeypatch.setenv("RANK", "1")
    machine = validating()
    machine.load_state_dict({"ranks": [state]})
    assert machine.state is RerunState.WILL_RERUN_FROM_CHECKPOINT
    job = Job(machine, first=1)
    assert job.step() == (False, False, 0), "it has nothing to find out"


class Command:
    """What runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


class Batch:
    """A microbatch of a user's class."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_a_checkpoint_that_was_loaded_without_unpickling_runs_no_code(tmp_path: Path) -> None:
    _, state = reproducible()
    mine = checkpoint.unpack(state["sharded"])
    state["sharded"] = checkpoint.pack({**mine, "beginning": Command(f"touch {tmp_path / 'ran'}")})
    torch.save(state, tmp_path / "checkpoint")
    loaded = torch.load(tmp_path / "checkpoint", weights_only=True)
    with pytest.raises(ValueError, match=r"holds posix\.system: if you trust it"):
        validating().load_state_dict(loaded)
    assert not (tmp_path / "ran").exists()


def test_objects_of_a_class_are_loaded_once_it_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    packed = checkpoint.pack([Batch(3)])
    name = f"{Batch.__module__}.Batch"
    assert f"add_safe_globals([{name}])" in caplog.text, "said when it is saved"
    with pytest.raises(ValueError, match=rf"call torch\.serialization\.add_safe_globals\(\[{name}\]\)"):
        checkpoint.unpack(packed)
    with torch.serialization.safe_globals([Batch]):
        [batch] = checkpoint.unpack(packed)
    assert batch.number == 3


def test_a_result_that_is_a_number_of_numpy_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    machine, data = validating(), RerunDataIterator(iter(range(9)))
    while machine.should_run_forward_backward(data, 0):
        next(data)
        machine.validate_result(np.float32("nan"), np.isnan, "the loss is NaN")
    assert machine.should_checkpoint_and_exit() == (True, True, 16)
    again = validating(device="board B")
    again.load_state_dict(machine.state_dict(data))
    assert again.state is RerunState.WILL_RERUN_FROM_CHECKPOINT
    assert "add_safe_globals" not in caplog.text
