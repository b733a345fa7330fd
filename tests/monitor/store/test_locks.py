"""One monitor has a database for itself, or several share it; a second one that was started by mistake is refused."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.store.conftest import Place
from rankwatch_monitor.store import schema
from rankwatch_monitor.store.repository import Repository
from support.postgres import PostgreSQL
from support.waiting import wait_for

Open = Callable[..., Repository]
ROW = {"job_id": "j", "at": 1.0, "state": "running", "reason": ""}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwatch_monitor.store.repository.LOCK_TIMEOUT", 0.2)


@pytest.mark.parametrize(("first", "second"), [(False, False), (False, True), (True, False)])
def test_a_second_one_is_refused_with_words(first: bool, second: bool, place: Place, opened: Open) -> None:
    opened(place, shared=first)
    with pytest.raises(ValueError, match=rf"is held by .*{os.getpid()}.*another --database.*--shared-as NAME"):
        opened(place, shared=second)


def test_files_that_were_open_to_other_users_are_closed_to_them(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("old.db", "old.db.lock")]
    for file in files:
        file.touch(0o644)
        file.chmod(0o644)
    store = Repository(str(files[0]))
    store.close()
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]


def test_those_that_share_have_it_together(place: Place, opened: Open) -> None:
    one, two = opened(place, shared=True), opened(place, shared=True)
    one.save(schema.transitions, ROW)
    two.save(schema.transitions, ROW)
    assert one.flush()
    assert two.flush()
    assert place.count("transitions") == 2


def test_the_next_one_gets_it_once_it_was_dropped(place: Place, opened: Open) -> None:
    opened(place).close()
    opened(place, shared=True).close()
    opened(place)


def test_a_process_that_was_killed_holds_nothing(place: Place, opened: Open) -> None:
    code = (
        "import sys; from rankwatch_monitor.store.repository import Repository; "
        "Repository(sys.argv[1]); print('has it', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, place.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "has it\n"
            with pytest.raises(ValueError, match=rf"held by .*{other.pid}"):
                opened(place)
        finally:
            other.kill()
            other.wait(10)

    def free() -> bool:
        try:
            return bool(opened(place))
        except ValueError:
            return False  # the server needs a moment to see that the connection has gone

    wait_for(free, "the lock is free")


def test_one_that_is_just_ending_is_waited_for(place: Place, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(place)
    monkeypatch.setattr("rankwatch_monitor.store.repository.LOCK_TIMEOUT", 20.0)
    tried: list[float] = []

    def meanwhile(seconds: float) -> None:
        tried.append(seconds)
        first.close()

    monkeypatch.setattr("rankwatch_monitor.store.session.time.sleep", meanwhile)
    opened(place)
    assert tried


def test_by_another_name_it_is_the_same_file(tmp_path: Path, opened: Open) -> None:
    opened(str(tmp_path / "rankwatch.db"))
    (tmp_path / "link.db").symlink_to("rankwatch.db")
    with pytest.raises(ValueError, match="is held by another monitor"):
        opened(f"sqlite:///{tmp_path}/link.db")


def test_a_folder_that_takes_no_lock_file_is_reported_and_no_reason_to_end(
    sqlite_place: Place, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    Path(sqlite_place.url).parent.mkdir()
    Path(sqlite_place.url + ".lock").mkdir()
    store = opened(sqlite_place)
    assert "cannot be locked against a second monitor" in caplog.text
    store.save(schema.transitions, ROW)
    assert store.flush()
    assert sqlite_place.count("transitions") == 1


def test_a_lock_whose_connection_died_is_taken_again(
    postgres: PostgreSQL, postgres_place: Place, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(postgres_place)
    with caplog.at_level(logging.INFO, "rankwatch.store"):
        end_sessions(postgres_place)
        store.save(schema.transitions, ROW)
        wait_for(lambda: store.writer.waiting == 0 and not store.db_error, "it is written")
    assert postgres_place.count("transitions") == 1
    with pytest.raises(ValueError, match="is held by"):
        opened(postgres_place)


def test_one_that_lost_its_lock_to_another_reports_it_and_writes_nothing(
    postgres_place: Place, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(postgres_place)
    monkeypatch.setattr("rankwatch_monitor.store.repository.LOCK_TIMEOUT", 20.0)
    # It cannot come back while the other one starts.
    open_again = first.writer._session.open
    monkeypatch.setattr(first.writer._session, "open", lambda *a, **k: (_ for _ in ()).throw(OSError("cut off")))
    end_sessions(postgres_place)
    second = opened(postgres_place)
    monkeypatch.setattr(first.writer._session, "open", open_again)
    called: list[int] = []
    first.save(schema.transitions, ROW, lambda: called.append(1))
    wait_for(lambda: "is held by rankwatch monitor" in first.db_error, "it states which has it")
    assert first.flush()
    assert called == [1], "it acts for its jobs all the same"
    assert postgres_place.count("transitions") == 0
    second.close()
    wait_for(lambda: not first.db_error, "it has the lock again")
    assert first.flush()
    assert postgres_place.count("transitions") == 1


def end_sessions(place: Place) -> None:
    place.ask(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and pid <> pg_backend_pid()"
    )
