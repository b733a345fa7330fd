"""The live stream of the page: server-sent events, at most two snapshots a second, and only what changed.

A ``clock`` event has the time of the monitor (``now``) and when it last evaluated its jobs (``judged``), both in unix
seconds. It also keeps proxies from closing a stream in which nothing changes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.views import incident_view, job_view, rankings, responses
from rankwatch_monitor.core.views.host_activity import HostActivity
from rankwatch_monitor.errors import HeldElsewhereError, RevokedError, UnknownJobError
from rankwatch_monitor.http.auth import grant_of, reader_of, still_granted
from rankwatch_monitor.http.jobs import listed
from rankwatch_monitor.http.turns import Turns
from rankwatch_monitor.service.monitor import Monitor

INTERVAL: Final = 0.5
"""Seconds between two snapshots of a job."""
CLOCK_INTERVAL: Final = 2.0
"""Seconds between two ``clock`` events: a page that receives none knows that what it shows is old."""
MOST_STREAMS: Final = 256
"""Open streams of one reader: each holds up to a MiB of a snapshot that its client has not taken."""
LEGEND: Final = list(job_view.RANK_STATES)

HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Proxies must neither cache nor buffer the stream."""
PACKED: Final = {"content-encoding": "gzip", "vary": "accept-encoding"}

_TOO_MANY: Final = f"you have {MOST_STREAMS} event streams open: close some of them first"

Event = tuple[str, str, Mapping[str, object]]
"""Key (an event is sent when the data of its key changed), event type, data."""


class EventStream(StreamingResponse):
    """Server-sent events.

    FastAPI's own response class logs a traceback when the client disconnects while an event is being sent.
    """

    media_type = "text/event-stream"


class _Counted(EventStream):
    """One that counts among its reader's for as long as it is open."""

    def __init__(
        self, events: AsyncIterator[bytes], counted: Counter[str], sender: str, more: Mapping[str, str] = {}
    ) -> None:
        super().__init__(events, headers={**HEADERS, **more})
        self._counted, self._sender = counted, sender

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        self._counted[self._sender] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._counted.subtract([self._sender])
            if not self._counted[self._sender]:
                del self._counted[self._sender]


def stream_routes(routes: APIRouter, monitor: Monitor) -> None:
    """``GET /events`` for all jobs and ``GET /jobs/{id}/events`` for one."""
    routes.tags = ["stream"]
    turns = Turns()
    streams = Counter[str]()

    def admitted(request: Request) -> None:
        if streams[sender_of(request)] >= MOST_STREAMS:
            monitor.counters.reject("unread")
            raise HTTPException(429, _TOO_MANY, {"Retry-After": "5"})

    def stream(request: Request, snapshot: Callable[[], list[Event]], interval: float) -> EventStream:
        sender = sender_of(request)
        events = _changes(monitor, snapshot, interval, lambda: turns.turn(sender))
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return _Counted(events, streams, sender)
        # A grid of 16,384 ranks mostly repeats one byte.
        return _Counted(_compressed(events), streams, sender, PACKED)

    @routes.get(
        "/events",
        response_class=EventStream,
        summary="All jobs: an event stream with an event per change",
        responses={200: {"model": responses.FleetEvents}},
        dependencies=[Depends(admitted)],
    )
    async def fleet(request: Request) -> EventStream:
        def snapshot() -> list[Event]:
            return [("jobs", "jobs", {"jobs": listed(monitor, monitor.clock.now(), still_granted(request))})]

        return stream(request, snapshot, 2 * INTERVAL)

    def known(job_id: str) -> None:
        # A dependency, since after the stream has begun there can be no 404.
        monitor.job(job_id)

    @routes.get(
        "/jobs/{job_id}/events",
        response_class=EventStream,
        summary="One job: an event stream with an event per change",
        responses={200: {"model": responses.JobEvents}},
        dependencies=[Depends(known), Depends(admitted)],
    )
    async def one(request: Request, job_id: str) -> EventStream:
        def snapshot() -> list[Event]:
            still_granted(request)
            return _events(monitor.job(job_id), monitor.clock.now(), monitor.host_activity)

        return stream(request, snapshot, INTERVAL)


async def _compressed(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """One gzip stream, in which each event can be read as soon as it arrives."""
    packer = zlib.compressobj(1, wbits=zlib.MAX_WBITS | 16)
    async for event in events:
        yield packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


async def _changes(
    monitor: Monitor, snapshot: Callable[[], list[Event]], interval: float, turn: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    """The first snapshot, then changes; ends with the monitor, its ownership of the job, or the token.

    Each snapshot waits for its ``turn``.
    """
    last: dict[str, int] = {}  # hashes: the texts of thousands of streams are megabytes each
    clock_sent = -CLOCK_INTERVAL
    while not monitor.broker.ending:
        await turn()
        try:
            events = snapshot()
        except (UnknownJobError, HeldElsewhereError, RevokedError):
            return
        for key, event, data in events:
            text = json.dumps(data, default=plain)
            if last.get(key) != hash(text):
                last[key] = hash(text)
                yield _encoded(event, text)
        if time.monotonic() - clock_sent > CLOCK_INTERVAL - interval:  # not later than that
            clock_sent = time.monotonic()
            clock: responses.Clock = {"now": monitor.clock.now(), "judged": monitor.last_tick}
            yield _encoded("clock", json.dumps(clock))
        await asyncio.sleep(interval)


def sender_of(request: Request) -> str:
    """In whose line its snapshots wait."""
    return reader_of(grant_of(request), request.client.host if request.client is not None else "")


def _encoded(event: str, text: str) -> bytes:
    """One server-sent event. ``text`` is JSON, which has no line breaks; fastapi has the general case since 0.135."""
    return f"event: {event}\ndata: {text}\n\n".encode()


def _events(job: Job, now: float, activity: HostActivity | None) -> list[Event]:
    """What the page shows of a job, as events."""
    codes_R = job_view.rank_states(job, verdicts_of(job, now), now)
    iterations = job.columns.iteration_R[job.columns.iteration_R >= 0]
    grid: responses.GridEvent = {
        "attempt": job.attempt,
        "world_size": job.world_size,
        "states": base64.b64encode(codes_R.tobytes()).decode(),
        "legend": LEGEND,
        "iterations": {
            "min": int(iterations.min()) if len(iterations) else None,
            "max": int(iterations.max()) if len(iterations) else None,
        },
    }
    events: list[Event] = [("job", "job", job_view.summary(job, now, activity)), ("grid", "grid", grid)]
    events += [
        (incident.id, "incident", incident_view.shown(job, incident, now, activity)) for incident in job.incidents[-20:]
    ]
    if (performance := rankings.live_view(job, now, activity)) is not None:
        bytes_by_name = {name: base64.b64encode(each).decode() for name, each in rankings.grid_bytes(job).items()}
        events.append(("performance", "performance", {**performance, "grid": bytes_by_name}))
    return events
