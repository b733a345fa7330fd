"""The figures of a job that trains: its step, what it logged, its GPUs; nothing that is not known."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch.contract.enums import JobState
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import DeviceReading, RankReport
from rankwatch_monitor.core.job import Ending
from rankwatch_monitor.core.views.vitals import vitals
from support.windows import Ranks


def test_a_step_its_parts_what_is_logged_and_the_range_of_the_gpus() -> None:
    ranks = Ranks(8, work=(0.002, 0.012, 0.13)).run(5)
    for rank, (temperature, clock) in enumerate([(61.0, 1.98e9), (64.0, 1.90e9), (63.0, None)]):
        reading = DeviceReading(temperature=temperature, clock=clock)
        logged = {"loss": 2.5} if rank == 0 else {}
        apply(ranks.job, RankReport(ranks.identity(rank), device=reading, logged=logged), ranks.now)
    found = vitals(ranks.job)
    sample = ranks.job.performance.history.latest
    assert sample is not None
    assert found["step"] == {"seconds": sample.step, "parts": dict(sample.parts), "waiting": sample.waiting}
    assert found["step"]["parts"]["compute"] == pytest.approx(0.13, rel=0.1)
    assert found["logged"] == {"loss": 2.5}
    assert (found["gpu_temperature"], found["gpu_clock"]) == ((61.0, 64.0), (1.90e9, 1.98e9))
    ranks.job.ended = Ending(JobState.FINISHED, "", ranks.now)
    assert vitals(ranks.job)["gpu_temperature"] is None


def test_of_a_job_without_windows_nothing_is_stated() -> None:
    nothing = {"step": None, "logged": {}, "gpu_temperature": None, "gpu_clock": None}
    assert vitals(Scene(2).run(20).job) == nothing


def test_the_step_of_an_earlier_attempt_is_not_that_of_now() -> None:
    ranks = Ranks(8).run(5)
    assert vitals(ranks.job)["step"] is not None
    ranks.job.attempt += 1
    assert vitals(ranks.job)["step"] is None
