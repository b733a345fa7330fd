"""A job that was evicted at the limit of jobs and reports again goes on with its stored past."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.service.test_monitor import Moved
from rankwatch_monitor.core.events import PolicyChanged, RankIdentity, RankReport
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import verdict
from rankwatch_monitor.ingest.limits import Limits
from rankwatch_monitor.publish.publisher import Publishing
from rankwatch_monitor.publish.webhook.publisher import Receiver, Webhooks
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.store.outbox import Outbox
from rankwatch_monitor.store.repository import Repository
from support.http_receiver import http_receiver
from support.waiting import wait_for


def report(job: str, *, ended: bool = False) -> RankReport:
    return RankReport(RankIdentity(job, 0, world_size=2, instance=job, job_name=job), iteration=7, ended=ended)


def receive(monitor: Monitor, job: str, *, ended: bool = False) -> Job:
    assert monitor.ingest([report(job, ended=ended)]) == []
    monitor.tick()
    return monitor.jobs[job]


def merged(monitor: Monitor, condition: Callable[[], object]) -> None:
    def ticked() -> object:
        monitor.tick()
        return condition()

    wait_for(ticked, "the job is merged with its stored past")


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "rankwatch.db")


def test_a_lost_job_that_is_evicted_and_reports_again_keeps_budget_limits_and_goodput(database: str) -> None:
    clock = Moved()
    monitor = Monitor(repository=Repository(database), limits=Limits(jobs=1), clock=clock)
    try:
        job = receive(monitor, "first")
        monitor.submit("first", PolicyChanged(job.policy.changed({"max_restarts": 9})))
        job.restarts, began = 2, job.created_at
        job.durations.add_longest("step", 4.0)
        clock.at += 500.0
        monitor.tick()
        assert verdict.job_state(job, clock.now())[0] == "lost"
        receive(monitor, "second", ended=True)
        assert set(monitor.jobs) == {"second"}, "there is room for one job"
        clock.at += 500.0
        again = receive(monitor, "first")
        assert again is not job
        merged(monitor, lambda: again.restarts == 2)
        assert again.policy.max_restarts == 9
        assert again.durations.sections["step"].longest == 4.0
        assert again.created_at == began
        assert again.last_directive >= job.last_directive
    finally:
        monitor.close()
    reopened = Repository(database)
    try:
        stored = reopened.load_job("first", clock.now())
        assert stored is not None
        assert (stored.restarts, stored.policy.max_restarts, stored.created_at) == (2, 9, began)
    finally:
        reopened.close()


def test_a_stored_job_for_which_there_was_no_room_at_the_start_keeps_its_past_too(database: str) -> None:
    clock = Moved()
    monitor = Monitor(repository=Repository(database), clock=clock)
    for name in ("older", "newer"):
        clock.at += 10.0
        receive(monitor, name, ended=True).restarts = 3
    monitor.close()
    clock.at += 1000.0
    monitor = Monitor(repository=Repository(database), limits=Limits(jobs=1), clock=clock)
    try:
        assert set(monitor.jobs) == {"newer"}
        clock.at += 1000.0
        monitor.tick()
        job = receive(monitor, "older")
        merged(monitor, lambda: job.restarts == 3)
    finally:
        monitor.close()


def test_incidents_that_were_announced_before_a_job_was_evicted_are_not_announced_again(database: str) -> None:
    clock = Moved()
    clock.at = time.time()  # messages of long ago are given up
    monitor = Monitor(repository=Repository(database), limits=Limits(jobs=1), clock=clock)
    assert monitor.repository is not None
    with http_receiver() as receiver:
        outbox = Outbox(monitor.repository)
        webhooks = Webhooks([Receiver(receiver.url, "json")], monitor.jobs, clock.now, outbox=outbox)
        outbox.attach(webhooks.rows_about)
        monitor.publishing = Publishing((), (webhooks,))

        def announced(event: str, job: str) -> bool:
            return any(each.json["event"] == event and each.json["job"]["id"] == job for each in receiver.taken)

        try:
            job = receive(monitor, "first")
            monitor.submit("first", PolicyChanged(job.policy.changed({"section_timeouts": {"step": 2.0}})))
            overdue = RankIdentity("first", 0, world_size=2, instance="first", job_name="first")
            monitor.ingest([RankReport(overdue, iteration=7, open_sections={"step": 9.0})])
            clock.at += 1.0
            merged(monitor, lambda: announced("incident_opened", "first"))
            clock.at += 2000.0
            monitor.tick()
            assert verdict.job_state(job, clock.now())[0] == "lost"
            receive(monitor, "second", ended=True)
            assert set(monitor.jobs) == {"second"}
            merged(monitor, lambda: announced("job_lost", "first") and announced("job_finished", "second"))
            before = len(receiver.taken)
            clock.at += 500.0
            again = receive(monitor, "first")
            merged(monitor, lambda: len(again.incidents) == 1)
            receive(monitor, "first", ended=True)
            merged(monitor, lambda: announced("job_finished", "first"))
            assert [each.json["event"] for each in receiver.taken[before:]] == ["incident_closed", "job_finished"]
        finally:
            monitor.close()
            webhooks.close(60)


def test_a_job_that_was_never_stored_begins_at_once(database: str) -> None:
    monitor = Monitor(repository=Repository(database), clock=Moved())
    try:
        assert receive(monitor, "new").last_directive == 0
    finally:
        monitor.close()
