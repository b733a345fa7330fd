"""A monitor that is frozen within a transaction: PostgreSQL ends it, and what it has locked is free again."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from monitor.store.conftest import Place
from rankwatch_monitor.store.db_errors import Kind, classify
from rankwatch_monitor.store.engine import open_engine

PATIENCE = "-c lock_timeout=60s"
"""Of the other connection: with the lock still held it fails instead of waiting for ever."""


def test_a_transaction_that_is_left_open_is_ended_and_its_row_is_free(postgres_place: Place) -> None:
    postgres_place.ask("create table held (id int primary key, by_whom text)")
    postgres_place.ask("insert into held values (1, 'nobody')")
    paused = open_engine(postgres_place.url)
    url = postgres_place.url.replace("postgresql://", "postgresql+psycopg://")
    other = create_engine(url, poolclass=NullPool, connect_args={"options": PATIENCE})
    with paused.connect() as connection:
        connection.execute(text("update held set by_whom = 'the paused one' where id = 1"))
        server_process = connection.execute(text("select pg_backend_pid()")).scalar_one()
        with other.begin() as second:  # waits for the row until the server ends the first transaction
            second.execute(text("update held set by_whom = by_whom || ', then the other' where id = 1"))
        assert postgres_place.ask("select by_whom from held") == [("nobody, then the other",)], "it was rolled back"
        left = postgres_place.ask(f"select count(*) from pg_stat_activity where pid = {server_process}")
        assert left == [(0,)], "its session was ended, too"
        with pytest.raises(DBAPIError, match="idle-in-transaction timeout") as caught:
            connection.execute(text("select 1"))
        assert caught.value.connection_invalidated
    with paused.connect() as connection:
        assert connection.execute(text("select 1")).scalar_one() == 1, "the pool opens another connection"
    paused.dispose()


def test_what_another_session_has_locked_is_told_apart_from_a_locked_file(postgres_place: Place) -> None:
    postgres_place.ask("create table held (id int primary key)")
    holder, other = open_engine(postgres_place.url), open_engine(postgres_place.url)
    try:
        with holder.begin() as holding, other.begin() as waiting:
            holding.execute(text("lock table held"))
            waiting.execute(text("set local lock_timeout = '50ms'"))
            with pytest.raises(OperationalError) as refused:
                waiting.execute(text("select * from held"))
        assert classify(refused.value, other.url).kind is Kind.LOCKED_BY_SESSION
    finally:
        holder.dispose()
        other.dispose()
