"""When a job is evaluated: a small one after every message of a launcher, a large one at the next tick."""

from __future__ import annotations

import asyncio

import pytest

from rankwatch.contract.enums import ProcessEventKind
from rankwatch.contract.messages import NodeRegistration, ProcessEvent
from rankwatch.contract.statistics import SectionWindow
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.effects import Effect
from rankwatch_monitor.core.events import RankIdentity, RankReport, WindowReport
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.service import monitor as service
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.service.scheduler import SMALL_JOB


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many launchers the job had at each evaluation."""
    launchers: list[int] = []

    def noted(job: Job, now: float, *, windows: bool) -> list[Effect]:
        launchers.append(len(job.nodes))
        return advance(job, now, windows=windows)

    monkeypatch.setattr(service, "advance", noted)
    return launchers


def join(monitor: Monitor, launchers: range) -> None:
    monitor.register("job", "gpt")
    for number in launchers:
        monitor.submit("job", NodeRegistration(f"node-{number}", f"host-{number}", 1, 8, "gpt"))


def test_launchers_that_join_are_evaluated_one_by_one_only_while_they_are_few(evaluated: list[int]) -> None:
    monitor = Monitor()
    join(monitor, range(SMALL_JOB))
    assert evaluated == list(range(1, SMALL_JOB + 1))
    join(monitor, range(SMALL_JOB, 3 * SMALL_JOB))
    assert len(evaluated) == SMALL_JOB, "each evaluation looks at all launchers"
    monitor.tick()
    assert evaluated[SMALL_JOB:] == [3 * SMALL_JOB]


@pytest.mark.parametrize("world", [SMALL_JOB, SMALL_JOB + 1])
def test_a_message_of_a_job_with_many_ranks_is_evaluated_by_the_next_tick(evaluated: list[int], world: int) -> None:
    monitor = Monitor()
    join(monitor, range(1))
    monitor.submit("job", ProcessEvent("node-0", ProcessEventKind.STARTED, 1, rank=0, pid=7, world_size=world))
    before = len(evaluated)
    monitor.submit("job", ProcessEvent("node-0", ProcessEventKind.EXITED, 1, rank=0, exit_code=1))
    assert len(evaluated) - before == (1 if world <= SMALL_JOB else 0)
    monitor.tick()
    assert len(evaluated) - before == (2 if world <= SMALL_JOB else 1)


@pytest.mark.parametrize("world", [SMALL_JOB, SMALL_JOB + 1])
def test_the_window_of_a_large_job_has_a_turn_of_its_own_after_a_decision(world: int) -> None:
    monitor = Monitor()
    join(monitor, range(1))
    job = monitor.job("job")
    monitor.submit("job", ProcessEvent("node-0", ProcessEventKind.STARTED, 1, rank=0, pid=7, world_size=world))
    window = WindowReport(64, 64, {"step": SectionWindow(64, 0.1, 0.1, 0.1, 0.1)})
    monitor.ingest(
        [RankReport(RankIdentity("job", rank, world_size=world, attempt=1), window=window) for rank in range(world)]
    )
    apply(job, ProcessEvent("node-0", ProcessEventKind.EXITED, 1, rank=0, exit_code=1), monitor.clock.now())
    seen: list[tuple[bool, bool]] = []

    async def run() -> None:
        running = asyncio.create_task(monitor.run())
        for _ in range(2):
            await asyncio.sleep(0)
            seen.append((job.open_incident is not None, job.performance.judged_at is not None))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    assert seen == [(True, world <= SMALL_JOB), (True, True)]
