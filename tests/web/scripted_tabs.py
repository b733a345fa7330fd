"""The scripted monitor's routes for what stands behind the page's tabs: timeline, charts, policy and actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from rankwatch.contract.policy import ACTION_MEANINGS
from rankwatch_monitor.http.policy import policy_schema
from web import scripted_history as past
from web.whole import get

if TYPE_CHECKING:
    from web.scripted_monitor import Script


COOKIE = "scripted_session"


def add_tabs(app: FastAPI, script: Script) -> None:
    """Add the routes."""

    @get(app, "/jobs/{job_id}/layout")
    async def layout(job_id: str) -> Any:
        return past.layout(len(script.ranks[job_id]), script.pipeline) if job_id in script.jobs else problem(404, "No.")

    @get(app, "/jobs/{job_id}/grid/{look}")
    async def look(job_id: str, look: str) -> Any:
        return past.look(script.ranks[job_id], look)

    @get(app, "/jobs/{job_id}/timeline")
    async def timeline(job_id: str, ranks: str, last: int = 3, steps: str = "") -> Any:
        stragglers = script.performance.get(job_id, {}).get("stragglers", [])
        lateness = {each["rank"]: each["lateness"] for each in stragglers}
        hung = [rank for rank, state in enumerate(script.ranks[job_id]) if state == "hung"]
        if not script.spans:
            return past.no_spans(ranks)
        return past.timeline(ranks, last, steps, lateness, hung, script.jobs[job_id]["world_size"])

    @get(app, "/jobs/{job_id}/kernels")
    async def kernels(job_id: str) -> Any:
        return past.kernels(script.slow_since.get(job_id), script.run) if script.kernels else past.no_kernels()

    @get(app, "/jobs/{job_id}/history")
    async def history(job_id: str, since: float = 0.0, until: float = 1e12) -> Any:
        return past.history(script.slow_since.get(job_id), since, until, script.run, script.restarts)

    @get(app, "/jobs/{job_id}/why")
    async def why(job_id: str) -> Any:
        return past.why(script.slow_since.get(job_id))

    @get(app, "/jobs/{job_id}/trends")
    async def trends(job_id: str, since: float = 0.0, until: float = 1e12, attempt: int | None = None) -> Any:
        if job_id not in script.jobs:
            return problem(404, f"no job {job_id!r}")
        slow_since = script.slow_since.get(job_id)
        found = past.trends(slow_since, since, until, script.run, script.restarts, script.logged, script.broken)
        return past.of_attempt(found, attempt)

    @get(app, "/policy/schema")
    async def schema() -> Any:
        return {"settings": policy_schema(), "actions": ACTION_MEANINGS}

    @get(app, "/jobs/{job_id}/policy")
    async def policy(job_id: str) -> Any:
        return script.policy.to_json()

    @app.patch("/api/v1/jobs/{job_id}/policy")
    async def change(job_id: str, request: Request) -> Any:
        if (refused := _no_control(script, request)) is not None:
            return refused
        try:
            script.policy = script.policy.changed(await request.json())
        except ValueError as error:
            return problem(422, str(error))
        return script.policy.to_json()

    @app.post("/api/v1/jobs/{job_id}/actions", status_code=202)
    async def order(job_id: str, request: Request) -> Any:
        if (refused := _no_control(script, request)) is not None:
            return refused
        script.ordered.append(await request.json())
        return {"incident_id": "i9"}


def _no_control(script: Script, request: Request) -> JSONResponse | None:
    if script.control in (None, request.cookies.get(COOKIE)):
        return None
    return problem(403, "this token does not allow control")


def problem(status: int, detail: str) -> JSONResponse:
    """An error as the monitor reports it."""
    return JSONResponse({"status": status, "detail": detail}, status, media_type="application/problem+json")
