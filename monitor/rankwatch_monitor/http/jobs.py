"""Reading: jobs, ranks, incidents."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import PlainTextResponse

from rankwatch_monitor.core.hang import limits
from rankwatch_monitor.core.views import job_view
from rankwatch_monitor.http.fleet import listed
from rankwatch_monitor.http.scores import score_routes
from rankwatch_monitor.publish.text import report
from rankwatch_monitor.service.monitor import Monitor

SHOWN = 1024
"""Positions within process groups that one answer holds."""


def job_routes(monitor: Monitor) -> APIRouter:
    """``GET /jobs`` and what stands below it."""
    routes = APIRouter(tags=["jobs"])

    @routes.get("/jobs", summary="All jobs, the newest first")
    async def jobs() -> dict[str, Any]:
        return {"jobs": listed(monitor, monitor.clock.now())}

    @routes.get("/jobs/{job_id}", summary="One job with its policy, limits and nodes")
    async def one_job(job_id: str) -> dict[str, Any]:
        job, now = monitor.job(job_id), monitor.clock.now()
        return {
            **job_view.summary(job, now),
            "policy": job.policy.to_json(),
            "timeouts": limits.table(job.policy, job.durations),
            "nodes": job_view.launchers(job, now),
            "sections": {
                name: {"finished": observed.count, "longest": observed.longest, "first": observed.first}
                for name, observed in sorted(job.durations.sections.items())
            },
            "dropped": job.dropped,
        }

    @routes.get("/jobs/{job_id}/ranks", summary="Every rank of a job")
    async def ranks(job_id: str) -> dict[str, Any]:
        return {"ranks": job_view.ranks(monitor.job(job_id), monitor.clock.now())}

    @routes.get("/jobs/{job_id}/goodput", summary="What a job's time was spent on, and what each incident took")
    async def goodput(job_id: str) -> dict[str, Any]:
        return job_view.accounts(monitor.job(job_id))

    @routes.get("/jobs/{job_id}/report", summary="All of it as text", response_class=PlainTextResponse)
    async def text_report(job_id: str) -> str:
        return report.text(monitor.job(job_id), monitor.clock.now())

    routes.include_router(score_routes(monitor))

    @routes.get("/jobs/{job_id}/incidents", summary="A job's incidents, the newest first")
    async def incidents(job_id: str) -> dict[str, Any]:
        return {"incidents": [incident.to_json() for incident in reversed(monitor.job(job_id).incidents)]}

    @routes.get("/jobs/{job_id}/incidents/{incident_id}", summary="One incident with its grouped stacks")
    async def one_incident(job_id: str, incident_id: str) -> dict[str, Any]:
        incident = monitor.incident(job_id, incident_id)
        if incident is None:
            raise HTTPException(404, f"job {job_id!r} has no incident {incident_id[:200]!r}")
        return {
            **incident.to_json(),
            "stack_groups": job_view.stack_groups(incident),
            "stack_errors": [
                {"rank": rank, "error": failure.error, "process_state": failure.process_state}
                for failure in incident.stacks.failures()
                for rank in failure.ranks
            ],
            "collectives": [{**f._asdict(), "ranks": list(f.ranks)} for f in incident.stacks.fronts()[:SHOWN]],
        }

    return routes
