"""Reads jobs: the list, one job, its ranks, incidents, goodput, scores, stragglers and text reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Final

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.regression.sparkline import LARGEST, SECONDS, UNKNOWN, Sparkline
from rankwatch_monitor.core.views import (
    communication,
    details,
    digest,
    flight_dumps,
    incident_view,
    job_view,
    kernel_view,
    rankings,
    responses,
)
from rankwatch_monitor.core.views.named_hosts import named_hosts
from rankwatch_monitor.http.auth import Grant, grant_of
from rankwatch_monitor.http.unchanged import RecordsResponse, answer
from rankwatch_monitor.publish.text import report, scores_report
from rankwatch_monitor.service import flight_dumps as stored_dumps
from rankwatch_monitor.service.monitor import Monitor

DIGEST_SECONDS = 12 * 3600.0

RANKS_AT_ONCE: Final = 4096
"""Ranks that are rendered in one turn of the loop, at most: 0.04 s of a job of 131,072."""
FIRST_AT_ONCE: Final = 64
"""The same at first: one rank takes 66 kB where all names of sections are open, and as long as they may be."""
BYTES_AT_ONCE: Final = 1 << 20
"""Of them as JSON, about: the number of ranks follows from what the last ones took."""

RankCount = Annotated[int | None, Query(ge=1, le=100_000)]


def listed(monitor: Monitor, now: float, grant: Grant) -> list[responses.JobSummary | responses.JobElsewhere]:
    """The jobs that a token may read, newest first. Those of other monitors on the database carry ``monitor``, their
    owner; so do those that may have another owner by now, with None.
    """
    held = [job_view.summary(job, now, monitor.host_activity) for job in monitor.jobs.values()]
    jobs: list[responses.JobSummary | responses.JobElsewhere] = [*held]
    if (ownership := monitor.ownership) is not None:
        jobs = [{**job, "monitor": None} if ownership.may_have_lost(job["id"]) else job for job in held]
        jobs += ownership.other_jobs(monitor.jobs.__contains__)
    return sorted((job for job in jobs if grant.covers(job["id"])), key=lambda job: -job["started_at"])


async def _ranks_of_large(job: Job, now: float, one_slice: asyncio.Lock) -> AsyncIterator[bytes]:
    """All ranks of a large job as JSON, a part of them in each turn of the loop, for one reader at a time."""
    yield b'{"ranks":['
    begin, size, count = 0, len(job.columns), min(FIRST_AT_ONCE, RANKS_AT_ONCE)
    while begin < size:
        async with one_slice:
            size = min(size, len(job.columns))  # another attempt may have begun, with fewer
            rows = job_view.ranks(job, now, range(begin, min(begin + count, size)))
            text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False, allow_nan=False)[1:-1].encode()
            await asyncio.sleep(0)  # the next reader's is for another turn
        yield (b"," if begin and rows else b"") + text
        begin += count
        count = min(RANKS_AT_ONCE, max(1, count * BYTES_AT_ONCE // max(1, len(text))))
    yield b"]}"


def job_routes(routes: APIRouter, monitor: Monitor) -> None:
    """``GET /jobs`` and what is below it."""
    routes.tags = ["jobs"]
    one_slice, one_archive = asyncio.Lock(), asyncio.Lock()

    @routes.get("/jobs", summary="All jobs, the newest first")
    async def jobs(request: Request) -> responses.Jobs:
        return {"jobs": listed(monitor, monitor.clock.now(), grant_of(request))}

    @routes.get("/hosts", summary="Hosts that incidents have named, the most frequent first")
    async def hosts(request: Request) -> responses.Hosts:
        grant = grant_of(request)
        jobs = (job for job in monitor.jobs.values() if grant.covers(job.id))
        return {"hosts": named_hosts(jobs, monitor.clock.now())}

    @routes.get(
        "/sparklines",
        summary="The speed of every job over the last four hours",
        response_model=responses.Sparklines,
    )
    async def sparklines(request: Request) -> Response:
        grant, now = grant_of(request), monitor.clock.now()
        found = [(job.id, job.trends.sparkline.copy()) for job in monitor.jobs.values() if grant.covers(job.id)]
        return await asyncio.to_thread(lambda: answer(request, encoded_sparklines(found, now)))

    @routes.get("/digest", summary="What happened over all jobs since a moment")
    async def digest_since(
        request: Request,
        since: Annotated[float | None, Query(ge=0, description="unix seconds")] = None,
        last: Annotated[float, Query(ge=0, description="seconds before now, unless 'since' is given")] = DIGEST_SECONDS,
    ) -> responses.Digest:
        grant, now = grant_of(request), monitor.clock.now()
        jobs = [job for job in monitor.jobs.values() if grant.covers(job.id)]
        begin = max(0.0, now - last) if since is None else min(since, now)
        return digest.digest(jobs, begin, now, monitor.started_at, stored=monitor.repository is not None)

    @routes.get("/jobs/{job_id}", summary="One job with its policy, limits and nodes")
    async def one_job(job_id: str) -> responses.JobDetail:
        return details.of_job(monitor.job(job_id), monitor.clock.now(), monitor.host_activity)

    @routes.get("/jobs/{job_id}/ranks", summary="All ranks of a job", response_model=responses.Ranks)
    async def ranks(job_id: str) -> Response:
        job, now = monitor.job(job_id), monitor.clock.now()
        if len(job.columns) > FIRST_AT_ONCE:  # 28 MB of 131,072 ranks
            return StreamingResponse(_ranks_of_large(job, now, one_slice), media_type="application/json")
        return JSONResponse({"ranks": job_view.ranks(job, now)})

    @routes.get("/jobs/{job_id}/goodput", summary="How a job's time was spent, and the cost of each incident")
    async def goodput(job_id: str) -> responses.Goodput:
        return job_view.goodput(monitor.job(job_id), monitor.clock.now())

    @routes.get("/jobs/{job_id}/kernels", summary="The costliest kernels now, and the trend of each")
    async def kernels(job_id: str) -> kernel_view.KernelsView:
        return kernel_view.kernels(monitor.job(job_id))

    @routes.get("/jobs/{job_id}/communication", summary="The bandwidth of each process group")
    async def one_job_s_communication(job_id: str) -> communication.CommunicationView:
        return communication.communication(monitor.job(job_id))

    @routes.get("/jobs/{job_id}/report", summary="A job as text", response_class=PlainTextResponse)
    async def text_report(job_id: str) -> str:
        return report.text(monitor.job(job_id), monitor.clock.now(), monitor.host_activity)

    @routes.get("/jobs/{job_id}/incidents", summary="The incidents of a job, the newest first")
    async def incidents(job_id: str) -> responses.Incidents:
        job, now = monitor.job(job_id), monitor.clock.now()
        activity = monitor.host_activity
        return {
            "incidents": [incident_view.shown(job, incident, now, activity) for incident in reversed(job.incidents)]
        }

    @routes.get("/jobs/{job_id}/incidents/{incident_id}", summary="One incident with its grouped stacks")
    async def one_incident(job_id: str, incident_id: str) -> responses.IncidentDetail:
        incident = monitor.incident(job_id, incident_id)
        if incident is None:
            raise HTTPException(404, f"job {job_id!r} has no incident {incident_id[:200]!r}")
        return details.of_incident(monitor.job(job_id), incident, monitor.clock.now(), monitor.host_activity)

    @routes.get(
        "/jobs/{job_id}/incidents/{incident_id}/flight-recorder",
        summary="Dumps of torch's flight recorder, a ZIP archive of JSON",
        response_class=Response,
    )
    async def flight_recorder(job_id: str, incident_id: str) -> Response:
        incident = monitor.incident(job_id, incident_id)
        kept = None if incident is None else flight_dumps.shown(monitor.job(job_id), incident)
        if incident is None or kept is None:
            raise HTTPException(404, f"job {job_id!r} has no dumps of an incident {incident_id[:200]!r}")
        async with one_archive:
            found = await stored_dumps.archive(monitor.repository, incident)
        if found is None:
            raise HTTPException(503, "the dumps cannot be read from the database")
        named = {"Content-Disposition": 'attachment; filename="flight-recorder.zip"'}
        return Response(found, media_type="application/zip", headers=named)


def encoded_sparklines(found: Iterable[tuple[str, Sparkline]], now: float) -> responses.Sparklines:
    """The shape of each job that had a speed in that time: the largest mean, and shares of it as bytes."""
    shapes = ((job_id, each.shape(now)) for job_id, each in found)
    return {
        "until": int(now // SECONDS + 1) * SECONDS,
        "seconds": SECONDS,
        "unknown": UNKNOWN,
        "largest": LARGEST,
        "jobs": {job_id: shape for job_id, shape in shapes if shape is not None},
    }


def score_routes(routes: APIRouter, monitor: Monitor) -> None:
    """The scores of a job's ranks and its stragglers, which ranks read to log them."""
    routes.tags = ["jobs"]

    @routes.get(
        "/jobs/{job_id}/scores",
        summary="The scores of each rank",
        response_model=responses.Scores,
    )
    def scores(job_id: str, worst: RankCount = None) -> RecordsResponse:
        # A plain function, so FastAPI runs it on a thread: 100,000 ranks take most of a second.
        return RecordsResponse(rankings.score_table(monitor.job(job_id), monitor.clock.now(), worst))

    @routes.get(
        "/jobs/{job_id}/scores/report",
        summary="The scores as text",
        response_class=PlainTextResponse,
    )
    async def text(job_id: str, shown: RankCount = None) -> str:
        return scores_report.scores_text(monitor.job(job_id), monitor.clock.now(), shown)

    @routes.get("/jobs/{job_id}/stragglers", summary="Open stragglers, then those that ended")
    async def stragglers(job_id: str) -> responses.Stragglers:
        return {"stragglers": rankings.shown_stragglers(rankings.stragglers(monitor.job(job_id)))}
