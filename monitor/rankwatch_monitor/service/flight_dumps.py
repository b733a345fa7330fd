"""Keeps the flight recorder dumps of a job's newest incidents in the database, and reads them as an archive.

Nothing here looks into a dump before it is asked for, and nothing anywhere unpickles one: they are JSON.
"""

from __future__ import annotations

import asyncio
import io
import zipfile
from dataclasses import replace
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from rankwatch.contract import flight
from rankwatch.contract.messages import Evidence
from rankwatch_monitor.core.incident_record import Incident, find_incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.flight_dumps import KEPT_INCIDENTS, with_dumps
from rankwatch_monitor.store import schema
from rankwatch_monitor.store.repository import Repository

MAX_ARCHIVE: Final = 256 << 20
"""Bytes of all dumps of one incident as JSON."""
_STORE_SECONDS: Final = 5.0


def keep(repository: Repository | None, job: Job, evidence: Evidence) -> Evidence:
    """Store the dumps of evidence that there is room for; the evidence with their sizes instead of their data."""
    incident = find_incident(job.incidents, evidence)
    if not evidence.dumps or repository is None or incident is None or repository.db_error:
        return replace(evidence, dumps=())
    before = with_dumps(job)
    if incident not in before and len(before) >= KEPT_INCIDENTS and incident.opened_at < before[0].opened_at:
        return replace(evidence, dumps=())
    sizes, kept = dict(incident.dumps), []
    for each in evidence.dumps:
        others = sum(size for rank, size in sizes.items() if rank != each.rank)
        if each.rank < flight.MAX_RANKS and others + each.size <= flight.MAX_INCIDENT:
            sizes[each.rank] = each.size
            row = {"incident_id": incident.id, "rank": each.rank, "job_id": job.id, "body": each.data}
            repository.save(schema.flight_dumps, row)
            kept.append(replace(each, data=""))
    if kept and incident not in before and len(before) >= KEPT_INCIDENTS:
        oldest = before[0]
        for rank in oldest.dumps:
            repository.remove(schema.flight_dumps, {"incident_id": oldest.id, "rank": rank})
    return replace(evidence, dumps=tuple(kept))


async def archive(repository: Repository | None, incident: Incident) -> bytes | None:
    """The dumps of an incident, a file of JSON for each rank in a ZIP archive; None: none can be read."""
    if repository is None or repository.db_error:
        return None
    try:
        await asyncio.to_thread(repository.flush, _STORE_SECONDS)
        return await asyncio.to_thread(_archive, repository, incident.id)
    except SQLAlchemyError:
        return None


def _archive(repository: Repository, incident_id: str) -> bytes | None:
    columns = schema.flight_dumps.c
    query = select(columns.rank, columns.body).where(columns.incident_id == incident_id).order_by(columns.rank)
    made, room, number = io.BytesIO(), MAX_ARCHIVE, 0
    with (
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as opened,
        repository.engine.connect() as connection,
    ):
        for rank, data in connection.execute(query):
            try:
                dump = flight.unpacked(str(data), min(room, flight.MAX_JSON))
            except ValueError:
                continue
            opened.writestr(f"{flight.FILE}{rank}.json", dump)
            room -= len(dump)
            number += 1
    return made.getvalue() if number else None
