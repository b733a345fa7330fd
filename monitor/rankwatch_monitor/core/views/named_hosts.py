"""The hosts that incidents of all jobs have named: one that is named repeatedly is worth a look at its hardware."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rankwatch.contract.enums import VerdictKind
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.headline import headline

SHOWN: Final = 100
"""Hosts in one answer, those that were named most often."""
NOT_OF_A_HOST: Final = (VerdictKind.ORDERED, VerdictKind.RESTARTED_IN_PROCESS)


def named_hosts(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Hosts of culprits of confirmed incidents, the most frequent first; an incident counts once for a host."""
    found: dict[str, list[Incident]] = {}
    for job in jobs:
        for incident in job.incidents:
            if incident.confirmed and incident.kind not in NOT_OF_A_HOST:
                for host in {culprit.host for culprit in incident.culprits if culprit.host}:
                    found.setdefault(host, []).append(incident)
    rows = [_row(host, incidents) for host, incidents in found.items()]
    return sorted(rows, key=lambda row: (-row["incidents"], -row["last"]["opened_at"]))[:SHOWN]


def _row(host: str, incidents: list[Incident]) -> dict[str, Any]:
    last = max(incidents, key=lambda incident: incident.opened_at)
    return {
        "host": host,
        "incidents": len(incidents),
        "jobs": sorted({incident.job_id for incident in incidents}),
        "last": {
            "job": last.job_id,
            "incident": last.id,
            "opened_at": last.opened_at,
            "headline": headline(last),
        },
    }
