"""Loops described by their events: which sections are opened, when a step is complete. No torch."""

from __future__ import annotations

from collections import Counter

import pytest

from rankwatch.integrations.autorun.training_loop import MAX_REPEATS, Optimizers, TrainingLoop
from rankwatch.recording import shared_slots
from rankwatch.recording.recorder import Recorder

MODEL, LOADER, ADAM, OTHER = 1, 2, 3, 4


@pytest.fixture
def loop(recorder: Recorder) -> TrainingLoop:
    made = TrainingLoop()
    made.optimizers.add(ADAM)
    return made


def finished(recorder: Recorder) -> list[str]:
    return [recorder.slots.name(number) for number, *_ in recorder.finished]


def still_open(recorder: Recorder) -> set[str]:
    words = recorder.words
    entries = range(shared_slots.OPEN, shared_slots.OPEN + 2 * shared_slots.OPEN_COUNT, 2)
    return {recorder.slots.name(words[i]) for i in entries if words[i]}


def fetch(loop: TrainingLoop, *, exhausted: bool = False, loader: int = LOADER) -> None:
    loop.fetch_begins(loader)
    loop.fetch_ended(exhausted=exhausted)


def forward(loop: TrainingLoop, *, training: bool = True) -> None:
    loop.forward_begins(MODEL, training=training)
    loop.forward_ended(MODEL)


def backward(loop: TrainingLoop) -> None:
    loop.backward_begins()
    loop.backward_ended()


def step(loop: TrainingLoop, key: int = ADAM) -> None:
    loop.optimizer_begins(key)
    loop.optimizer_ended(key)


# One optimizer ------------------------------------------------------------------------------------------------------


def test_one_iteration(loop: TrainingLoop, recorder: Recorder) -> None:
    fetch(loop)
    forward(loop)
    assert still_open(recorder) == {"step"}
    backward(loop)
    step(loop)
    assert finished(recorder) == ["data", "forward", "backward", "optimizer", "step"]
    assert recorder.words[shared_slots.ITERATION] == 1
    assert still_open(recorder) == set(), "what comes between two steps has no name"


def test_gradient_accumulation_is_one_step(loop: TrainingLoop, recorder: Recorder) -> None:
    for _ in range(4):
        fetch(loop)
        forward(loop)
        backward(loop)
    step(loop)
    assert Counter(finished(recorder)) == {"data": 4, "forward": 4, "backward": 4, "optimizer": 1, "step": 1}
    assert recorder.words[shared_slots.ITERATION] == 1


def test_it_goes_on_where_the_optimizer_was(loop: TrainingLoop, recorder: Recorder) -> None:
    loop.first_step = 500
    for _ in range(2):
        forward(loop)
        backward(loop)
        step(loop)
    assert recorder.words[shared_slots.FIRST_ITERATION] == 501
    assert recorder.words[shared_slots.ITERATION] == 502


def test_forwards_without_gradients_between_steps_are_evaluation(loop: TrainingLoop, recorder: Recorder) -> None:
    forward(loop, training=False)
    fetch(loop, loader=9)
    forward(loop, training=False)
    assert finished(recorder) == ["evaluation", "data", "evaluation"]
    assert still_open(recorder) == set()
    loop.backward_begins()
    forward(loop, training=False)
    assert finished(recorder)[-1] == "forward", "within a step it is a part of that"


def test_a_loader_that_is_exhausted_ends_a_step_that_was_not_completed(loop: TrainingLoop, recorder: Recorder) -> None:
    forward(loop)
    backward(loop)
    fetch(loop, exhausted=True)
    assert still_open(recorder) == set()
    assert recorder.words[shared_slots.ITERATION] == 0
    backward(loop)
    step(loop)
    assert recorder.words[shared_slots.ITERATION] == 1


def test_a_step_whose_forward_is_not_seen_begins_with_its_batch(loop: TrainingLoop, recorder: Recorder) -> None:
    for _ in range(2):
        fetch(loop)
        opened = still_open(recorder)
        backward(loop)
        step(loop)
    assert opened == {"step"}
    fetch(loop, loader=9)
    assert still_open(recorder) == set(), "nothing was ever learned from these batches"


def test_where_nothing_steps_there_is_no_step(recorder: Recorder) -> None:
    loop = TrainingLoop()
    forward(loop)
    backward(loop)
    assert still_open(recorder) == set(), "it would be open for ever"
    step(loop)
    assert recorder.words[shared_slots.ITERATION] == 1, "one whose making was not seen"


# What goes wrong ----------------------------------------------------------------------------------------------------


def test_a_step_of_the_optimizer_that_raised_is_closed_by_what_comes_next(
    loop: TrainingLoop, recorder: Recorder
) -> None:
    loop.optimizer_begins(ADAM)
    step(loop)
    assert finished(recorder) == ["optimizer", "optimizer", "step"]
    loop.optimizer_begins(ADAM)
    fetch(loop)
    assert still_open(recorder) == {"step"}
    step(loop)
    assert recorder.words[shared_slots.ITERATION] == 2


def test_what_ends_without_having_begun_does_nothing(loop: TrainingLoop, recorder: Recorder) -> None:
    loop.forward_ended(MODEL)
    loop.backward_ended()
    loop.optimizer_begins(ADAM)
    loop.forward_ended(MODEL)
    loop.optimizer_ended(ADAM)
    assert finished(recorder) == ["optimizer", "step"]


def test_an_optimizer_within_another_is_a_part_of_it(loop: TrainingLoop, recorder: Recorder) -> None:
    loop.optimizers.add(OTHER)
    for _ in range(3):
        loop.optimizer_begins(ADAM)
        step(loop, OTHER)
        loop.optimizer_ended(ADAM)
    assert recorder.words[shared_slots.ITERATION] == 3
    assert Counter(finished(recorder)) == {"optimizer": 3, "step": 3}


def test_a_save_within_a_save_is_one(loop: TrainingLoop, recorder: Recorder) -> None:
    loop.save_begins()
    loop.save_begins()
    loop.save_ended()
    assert still_open(recorder) == {"checkpointing"}
    loop.save_ended()
    assert finished(recorder) == ["checkpointing"]


# The script does it itself ------------------------------------------------------------------------------------------


def test_it_gives_way_to_the_scripts_steps(loop: TrainingLoop, recorder: Recorder) -> None:
    forward(loop)
    loop.defer("step")
    assert still_open(recorder) == set()
    forward(loop)
    backward(loop)
    step(loop)
    assert recorder.words[shared_slots.ITERATION] == 0, "it is the script that counts now"
    assert finished(recorder)[-3:] == ["forward", "backward", "optimizer"]


def test_it_gives_way_to_a_section_by_name(loop: TrainingLoop, recorder: Recorder) -> None:
    loop.defer("forward")
    forward(loop)
    backward(loop)
    assert finished(recorder) == ["backward"]


# Several optimizers -------------------------------------------------------------------------------------------------


def completed(optimizers: Optimizers, steps: str) -> str:
    """The steps of optimizers, with a bar where an iteration is complete."""
    return "".join(each + ("|" if optimizers.stepped(ord(each)) else "") for each in steps)


def of(*built: str) -> Optimizers:
    optimizers = Optimizers()
    for each in built:
        optimizers.add(ord(each))
    return optimizers


def test_two_in_turns() -> None:
    assert completed(of("D", "G"), "DGDGDG") == "DG|DG|DG|"


def test_one_that_steps_several_times_for_one_of_the_other() -> None:
    assert completed(of("D", "G"), "DDDDDG" * 2) == "DDDDDG|DDDDDG|"


def test_one_that_was_not_built_before_it_stepped_joins() -> None:
    assert completed(of("A"), "AABAB") == "A|A|BA|B"


def test_one_that_never_steps_is_waited_for_only_so_long() -> None:
    repeated = "A" * (MAX_REPEATS + 2)
    assert completed(of("A", "Z"), repeated + "AAA") == repeated + "|A|A|A|"


def test_one_that_was_deleted_is_not_waited_for() -> None:
    optimizers = of("A", "B")
    assert completed(optimizers, "AB") == "AB|"
    optimizers.remove(ord("A"))
    assert completed(optimizers, "BB") == "B|B|"


def test_batches_of_a_frameworks_evaluation_are_progress_of_it_alone(loop: TrainingLoop, recorder: Recorder) -> None:
    loop.phase_begins("evaluation")
    fetch(loop)
    forward(loop, training=False)
    forward(loop)
    loop.phase_begins("evaluation")
    loop.phase_begins("checkpointing")
    assert still_open(recorder) == {"evaluation", "checkpointing"}
    loop.save_begins()
    loop.save_ended()
    loop.phase_ended()
    loop.phase_ended()
    fetch(loop, exhausted=True)
    assert still_open(recorder) == {"evaluation"}
    loop.phase_ended(failed=True)
    assert still_open(recorder) == set()
    assert not loop.in_step
    assert finished(recorder) == ["checkpointing", "evaluation"]
