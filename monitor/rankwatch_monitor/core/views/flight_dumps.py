"""Which incidents of a job have flight recorder dumps, and where they are read."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from rankwatch.contract.semconv import API_PREFIX
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import responses

KEPT_INCIDENTS: Final = 4
"""Incidents of a job whose dumps are kept, the newest."""


def with_dumps(job: Job) -> list[Incident]:
    """The incidents whose dumps are kept, the oldest first."""
    return [each for each in job.incidents if each.dumps][-KEPT_INCIDENTS:]


def shown(job: Job, incident: Incident) -> responses.FlightDumps | None:
    """The dumps of an incident; None: there are none, or they are no longer kept."""
    if incident not in with_dumps(job):
        return None
    path = f"{API_PREFIX}/jobs/{quote(job.id, safe='')}/incidents/{quote(incident.id, safe='')}/flight-recorder"
    return {"ranks": list(incident.dumps), "bytes": sum(incident.dumps.values()), "path": path}
