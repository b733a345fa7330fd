"""The store on SQLite and on PostgreSQL: what is saved is there again, and what it refuses never reaches the caller."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.core.scene import Scene
from monitor.store.conftest import Place
from rankwatch_monitor import cli
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.store import schema
from rankwatch_monitor.store.codec import directive_row, incident_row, job_row
from rankwatch_monitor.store.repository import Repository
from support.postgres import PostgreSQL

Open = Callable[..., Repository]


def stage() -> Scene:
    return Scene(hosts=2).run(10).hang(2).until_found().run(20)


def save_all(repository: Repository, job: Job) -> None:
    repository.save(schema.jobs, job_row(job))
    for incident in job.incidents:
        repository.save(schema.incidents, incident_row(incident))
    for directive in job.directives:
        repository.save(schema.directives, directive_row(job.id, directive))


# Saving and loading ---------------------------------------------------------------------------------------------------


def test_a_new_database_is_empty_and_its_folder_is_made(store: Repository, place: Place) -> None:
    assert store.load(0.0) == []
    assert store.db_error == ""
    assert place.count("jobs") == 0


def test_what_was_saved_is_there_after_a_restart(place: Place, opened: Open) -> None:
    scene = stage()
    first = opened(place)
    save_all(first, scene.job)
    first.close()
    (job,) = opened(place).load(scene.now)
    assert job_row(job) == job_row(scene.job)
    assert job.incidents == scene.job.incidents
    assert job.directives == scene.job.directives
    assert job.incidents[0].stacks == scene.job.incidents[0].stacks


def test_a_sqlite_file_is_in_wal_mode(sqlite_place: Place, opened: Open) -> None:
    opened(sqlite_place)
    assert sqlite_place.ask("pragma journal_mode") == [("wal",)]


def test_a_row_is_replaced_not_repeated(store: Repository, place: Place) -> None:
    job = stage().job
    for restarts in range(5):
        job.restarts = restarts
        save_all(store, job)
        assert store.flush()
    assert place.count("jobs") == 1
    assert place.count("incidents") == 1
    assert place.count("directives") == len(job.directives)
    assert store.load(0.0)[0].restarts == 4


def test_the_newest_state_wins_within_a_batch(store: Repository) -> None:
    job = stage().job
    for restarts in range(500):
        job.restarts = restarts
        store.save(schema.jobs, job_row(job))
    assert store.flush()
    assert store.load(0.0)[0].restarts == 499


def test_every_transition_is_kept(store: Repository, place: Place) -> None:
    for at in range(20):
        store.save(schema.transitions, {"job_id": "job", "at": float(at), "state": "running", "reason": ""})
    assert store.flush()
    assert place.count("transitions") == 20


def test_directives_of_two_jobs_may_have_the_same_number(store: Repository) -> None:
    for name in ("one", "two"):
        scene = Scene(job_id=name).run(10).hang(2).until_found().run(5)
        save_all(store, scene.job)
    assert store.flush()
    jobs = {job.id: job for job in store.load(0.0)}
    assert [d.id for d in jobs["one"].directives] == [d.id for d in jobs["two"].directives] == [1, 2]
    assert {i.job_id for i in jobs["two"].incidents} == {"two"}


def test_incidents_are_loaded_oldest_first(store: Repository) -> None:
    scene = Scene(on_hang="log")
    for _ in range(3):
        scene.run(5).hang(1).until(lambda: scene.job.open_incident).resume().run(3)
    for incident in reversed(scene.job.incidents):
        store.save(schema.incidents, incident_row(incident))
    store.save(schema.jobs, job_row(scene.job))
    assert store.flush()
    (job,) = store.load(0.0)
    assert [i.id for i in job.incidents] == [i.id for i in scene.job.incidents]


# After the commit -----------------------------------------------------------------------------------------------------


def test_then_is_called_after_the_commit(store: Repository, place: Place) -> None:
    seen: list[int] = []
    called = threading.Event()

    def then() -> None:
        seen.append(place.count("jobs"))
        called.set()

    store.save(schema.jobs, job_row(stage().job), then)
    assert called.wait(10)
    assert seen == [1], "another connection sees the row by then"


def test_then_is_called_for_each_row_in_order(store: Repository) -> None:
    job, seen = stage().job, []
    for number in range(50):
        store.save(schema.jobs, job_row(job), lambda number=number: seen.append(number))  # type: ignore[misc]
    assert store.flush()
    assert seen == list(range(50))


def test_a_then_that_fails_does_not_end_the_writer(store: Repository, place: Place) -> None:
    def then() -> None:
        raise RuntimeError("no")

    job = stage().job
    store.save(schema.jobs, job_row(job), then)
    for incident in job.incidents:
        store.save(schema.incidents, incident_row(incident))
    assert store.flush(timeout=60.0)
    assert place.count("incidents") == 1


def test_closing_writes_what_is_queued(place: Place, opened: Open) -> None:
    repository = opened(place)
    for at in range(3000):
        repository.save(schema.transitions, {"job_id": "job", "at": float(at), "state": "running", "reason": ""})
    repository.close()
    assert place.count("transitions") == 3000


# Databases that cannot be opened --------------------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "notes.txt"
    broken.write_text("this is not a database, it only looks long enough to be one" * 100)
    with pytest.raises(ValueError, match=r"cannot open the database .*notes\.txt.*not a database.*left unchanged"):
        Repository(str(broken))


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot open the database"):
        Repository(str(tmp_path))


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot create the folder of the database"):
        Repository(str(tmp_path / "file" / "deep" / "rankwatch.db"))


@pytest.mark.parametrize("url", ["nosuchthing://host/db", "://", "sqlite+nosuch:///x"])
def test_an_unknown_kind_of_database_is_reported(url: str) -> None:
    with pytest.raises(ValueError, match="cannot use the database"):
        Repository(url)


def test_a_password_is_not_repeated_in_the_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        Repository("nosuchthing://me:hunter2@host/db")
    assert "hunter2" not in str(caught.value)


# Databases that refuse ------------------------------------------------------------------------------------------------


def test_a_database_that_refuses_never_reaches_the_caller(
    store: Repository, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    job, called = stage().job, []
    place.ask("alter table jobs rename to elsewhere")
    with caplog.at_level(logging.INFO, "rankwatch.store"):
        for _ in range(3):
            store.save(schema.jobs, job_row(job), lambda: called.append(1))
            assert store.flush()
        assert store.writer.errors == 3
        assert called == [1, 1, 1], "launchers get their directives all the same"
        assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1, "stated once"
        assert "restore them from a backup" in store.db_error
        place.ask("alter table elsewhere rename to jobs")
        assert store.flush(), "what had waited is written without being saved again"
    assert (store.writer.errors, store.writer.waiting, store.writer.lost, store.db_error) == (0, 0, 0, "")
    assert "works again" in caplog.text
    assert place.count("jobs") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(ValueError, match="cannot open the database"):
        Repository(str(folder / "rankwatch.db"))


def test_one_row_that_cannot_be_written_does_not_take_the_others_along(store: Repository, place: Place) -> None:
    bad = {"job_id": "job", "at": None, "state": None, "reason": ""}
    hold, busy = threading.Event(), threading.Event()

    def wait() -> None:
        busy.set()
        hold.wait(10)

    store.save(schema.transitions, {"job_id": "a", "at": 0.0, "state": "x", "reason": ""}, wait)
    assert busy.wait(10)
    store.save(schema.transitions, bad)
    store.save(schema.jobs, job_row(stage().job))
    hold.set()
    assert store.flush()
    assert place.count("jobs") == 1


def test_a_read_only_database_never_reaches_the_caller(sqlite_place: Place, opened: Open) -> None:
    job, called = stage().job, []
    first = opened(sqlite_place)
    save_all(first, job)
    first.close()
    locked = opened(f"sqlite:///file:{sqlite_place.url}?mode=ro&uri=true")
    assert [j.id for j in locked.load(0.0)] == [job.id], "what is there can be read"
    locked.save(schema.jobs, job_row(job), lambda: called.append(1))
    assert locked.flush()
    assert locked.writer.errors == 1
    assert called == [1]
    assert "let the monitor's user write" in locked.db_error


def test_a_queue_that_is_full_drops_and_counts_and_still_calls_then(
    place: Place, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwatch_monitor.store.writer.QUEUE_LIMIT", 2)
    repository = opened(place)
    hold, busy, called = threading.Event(), threading.Event(), []

    def wait() -> None:
        busy.set()
        hold.wait(10)

    row = {"job_id": "job", "at": 0.0, "state": "running", "reason": ""}
    repository.save(schema.transitions, row, wait)
    assert busy.wait(10)
    for _ in range(5):
        repository.save(schema.transitions, row, lambda: called.append(1))
    assert repository.writer.errors == 3
    assert len(called) == 3
    hold.set()
    repository.close()
    assert len(called) == 5


def test_a_postgresql_database_without_an_encoding_is_refused_in_one_line(
    postgres: PostgreSQL, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres.new_database("encoding 'SQL_ASCII' template template0")
    for more in ([], ["--shared-as", "a"]):
        assert cli.serve(["--port", "0", "--database", url, "--token", "t", *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "its encoding is SQL_ASCII" in line
        assert "ENCODING 'UTF8'" in line


def test_a_job_that_was_evicted_before_the_database_was_read_keeps_its_past(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path / "rankwatch.db"))
    try:
        repository.evicted("first")  # its rows are queued: they are written after the database was read
        repository._load_pending_jobs()
        assert repository.recall("first")
    finally:
        repository.close()
