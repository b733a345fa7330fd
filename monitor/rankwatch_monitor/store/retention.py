"""Deletes expired jobs in small transactions, so that no write waits for long.

A job expires with all its rows after a period without telemetry. A SQLite file does not shrink: its free pages are
reused. ``auto_vacuum`` would move pages at each deletion, and an existing file must be rewritten to enable it.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Connection, Table, delete, select, tuple_

from rankwatch_monitor.store import schema
from rankwatch_monitor.store.engine import database_now

CHUNK: Final = 500
"""Rows deleted in one transaction at most, which takes some milliseconds."""
_PARTS: Final = (
    (schema.incidents, schema.incidents.c.job_id),
    (schema.flight_dumps, schema.flight_dumps.c.job_id),
    (schema.transitions, schema.transitions.c.job_id),
    (schema.directives, schema.directives.c.job_id),
    (schema.messages, schema.messages.c.job_id),
    (schema.performances, schema.performances.c.job_id),
    (schema.trends, schema.trends.c.job_id),
    (schema.launchers, schema.launchers.c.job_id),
    (schema.leases, schema.leases.c.job_id),
)


class RetentionTask:
    """Deletes all jobs without telemetry since ``older_than``, except those in memory or under a lease."""

    def __init__(self, older_than: float, in_memory: frozenset[str]) -> None:
        self._older_than, self._in_memory = older_than, in_memory
        self.jobs = 0
        """Jobs deleted completely so far."""

    def delete_chunk(self, connection: Connection) -> bool:
        """Delete up to :data:`CHUNK` rows; True when nothing is left."""
        left = CHUNK
        for job_id in self._expired(connection):
            for table, column in _PARTS:
                left -= _delete(connection, table, column, job_id, left)
                if left <= 0:
                    return False
            connection.execute(delete(schema.jobs).where(schema.jobs.c.id == job_id))
            self.jobs += 1
            left -= 1
            if left <= 0:
                return False
        return True

    def _expired(self, connection: Connection) -> list[str]:
        jobs, leases = schema.jobs.c, schema.leases.c
        leased = select(leases.job_id).where(leases.ends_at > database_now(connection))
        query = (
            select(jobs.id).where(jobs.last_heard < self._older_than, jobs.id.not_in(leased)).order_by(jobs.last_heard)
        )
        found = []
        for job_id in connection.execute(query).scalars():
            if job_id not in self._in_memory:
                found.append(job_id)
                if len(found) == CHUNK:
                    break
        return found


def _delete(connection: Connection, table: Table, job_id_of: Column[str], job_id: str, most: int) -> int:
    keys = list(table.primary_key)
    some = select(*keys).where(job_id_of == job_id).limit(most)
    return connection.execute(delete(table).where(tuple_(*keys).in_(some))).rowcount
