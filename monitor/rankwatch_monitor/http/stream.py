"""The live stream for the page: server-sent events, at most two pictures a second, and only what changed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from fastapi import APIRouter, Depends
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import job_view, rankings
from rankwatch_monitor.errors import HeldElsewhereError, UnknownJobError
from rankwatch_monitor.http.jobs import listed
from rankwatch_monitor.service.monitor import Monitor

INTERVAL: Final = 0.5
"""Seconds between two looks."""
QUIET: Final = 15.0
"""Seconds without a change after which a comment is sent: proxies close what is silent for longer."""
LEGEND: Final = [str(state) for state in job_view.RANK_STATES]

HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""No proxy is to keep the stream, or to gather it."""

Picture = tuple[str, str, dict[str, Any]]
"""Key of the thing that is shown, kind of event, data."""


class EventStream(StreamingResponse):
    """Server-sent events.

    FastAPI's own response for them logs a traceback when a reader goes away while something is on its way to it.
    """

    media_type = "text/event-stream"


def stream_routes(monitor: Monitor) -> APIRouter:
    """``GET /events`` for all jobs and ``GET /jobs/{id}/events`` for one."""
    routes = APIRouter(tags=["stream"])

    @routes.get("/events", response_class=EventStream, summary="All jobs, as they change")
    async def fleet() -> EventStream:
        def look() -> list[Picture]:
            return [("jobs", "jobs", {"jobs": listed(monitor, monitor.clock.now())})]

        return EventStream(_changes(monitor, look, 2 * INTERVAL), headers=HEADERS)

    def known(job_id: str) -> None:
        # Before the stream begins: once its status is sent, there is no 404 any more.
        monitor.job(job_id)

    @routes.get(
        "/jobs/{job_id}/events",
        response_class=EventStream,
        summary="One job, as it changes",
        dependencies=[Depends(known)],
    )
    async def one(job_id: str) -> EventStream:
        def look() -> list[Picture]:
            return _pictures(monitor.job(job_id), monitor.clock.now())

        return EventStream(_changes(monitor, look, INTERVAL), headers=HEADERS)

    return routes


async def _changes(monitor: Monitor, look: Callable[[], list[Picture]], interval: float) -> AsyncIterator[bytes]:
    """The first picture, then what changes in it; ends with the monitor, and when the job is watched here no more."""
    last: dict[str, str] = {}
    quiet = 0.0
    while not monitor.ending:
        try:
            pictures = look()
        except (UnknownJobError, HeldElsewhereError):
            return
        for key, event, data in pictures:
            text = json.dumps(data)
            if last.get(key) != text:
                last[key], quiet = text, 0.0
                yield format_sse_event(event=event, data_str=text)
        if quiet >= QUIET:
            quiet = 0.0
            yield KEEPALIVE_COMMENT
        await asyncio.sleep(interval)
        quiet += interval


def _pictures(job: Job, now: float) -> list[Picture]:
    """What the page shows of a job."""
    codes_R = job_view.rank_states(job, verdicts_of(job, now))
    iterations = job.columns.iteration_R[job.columns.iteration_R >= 0]
    grid = {
        "attempt": job.attempt,
        "world_size": job.world_size,
        "states": base64.b64encode(codes_R.tobytes()).decode(),
        "legend": LEGEND,
        "iterations": {
            "min": int(iterations.min()) if len(iterations) else None,
            "max": int(iterations.max()) if len(iterations) else None,
        },
    }
    pictures = [("job", "job", job_view.summary(job, now)), ("grid", "grid", grid)]
    pictures += [(incident.id, "incident", incident.to_json()) for incident in job.incidents[-20:]]
    if (performance := rankings.live_view(job, now)) is not None:
        bytes_by_name = {name: base64.b64encode(each).decode() for name, each in rankings.grid_bytes(job).items()}
        pictures.append(("performance", "performance", {**performance, "grid": bytes_by_name}))
    return pictures
