"""A real monitor on a database that fails: what hangs is still named, and what was stored is not lost."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.monitor_process import Api, RunningMonitor, environment, running_monitor
from support.otlp import reports_of_all
from support.postgres import running_postgres
from support.waiting import wait_for

WORLD, LIMIT = 3, 2.0


def send(api: Api, job: str, overdue: float = 0.0) -> None:
    api.report(*reports_of_all(job, WORLD, overdue=overdue))


def begins(api: Api, job: str) -> None:
    send(api, job)
    api.change_policy(job, section_timeouts={"step": LIMIT})


def hangs_and_is_named(api: Api, job: str) -> str:
    """Have a job hang; return the id of its incident."""
    send(api, job, overdue=LIMIT + 1)
    (incident,) = wait_for(lambda: api.incidents(job), f"the hang of {job} is named")
    assert "step" in incident["reason"]
    return str(incident["id"])


def ready(api: Api) -> bool:
    return api.get("/readyz").status_code == 200


def unready(api: Api, job: str) -> str:
    """Wait until it states that it is not well; return its words."""

    def reported() -> str:
        send(api, job)
        answer = api.get("/readyz")
        return answer.text if answer.status_code == 503 else ""

    return wait_for(reported, "it reports that it keeps nothing", 30)


def stored(database: Path, table: str) -> set[str]:
    connection = sqlite3.connect(database)
    try:
        return {str(row[0]) for row in connection.execute(f"select id from {table}")}
    finally:
        connection.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "rankwatch-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"mount: a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def test_a_disk_that_is_full(tmp_path: Path, small_disk: Path) -> None:
    database = small_disk / "rankwatch.db"
    with running_monitor(tmp_path / "monitor", database=database) as monitor, Api(monitor.url) as api:
        begins(api, "early")
        early = hangs_and_is_named(api, "early")
        wait_for(lambda: early in stored(database, "incidents"), "what happened before is stored")
        fill(small_disk / "ballast")
        assert "memory" in unready(api, "early")
        begins(api, "late")
        late = hangs_and_is_named(api, "late")
        assert monitor.printed().count("make room on the disk of") == 1, "stated once, with what to do"
        assert stored(database, "incidents") == {early}
        (small_disk / "ballast").unlink()
        wait_for(lambda: late in stored(database, "incidents"), "what had waited is written by itself")
        wait_for(lambda: ready(api), "it is ready again")
        assert stored(database, "jobs") == {"early", "late"}
        monitor.kill()
    with running_monitor(tmp_path / "again", database=database) as monitor, Api(monitor.url) as api:
        assert {api.incidents(job)[0]["id"] for job in ("early", "late")} == {early, late}


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


def damage(database: Path) -> bytes:
    """Overwrite all pages but the first; return what the file is then."""
    content = bytearray(database.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    database.write_bytes(content)
    return bytes(content)


def truncate(database: Path) -> bytes:
    content = database.read_bytes()[:6000]
    database.write_bytes(content)
    return content


@pytest.mark.parametrize("spoil", [damage, truncate])
def test_a_file_that_is_damaged_at_the_start(spoil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with running_monitor(tmp_path / "first") as monitor, Api(monitor.url) as api:
        begins(api, "before")
        monitor.process.terminate()
        monitor.process.wait(20)
    content = spoil(monitor.database)
    with running_monitor(tmp_path / "second", database=monitor.database) as again, Api(again.url) as api:
        begins(api, "j")
        hangs_and_is_named(api, "j")
        assert "memory" in unready(api, "j")
        assert "sqlite3 " in again.printed()
        assert ".recover" in again.printed()
        assert "another --database" in again.printed()
        again.process.terminate()
        assert again.process.wait(20) == 0
    assert monitor.database.read_bytes() == content, "it is left as it is"


@pytest.mark.long
def test_a_file_that_is_damaged_while_it_is_used(tmp_path: Path) -> None:
    with running_monitor(tmp_path) as monitor, Api(monitor.url) as api:
        begins(api, "j")
        wait_for(lambda: "j" in stored(monitor.database, "jobs"), "it is stored")
        connection = sqlite3.connect(monitor.database)
        connection.execute("pragma wal_checkpoint(truncate)")
        damage(monitor.database)
        connection.close()
        assert "memory" in unready(api, "j")
        hangs_and_is_named(api, "j")
        monitor.process.terminate()
        assert monitor.process.wait(20) == 0


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("to be kept\n" * 500)
    command = [sys.executable, "-m", "rankwatch_monitor", "--no-token", "--port", "0", "--database", str(notes)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 2
    assert f"{notes}: file is not a database; name another file with --database" in done.stderr
    assert notes.read_text() == "to be kept\n" * 500
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt"]


@pytest.mark.long
def test_a_second_monitor_on_one_file_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with running_monitor(tmp_path) as monitor, Api(monitor.url) as api:
        command = [
            sys.executable,
            "-m",
            "rankwatch_monitor",
            "--no-token",
            "--port",
            "0",
            "--database",
            str(monitor.database),
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)
        assert done.returncode == 2
        assert f"is held by another monitor (process {monitor.pid})" in done.stderr
        assert ready(api)


@contextlib.contextmanager
def monitor_on(folder: Path, url: str) -> Iterator[RunningMonitor]:
    with running_monitor(folder, "--database", url) as monitor:  # the last of two flags counts
        yield monitor


@pytest.mark.long
def test_postgresql_that_goes_and_comes_back(tmp_path: Path) -> None:
    with running_postgres() as server:
        url = server.new_database()
        with monitor_on(tmp_path / "first", url) as monitor, Api(monitor.url) as api:
            begins(api, "early")
            early = hangs_and_is_named(api, "early")
            with server.connect("test1") as connection:
                query = "select 1 from incidents where id = %s"
                wait_for(lambda: connection.execute(query, [early]).fetchone(), "what happened before is stored")
            server.kill()
            assert "memory" in unready(api, "early")
            begins(api, "late")
            late = hangs_and_is_named(api, "late")
            assert "check that the server of" in monitor.printed()
            server.start()
            wait_for(lambda: ready(api), "it is ready again", 30)
            monitor.kill()
        with monitor_on(tmp_path / "second", url) as monitor, Api(monitor.url) as api:
            assert {api.incidents(job)[0]["id"] for job in ("early", "late")} == {early, late}


@pytest.mark.long
def test_postgresql_that_is_not_there_at_the_start(tmp_path: Path) -> None:
    with running_postgres() as server:
        url = server.new_database()
        server.stop()
        with monitor_on(tmp_path, url) as monitor, Api(monitor.url) as api:
            begins(api, "j")
            incident = hangs_and_is_named(api, "j")
            assert "memory" in unready(api, "j")
            assert f"127.0.0.1:{server.port}/test1 runs and is reachable from here" in monitor.printed()
            server.start()
            wait_for(lambda: ready(api), "it is ready", 30)
            with server.connect("test1") as connection:
                assert connection.execute("select id from incidents").fetchall() == [(incident,)]


@pytest.mark.long
def test_postgresql_that_comes_later_than_the_monitor_gives_jobs_their_past(tmp_path: Path) -> None:
    with running_postgres() as server:
        url = server.new_database()
        with monitor_on(tmp_path / "first", url) as monitor, Api(monitor.url) as api:
            for job in ("early", "quiet"):
                begins(api, job)
            api.change_policy("early", max_restarts=7)
            early = hangs_and_is_named(api, "early")
            began = api.job("early")["started_at"]
            monitor.process.terminate()
            monitor.process.wait(20)
        server.stop()
        with monitor_on(tmp_path / "second", url) as monitor, Api(monitor.url) as api:
            begins(api, "early")
            again = hangs_and_is_named(api, "early")
            assert "memory" in unready(api, "early")
            assert {job["id"] for job in api.jobs()} == {"early"}
            server.start()
            wait_for(lambda: ready(api), "it is ready", 30)
            assert {job["id"] for job in api.jobs()} == {"early", "quiet"}
            assert {incident["id"] for incident in api.incidents("early")} == {early, again}
            assert api.job("early")["started_at"] == began
            assert api.read("/jobs/early/policy")["max_restarts"] == 7
            figures = {name: value for (name, labels), value in api.metrics().items() if not labels}
            assert figures["rankwatch_store_rows_lost_total"] == 0
            monitor.kill()
        with monitor_on(tmp_path / "third", url) as monitor, Api(monitor.url) as api:
            assert {incident["id"] for incident in api.incidents("early")} == {early, again}
            assert api.job("early")["started_at"] == began


@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_a_file_that_was_moved_away_is_reported_and_not_written_on(tmp_path: Path, how: str) -> None:
    with running_monitor(tmp_path) as monitor, Api(monitor.url) as api:
        send(api, "before")
        wait_for(lambda: ready(api), "it works")
        elsewhere = monitor.database.with_name("elsewhere.db")
        monitor.database.rename(elsewhere)
        if how == "replaced":
            monitor.database.touch()
        unready(api, "during")
        wait_for(lambda: "was moved or removed" in monitor.log.read_text(), "it says so")
        assert "during" in [job["id"] for job in api.jobs()], "it goes on in memory"
