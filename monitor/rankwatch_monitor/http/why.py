"""Why step times changed, and the history that shows it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from starlette.concurrency import run_in_threadpool

from rankwatch_monitor.core.regression.explain import explain
from rankwatch_monitor.core.regression.history import History
from rankwatch_monitor.core.regression.sample import Sample, merged
from rankwatch_monitor.service.monitor import Monitor

SHOWN = 1500
"""Samples in one response; neighbouring samples are merged where there are more."""
HOUR = 3600.0
LATEST = 253_402_300_799.0
"""The end of the year 9999, the last that datetime supports."""

Moment = Annotated[float | None, Query(ge=0, le=LATEST, allow_inf_nan=False, description="unix seconds")]


def why_routes(monitor: Monitor) -> APIRouter:
    """``GET /jobs/{id}/why`` and ``GET /jobs/{id}/history``."""
    routes = APIRouter(tags=["performance"])

    @routes.get("/jobs/{job_id}/why", summary="Why the step time changed")
    async def why(job_id: str, at: Moment = None) -> dict[str, Any]:
        history = monitor.job(job_id).performance.history.copy()
        try:
            # Takes tens of milliseconds, during which ranks would wait for their response.
            explanation = await run_in_threadpool(explain, history, at)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        return explanation.to_json()

    @routes.get("/jobs/{job_id}/history", summary="The history of a job's steps; the last hour by default")
    async def history(job_id: str, since: Moment = None, until: Moment = None) -> dict[str, Any]:
        kept = monitor.job(job_id).performance.history.copy()
        check_order(since, until)
        if since is None and kept.latest is not None:
            since = (kept.latest.at if until is None else until) - HOUR
        return {"samples": await run_in_threadpool(_samples, kept, since, until)}

    return routes


def check_order(since: float | None, until: float | None) -> None:
    """Refuse a range that ends before it begins."""
    if since is not None and until is not None and since > until:
        raise HTTPException(422, f"since ({since:.0f}) must not be later than until ({until:.0f})")


def _samples(history: History, since: float | None, until: float | None) -> list[dict[str, Any]]:
    found = history.window(since, until)
    each = -(-len(found) // SHOWN) if found else 1
    return [_shown(merged(found[i : i + each])) for i in range(0, len(found), each)]


def _shown(sample: Sample) -> dict[str, Any]:
    return {
        **sample._asdict(),
        "sections": {name: section._asdict() for name, section in sample.sections.items()},
        "collectives": {name: collective._asdict() for name, collective in sample.collectives.items()},
        "device": sample.device._asdict() if sample.device else None,
        "waited": sample.waited._asdict() if sample.waited else None,
        "changes": [change._asdict() for change in sample.changes],
        "slowest": [slow._asdict() for slow in sample.slowest],
    }
