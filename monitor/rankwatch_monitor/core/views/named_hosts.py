"""The hosts that incidents of all jobs have named: one that is named repeatedly is worth a look at its hardware."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.straggler.findings import Straggler
from rankwatch_monitor.core.views import downtime, responses
from rankwatch_monitor.core.views.headline import headline
from rankwatch_monitor.core.views.host_history import (
    CULPRIT,
    About,
    about_by_host,
    counted,
    hosts_named,
)
from rankwatch_monitor.core.views.node_gpus import gpus_of, slow_by_host, standing_out

SHOWN: Final = 100
"""Hosts in one answer, those that were named most often."""


def named_hosts(jobs: Iterable[Job], now: float) -> list[responses.NamedHost]:
    """Hosts that incidents are about, those first that the most confirmed ones name; one counts once for a host."""
    jobs = list(jobs)
    slow = slow_by_host(jobs)
    rows = [_row(host, about, slow.get(host, ())) for host, about in about_by_host(jobs, now).items()]
    return sorted(rows, key=lambda row: (-row["incidents"], -row["last"]["opened_at"]))[:SHOWN]


def incidents_by_host(jobs: Iterable[Job]) -> dict[str, list[Incident]]:
    """The confirmed incidents that named each host."""
    found: dict[str, list[Incident]] = {}
    for job in jobs:
        for incident in () if job.rehearses else job.incidents:
            for host in hosts_named(incident):
                found.setdefault(host, []).append(incident)
    return found


def _row(host: str, about: Sequence[About], slow: Iterable[tuple[Job, Straggler]]) -> responses.NamedHost:
    last, _ = about[0]
    named = [incident for incident, named_as in about if named_as == CULPRIT]
    gpu = standing_out(gpus_of(host, named, slow))
    return {
        "host": host,
        "incidents": len(named),
        "counted": counted(host, about),
        "jobs": sorted({incident.job_id for incident, _ in about}),
        "gpu": None if gpu is None else gpu.finding,
        "last": {
            "job": last.job_id,
            "incident": last.id,
            "opened_at": last.opened_at,
            "since": downtime.began(last),
            "headline": headline(last),
        },
    }
