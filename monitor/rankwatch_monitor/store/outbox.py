"""The outbox of webhook messages: stored together with the rows they are about, deleted once delivered.

A row is one message to one receiver, see :data:`.schema.messages`. It is committed in one transaction with the row
of its job or incident, so that a killed monitor has stored either both or neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, select
from sqlalchemy.exc import SQLAlchemyError

from rankwatch_monitor.store import schema
from rankwatch_monitor.store.db_errors import classify
from rankwatch_monitor.store.repository import Repository
from rankwatch_monitor.store.writer import Companion

log = logging.getLogger("rankwatch.store")


class Outbox:
    """The undelivered messages of all receivers."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._loaded: dict[str, list[dict[str, Any]]] = {}
        """Messages that were read with their job."""
        repository.on_jobs_loaded = self._load_with

    def load(self) -> list[dict[str, Any]]:
        """All undelivered messages in order; waits for the database, so for the start only.

        Empty where they are read with their jobs: in a shared database, and in one that cannot be read yet.
        """
        if self._repository.shared or self._repository.db_error:
            return []
        try:
            with self._repository.engine.connect() as connection:
                return _rows(connection, select(schema.messages))
        except SQLAlchemyError as error:
            why = classify(error, self._repository.engine.url)
            log.error("undelivered webhook messages cannot be read (%s); they wait for the next start", why)
            return []

    def take_loaded(self, job_id: str) -> list[dict[str, Any]]:
        """The undelivered messages that were read with a job, in order, once."""
        return self._loaded.pop(job_id, [])

    def _load_with(self, connection: Connection, job_ids: Collection[str]) -> None:
        loaded: dict[str, list[dict[str, Any]]] = {job_id: [] for job_id in job_ids}
        for row in _rows(connection, select(schema.messages).where(schema.messages.c.job_id.in_(job_ids))):
            loaded[row["job_id"]].append(row)
        self._loaded |= loaded

    def keep(self, rows: Iterable[tuple[Mapping[str, Any], Callable[[], None]]]) -> None:
        """Store messages without a row they belong to, each with the callback for its commit."""
        for row, on_commit in rows:
            self._repository.save(schema.messages, row, on_commit)

    def remove(self, queue: str, key: str) -> None:
        """Delete a message that was delivered or given up."""
        self._repository.remove(schema.messages, {"queue": queue, "key": key})

    def attach(self, about: Callable[[str], Sequence[tuple[Mapping[str, Any], Callable[[], None]]]]) -> None:
        """Commit, with every row of a job, the new messages that ``about`` returns for the job's ID."""

        def companions(table: Table, values: Mapping[str, Any]) -> Sequence[Companion]:
            if table is schema.messages:
                return ()
            job_id = values["id"] if table is schema.jobs else values.get("job_id")
            return [(schema.messages, *message) for message in about(job_id)] if job_id is not None else ()

        self._repository.companions = companions


def _rows(connection: Connection, query: Select[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(query.order_by(schema.messages.c.number)).mappings()]
