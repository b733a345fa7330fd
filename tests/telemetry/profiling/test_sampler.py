from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import rankwatch
from rankwatch.profiling.sampler import DROP_WINDOW, FAILURES, SamplePlan, Sampler
from rankwatch.profiling.source import Sample, SourceBusy, Trace
from rankwatch.recording.recorder import NEVER, Recorder
from support.waiting import wait_for


class Source:
    """Notes at which step it was started and stopped, and fails when instructed to."""

    name = "test"

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.calls: list[tuple[str, int]] = []
        self.fails: dict[str, Exception] = {}

    def _call(self, what: str) -> None:
        self.calls.append((what, self.recorder.iteration))
        if what in self.fails:
            raise self.fails[what]

    def start(self) -> None:
        self._call("start")

    def stop(self) -> Any:
        self._call("stop")
        return self.recorder.iteration

    def read(self, raw: Any, limit: int) -> Trace:
        self._call("read")
        return Trace()

    def close(self) -> None:
        self._call("close")


@pytest.fixture
def source(recorder: Recorder) -> Source:
    return Source(recorder)


@pytest.fixture
def sampler(recorder: Recorder) -> Sampler:
    return Sampler(recorder)


def steps(count: int) -> None:
    for _ in range(count):
        with rankwatch.step():
            pass


def collected(sampler: Sampler) -> Sample | None:
    recording = sampler.collect()
    return sampler.read(recording) if recording is not None else None


def test_a_step_is_sampled_from_its_entry_to_the_entry_of_the_next(sampler: Sampler, source: Source) -> None:
    steps(1)
    sampler.set(SamplePlan(source, 4))
    steps(4)
    assert source.calls == [("start", 4)]
    assert sampler.awaits(4)
    assert sampler.busy_for() > 0
    steps(1)
    assert source.calls == [("start", 4), ("stop", 5)]
    assert sampler.awaits(4), "it was recorded, but not read"
    sample = collected(sampler)
    assert sample is not None
    assert sample.iteration == 4
    assert sample.step[1] - sample.step[0] > 0
    assert not sampler.awaits(4)
    assert collected(sampler) is None


def test_nothing_is_called_before_it_is_set_and_after_it_was_taken_back(
    sampler: Sampler, source: Source, recorder: Recorder
) -> None:
    calls = []
    recorder.at_boundary = lambda: calls.append(recorder.iteration)
    steps(50)
    assert calls == []
    assert recorder.boundary == NEVER
    recorder.at_boundary = sampler.at_boundary
    sampler.set(SamplePlan(source, 2))
    steps(4)
    assert source.calls
    sampler.set(None)
    steps(3)
    assert recorder.boundary == NEVER
    assert sampler.busy_for() == 0, "the window that was open is ended"
    recorder.at_boundary = lambda: calls.append(recorder.iteration)
    steps(50)
    assert calls == []


def test_a_recording_that_was_not_read_makes_the_next_one_wait(sampler: Sampler, source: Source) -> None:
    sampler.set(SamplePlan(source, 2))
    steps(10)
    assert source.calls == [("start", 0), ("stop", 1)]
    collected(sampler)
    steps(4)
    assert [call for call, _ in source.calls[-2:]] == ["start", "stop"]


def test_at_most_every_other_step_is_sampled_since_each_has_to_be_read_first(sampler: Sampler, source: Source) -> None:
    sampler.set(SamplePlan(source, 1))
    found = []
    for _ in range(6):
        steps(1)
        if (sample := collected(sampler)) is not None:
            found.append(sample.iteration)
    assert found == [0, 2, 4]


def test_a_step_that_is_made_again_belongs_to_its_window(sampler: Sampler, source: Source) -> None:
    sampler.set(SamplePlan(source, 4))
    steps(5)  # 0 is left in its place, so the window of 4 does not begin
    collected(sampler)
    steps(3)
    with pytest.raises(KeyError), rankwatch.step():
        raise KeyError
    steps(2)
    assert [step for call, step in source.calls if call != "read"] == [0, 1, 8, 9]


def test_numbers_that_go_back_end_the_window_and_count_it(sampler: Sampler, source: Source, recorder: Recorder) -> None:
    sampler.set(SamplePlan(source, 8))
    with rankwatch.step(8):
        pass
    other_threads(sampler.request_end)  # the window has lasted too long: look at the next step
    with rankwatch.step(3):
        pass
    assert [call for call, _ in source.calls] == ["start", "stop"]
    assert sampler.collect() is None
    assert recorder.dropped == {DROP_WINDOW: 1}


def test_another_plan_is_taken_at_the_next_step(sampler: Sampler, source: Source) -> None:
    steps(1)
    sampler.set(SamplePlan(source, 1024))
    steps(9)
    sampler.set(SamplePlan(source, 4))
    steps(4)
    assert source.calls == [("start", 12), ("stop", 13)]


def test_a_boundary_that_was_stored_too_late_is_found_and_put_right(
    sampler: Sampler, source: Source, recorder: Recorder
) -> None:
    sampler.set(SamplePlan(source, 4))
    recorder.boundary = NEVER  # as by a training thread that had looked just before
    steps(6)
    assert source.calls == []
    sampler.set(SamplePlan(source, 4))
    steps(4)
    assert source.calls == [("start", 8), ("stop", 9)]


@pytest.mark.parametrize("where", ["start", "stop", "read"])
def test_a_source_that_fails_again_and_again_is_given_up_and_training_goes_on(
    sampler: Sampler, source: Source, recorder: Recorder, where: str
) -> None:
    source.fails[where] = RuntimeError("no\nmore lines")
    sampler.set(SamplePlan(source, 2))
    for _ in range(10):
        steps(2)
        collected(sampler)
    assert len([call for call, _ in source.calls if call == where]) == FAILURES
    assert recorder.dropped == {DROP_WINDOW: FAILURES}
    assert sampler.failure == "3 consecutive windows failed: no"
    assert sampler._plan is None
    assert recorder.boundary == NEVER


def test_a_source_that_fails_now_and_then_is_kept(sampler: Sampler, source: Source) -> None:
    sampler.set(SamplePlan(source, 1))
    for number in range(30):
        source.fails = {"start": RuntimeError("no")} if number % 3 else {}
        steps(1)
        collected(sampler)
    assert sampler.failure == ""
    assert sampler._plan is not None


def test_a_busy_profiler_is_counted_but_no_failure(sampler: Sampler, source: Source, recorder: Recorder) -> None:
    source.fails["start"] = SourceBusy("the user's")
    sampler.set(SamplePlan(source, 2))
    steps(20)
    assert recorder.dropped[DROP_WINDOW] == 10
    assert sampler.failure == ""
    source.fails.clear()
    steps(2)
    assert sampler.collect() is not None


def test_a_job_that_went_on_from_a_checkpoint_and_rolls_back_is_sampled_again(sampler: Sampler, source: Source) -> None:
    with rankwatch.step(12_345):
        pass
    sampler.set(SamplePlan(source, 64))
    with rankwatch.step(20_000):
        pass
    for step in range(12_400, 12_480):
        sampler.set(SamplePlan(source, 64))  # as with each report
        with rankwatch.step(step):
            pass
    assert source.calls == [("start", 12_416), ("stop", 12_417)]


def test_a_window_that_cannot_be_ended_here_is_ended_by_the_next_step(
    sampler: Sampler, source: Source, recorder: Recorder
) -> None:
    sampler.set(SamplePlan(source, 4))
    steps(1)
    source.fails["stop"] = SourceBusy("in a backward pass")
    sampler.interrupt()
    assert sampler.busy_for() > 0
    assert recorder.dropped == {}
    source.fails.clear()
    steps(1)
    assert collected(sampler) is not None
    assert sampler.failure == ""


def test_only_the_thread_that_opened_a_window_ends_it(sampler: Sampler, source: Source) -> None:
    sampler.set(SamplePlan(source, 4))
    steps(1)
    other_threads(sampler.interrupt, lambda: steps(1))
    assert source.calls == [("start", 0)]
    sampler.interrupt()
    assert [call for call, _ in source.calls] == ["start", "stop"]


def test_a_window_that_lasts_is_ended_on_its_thread_wherever_that_is(sampler: Sampler, source: Source) -> None:
    sampler.set(SamplePlan(source, 4))
    steps(1)
    other_threads(sampler.request_end)
    wait_for(lambda: sampler.busy_for() == 0, "the interpreter ends it between two instructions")
    assert [call for call, _ in source.calls] == ["start", "stop"]
    assert sampler.collect() is None
    other_threads(sampler.request_end)  # there is none any more


def other_threads(*actions: Callable[[], None]) -> None:
    for action in actions:
        thread = threading.Thread(target=action)
        thread.start()
        thread.join()
