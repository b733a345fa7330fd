"""The live stream of the page: server-sent events, at most two snapshots a second, and only what changed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import job_view, rankings
from rankwatch_monitor.errors import HeldElsewhereError, UnknownJobError
from rankwatch_monitor.http.auth import RevokedError, still_granted
from rankwatch_monitor.http.jobs import listed
from rankwatch_monitor.service.monitor import Monitor

INTERVAL: Final = 0.5
"""Seconds between two snapshots of a job."""
KEEPALIVE: Final = 15.0
"""Seconds without a change after which a comment is sent, since proxies close silent connections."""
LEGEND: Final = [str(state) for state in job_view.RANK_STATES]

HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Proxies must neither cache nor buffer the stream."""

Event = tuple[str, str, dict[str, Any]]
"""Key (an event is sent when the data of its key changed), event type, data."""


class EventStream(StreamingResponse):
    """Server-sent events.

    FastAPI's own response class logs a traceback when the client disconnects while an event is being sent.
    """

    media_type = "text/event-stream"


def stream_routes(monitor: Monitor) -> APIRouter:
    """``GET /events`` for all jobs and ``GET /jobs/{id}/events`` for one."""
    routes = APIRouter(tags=["stream"])

    @routes.get("/events", response_class=EventStream, summary="All jobs: an event stream with an event per change")
    async def fleet(request: Request) -> EventStream:
        def snapshot() -> list[Event]:
            return [("jobs", "jobs", {"jobs": listed(monitor, monitor.clock.now(), still_granted(request))})]

        return EventStream(_changes(monitor, snapshot, 2 * INTERVAL), headers=HEADERS)

    def known(job_id: str) -> None:
        # A dependency, since after the stream has begun there can be no 404.
        monitor.job(job_id)

    @routes.get(
        "/jobs/{job_id}/events",
        response_class=EventStream,
        summary="One job: an event stream with an event per change",
        dependencies=[Depends(known)],
    )
    async def one(request: Request, job_id: str) -> EventStream:
        def snapshot() -> list[Event]:
            still_granted(request)
            return _events(monitor.job(job_id), monitor.clock.now())

        return EventStream(_changes(monitor, snapshot, INTERVAL), headers=HEADERS)

    return routes


async def _changes(monitor: Monitor, snapshot: Callable[[], list[Event]], interval: float) -> AsyncIterator[bytes]:
    """The first snapshot, then changes; ends with the monitor, its ownership of the job, or the token."""
    last: dict[str, str] = {}
    unchanged = 0.0
    while not monitor.ending:
        try:
            events = snapshot()
        except (UnknownJobError, HeldElsewhereError, RevokedError):
            return
        for key, event, data in events:
            text = json.dumps(data)
            if last.get(key) != text:
                last[key], unchanged = text, 0.0
                yield format_sse_event(event=event, data_str=text)
        if unchanged >= KEEPALIVE:
            unchanged = 0.0
            yield KEEPALIVE_COMMENT
        await asyncio.sleep(interval)
        unchanged += interval


def _events(job: Job, now: float) -> list[Event]:
    """What the page shows of a job, as events."""
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
    events = [("job", "job", job_view.summary(job, now)), ("grid", "grid", grid)]
    events += [(incident.id, "incident", incident.to_json()) for incident in job.incidents[-20:]]
    if (performance := rankings.live_view(job, now)) is not None:
        bytes_by_name = {name: base64.b64encode(each).decode() for name, each in rankings.grid_bytes(job).items()}
        events.append(("performance", "performance", {**performance, "grid": bytes_by_name}))
    return events
