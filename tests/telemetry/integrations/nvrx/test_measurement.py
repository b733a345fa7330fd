from __future__ import annotations

import math
import sys

import pytest

import rankwatch
from rankwatch.integrations.nvrx import fault_tolerance, measurement
from rankwatch.integrations.nvrx.measurement import CallableId, StepCounter
from rankwatch.integrations.nvrx.report import Statistic
from rankwatch.recording.recorder import Recorder


class Thing:
    def act(self) -> None: ...


def test_callables_are_called_as_the_original_calls_them() -> None:
    assert str(CallableId(Thing(), "act")) == "Thing.act"
    assert str(CallableId(Thing, "act")).endswith("test_measurement.Thing.act")
    assert str(CallableId(sys, "exit")) == "sys.exit"


def test_the_first_section_counts_the_steps(recorder: Recorder) -> None:
    steps = StepCounter()
    for _ in range(3):
        with steps.around("forward"), steps.around("inner"):
            pass
        with steps.around("other"):
            pass
    assert recorder.iteration == 3


def test_a_section_within_itself_counts_once(recorder: Recorder) -> None:
    steps = StepCounter()
    with steps.around("forward"), steps.around("forward"):
        pass
    assert recorder.iteration == 1


def test_a_step_that_fails_is_not_counted_and_the_next_one_is(recorder: Recorder) -> None:
    steps = StepCounter()
    with pytest.raises(ValueError, match="no data"), steps.around("forward"):
        raise ValueError("no data")
    with steps.around("forward"):
        pass
    assert recorder.iteration == 1


def test_whoever_counts_steps_is_left_to_it(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = StepCounter()
    for _ in range(3):
        with rankwatch.step(), steps.around("forward"):
            pass
    assert recorder.iteration == 3
    late = StepCounter()
    with late.around("forward"):
        pass
    for _ in range(3):
        with rankwatch.step(), late.around("forward"):
            pass
    assert recorder.iteration == 3 + 1 + 3 + 1, "one step is counted twice before it is seen that another counts"
    monkeypatch.setattr(fault_tolerance, "_connected", {1})
    with StepCounter().around("forward"):
        pass
    assert recorder.iteration == 8


def test_nothing_is_counted_before_init() -> None:
    with StepCounter().around("forward"):
        pass


def test_the_statistics_are_those_of_the_original() -> None:
    found = measurement.summarize([4.0, 1.0, 3.0, 2.0])
    assert (found[Statistic.MIN], found[Statistic.MAX], found[Statistic.MED], found[Statistic.NUM]) == (
        1.0,
        4.0,
        2.0,
        4,
    )
    assert found[Statistic.AVG] == 2.5
    assert found[Statistic.STD] == pytest.approx(1.2909944)
    assert math.isnan(measurement.summarize([1.0])[Statistic.STD])
