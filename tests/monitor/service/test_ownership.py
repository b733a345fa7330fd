"""The loop's side of shared jobs: what leaves memory stays in the store, and comes back from there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.http.auth import UNGUARDED
from rankwatch_monitor.http.jobs import listed
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.store.leases import Leases
from rankwatch_monitor.store.repository import Repository


def report(job: str, *, ended: bool = False) -> RankReport:
    return RankReport(RankIdentity(job, 2, world_size=3, instance=job, job_name=f"{job}-name"), ended=ended)


async def until(monitor: Monitor, job: str) -> None:
    """Wait until a job is ours and was taken up."""
    deadline = time.monotonic() + 20
    assert monitor.ownership is not None
    while not await monitor.ownership.acquire(job, contact=True):
        assert time.monotonic() < deadline


def test_a_job_that_had_to_leave_memory_is_loaded_again_and_not_begun_again(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path / "shared.db"), shared=True)
    leases = Leases(repository.engine, "a", "http://a", 60.0)
    monitor = Monitor(repository=repository, limits=Limits(jobs=1), leases=leases)

    async def scene() -> None:
        monitor.begin()
        await until(monitor, "first")
        assert monitor.ingest([report("first", ended=True)]) == []
        monitor.tick()
        await until(monitor, "second")
        assert monitor.ingest([report("second")]) == []
        assert set(monitor.jobs) == {"second"}, "there is room for one job"
        assert not monitor.owns("first")
        assert await asyncio.to_thread(repository.flush)
        await until(monitor, "first")
        assert monitor.jobs["first"].world_size == 3
        assert monitor.jobs["first"].name == "first-name"

    try:
        asyncio.run(scene())
    finally:
        monitor.close()


def test_a_monitor_that_was_paused_for_longer_than_a_lease_does_not_claim_its_jobs(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path / "shared.db"), shared=True)
    paused = 0.0
    leases = Leases(repository.engine, "a", "http://a", 60.0, clock=lambda: time.monotonic() + paused)
    monitor = Monitor(repository=repository, leases=leases)

    async def scene() -> None:
        nonlocal paused
        monitor.begin()
        await until(monitor, "job")
        assert monitor.ingest([report("job")]) == []
        assert ["monitor" in job for job in listed(monitor, monitor.clock.now(), UNGUARDED)] == [False]
        paused = 60.0  # the thread that renews is asleep, as after SIGCONT
        assert [job["monitor"] for job in listed(monitor, monitor.clock.now(), UNGUARDED)] == [None]
        leases.db_error = "connection refused"  # then no other monitor can have acquired it
        assert ["monitor" in job for job in listed(monitor, monitor.clock.now(), UNGUARDED)] == [False]

    try:
        asyncio.run(scene())
    finally:
        monitor.close()
