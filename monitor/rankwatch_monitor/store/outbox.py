"""Messages that wait for a receiver: kept with what they are about, gone once they were delivered.

A row stands for one message to one receiver, see :data:`.schema.messages`. Rows go in beside the row of the job or the
incident they are about, so that a monitor which is killed between the two has either stored both or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, Table, select

from rankwatch_monitor.store import schema
from rankwatch_monitor.store.repository import Companion, Repository


class Messages:
    """The rows of all receivers in one database."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def load(self) -> list[dict[str, Any]]:
        """All that wait, in their order; for the start, since it waits for the disk.

        None of a database that monitors share: there they come with their job, see :meth:`load_of`.
        """
        return [] if self._repository.shared else self._load(select(schema.messages))

    def load_of(self, job_id: str) -> list[dict[str, Any]]:
        """Those about one job, in their order; waits for the disk."""
        return self._load(select(schema.messages).where(schema.messages.c.job_id == job_id))

    def _load(self, query: Select[Any]) -> list[dict[str, Any]]:
        with self._repository.engine.connect() as connection:
            ordered = query.order_by(schema.messages.c.number)
            return [dict(row) for row in connection.execute(ordered).mappings()]

    def keep(self, rows: Iterable[tuple[Mapping[str, Any], Callable[[], None]]]) -> None:
        """Queue rows by themselves, each with what is called once it is kept."""
        for row, then in rows:
            self._repository.save(schema.messages, row, then)

    def remove(self, queue: str, key: str) -> None:
        """Queue the removal of one that needs no more delivery."""
        self._repository.remove(schema.messages, {"queue": queue, "key": key})

    def accompany(self, about: Callable[[str], Sequence[tuple[Mapping[str, Any], Callable[[], None]]]]) -> None:
        """Keep, with every row that is saved about a job, the messages that ``about`` has for the job's id."""

        def beside(table: Table, values: Mapping[str, Any]) -> Sequence[Companion]:
            if table is schema.messages:
                return ()
            job_id = values["id"] if table is schema.jobs else values.get("job_id")
            return [(schema.messages, *kept) for kept in about(job_id)] if job_id is not None else ()

        self._repository.beside = beside
