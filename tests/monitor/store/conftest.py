"""Each test that asks for ``place`` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from rankwatch_monitor.store.repository import Repository
from support.postgres import PostgreSQL, running_postgres


@dataclass(frozen=True)
class Place:
    """A database, and a way to it beside the store's own."""

    url: str
    """As given to the store: a path for SQLite."""

    @property
    def kind(self) -> str:
        return "postgresql" if "://" in self.url else "sqlite"

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement by itself; return its rows, if it has any."""
        url = (
            self.url.replace("postgresql://", "postgresql+psycopg://") if "://" in self.url else f"sqlite:///{self.url}"
        )
        engine = create_engine(url, poolclass=NullPool)
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    def count(self, table: str) -> int:
        return int(self.ask(f"select count(*) from {table}")[0][0])


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "deep" / "rankwatch.db"))


@pytest.fixture
def postgres_place(postgres: PostgreSQL) -> Place:
    return Place(postgres.new_database())


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue("sqlite_place" if request.param == "sqlite" else "postgres_place")
    return found


@pytest.fixture
def opened() -> Iterator[Callable[..., Repository]]:
    """Opens repositories; those that the test does not close are closed at its end, and their threads have to end."""
    made: list[Repository] = []

    def make(place: Place | str, **more: Any) -> Repository:
        made.append(Repository(place if isinstance(place, str) else place.url, **more))
        return made[-1]

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [each.close() for each in made])
        yield make
    assert not any(each.writer._thread.is_alive() for each in made)


@pytest.fixture
def store(place: Place, opened: Callable[..., Repository]) -> Repository:
    return opened(place)
