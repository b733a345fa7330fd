"""What is read: jobs as a monitor takes them up, and the little that a list of jobs shows."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from sqlalchemy import Connection, Float, Integer, RowMapping, Table, and_, func, literal_column, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import ColumnElement

from rankwatch_monitor.core.job import KEPT_DIRECTIVES, KEPT_INCIDENTS, Job
from rankwatch_monitor.store import codec, performance_codec, schema

log = logging.getLogger("rankwatch.store")


class Summary(NamedTuple):
    """A job as a list shows it; times are unix seconds."""

    id: str
    name: str
    state: str
    """As of the newest transition; empty when there is none."""
    world_size: int
    attempt: int
    started_at: float
    last_heard: float
    holder: str | None
    """The monitor that holds it by a lease now."""


def read_jobs(connection: Connection, now: float, most: int, ranks: int) -> tuple[list[Job], SQLAlchemyError | None]:
    """The ``most`` jobs heard last as far as they can be read, and the error that ended the reading, if any.

    Left out are jobs with which those heard later would have more than ``ranks`` ranks, and, which is said, rows that
    cannot be read (a newer version wrote them, say).
    """
    jobs: list[Job] = []
    try:
        newest = select(schema.jobs).order_by(schema.jobs.c.last_heard.desc()).limit(most)
        for row in connection.execute(newest).mappings().all():
            try:
                world = int(row["body"]["world_size"])
                if world <= ranks:
                    jobs.append(_job(connection, row, now))
                    ranks -= world
            except (ValueError, KeyError, TypeError) as error:
                log.warning("the stored job %s is left out, as it cannot be read: %r", row["id"], error)
    except SQLAlchemyError as error:
        return jobs, error
    return jobs, None


def read_job(connection: Connection, job_id: str, now: float) -> Job | None:
    """One job; None when it is not stored or, which is said, cannot be read."""
    row = connection.execute(select(schema.jobs).where(schema.jobs.c.id == job_id)).mappings().first()
    if row is None:
        return None
    try:
        return _job(connection, row, now)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("the stored job %s begins anew, as it cannot be read: %r", job_id, error)
        return None


def read_summaries(connection: Connection, most: int) -> list[Summary]:
    """The ``most`` jobs heard last."""
    jobs, transitions, leases = schema.jobs.c, schema.transitions.c, schema.leases.c
    state = (
        select(transitions.state)
        .where(transitions.job_id == jobs.id)
        .order_by(transitions.at.desc(), transitions.number.desc())
        .limit(1)
        .scalar_subquery()
    )
    # The body is large for a large job, so the database picks what is wanted of it.
    query = (
        select(
            jobs.id,
            jobs.body["name"].as_string().label("name"),
            func.coalesce(state, "").label("state"),
            jobs.body["world_size"].as_integer().cast(Integer).label("world_size"),
            jobs.body["attempt"].as_integer().cast(Integer).label("attempt"),
            jobs.created_at,
            jobs.last_heard,
            leases.owner,
        )
        .join_from(
            schema.jobs,
            schema.leases,
            and_(leases.job_id == jobs.id, leases.ends_at > database_now(connection)),
            isouter=True,
        )
        .order_by(jobs.last_heard.desc())
        .limit(most)
    )
    return [Summary(*row) for row in connection.execute(query)]


def database_now(connection: Connection) -> ColumnElement[float]:
    """Unix seconds by the database's clock."""
    if connection.dialect.name == "postgresql":
        return func.extract("epoch", func.clock_timestamp()).cast(Float)
    return literal_column("((julianday('now') - 2440587.5) * 86400.0)", Float)


def _job(connection: Connection, row: RowMapping, now: float) -> Job:
    query = select(schema.nodes.c.body).where(schema.nodes.c.job_id == row["id"])
    job = codec.job_of(dict(row), now, connection.execute(query).scalar())
    job.incidents = [codec.incident_of(r) for r in _newest(connection, schema.incidents, job.id)]
    job.directives = [codec.directive_of(r) for r in _newest(connection, schema.directives, job.id)]
    # The job's own row may be older than its newest directive; a number must never be given twice.
    job.last_directive = max([job.last_directive, *(directive.id for directive in job.directives)])
    query = select(schema.performances).where(schema.performances.c.job_id == job.id)
    if (stored := connection.execute(query).mappings().first()) is not None:
        performance_codec.restore(job.performance, stored["body"])
    return job


def _newest(connection: Connection, table: Table, job_id: str) -> list[dict[str, Any]]:
    order, limit = (table.c.opened_at, KEPT_INCIDENTS) if table is schema.incidents else (table.c.id, KEPT_DIRECTIVES)
    query = select(table).where(table.c.job_id == job_id).order_by(order.desc()).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()][::-1]
