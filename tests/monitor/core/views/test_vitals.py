"""The figures of a job that trains: its step and what it logged; nothing that is not known."""

from __future__ import annotations

import pytest

from monitor.core.scene import Scene
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.views.details import vitals
from support.windows import Ranks


def test_a_step_its_parts_and_what_is_logged() -> None:
    ranks = Ranks(8, work=(0.002, 0.012, 0.13)).run(5)
    apply(ranks.job, RankReport(ranks.identity(0), logged={"loss": 2.5}), ranks.now)
    found = vitals(ranks.job)
    sample = ranks.job.performance.history.latest
    assert sample is not None
    assert found["step"] == {"seconds": sample.step, "parts": dict(sample.parts), "waiting": sample.waiting}
    assert found["step"]["parts"]["compute"] == pytest.approx(0.13, rel=0.1)
    assert found["logged"] == {"loss": 2.5}


def test_of_a_job_without_windows_nothing_is_stated() -> None:
    assert vitals(Scene(2).run(20).job) == {"step": None, "logged": {}}


def test_the_step_of_an_earlier_attempt_is_not_that_of_now() -> None:
    ranks = Ranks(8).run(5)
    assert vitals(ranks.job)["step"] is not None
    ranks.job.attempt += 1
    assert vitals(ranks.job)["step"] is None
