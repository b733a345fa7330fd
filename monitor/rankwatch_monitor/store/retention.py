"""Removes what is too old, a little at a time, so that no write waits for it.

A job goes with all that is stored of it once nobody has heard of it for long enough. The file of a SQLite database
does not become smaller: its free pages are used again, so it stays at the size that it once needed. Giving them back
(`auto_vacuum`) would move pages at each removal, and an existing file must be rewritten to have it at all.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Connection, Table, delete, select, tuple_

from rankwatch_monitor.store import schema
from rankwatch_monitor.store.reading import database_now

PIECE: Final = 500
"""Rows that one transaction removes at most, in some milliseconds."""
_PARTS: Final = (
    (schema.incidents, schema.incidents.c.job_id),
    (schema.transitions, schema.transitions.c.job_id),
    (schema.directives, schema.directives.c.job_id),
    (schema.messages, schema.messages.c.job_id),
    (schema.performances, schema.performances.c.job_id),
    (schema.nodes, schema.nodes.c.job_id),
    (schema.leases, schema.leases.c.job_id),
)


class Task:
    """One round: all jobs last heard before a time, but those that are held."""

    def __init__(self, older_than: float, held: frozenset[str]) -> None:
        self._older_than, self._held = older_than, held
        self.jobs = 0
        """Jobs that are gone altogether."""

    def remove_some(self, connection: Connection) -> bool:
        """Remove up to :data:`PIECE` rows; True when there is nothing left to do."""
        left = PIECE
        for job_id in self._due(connection):
            for table, column in _PARTS:
                left -= _remove(connection, table, column, job_id, left)
                if left <= 0:
                    return False
            connection.execute(delete(schema.jobs).where(schema.jobs.c.id == job_id))
            self.jobs += 1
            left -= 1
            if left <= 0:
                return False
        return True

    def _due(self, connection: Connection) -> list[str]:
        jobs, leases = schema.jobs.c, schema.leases.c
        leased = select(leases.job_id).where(leases.ends_at > database_now(connection))
        query = (
            select(jobs.id).where(jobs.last_heard < self._older_than, jobs.id.not_in(leased)).order_by(jobs.last_heard)
        )
        found = []
        for job_id in connection.execute(query).scalars():
            if job_id not in self._held:
                found.append(job_id)
                if len(found) == PIECE:
                    break
        return found


def _remove(connection: Connection, table: Table, job_id_of: Column[str], job_id: str, most: int) -> int:
    keys = list(table.primary_key)
    some = select(*keys).where(job_id_of == job_id).limit(most)
    return connection.execute(delete(table).where(tuple_(*keys).in_(some))).rowcount
