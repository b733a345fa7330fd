"""A database of any earlier version is brought to this one at the start, once, and with all that is in it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, Connection, column, select, table

from monitor.core.scene import Scene
from monitor.store.conftest import Place
from rankwatch_monitor.store import schema, upgrade
from rankwatch_monitor.store.codec import job_row
from rankwatch_monitor.store.engine import WRITES, open_engine
from rankwatch_monitor.store.repository import Repository

Open = Callable[..., Repository]
DATABASES = Path(__file__).parent / "databases"
OLD = sorted(path.stem for path in DATABASES.glob("*.sql"))
"""Dumps of files that earlier versions of Rankwatch wrote, before versions were noted."""


@pytest.fixture
def connection(place: Place) -> Iterator[Connection]:
    engine = open_engine(place.url)
    with engine.connect().execution_options(**{WRITES: True}) as connected:
        yield connected
    engine.dispose()


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(
        connection, opts={"version_table": upgrade.VERSION_TABLE, "compare_server_default": True}
    )
    found = list(compare_metadata(context, schema.metadata))
    connection.rollback()
    return found


def dump(place: Place, version: str) -> None:
    """Make a database as it was left by a version: its tables by the migrations, and a job's rows."""
    engine = open_engine(place.url)
    with engine.begin() as connection:
        upgrade.run_migrations(connection, version)
        scene = Scene(hosts=1).run(3)
        connection.execute(schema.jobs.insert().values(**job_row(scene.job)))
        row = {"job_id": scene.job.id, "at": 1.0, "state": "running", "reason": "as it was"}
        connection.execute(schema.transitions.insert().values(**row))
    engine.dispose()


def test_the_versions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(upgrade.__file__).parent / "migrations"))
    scripts = ScriptDirectory.from_config(config)
    assert tuple(reversed([script.revision for script in scripts.walk_revisions()])) == upgrade.VERSIONS


def test_a_new_database_has_the_schema_of_the_models(place: Place, opened: Open, connection: Connection) -> None:
    opened(place)
    assert differences(connection) == []
    assert place.ask("select version_num from rankwatch_version") == [(upgrade.VERSIONS[-1],)]


@pytest.mark.parametrize("version", upgrade.VERSIONS)
def test_each_version_is_brought_to_the_newest_with_its_rows(
    version: str, place: Place, opened: Open, connection: Connection
) -> None:
    dump(place, version)
    (job,) = opened(place).load(5.0)
    assert differences(connection) == []
    assert job.world_size > 0
    assert place.ask("select reason from transitions") == [("as it was",)]
    assert place.count("leases") == 0


def test_launchers_that_shared_a_row_get_one_each(place: Place, opened: Open) -> None:
    dump(place, "0005")
    engine = open_engine(place.url)
    with engine.begin() as connection:
        (body,) = connection.execute(select(schema.jobs.c.body)).one()
        nodes = table("nodes", column("job_id"), column("body", JSON))
        stored = [{**body["nodes"][0], "registration": {**body["nodes"][0]["registration"], "node": n}} for n in "ab"]
        connection.execute(nodes.insert().values(job_id="gpt", body=stored))
        connection.execute(schema.jobs.update().values(body={**body, "nodes": []}, id="gpt"))
    engine.dispose()
    (job,) = opened(place).load(5.0)
    assert sorted(job.nodes) == ["a", "b"]
    assert place.count("launchers") == 2


@pytest.mark.parametrize("old", OLD)
def test_a_file_from_before_versions_is_taken_over_as_it_is(old: str, sqlite_place: Place, opened: Open) -> None:
    path = Path(sqlite_place.url)
    path.parent.mkdir()
    file = sqlite3.connect(path)
    file.executescript((DATABASES / f"{old}.sql").read_text())
    file.close()
    before = {table: sqlite_place.ask(f"select * from {table}") for table in ("jobs", "incidents", "directives")}
    jobs = opened(sqlite_place).load(100.0)
    assert before["directives"]
    if old == "before_versions":  # what the first commits wrote of a job is left out, and stays
        assert len(jobs[0].directives) == len(before["directives"])
        assert len(jobs[0].incidents) == len(before["incidents"]) == 1
    after = {table: sqlite_place.ask(f"select * from {table}") for table in before}
    assert after == before
    engine = open_engine(sqlite_place.url)
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()


def test_a_newer_database_is_refused_and_left_alone(place: Place, opened: Open) -> None:
    opened(place).close()
    place.ask("update rankwatch_version set version_num = '9999'")
    with pytest.raises(ValueError, match=r"is of version 9999.*knows 0006.*upgrade Rankwatch, or name another"):
        opened(place)
    assert place.ask("select version_num from rankwatch_version") == [("9999",)]


def test_somebody_elses_table_of_that_name_is_refused(place: Place, opened: Open) -> None:
    engine = open_engine(place.url)
    engine.dispose()
    place.ask("create table jobs (id integer primary key, salary integer)")
    with pytest.raises(ValueError, match="table jobs that is not Rankwatch's: name another"):
        opened(place)
    assert place.count("jobs") == 0


def test_an_upgrade_that_fails_leaves_everything_as_it_was(
    place: Place, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump(place, "0001")
    real = upgrade.run_migrations

    def fails(connection: Connection) -> None:
        real(connection)
        raise ValueError("the power went")

    monkeypatch.setattr(upgrade, "run_migrations", fails)
    with pytest.raises(ValueError, match="the power went"):
        opened(place)
    assert place.ask("select version_num from rankwatch_version") == [("0001",)]
    with pytest.raises(Exception, match="leases"):
        place.count("leases")
    monkeypatch.undo()
    assert len(opened(place).load(1.0)) == 1


def test_several_that_start_at_once_upgrade_it_once(place: Place, opened: Open) -> None:
    dump(place, "0001")
    together = threading.Barrier(4)
    failures: list[Exception] = []

    def start() -> None:
        together.wait(10)
        try:
            opened(place, shared=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert place.ask("select version_num from rankwatch_version") == [("0006",)]


def test_alembic_is_not_imported_for_a_database_that_is_up_to_date(sqlite_place: Place, opened: Open) -> None:
    opened(sqlite_place).close()
    code = (
        "import sys; from rankwatch_monitor.store.repository import Repository; "
        "Repository(sys.argv[1]).close(); print('alembic' in sys.modules)"
    )
    seen = [
        subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=True).stdout.strip()
        for url in (sqlite_place.url, sqlite_place.url + "2")
    ]
    assert seen == ["False", "True"], "the twin is a new one"
