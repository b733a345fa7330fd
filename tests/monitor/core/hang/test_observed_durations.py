"""What a job teaches of itself: which runs count, and when they are enough."""

from __future__ import annotations

import json

import pytest

from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch_monitor.core.hang.observed_durations import MAX_SECTIONS, Lessons


def test_a_section_is_known_after_16_runs_on_the_average_rank() -> None:
    lessons = Lessons()
    lessons.grown(4)
    lessons.finished("step", 63)
    assert not lessons.known("step")
    lessons.finished("step", 1)
    assert lessons.known("step")


def test_a_checkpoint_is_known_after_the_first_save() -> None:
    lessons = Lessons()
    lessons.grown(64)
    assert not lessons.known("checkpointing")
    lessons.finished("checkpointing", 1)
    lessons.took("checkpointing", first=30.0)
    assert lessons.known("checkpointing")
    assert lessons.basis("checkpointing") == 30.0


def test_setup_is_never_known_while_the_job_runs() -> None:
    lessons = Lessons()
    lessons.finished("setup", 1000)
    assert not lessons.known("setup")


def test_first_runs_say_nothing_of_the_others() -> None:
    lessons = Lessons()
    lessons.took("step", first=180.0)
    lessons.took("step", 0.4)
    lessons.took("step", 0.3)
    assert lessons.basis("step") == 0.4
    assert lessons.sections["step"].first == 180.0


@pytest.mark.parametrize("again", [False, True])
def test_the_version_grows_only_when_a_limit_may_have_changed(again: bool) -> None:
    lessons = Lessons()
    lessons.took("step", 0.4)
    before = lessons.version
    lessons.took("step", 0.4 if again else 0.5)
    lessons.finished("step", 1)
    lessons.idled(0.0)
    assert (lessons.version == before) is again


def test_the_sixteenth_run_grows_the_version() -> None:
    lessons = Lessons()
    lessons.finished("step", 15)
    before = lessons.version
    lessons.finished("step", 1)
    assert lessons.version > before
    after = lessons.version
    lessons.finished("step", 1)
    assert lessons.version == after


def test_fewer_ranks_have_to_show_anew_how_long_things_take() -> None:
    lessons = Lessons()
    lessons.grown(8)
    lessons.finished("step", 1000)
    lessons.took("step", 2.0)
    before = lessons.version
    lessons.begun(8)
    lessons.begun(None)
    lessons.begun(0)
    assert lessons.known("step")
    assert lessons.version == before
    lessons.begun(2)
    assert not lessons.known("step"), "each may have four times the work now"
    assert lessons.version > before
    lessons.finished("step", 32)
    assert lessons.known("step")
    assert lessons.basis("step") == 2.0
    lessons.grown(8)
    assert not lessons.known("step"), "of more ranks 16 runs each are needed, too"


def test_names_without_end_are_not_kept() -> None:
    lessons = Lessons()
    for number in range(MAX_SECTIONS + 10):
        lessons.finished(f"step-{number}", 20)
        lessons.took(f"step-{number}", 1.0)
    assert len(lessons.sections) == MAX_SECTIONS


def test_an_empty_state_is_not_loaded() -> None:
    lessons = Lessons()
    lessons.load(LearnedTimeouts())
    assert lessons.version == 0
    lessons.load(LearnedTimeouts({"step": 12.0}))
    lessons.load(LearnedTimeouts({"step": 12.0}))
    assert lessons.version == 1


def test_all_of_it_survives_the_store() -> None:
    lessons = Lessons()
    lessons.grown(8)
    lessons.finished("step", 200)
    lessons.took("step", 0.5, first=60.0)
    lessons.idled(3.5)
    lessons.load(LearnedTimeouts({"step": 12.0}, out_of_section=30.0))
    lessons.resumed = True
    again = Lessons.of_json(json.loads(json.dumps(lessons.to_json())))
    again.version = lessons.version
    assert again == lessons
