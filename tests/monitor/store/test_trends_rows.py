"""Figures over time survive the monitor, in SQLite and PostgreSQL, also where it is killed or the job was evicted."""

from __future__ import annotations

import math
from collections.abc import Callable

from monitor.service.test_monitor import Moved
from monitor.store.conftest import Place
from rankwatch_monitor.core.events import RankIdentity, RankReport
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.service.persistence import SAVE_PERFORMANCE_INTERVAL
from rankwatch_monitor.store.repository import Repository

Open = Callable[..., Repository]


def monitor_on(repository: Repository, clock: Moved) -> Monitor:
    monitor = Monitor(repository=repository, clock=clock)
    for job in repository.load(clock.now()):
        monitor.adopt(job)
    return monitor


def run(monitor: Monitor, clock: Moved, seconds: float, begin: int = 0) -> None:
    for i in range(int(seconds / 5)):
        identity = RankIdentity("j", 0, world_size=1, attempt=1, instance="a")
        monitor.ingest([RankReport(identity, iteration=begin + i, beats=i)])
        monitor.tick()
        clock.at += 5.0


def test_they_are_there_after_a_kill_and_go_on(place: Place, opened: Open) -> None:
    clock, first = Moved(), opened(place)
    monitor = monitor_on(first, clock)
    run(monitor, clock, 600)
    assert first.flush()
    before = monitor.jobs["j"].trends.window(0, math.inf)
    first.close()  # as after a kill, nothing more is saved

    monitor = monitor_on(opened(place), clock)
    after = monitor.jobs["j"].trends.window(0, math.inf)
    assert after == before[: len(after)]
    assert before[-1].at - after[-1].at <= SAVE_PERFORMANCE_INTERVAL
    assert after[-1].values["speed"] > 0
    run(monitor, clock, 120, begin=120)
    assert len(monitor.jobs["j"].trends.window(0, math.inf)) >= len(after) + 7


def test_an_orderly_end_loses_nothing(place: Place, opened: Open) -> None:
    clock = Moved()
    monitor = monitor_on(opened(place), clock)
    run(monitor, clock, 130)
    before = monitor.jobs["j"].trends.window(0, math.inf)
    monitor.close()
    assert monitor_on(opened(place), clock).jobs["j"].trends.window(0, math.inf) == before
    assert place.count("trends") >= 2
