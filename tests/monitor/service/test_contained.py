"""An exception in one part of a tick ends neither the loop nor the evaluation of other jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from monitor.service.test_monitor import Moved
from rankwatch_monitor.app import create_app
from rankwatch_monitor.core import merge_stored
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.http.operation import DEAD
from rankwatch_monitor.service import monitor as service
from rankwatch_monitor.service.monitor import LOG_INTERVAL, Monitor
from rankwatch_monitor.service.persistence import Persistence


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    monitor = Monitor(clock=Moved())
    for name in ("first", "second"):
        monitor.register(name, name)
    yield monitor
    monitor.close()


def broken(*_: object) -> Any:
    raise KeyError("a defect")


@pytest.mark.parametrize("name", ["merge_pending", "expire"])
def test_jobs_are_evaluated_while_a_stage_of_the_tick_raises(
    name: str, monitor: Monitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    evaluated: list[str] = []
    monkeypatch.setattr(service, "advance", lambda job, _, **__: evaluated.append(job.id) or [])
    monkeypatch.setattr(monitor.persistence, name, broken)
    for _ in range(20):
        monitor.clock.at += 1.0  # type: ignore[attr-defined]
        monitor.tick()
    assert {"first", "second"} <= set(evaluated)
    assert monitor.last_tick == monitor.clock.now()
    assert monitor.tick_errors == 20
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1, "the log is not flooded"
    monitor.clock.at += LOG_INTERVAL  # type: ignore[attr-defined]
    monitor.tick()
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 2
    assert call(create_app(monitor), "/readyz").status_code == 503
    monkeypatch.undo()
    monitor.tick()
    assert not monitor.failing_stages


def test_one_job_that_cannot_be_merged_leaves_the_others_their_past(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = {name: Job(name, 500.0) for name in ("first", "second")}
    for job in past.values():
        job.restarts = 3

    class Stored:
        load_pending = False

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

        def take_recalled(self) -> list[Any]:
            return []

        def take_pending(self) -> list[Job]:
            return list(past.values())

    join = merge_stored.join
    monkeypatch.setattr(merge_stored, "join", lambda job, *more: broken() if job.id == "first" else join(job, *more))
    persistence = Persistence(Stored())  # type: ignore[arg-type]
    merged = persistence.merge_pending(monitor.jobs, monitor.policy, monitor.clock.now(), monitor._before_merge)
    assert [job.id for job in merged] == ["first", "second"]
    assert monitor.jobs["second"].restarts == 3


def test_the_monitor_is_not_alive_once_its_loop_has_ended(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(monitor)

    async def check() -> tuple[int, int]:
        async with app.router.lifespan_context(app):
            alive = (await get(app, "/livez")).status_code
            for task in asyncio.all_tasks():
                if task.get_name() == "rankwatch-loop":
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            return alive, (await get(app, "/livez")).status_code

    assert asyncio.run(check()) == (200, 503)


def test_the_monitor_is_not_alive_without_a_tick_for_minutes(monitor: Monitor) -> None:
    app = create_app(monitor)
    monitor.tick()
    assert call(app, "/livez").json()["status"] == "alive"
    monitor.clock.at += DEAD + 1.0  # type: ignore[attr-defined]
    assert call(app, "/livez").status_code == call(app, "/readyz").status_code == 503
    monitor.tick()
    assert call(app, "/livez").status_code == 200


async def get(app: FastAPI, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        return await client.get(path)


def call(app: FastAPI, path: str) -> httpx.Response:
    return asyncio.run(get(app, path))
