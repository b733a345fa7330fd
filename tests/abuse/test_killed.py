"""SIGKILL at any moment of a write, again and again on one database: what was answered is still there."""

from __future__ import annotations

import itertools
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.launcher import AT_WORK, PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import reports_of_all
from support.waiting import wait_for

WORLD = 3
JOB = "killed"
PREPARED = 0.08
"""Seconds until a launcher has registered and started, on a quiet machine."""


class Reported:
    """All that the monitor stated to launchers and people so far, over all of its lives."""

    def __init__(self) -> None:
        self.directives: dict[int, dict[str, Any]] = {}
        self.incidents: set[str] = set()
        self.attempt = 1

    def take(self, directive: dict[str, Any]) -> None:
        """One that a launcher was handed."""
        number = directive["id"]
        assert self.directives.setdefault(number, directive) == directive, f"number {number} was given twice"
        if directive["incident_id"] is not None:
            self.incidents.add(directive["incident_id"])


def life(monitor: RunningMonitor, reported: Reported, dice: random.Random) -> None:
    """Orders and hangs as fast as they go, until the kill comes; the client must not notice anything but the kill."""
    began = time.monotonic()
    with Api(monitor.url) as api:
        shown = {incident["id"] for incident in api.incidents(JOB)} if reported.directives else set()
        assert reported.incidents <= shown, "an incident that was reported is gone"
        launcher = PlayedLauncher(api, JOB, ranks=range(WORLD))
        last = launcher.register(
            policy={"section_timeouts": {"step": 2.0}, "max_restarts": 1000, "capture_deadline": 5}
        )
        assert last["last_directive"] >= max(reported.directives, default=0), "the count of directives fell back"
        launcher.start(reported.attempt, WORLD)
    slowness = max(1.0, (time.monotonic() - began) / PREPARED)  # on a busy machine a life takes longer to get as far
    killing = threading.Timer(slowness * dice.uniform(0.02, 0.6), monitor.process.kill)
    killing.start()
    try:
        with Api(monitor.url) as api:
            launcher.api = api
            busy(api, launcher, reported)
    except httpx.TransportError:
        assert monitor.process.wait(60) == -9, "it ended by itself"
    finally:
        killing.cancel()
        killing.join()


def busy(api: Api, launcher: PlayedLauncher, reported: Reported) -> None:
    while True:
        api.report(*reports_of_all(JOB, WORLD, attempt=reported.attempt, overdue=5.0))
        for directive in launcher.directives(0.5):
            reported.take(directive)
            if directive["kind"] == "capture":
                launcher.send_stacks(directive, dict.fromkeys(range(WORLD), AT_WORK))
            elif directive["kind"] == "restart":
                launcher.acknowledge(directive)
                reported.attempt += 1
                launcher.start(reported.attempt, WORLD)
                api.report(*reports_of_all(JOB, WORLD, attempt=reported.attempt, resumed_at=3))
        api.change_policy(JOB, stop_deadline=5 + time.monotonic() % 1)


def lives(folder: Path, number: int, seed: int) -> Reported:
    """So many at least, and more on a busy machine, where few last until a hang is reported."""
    reported, dice = Reported(), random.Random(seed)
    database = folder / "rankwatch.db"
    rounds = itertools.count()
    while (round_ := next(rounds)) < number or len(reported.incidents) <= 3:
        with running_monitor(folder / str(round_), database=database) as monitor:
            life(monitor, reported, dice)
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    with running_monitor(folder / "last", database=database) as monitor, Api(monitor.url) as api:
        assert reported.incidents <= {incident["id"] for incident in api.incidents(JOB)}
        wait_for(lambda: api.get("/readyz").status_code == 200, "it is ready")
        answer = api.get(f"/api/v1/jobs/{JOB}/directives", params={"after": 0, "wait": 0})
        for directive in answer.json()["directives"]:
            reported.take(directive)
    return reported


@pytest.mark.long
@pytest.mark.timeout(600)
def test_killed_thirty_times_in_the_middle_of_its_work(tmp_path: Path) -> None:
    reported = lives(tmp_path, 30, 2)
    assert len(reported.directives) > 20
    assert len(reported.incidents) > 3


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_order_that_was_answered_is_not_forgotten(tmp_path: Path) -> None:
    """Killed as soon as a person read that an order was taken: it stands in the history of the next life."""
    database = tmp_path / "rankwatch.db"
    ordered: set[str] = set()
    for round_ in range(8):
        with running_monitor(tmp_path / str(round_), database=database) as monitor, Api(monitor.url) as api:
            launcher = PlayedLauncher(api, JOB, ranks=range(WORLD))
            launcher.register(policy={"capture_deadline": 0.5})
            launcher.start(1, WORLD)
            assert ordered <= {incident["id"] for incident in api.incidents(JOB)}, f"lost in life {round_}"
            answer = api.post(f"/api/v1/jobs/{JOB}/actions", json={"action": "capture", "reason": f"life {round_}"})
            monitor.kill()
            assert answer.status_code == 202
            ordered.add(answer.json()["incident_id"])
