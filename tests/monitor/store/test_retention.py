"""What is too old goes with all that belongs to it; what is held, or younger, stays; writing does not wait for it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from monitor.store.conftest import Place
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.store import schema
from rankwatch_monitor.store.codec import job_row
from rankwatch_monitor.store.repository import Repository
from support.waiting import wait_for

TABLES = ("jobs", "incidents", "transitions", "directives", "performances", "trends", "launchers", "messages")


def keep(store: Repository, name: str, last_heard: float, several: int = 3) -> None:
    rows: list[tuple[Any, dict[str, Any]]] = [
        (schema.jobs, {**job_row(Job(name, 1.0)), "last_heard": last_heard}),
        (schema.performances, {"job_id": name, "body": {}}),
        (schema.launchers, {"job_id": name, "node": "n", "body": {}}),
        (schema.trends, {"job_id": name, "slot": 3, "body": {}}),
        (schema.messages, {"queue": "q", "key": name, "number": 1, "job_id": name, "at": 1.0, "body": {}}),
    ]
    for number in range(several):
        rows += [
            (schema.incidents, {"id": f"{name}-{number}", "job_id": name, "opened_at": 1.0, "body": {}}),
            (schema.transitions, {"job_id": name, "at": float(number), "state": "running", "reason": ""}),
            (schema.directives, {"job_id": name, "id": number, "body": {}}),
        ]
    for table, values in rows:
        store.save(table, values)


def left(place: Place) -> dict[str, set[str]]:
    return {
        table: {str(row[0]) for row in place.ask(f"select {'id' if table == 'jobs' else 'job_id'} from {table}")}
        for table in TABLES
    }


def test_old_jobs_go_with_everything_and_others_stay(
    store: Repository, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    for name, last_heard in (("old", 10.0), ("older", 5.0), ("held", 5.0), ("leased", 5.0), ("young", 50.0)):
        keep(store, name, last_heard)
    lease = {"owner": "m", "url": "http://m", "generation": 1}
    store.save(schema.leases, {"job_id": "leased", **lease, "ends_at": 4e9})
    store.save(schema.leases, {"job_id": "old", **lease, "ends_at": 1.0})
    assert store.flush()
    with caplog.at_level(logging.INFO, "rankwatch.store"):
        store.writer.retain(20.0, {"held"})
        wait_for(lambda: "2 expired jobs were deleted" in caplog.text, "the old ones are removed")
    assert left(place) == {table: {"held", "leased", "young"} for table in TABLES}
    assert place.ask("select job_id from leases") == [("leased",)]
    assert (store.db_error, store.writer.errors) == ("", 0)


def test_it_goes_in_small_pieces_and_writing_goes_on(
    store: Repository, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rankwatch_monitor.store.retention.CHUNK", 7)
    keep(store, "old", 10.0, several=10)
    assert store.flush()
    pieces: list[int] = []
    remove = store.writer._delete_expired

    def piece() -> None:
        before = place.count("transitions") + place.count("incidents") + place.count("directives")
        remove()
        after = place.count("transitions") + place.count("incidents") + place.count("directives")
        pieces.append(before - after)
        keep(store, f"young-{len(pieces)}", 50.0, several=0)

    monkeypatch.setattr(store.writer, "_delete_expired", piece)

    def removed() -> bool:
        done = "1 expired jobs were deleted" in caplog.text and sum(pieces) == 30
        if not done and store.writer._retention is None:  # a busy machine put it off: the monitor begins it each hour
            store.writer.retain(20.0)
        return done

    with caplog.at_level(logging.INFO, "rankwatch.store"):
        wait_for(removed, "it is removed")
    assert max(pieces) <= 7
    assert store.flush()
    assert place.count("jobs") == len(pieces), "those that came meanwhile, and only those"


def test_a_database_that_is_away_puts_it_off(store: Repository, place: Place) -> None:
    keep(store, "old", 10.0)
    assert store.flush()
    place.ask("alter table incidents rename to elsewhere")
    store.writer.retain(20.0)
    store.save(schema.incidents, {"id": "i", "job_id": "young", "opened_at": 1.0, "body": {}})
    assert store.flush()
    place.ask("alter table elsewhere rename to incidents")
    wait_for(lambda: not store.db_error, "it works again")
    store.writer.retain(20.0)
    wait_for(lambda: place.count("jobs") == 0, "the next round removes it")
    assert left(place)["incidents"] == {"young"}
