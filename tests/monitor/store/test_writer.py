"""The writer while the database is away, and behind a fence: what waits, what is reported, what is never written."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import Any

import pytest
from sqlalchemy import Connection

from monitor.core.scene import Scene
from monitor.store.conftest import Place
from rankwatch.contract.enums import DirectiveKind
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.service.persistence import Persistence
from rankwatch_monitor.store import schema
from rankwatch_monitor.store.codec import job_row
from rankwatch_monitor.store.repository import Repository
from rankwatch_monitor.store.writer import Backlog, RowWrite
from support.postgres import PostgreSQL, running_postgres
from support.waiting import wait_for

Open = Callable[..., Repository]


def turn(number: int, job: str = "j") -> dict[str, Any]:
    return {"job_id": job, "at": float(number), "state": "running", "reason": str(number)}


class OnlyMine:
    """A fence that knows whose a job is from a set."""

    def __init__(self, *mine: str) -> None:
        self.mine = set(mine)
        self.asked: list[set[str]] = []

    def owned(self, connection: Connection, job_ids: Collection[str]) -> set[str]:
        assert connection.in_transaction()
        self.asked.append(set(job_ids))
        return self.mine & set(job_ids)


def take_away(place: Place) -> None:
    place.ask("alter table transitions rename to elsewhere")


def give_back(place: Place) -> None:
    place.ask("alter table elsewhere rename to transitions")


# Behind a fence -------------------------------------------------------------------------------------------------------


def test_of_a_job_that_is_anothers_nothing_is_written_or_reported(store: Repository, place: Place) -> None:
    fence = store.writer.fence = OnlyMine("mine")
    reported: list[str] = []
    store.companions = lambda table, values: [
        (
            schema.messages,
            {"queue": "q", "key": values["job_id"], "number": 1, "job_id": values["job_id"], "at": 1.0, "body": {}},
            lambda: reported.append("message of " + values["job_id"]),
        )
    ]
    for job in ("mine", "theirs"):
        store.save(schema.transitions, turn(1, job), lambda job=job: reported.append(job))  # type: ignore[misc]
    assert store.flush()
    assert place.ask("select job_id from transitions") == [("mine",)]
    assert place.ask("select job_id from messages") == [("mine",)]
    assert reported == ["message of mine", "mine"]
    assert store.writer.fenced == 2
    assert {"mine", "theirs"} in fence.asked or fence.asked == [{"mine"}, {"theirs"}]
    assert store.db_error == ""


def test_a_job_is_recalled_with_what_was_queued_before_while_the_writer_was_busy(
    store: Repository, place: Place
) -> None:
    read: list[Any] = []
    store.writer.on_recall = lambda job: read.append(place.ask("select reason from transitions where job_id = 'j'"))

    def busy() -> None:
        store.save(schema.transitions, turn(2))
        store.writer.recall("j")

    store.save(schema.transitions, turn(1, "other"), busy)  # on the writer's thread, after a commit
    wait_for(lambda: read, "the job is read")
    assert read == [[("2",)]]


def test_behind_a_fence_then_is_called_after_a_commit_or_never(store: Repository, place: Place) -> None:
    store.writer.fence = OnlyMine("j")
    take_away(place)
    reported: list[int] = []
    for number in range(3):
        store.save(schema.transitions, turn(number), lambda number=number: reported.append(number))  # type: ignore[misc]
        assert store.flush()
    assert reported == []
    assert (store.writer.errors, store.writer.waiting) == (3, 3)
    give_back(place)
    wait_for(lambda: reported == [0, 1, 2], "they are called once it is committed")
    assert place.ask("select reason from transitions order by number") == [("0",), ("1",), ("2",)]


@pytest.mark.parametrize("mine", [True, False])
def test_a_directive_is_handed_out_once_it_is_stored_or_never(store: Repository, place: Place, mine: bool) -> None:
    job, handed_out = Job("j", 1.0), []
    store.writer.fence = OnlyMine(*(["j"] if mine else []))
    directive = job.new_directive(DirectiveKind.CAPTURE, "why")
    Persistence(store).save_directive(job, directive, 1.0, lambda: handed_out.append(place.count("directives")))
    assert store.flush()
    assert handed_out == ([1] if mine else [])


def test_a_job_that_was_lost_meanwhile_is_not_written_once_it_is_back(store: Repository, place: Place) -> None:
    fence = store.writer.fence = OnlyMine("j")
    take_away(place)
    reported: list[int] = []
    store.save(schema.transitions, turn(1), lambda: reported.append(1))
    assert store.flush()
    fence.mine.clear()
    give_back(place)
    wait_for(lambda: store.writer.waiting == 0, "nothing waits any more")
    assert (place.count("transitions"), reported, store.writer.fenced) == (0, [], 1)


# Away and back --------------------------------------------------------------------------------------------------------


def test_all_that_happened_meanwhile_is_written_by_itself(store: Repository, place: Place) -> None:
    scene = Scene(hosts=1).run(3)
    place.ask("alter table jobs rename to elsewhere")
    reported: list[int] = []
    for restarts in range(50):
        scene.job.restarts = restarts
        store.save(schema.jobs, job_row(scene.job), lambda restarts=restarts: reported.append(restarts))  # type: ignore[misc]
        store.save(schema.transitions, turn(restarts))
    assert store.flush()
    assert reported == list(range(50)), "each is called though nothing waits for it"
    assert store.writer.waiting == 51, "of the job its newest state, and every transition"
    assert "restore them from a backup" in store.db_error
    place.ask("alter table elsewhere rename to jobs")
    wait_for(lambda: not store.db_error, "it goes on by itself")
    assert (place.count("transitions"), store.writer.errors, store.writer.lost, store.writer.waiting) == (50, 0, 0, 0)
    assert store.load(0.0)[0].restarts == 49
    assert reported == list(range(50)), "none is called twice"


def test_more_than_can_wait_loses_the_oldest_and_counts(
    store: Repository, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwatch_monitor.store.writer.QUEUE_LIMIT", 10)
    take_away(place)
    for number in range(30):
        store.save(schema.transitions, turn(number))
        assert store.flush()
    assert (store.writer.waiting, store.writer.lost) == (10, 20)
    give_back(place)
    wait_for(lambda: not store.db_error, "it works again")
    assert place.ask("select min(at), max(at) from transitions") == [(20.0, 29.0)]


def test_one_that_ends_while_it_is_away_states_what_was_not_written(
    store: Repository, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    take_away(place)
    store.save(schema.transitions, turn(1))
    store.close()
    assert "1 rows could not be written before the end" in caplog.text


def test_one_row_that_is_at_fault_is_left_out_and_reported(
    store: Repository, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[str] = []
    with sqlite_held(place):  # so that all come in one batch
        store.save(schema.transitions, turn(1))
        store.save(schema.transitions, {**turn(2), "state": None}, lambda: reported.append("bad"))
        store.save(schema.transitions, {**turn(3), "reason": object()})
        store.save(schema.transitions, turn(4))
    assert store.flush()
    assert place.ask("select at from transitions order by at") == [(1.0,), (4.0,)]
    assert caplog.text.count("cannot be stored and is dropped") == 2
    assert (reported, store.writer.lost, store.db_error) == (["bad"], 2, "")


def sqlite_held(place: Place) -> Any:
    """Holds SQLite's right to write while the block runs; for PostgreSQL the twin does without."""
    held = sqlite3.connect(place.url if place.kind == "sqlite" else ":memory:", isolation_level=None)
    held.execute("begin immediate")

    class Held:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            held.execute("rollback")
            held.close()

    return Held()


def test_a_locked_file_is_waited_for_and_then_written(sqlite_place: Place, opened: Open) -> None:
    store = opened(sqlite_place)
    with sqlite_held(sqlite_place):
        store.save(schema.transitions, turn(1))
        assert not store.flush(timeout=0.2), "it waits, and the caller does not"
    assert store.flush()
    assert (store.writer.errors, sqlite_place.count("transitions")) == (0, 1)


def test_a_file_that_is_locked_for_long_is_no_reason_to_wait(
    sqlite_place: Place, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    store, reported = opened(sqlite_place), []
    with sqlite_held(sqlite_place):
        store.save(schema.transitions, turn(1), lambda: reported.append(1))
        wait_for(lambda: reported, "it is called after SQLite's patience has ended")
        assert f"has locked {sqlite_place.url}" in store.db_error
    wait_for(lambda: not store.db_error, "it works again")
    assert sqlite_place.count("transitions") == 1
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1, "stated once"


def test_a_reader_of_the_file_after_an_outage_costs_no_row(sqlite_place: Place, opened: Open) -> None:
    """The last to close a file removes SQLite's log, so our own locks on it must outlive that we connect again."""

    def another_process(statement: str) -> str:
        code = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
            "print(*c.execute(sys.argv[2]).fetchall()); c.commit(); c.close()"
        )
        command = [sys.executable, "-c", code, sqlite_place.url, statement]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    store = opened(sqlite_place)
    assert store.load(0.0) == []
    another_process("alter table transitions rename to elsewhere")
    store.save(schema.transitions, turn(1))
    assert store.flush()
    assert store.db_error != ""
    another_process("alter table elsewhere rename to transitions")
    assert store.flush()
    assert another_process("select at from transitions") == "(1.0,)"
    store.save(schema.transitions, turn(2))
    assert store.flush()
    assert another_process("select at from transitions") == "(1.0,) (2.0,)"


@pytest.mark.long
def test_postgresql_that_is_killed_frozen_and_back(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    with running_postgres() as server:
        place, reported = Place(server.new_database()), []
        store = opened(place)
        store.save(schema.transitions, turn(1))
        assert store.flush()
        server.kill()
        store.save(schema.transitions, turn(2), lambda: reported.append("killed"))
        wait_for(lambda: reported == ["killed"], "nothing waits for one that is gone")
        assert f"check that the server of postgresql+psycopg://rankwatch@127.0.0.1:{server.port}" in store.db_error
        server.start()
        wait_for(lambda: not store.db_error, "it works again", 30)
        assert place.ask("select at from transitions order by at") == [(1.0,), (2.0,)]
        server.freeze()
        store.save(schema.transitions, turn(3), lambda: reported.append("frozen"))

        def passed_on() -> bool:
            store.save(schema.transitions, turn(4))
            return "frozen" in reported

        wait_for(passed_on, "nothing waits for one that does not answer", 30)
        assert "has not answered for" in store.db_error
        server.thaw()
        wait_for(lambda: not store.db_error and store.writer.waiting == 0, "it works again", 30)
        assert place.ask("select count(*) from transitions where at = 3.0") == [(1,)]


@pytest.mark.long
def test_the_end_does_not_hang_on_a_server_that_does_not_answer(opened: Open) -> None:
    with running_postgres() as server:
        store = opened(Place(server.new_database()))
        server.freeze()
        store.save(schema.transitions, turn(1))
        store.close()
        server.thaw()
        wait_for(lambda: not store.writer._thread.is_alive(), "its thread ends, too")


def test_a_server_that_comes_late_is_written_to_once_what_it_holds_was_taken_up(
    postgres: PostgreSQL, postgres_place: Place, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(hosts=1).run(3)
    first = opened(postgres_place)
    first.save(schema.jobs, job_row(scene.job))
    first.close()
    monkeypatch.setattr("rankwatch_monitor.store.repository.START_TIMEOUT", 0.0)
    name = postgres_place.url.rsplit("/", 1)[1]
    with postgres.connect("postgres") as admin:
        admin.execute(f"alter database {name} with allow_connections false")  # type: ignore[arg-type]
        store = opened(postgres_place)
        assert store.load(1.0) == []
        assert store.load_pending
        assert "not currently accepting connections" in store.db_error
        reported: list[int] = []
        store.save(schema.transitions, turn(1, "new"), lambda: reported.append(1))
        store.save(schema.jobs, {**job_row(scene.job), "created_at": 99.0})
        wait_for(lambda: reported, "it goes on in memory")
        assert store.take_pending() is None
        admin.execute(f"alter database {name} with allow_connections true")  # type: ignore[arg-type]
    (stored,) = wait_for(store.take_pending, "what is stored was read")
    assert (stored.id, stored.created_at) == (scene.job.id, scene.job.created_at)
    store.flush()
    assert store.writer.waiting == 2
    assert postgres_place.ask("select created_at from jobs") == [(scene.job.created_at,)], "it is not written over"
    store.confirm_loaded()
    wait_for(lambda: store.writer.waiting == 0, "what waited is written")
    assert postgres_place.ask("select job_id from transitions") == [("new",)]
    assert postgres_place.ask("select created_at from jobs") == [(99.0,)]
    wait_for(lambda: not store.db_error, "all is well")
    assert not store.load_pending


def test_where_jobs_are_held_by_lease_nothing_has_to_be_taken_up_first(
    postgres: PostgreSQL, postgres_place: Place, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwatch_monitor.store.repository.START_TIMEOUT", 0.0)
    name = postgres_place.url.rsplit("/", 1)[1]
    with postgres.connect("postgres") as admin:
        admin.execute(f"alter database {name} with allow_connections false")  # type: ignore[arg-type]
        store = opened(postgres_place, shared=True)
        assert not store.load_pending
        admin.execute(f"alter database {name} with allow_connections true")  # type: ignore[arg-type]
    store.save(schema.transitions, turn(1, "new"))
    wait_for(lambda: store.writer.waiting == 0, "it is written")
    assert postgres_place.ask("select job_id from transitions") == [("new",)]


# The backlog ----------------------------------------------------------------------------------------------------------


def test_a_newer_state_takes_over_what_the_older_one_has_left_to_do() -> None:
    reported: list[str] = []
    backlog = Backlog()
    message = {"queue": "q", "key": "k", "number": 1, "job_id": "j", "at": 1.0, "body": {}}
    backlog.add(
        RowWrite(
            schema.jobs,
            {"id": "j", "body": 1},
            lambda: reported.append("old"),
            companions=[(schema.messages, message, lambda: reported.append("message"))],
        )
    )
    backlog.add(RowWrite(schema.messages, {"queue": "q", "key": "k"}, delete=True))
    backlog.add(RowWrite(schema.jobs, {"id": "j", "body": 2}, lambda: reported.append("new")))
    job, removal = backlog.first(10)
    assert job.values["body"] == 2
    assert [unit.table.name for unit in job.flat()] == ["messages", "jobs"]
    assert job.companions[0].number < removal.number, "so that the message stays removed"
    for _, then in job.on_commit:
        then()
    assert reported == ["old", "new"]
