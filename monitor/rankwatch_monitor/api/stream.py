"""The live stream for the page: server-sent events, at most two pictures a second, and only what changed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterable
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.sse import EventSourceResponse, ServerSentEvent

from rankwatch_monitor.api.fleet import listed
from rankwatch_monitor.core import picture, rankings
from rankwatch_monitor.core.decide import verdicts_of
from rankwatch_monitor.core.state import Job
from rankwatch_monitor.loop import Monitor

INTERVAL = 0.5
"""Seconds between two looks."""
LEGEND = [str(state) for state in picture.RANK_STATES]


def stream_routes(monitor: Monitor) -> APIRouter:
    """``GET /events`` for all jobs and ``GET /jobs/{id}/events`` for one."""
    routes = APIRouter(tags=["stream"])

    @routes.get("/events", response_class=EventSourceResponse, summary="All jobs, as they change")
    async def fleet() -> AsyncIterable[ServerSentEvent]:
        last = ""
        while not monitor.ending:
            data = json.dumps({"jobs": listed(monitor, monitor.clock.now())})
            if data != last:
                last = data
                yield ServerSentEvent(event="jobs", raw_data=data)
            await asyncio.sleep(2 * INTERVAL)

    def known(job_id: str) -> None:
        # Before the stream begins: once its status is sent, there is no 404 any more.
        monitor.job(job_id)

    @routes.get(
        "/jobs/{job_id}/events",
        response_class=EventSourceResponse,
        summary="One job, as it changes",
        dependencies=[Depends(known)],
    )
    async def one(job_id: str) -> AsyncIterable[ServerSentEvent]:
        last: dict[str, str] = {}
        while not monitor.ending:
            job = monitor.job(job_id)
            for key, event, data in _pictures(job, monitor.clock.now()):
                text = json.dumps(data)
                if last.get(key) != text:
                    last[key] = text
                    yield ServerSentEvent(event=event, raw_data=text)
            await asyncio.sleep(INTERVAL)

    return routes


def _pictures(job: Job, now: float) -> list[tuple[str, str, dict[str, Any]]]:
    """What the page shows of a job: (key of the thing, kind of event, data)."""
    codes_R = picture.rank_states(job, verdicts_of(job, now))
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
    pictures = [("job", "job", picture.summary(job, now)), ("grid", "grid", grid)]
    pictures += [(incident.id, "incident", incident.to_json()) for incident in job.incidents[-20:]]
    if (performance := rankings.live(job)) is not None:
        bytes_by_name = {name: base64.b64encode(each).decode() for name, each in rankings.live_bytes(job).items()}
        pictures.append(("performance", "performance", {**performance, "grid": bytes_by_name}))
    return pictures
