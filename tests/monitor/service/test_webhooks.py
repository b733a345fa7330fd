"""A real monitor that is killed while messages wait for a receiver: each arrives, in order, and once told is told."""

from __future__ import annotations

import base64
import hashlib
import hmac
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.http_receiver import Answers, HttpReceiver, Posted, http_receiver
from support.launcher import PlayedLauncher
from support.monitor_process import Api, RunningMonitor, running_monitor
from support.otlp import reports_of_all
from support.waiting import wait_for

Running = AbstractContextManager[RunningMonitor]
WORLD = 3
LIMIT = 2.0
KEY = b"0123456789abcdef01234567"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
SETTINGS = {"NO_PROXY": "127.0.0.1", "RANKWATCH_MONITOR_WEBHOOK_SECRET": SECRET}


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as made:
        yield made


def send(api: Api, job: str, *, attempt: int = 1, overdue: float = 0.0, resumed_at: int | None = None) -> None:
    reports = reports_of_all(job, WORLD, attempt=attempt, overdue=overdue, resumed_at=resumed_at)
    api.report(*reports)


def watched(api: Api, job: str) -> None:
    send(api, job)
    api.change_policy(job, section_timeouts={"step": LIMIT})


def events(receiver: HttpReceiver, job: str) -> list[str]:
    return [each.json["event"] for each in receiver.taken if each.json["job"]["id"] == job]


def check_signature(posted: Posted) -> None:
    reported = posted.headers
    content = f"{reported['webhook-id']}.{reported['webhook-timestamp']}.".encode() + posted.body
    digest = base64.b64encode(hmac.new(KEY, content, hashlib.sha256).digest()).decode()
    assert reported["webhook-signature"] == f"v1,{digest}"


def run(folder: Path, receiver: HttpReceiver, *more: str, database: Path | None = None) -> Running:
    flags = ("--webhook", f"json={receiver.url}/secret-path", "--external-url", "https://m.example", *more)
    return running_monitor(folder, *flags, database=database, settings=SETTINGS)


def printed(monitor: RunningMonitor) -> str:
    text = monitor.printed()
    assert "secret-path" not in text
    assert SECRET not in text
    return text


def test_messages_survive_a_kill_of_the_monitor_and_arrive_once_in_order(
    tmp_path: Path, receiver: HttpReceiver
) -> None:
    """The receiver is away, two incidents open and one closes, the monitor is killed; later it is killed again."""
    database = tmp_path / "rankwatch.db"
    receiver.away()
    with run(tmp_path / "1", receiver, database=database) as monitor, Api(monitor.url) as api:
        for job in ("one", "two"):
            watched(api, job)
            send(api, job, overdue=LIMIT + 1)
            wait_for(lambda job=job: api.incidents(job), f"the hang of {job} is found")
        send(api, "one")
        api.judge_now("one")
        assert api.incidents("one")[0]["closed_at"]
        wait_for(lambda: "cannot be reached" in printed(monitor), "the receiver is tried in vain")
        wait_for(lambda: rows(database) == 3, "all messages are stored")
        monitor.kill()
    assert receiver.posted == []

    receiver.answers = Answers(first=[503, 500, 429], headers={"Retry-After": "0"})
    receiver.back()
    with run(tmp_path / "2", receiver, database=database) as monitor, Api(monitor.url) as api:
        assert "3 undelivered webhook messages were loaded from the database" in printed(monitor)
        wait_for(lambda: len(receiver.taken) == 3, "all are delivered")
        wait_for(lambda: rows(database) == 0, "nothing waits any more")
        monitor.kill()
    assert events(receiver, "one") == ["incident_opened", "incident_closed"]
    assert events(receiver, "two") == ["incident_opened"]

    with run(tmp_path / "3", receiver, database=database) as monitor, Api(monitor.url) as api:
        send(api, "two")
        api.judge_now("two")
        wait_for(lambda: len(receiver.taken) == 4, "the end of the other is told")
        launcher = PlayedLauncher(api, "three", ranks=range(WORLD))
        launcher.register()
        launcher.start(1, WORLD)
        send(api, "three")
        launcher.events({"kind": "finished"})
        wait_for(lambda: len(receiver.taken) == 5, "the end of a job is told")
        monitor.process.terminate()
        assert monitor.process.wait(20) == 0
        printed(monitor)
    assert events(receiver, "two") == ["incident_opened", "incident_closed"]
    assert events(receiver, "three") == ["job_finished"]
    ids = [each.headers["webhook-id"] for each in receiver.taken]
    assert len(ids) == len(set(ids)), "nothing was reported twice"
    for posted in receiver.posted:
        check_signature(posted)
    opened = next(each.json for each in receiver.taken if each.json["job"]["id"] == "one")
    assert opened["url"] == f"https://m.example/#/jobs/one/incidents/{opened['incident']['id'].replace(':', '%3A')}"


def rows(database: Path) -> int:
    connection = sqlite3.connect(database)
    try:
        return int(connection.execute("select count(*) from messages").fetchone()[0])
    finally:
        connection.close()


def test_a_receiver_that_hangs_holds_up_neither_the_loop_nor_another(tmp_path: Path, receiver: HttpReceiver) -> None:
    with http_receiver() as other:
        receiver.answers = Answers(status=None)
        flags = ("--webhook", f"slack={other.url}/secret-path")
        with run(tmp_path, receiver, *flags) as monitor, Api(monitor.url) as api:
            watched(api, "one")
            send(api, "one", overdue=LIMIT + 1)
            wait_for(lambda: receiver.posted, "one receiver hangs")
            wait_for(lambda: other.taken, "the other one is told")
            send(api, "one")
            api.judge_now("one")
            wait_for(lambda: len(other.taken) == 2, "of the end too")
            assert api.get("/readyz").status_code == 200
            assert len(receiver.posted) == 1
            printed(monitor)


def test_without_a_database_webhooks_go_too(tmp_path: Path, receiver: HttpReceiver) -> None:
    with run(tmp_path, receiver, "--database", "none") as monitor, Api(monitor.url) as api:
        watched(api, "one")
        send(api, "one", overdue=LIMIT + 1)
        wait_for(lambda: events(receiver, "one") == ["incident_opened"], "it is told")
        printed(monitor)
