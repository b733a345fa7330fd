"""Brings a database to the current schema, at each start and in one transaction.

A new database gets the tables of :mod:`.schema`, an older one the changes since its version. The version is stored in
the table ``rankwatch_version``: another application may use the same PostgreSQL database and Alembic's default table.
Alembic is slow to import, so it is only loaded when an upgrade is needed.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select

from rankwatch_monitor.store import schema
from rankwatch_monitor.store.locks import acquire_upgrade_lock

log = logging.getLogger("rankwatch.store")

VERSION_TABLE: Final = "rankwatch_version"
VERSIONS: Final = ("0001",)
"""The schema versions known to this version of Rankwatch, newest last; each has a file in ``migrations/versions``."""
_version = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))
MIGRATIONS: Final = Path(__file__).parent / "migrations"


class NewerError(ValueError):
    """The database was upgraded by a newer version of Rankwatch."""


def version_of(connection: Connection) -> str | None:
    """The version of a database's schema; None when none is recorded."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(select(_version.c.version_num)).scalar_one_or_none()


def upgrade(connection: Connection) -> None:
    """Upgrade the database to the newest version, in a transaction of its own.

    Raises:
        NewerError: the database has a newer schema than this version of Rankwatch.
        ValueError: its table ``jobs`` belongs to another application.
    """
    found = version_of(connection)
    connection.rollback()
    if found == VERSIONS[-1]:
        return
    with connection.begin():
        acquire_upgrade_lock(connection)
        found = version_of(connection)
        if found == VERSIONS[-1]:
            return  # upgraded by another monitor meanwhile
        if found is not None and found not in VERSIONS:
            raise NewerError(
                f"the database {connection.engine.url} is of version {found}, which this version of Rankwatch does not "
                f"know (it knows {VERSIONS[-1]}): upgrade Rankwatch, or name another --database"
            )
        if found is not None:
            run_migrations(connection)
            log.info("the database was upgraded from version %s to %s", found, VERSIONS[-1])
            return
        if inspect(connection).has_table("jobs"):
            raise ValueError(
                f"the database {connection.engine.url} has a table jobs that is not Rankwatch's: name another "
                "--database"
            )
        schema.metadata.create_all(connection)
        _version.create(connection)
        connection.execute(insert(_version).values(version_num=VERSIONS[-1]))


def run_migrations(connection: Connection) -> None:
    """Run all migrations that are due within the current transaction."""
    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)  # it lists its plug-ins
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
