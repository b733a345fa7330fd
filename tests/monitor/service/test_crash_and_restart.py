"""A crash that is reported together with the restart that follows it leaves its incident, however large the job is."""

from __future__ import annotations

import pytest

from rankwatch.contract.enums import ProcessEventKind as Kind
from rankwatch.contract.enums import VerdictKind
from rankwatch.contract.messages import NodeRegistration, ProcessEvent
from rankwatch_monitor.service.monitor import Clock, Monitor
from rankwatch_monitor.service.scheduler import SMALL_JOB

WORLD = SMALL_JOB + 1


class Standing(Clock):
    def now(self) -> float:
        return 1000.0


@pytest.mark.parametrize("restarting", [True, False])
def test_the_attempt_is_evaluated_before_the_next_one_replaces_its_ranks(restarting: bool) -> None:
    monitor = Monitor(clock=Standing())
    job = monitor.register("job", "gpt")
    monitor.submit("job", NodeRegistration("node", "host", WORLD, 1, "gpt"))
    started = [ProcessEvent("node", Kind.STARTED, 1, rank=r, pid=7 + r, world_size=WORLD) for r in range(WORLD)]
    monitor.submit("job", *started)
    assert not monitor._scheduler.small(job), "it is evaluated at the next tick"
    monitor.submit("job", ProcessEvent("node", Kind.EXITED, 1, rank=3, exit_code=1, message="ValueError: no data"))
    if restarting:
        monitor.submit("job", ProcessEvent("node", Kind.RESTARTING, 2, reason="rank 3"))
    monitor.submit("job", ProcessEvent("node", Kind.STARTED, 2, rank=0, pid=99, world_size=WORLD))
    assert job.attempt == 2
    (incident,) = job.incidents
    assert incident.kind is VerdictKind.PROCESS_EXITED
    assert incident.reason.startswith("Rank 3 on host exited with code 1: ValueError: no data")
