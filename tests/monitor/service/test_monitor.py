"""What the loop hands down of what a job has taught, and when."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rankwatch.contract.enums import DirectiveKind, ProcessEventKind
from rankwatch.contract.messages import Directive, NodeRegistration, ProcessEvent
from rankwatch_monitor.core.events import RankIdentity, RankReport, SectionStatistics
from rankwatch_monitor.core.incident.settings_push import PUSH_ALL_INTERVAL, PUSH_INTERVAL
from rankwatch_monitor.service.monitor import LINES, LONGEST_LINE, Clock, Monitor

IDENTITY = RankIdentity("job", 0, world_size=1, attempt=1, instance="a", started_at=1.0)


class Moved(Clock):
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


class Stage:
    """One rank with a launcher, and a monitor that is judged by what it hands down."""

    def __init__(self) -> None:
        self.clock = Moved()
        self.monitor = Monitor(clock=self.clock)
        self.job = self.monitor.register("job", "gpt")
        self.monitor.submit("job", NodeRegistration("node", "host", 1, 1, "gpt"))
        self.monitor.submit("job", ProcessEvent("node", ProcessEventKind.STARTED, 1, rank=0, pid=7, world_size=1))

    def receive(self, **reported: Any) -> None:
        self.monitor.ingest([RankReport(IDENTITY, **reported)])
        self.monitor.tick()

    def later(self, seconds: float) -> None:
        self.clock.at += seconds
        self.monitor.tick()

    def handed(self) -> list[Directive]:
        return [d for d in self.job.directives if d.kind is DirectiveKind.SETTINGS]

    def kept_outside(self) -> float | None:
        state: dict[str, Any] = self.handed()[-1].settings["ft_state_at_end"]
        outside: float | None = state["current_timeouts"]["section"]["out_of_section"]
        return outside


def steps(count: int, longest: float, **more: Any) -> dict[str, Any]:
    took = {"step": SectionStatistics(count, count * longest, longest, longest)}
    return {"finished": took, "longest": {"step": longest}, **more}


def test_limits_are_handed_down_when_they_are_learned_and_when_they_change_much() -> None:
    stage = Stage()
    stage.later(PUSH_INTERVAL)
    stage.receive(**steps(15, 4.0))
    assert not stage.handed()
    stage.receive(**steps(1, 4.0))
    assert stage.handed()[-1].settings["limits"]["learned"] == {"step": 20.0}
    for longest in (4.1, 4.2, 4.3):
        stage.later(PUSH_INTERVAL + 1)
        stage.receive(**steps(1, longest))
    assert len(stage.handed()) == 1
    stage.receive(**steps(1, 8.0))
    assert stage.handed()[-1].settings["limits"]["learned"] == {"step": 40.0}
    stage.later(10 * PUSH_ALL_INTERVAL)
    assert len(stage.handed()) == 2, "there is no news"


def test_what_holds_for_the_whole_run_is_handed_down_when_the_last_rank_shuts_down() -> None:
    """The launcher writes the file when the ranks have ended, so it cannot wait for the next minute."""
    stage = Stage()
    stage.receive(finished={"setup": SectionStatistics(1, 1.0, 1.0, 1.0)}, idle_longest=3.0)
    stage.later(PUSH_INTERVAL)
    stage.receive(**steps(100, 1.0))
    assert stage.kept_outside() == 15.0
    stage.later(1.0)
    stage.receive(idle_longest=600.0)
    assert len(stage.handed()) == 1
    stage.receive(ended=True)
    assert stage.kept_outside() == 3000.0
    stage.later(1.0)
    assert len(stage.handed()) == 2, "once"


def test_a_job_that_has_much_to_say_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Moved(Clock):
        at = 1_000.0

        def now(self) -> float:
            return self.at

    clock = Moved()
    monitor = Monitor(clock=clock)
    monitor.ingest([RankReport(RankIdentity("job", 0, world_size=1))])
    job = monitor.jobs["job"]
    caplog.set_level(logging.INFO)
    said_before = monitor._said.get("job", (0.0, 0))[1]
    for number in range(10 * LINES):
        monitor._say(job, logging.WARNING, f"line {number} " + "x" * 10_000)
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("line ")]
    assert len(said) == LINES - said_before
    assert max(map(len, said)) < 2 * LONGEST_LINE
    clock.at += 61.0
    monitor._say(job, logging.INFO, "line at last")
    left_out = 10 * LINES + said_before - LINES
    assert [record.args for record in caplog.records][-2:] == [("job", left_out), ("line at last",)]
