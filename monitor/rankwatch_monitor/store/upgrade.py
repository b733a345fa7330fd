"""Brings a database to the schema of this version, at each start and in one transaction.

The version stands in the table ``rankwatch_version``, a name of our own since a PostgreSQL database may be another
application's as well. Alembic, which costs a moment to import, is only asked when that version is not the newest.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, MetaData, String, Table, inspect, select

from rankwatch_monitor.store.locks import take_upgrade_lock

log = logging.getLogger("rankwatch.store")

VERSION_TABLE: Final = "rankwatch_version"
VERSIONS: Final = ("0001", "0002", "0003")
"""Those that this version of Rankwatch knows, the newest last; each has a file in ``migrations/versions``."""
_version = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))
_JOBS: Final = {"id", "created_at", "last_heard", "policy", "learned", "body"}


class NewerError(ValueError):
    """A newer version of Rankwatch has made this database what it is."""


def version_of(connection: Connection) -> str | None:
    """The version of a database's schema; None where none is noted."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(select(_version.c.version_num)).scalar_one_or_none()


def upgrade(connection: Connection) -> None:
    """Bring the database to the newest version, within a transaction of this connection that it ends.

    Tables that were made before versions were noted are taken over as they are; those that are not there are made.

    Raises:
        NewerError: the database is ahead of this version of Rankwatch.
        ValueError: its table ``jobs`` is somebody else's.
    """
    found = version_of(connection)
    connection.rollback()
    if found == VERSIONS[-1]:
        return
    with connection.begin():
        take_upgrade_lock(connection)
        found = version_of(connection)
        if found == VERSIONS[-1]:
            return  # another monitor was faster
        if found is not None and found not in VERSIONS:
            raise NewerError(
                f"the database {connection.engine.url} is of version {found}, which this version of Rankwatch does not "
                f"know (it knows {VERSIONS[-1]}): upgrade Rankwatch, or name another --database"
            )
        if found is None and inspect(connection).has_table("jobs"):
            columns = {column["name"] for column in inspect(connection).get_columns("jobs")}
            if not columns >= _JOBS:
                raise ValueError(
                    f"the database {connection.engine.url} has a table jobs that is not Rankwatch's: name another "
                    "--database"
                )
        run_migrations(connection)
        if found is not None:
            log.info("the database was upgraded from version %s to %s", found, VERSIONS[-1])


def run_migrations(connection: Connection, to: str = "head") -> None:
    """Run all migrations up to a version within the transaction that is under way."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, to)
