"""The crashes of one GPU over all jobs, beside a crash on it, and what to do if it fails again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from rankwatch.contract.enums import CulpritClass
from rankwatch_monitor.core.hang.verdict import Culprit
from rankwatch_monitor.core.incident_record import Incident
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views.crash_advice import crash_of, next_failure
from rankwatch_monitor.core.views.ended import whole

FEWEST: Final = 2
"""Crashes from which on there is a history."""


class CrashHistory(NamedTuple):
    """What is known beside one crash."""

    host: str
    gpu: str
    """``GPU 5``; empty: not known, and the crashes of the host count."""
    text: str
    """``5 crashes in 2 jobs in 5 min, same error``; empty: this one is the first."""
    again: str
    """What to do if the job fails again, a sentence; empty: the crash is over."""

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return self._asdict()


def crash_history(jobs: Iterable[Job], job: Job, incident: Incident) -> CrashHistory | None:
    """The history of the GPU of an incident's first culprit; None: it is no crash, or its host is not known.

    Args:
        jobs: all that the reader may see.
        job: that of the incident.
        incident: a crash.
    """
    first = next((culprit for culprit in incident.culprits if culprit.kind is CulpritClass.DEAD), None)
    if first is None or not first.host:
        return None
    alike = [
        (each, culprit)
        for other in jobs
        for each in other.incidents
        if each.confirmed
        for culprit in each.culprits
        if culprit.kind is CulpritClass.DEAD and (culprit.host, culprit.gpu_key) == (first.host, first.gpu_key)
    ]
    crash = crash_of(first, incident.furthest_iteration)
    elsewhere = len(set(job.columns.hosts) - {""}) > 1
    return CrashHistory(first.host, crash.gpu, _text(alike), next_failure(crash, elsewhere) if incident.open else "")


def _text(alike: list[tuple[Incident, Culprit]]) -> str:
    if len(alike) < FEWEST:
        return ""
    at = sorted(incident.opened_at for incident, _ in alike)
    jobs = len({incident.job_id for incident, _ in alike})
    same = ", same error" if len({culprit.reason for _, culprit in alike}) == 1 else ""
    return f"{len(alike)} crashes in {jobs} job{'' if jobs == 1 else 's'} in {whole(at[-1] - at[0])}{same}"
