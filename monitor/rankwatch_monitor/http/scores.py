"""Reading how fast the ranks of a job are: scores, stragglers, and the report of both."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, PlainTextResponse

from rankwatch_monitor.core.views import rankings
from rankwatch_monitor.publish.text import scores_report
from rankwatch_monitor.service.monitor import Monitor

Number = Annotated[int | None, Query(ge=1, le=100_000)]


def score_routes(monitor: Monitor) -> APIRouter:
    """What stands below ``GET /jobs/{id}/scores``, and ``GET /jobs/{id}/stragglers``."""
    routes = APIRouter()

    @routes.get(
        "/jobs/{job_id}/scores",
        summary="How fast each rank is, by all references; 'worst' gives only so many of the worst",
        response_model=dict[str, Any],
    )
    def scores(job_id: str, worst: Number = None) -> JSONResponse:
        # On a thread of its own, since 100,000 ranks take most of a second: nobody who sends telemetry waits for it.
        return JSONResponse(rankings.score_table(monitor.job(job_id), worst))

    @routes.get(
        "/jobs/{job_id}/scores/report",
        summary="The same as text; 'shown' worst and best ranks, else as many as the policy says",
        response_class=PlainTextResponse,
    )
    async def text(job_id: str, shown: Number = None) -> str:
        return scores_report.scores_text(monitor.job(job_id), monitor.clock.now(), shown)

    @routes.get("/jobs/{job_id}/stragglers", summary="Open stragglers, the dearest first, then those that have ended")
    async def stragglers(job_id: str) -> dict[str, Any]:
        return {"stragglers": [each.to_json() for each in rankings.stragglers(monitor.job(job_id))]}

    return routes
