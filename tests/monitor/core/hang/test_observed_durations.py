"""What a job teaches of itself: which runs count, and when they are enough."""

from __future__ import annotations

import json

import pytest

from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.contract.messages import read
from rankwatch_monitor.core.hang.observed_durations import MAX_SECTIONS, ObservedDurations


def test_a_section_is_known_after_16_runs_on_the_average_rank() -> None:
    durations = ObservedDurations()
    durations.ranks = 4
    durations.add_runs("step", 63)
    assert not durations.known("step")
    durations.add_runs("step", 1)
    assert durations.known("step")


def test_a_checkpoint_is_known_after_the_first_save() -> None:
    durations = ObservedDurations()
    durations.ranks = 64
    assert not durations.known("checkpointing")
    durations.add_runs("checkpointing", 1)
    durations.add_longest("checkpointing", first=30.0)
    assert durations.known("checkpointing")
    assert durations.basis("checkpointing") == 30.0


def test_setup_is_never_known_while_the_job_runs() -> None:
    durations = ObservedDurations()
    durations.add_runs("setup", 1000)
    assert not durations.known("setup")


def test_first_runs_report_nothing_of_the_others() -> None:
    durations = ObservedDurations()
    durations.add_longest("step", first=180.0)
    durations.add_longest("step", 0.4)
    durations.add_longest("step", 0.3)
    assert durations.basis("step") == 0.4
    assert durations.sections["step"].first == 180.0


@pytest.mark.parametrize("again", [False, True])
def test_the_version_grows_only_when_a_limit_may_have_changed(again: bool) -> None:
    durations = ObservedDurations()
    durations.add_longest("step", 0.4)
    before = durations.version
    durations.add_longest("step", 0.4 if again else 0.5)
    durations.add_runs("step", 1)
    durations.add_idle(0.0)
    assert (durations.version == before) is again


def test_the_sixteenth_run_grows_the_version() -> None:
    durations = ObservedDurations()
    durations.add_runs("step", 15)
    before = durations.version
    durations.add_runs("step", 1)
    assert durations.version > before
    after = durations.version
    durations.add_runs("step", 1)
    assert durations.version == after


def test_fewer_ranks_have_to_show_again_how_long_things_take() -> None:
    durations = ObservedDurations()
    durations.ranks = 8
    durations.add_runs("step", 1000)
    durations.add_longest("step", 2.0)
    before = durations.version
    durations.begin_attempt(8)
    durations.begin_attempt(None)
    durations.begin_attempt(0)
    assert durations.known("step")
    assert durations.version == before
    durations.begin_attempt(2)
    assert not durations.known("step"), "each may have four times the work now"
    assert durations.version > before
    durations.add_runs("step", 32)
    assert durations.known("step")
    assert durations.basis("step") == 2.0
    durations.ranks = 8
    assert not durations.known("step"), "of more ranks 16 runs each are needed, too"


def test_names_without_end_are_not_kept() -> None:
    durations = ObservedDurations()
    for number in range(MAX_SECTIONS + 10):
        durations.add_runs(f"step-{number}", 20)
        durations.add_longest(f"step-{number}", 1.0)
    assert len(durations.sections) == MAX_SECTIONS


def test_an_empty_state_is_not_loaded() -> None:
    durations = ObservedDurations()
    durations.load(LearnedTimeouts())
    assert durations.version == 0
    durations.load(LearnedTimeouts({"step": 12.0}))
    durations.load(LearnedTimeouts({"step": 12.0}))
    assert durations.version == 1


def test_all_of_it_survives_the_store() -> None:
    durations = ObservedDurations()
    durations.ranks = 8
    durations.add_runs("step", 200)
    durations.add_longest("step", 0.5, first=60.0)
    durations.add_idle(3.5)
    durations.load(LearnedTimeouts({"step": 12.0}, out_of_section=30.0))
    durations.resumed = True
    again = read(ObservedDurations, json.loads(json.dumps(durations.to_json())), own=True)
    again.version = durations.version
    assert again == durations
