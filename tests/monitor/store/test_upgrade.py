"""A database is brought to the newest version at the start, once, and with all that is in it."""

from __future__ import annotations

import shutil
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
from sqlalchemy import Connection

from monitor.core.scene import Scene
from monitor.store.conftest import Place
from rankwatch_monitor.store import schema, upgrade
from rankwatch_monitor.store.codec import job_row
from rankwatch_monitor.store.engine import WRITES, open_engine
from rankwatch_monitor.store.repository import Repository

Open = Callable[..., Repository]
SECOND = """
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    op.add_column("jobs", sa.Column("colour", sa.String))
    op.execute("update jobs set colour = 'red'")
"""


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


def stored(place: Place, opened: Open) -> None:
    """A database of the first version with a job in it."""
    repository = opened(place)
    repository.save(schema.jobs, job_row(Scene(hosts=1).run(3).job))
    repository.close()


@pytest.fixture
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes a second version of the schema the newest one."""

    def install() -> None:
        folder = shutil.copytree(upgrade.MIGRATIONS, tmp_path / "migrations")
        (folder / "versions" / "v0002_colour.py").write_text(SECOND)
        monkeypatch.setattr(upgrade, "MIGRATIONS", folder)
        monkeypatch.setattr(upgrade, "VERSIONS", ("0001", "0002"))

    return install


def test_the_versions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(upgrade.MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    assert tuple(reversed([script.revision for script in scripts.walk_revisions()])) == upgrade.VERSIONS


def test_a_new_database_has_the_schema_of_the_models(place: Place, opened: Open, connection: Connection) -> None:
    opened(place)
    assert differences(connection) == []
    assert place.ask("select version_num from rankwatch_version") == [(upgrade.VERSIONS[-1],)]


def test_a_database_of_an_earlier_version_is_upgraded_with_its_rows(
    place: Place, opened: Open, second: Callable[[], None]
) -> None:
    stored(place, opened)
    second()
    (job,) = opened(place).load(5.0)
    assert job.world_size > 0
    assert place.ask("select colour from jobs") == [("red",)]
    assert place.ask("select version_num from rankwatch_version") == [("0002",)]


def test_a_newer_database_is_refused_and_left_alone(place: Place, opened: Open) -> None:
    opened(place).close()
    place.ask("update rankwatch_version set version_num = '9999'")
    with pytest.raises(ValueError, match=r"is of version 9999.*knows 0001.*upgrade Rankwatch, or name another"):
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
    place: Place, opened: Open, second: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(place, opened)
    second()
    real = upgrade.run_migrations

    def fails(connection: Connection) -> None:
        real(connection)
        raise ValueError("the power went")

    monkeypatch.setattr(upgrade, "run_migrations", fails)
    with pytest.raises(ValueError, match="the power went"):
        opened(place)
    assert place.ask("select version_num from rankwatch_version") == [("0001",)]
    with pytest.raises(Exception, match="colour"):
        place.ask("select colour from jobs")
    monkeypatch.setattr(upgrade, "run_migrations", real)
    assert len(opened(place).load(1.0)) == 1


def test_several_that_start_at_once_upgrade_it_once(place: Place, opened: Open, second: Callable[[], None]) -> None:
    stored(place, opened)
    second()
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
    assert place.ask("select version_num from rankwatch_version") == [("0002",)]


def test_alembic_is_imported_for_a_database_of_an_earlier_version_alone(sqlite_place: Place, opened: Open) -> None:
    opened(sqlite_place).close()
    code = (
        "import sys; from rankwatch_monitor.store import upgrade; upgrade.VERSIONS = tuple(sys.argv[2:]); "
        "from rankwatch_monitor.store.repository import Repository; "
        "Repository(sys.argv[1]).close(); print('alembic' in sys.modules)"
    )
    seen = [
        subprocess.run(
            [sys.executable, "-c", code, url, *versions], capture_output=True, text=True, check=True
        ).stdout.strip()
        for url, *versions in (
            (sqlite_place.url, "0001"),
            (sqlite_place.url + "2", "0001"),
            (sqlite_place.url, "0001", "0002"),
        )
    ]
    assert seen == ["False", "False", "True"]
