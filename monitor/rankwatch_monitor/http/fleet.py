"""The list of all jobs: those that this monitor watches and, where several share a database, those of the others."""

from __future__ import annotations

from typing import Any

from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.service.monitor import Monitor


def listed(monitor: Monitor, now: float) -> list[dict[str, Any]]:
    """All jobs, the newest first. Those of other monitors hold ``monitor``: whose they are, and its address."""
    jobs = [job_view.summary(job, now) for job in monitor.jobs.values()]
    if monitor.ownership is not None:
        jobs += monitor.ownership.other_jobs(monitor.jobs.__contains__)
    return sorted(jobs, key=lambda job: -job["started_at"])
