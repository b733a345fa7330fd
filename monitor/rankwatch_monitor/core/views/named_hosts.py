"""The hosts that incidents of all jobs have named: one that is named repeatedly is worth a look at its hardware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import downtime
from rankwatch_monitor.core.views.headline import headline
from rankwatch_monitor.core.views.host_history import NOT_OF_A_HOST, hosts_named
from rankwatch_monitor.core.views.node_gpus import gpus_of, slow_by_host, standing_out
from rankwatch_monitor.core.views.quiet_host import quiet_host

SHOWN: Final = 100
"""Hosts in one answer, those that were named most often."""

CULPRIT: Final = "culprit"
SUSPECT: Final = "suspect"
QUIET: Final = "quiet"
About = tuple[Incident, str]
"""An incident, and as what it is about a host: :data:`CULPRIT`, :data:`SUSPECT` or :data:`QUIET`."""


def named_hosts(jobs: Iterable[Job], now: float) -> list[dict[str, Any]]:
    """Hosts of culprits of confirmed incidents, the most frequent first; an incident counts once for a host."""
    jobs = list(jobs)
    slow, about = slow_by_host(jobs), about_by_host(jobs, now)
    rows = [
        _row(host, incidents, slow.get(host, ()), about.get(host, ()))
        for host, incidents in incidents_by_host(jobs).items()
    ]
    return sorted(rows, key=lambda row: (-row["incidents"], -row["last"]["opened_at"]))[:SHOWN]


def about_by_host(jobs: Iterable[Job], now: float) -> dict[str, list[About]]:
    """The incidents of which each host is culprit, suspect or quiet, the newest first."""
    found: dict[str, list[About]] = {}
    for job in jobs:
        quiet = quiet_host(job, now)
        for incident in job.incidents:
            if incident.kind in NOT_OF_A_HOST:
                continue
            named = {culprit.host for culprit in incident.culprits if culprit.host}
            for host in named:
                found.setdefault(host, []).append((incident, CULPRIT if incident.confirmed else SUSPECT))
            for host in () if quiet is None or incident is not job.open_incident else set(quiet.hosts) - named:
                found.setdefault(host, []).append((incident, QUIET))
    for each in found.values():
        each.sort(key=lambda about: -about[0].opened_at)
    return found


def counted(about: Iterable[About]) -> str:
    """How many incidents are about a host: ``4 (1 suspected, 1 silent)``."""
    counts = Counter(named_as for _, named_as in about)
    others = [f"{counts[kind]} {word}" for kind, word in ((SUSPECT, "suspected"), (QUIET, "silent")) if counts[kind]]
    return f"{counts.total()} ({', '.join(others)})" if others else str(counts.total())


def incidents_by_host(jobs: Iterable[Job]) -> dict[str, list[Incident]]:
    """The confirmed incidents that named each host."""
    found: dict[str, list[Incident]] = {}
    for job in jobs:
        for incident in job.incidents:
            for host in hosts_named(incident):
                found.setdefault(host, []).append(incident)
    return found


def _row(
    host: str, incidents: list[Incident], slow: Iterable[tuple[Job, Straggler]], about: Iterable[About]
) -> dict[str, Any]:
    last = max(incidents, key=lambda incident: incident.opened_at)
    gpu = standing_out(gpus_of(host, incidents, slow))
    return {
        "host": host,
        "incidents": len(incidents),
        "counted": counted(about),
        "jobs": sorted({incident.job_id for incident, _ in about} or {incident.job_id for incident in incidents}),
        "gpu": None if gpu is None else f"{gpu.name}, {gpu.finding}",
        "last": {
            "job": last.job_id,
            "incident": last.id,
            "opened_at": last.opened_at,
            "since": downtime.began(last),
            "headline": headline(last),
        },
    }
