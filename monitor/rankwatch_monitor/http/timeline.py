"""Sections of ranks in their last sampled steps, and the trends of scores and goodput."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, cast

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from rankwatch.contract.policy import Ranks, parse_ranks
from rankwatch.profiling.source import NO_SOURCE
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.views import downtime, responses
from rankwatch_monitor.core.views.no_sections import no_sections
from rankwatch_monitor.http.why import Selected
from rankwatch_monitor.service import span_store, timeline_finding, trace_export, trend
from rankwatch_monitor.service.monitor import Monitor

SHOWN_RANKS = 64
SHOWN_STEPS = 50
"""Ranks and steps in one response."""


def timeline_routes(routes: APIRouter, monitor: Monitor) -> None:
    """``GET /jobs/{id}/timeline`` and ``GET /jobs/{id}/trends``."""
    routes.tags = ["performance"]

    @routes.get("/jobs/{job_id}/timeline", summary="The sections of chosen ranks in their last sampled steps")
    async def sections(
        job_id: str,
        ranks: Annotated[str | None, Query(max_length=2000, description="such as 0,8-11; default: the first 8")] = None,
        steps: Annotated[str | None, Query(max_length=2000, description="iterations, such as 1200,1210-1230")] = None,
        last: Annotated[int, Query(ge=1, le=SHOWN_STEPS, description="last steps, if 'steps' is not given")] = 3,
    ) -> responses.SectionTimeline:
        job, kept = monitor.job(job_id), monitor.spans.of(job_id)
        chosen = kept.ranks[:8] if ranks is None else _within(_chosen("ranks", ranks), max(job.world_size, 1))
        sampled = kept.iterations(chosen)
        shown = sampled[-last:]
        if steps is not None:
            wanted = _chosen("steps", steps)
            shown = [iteration for iteration in sampled if iteration in wanted][-SHOWN_STEPS:]
        hosts = job.columns.hosts
        lanes = {rank: kept.steps(rank, shown) for rank in chosen}
        lateness = {each.rank: each.lateness for each in job.performance.open_stragglers}
        incident = job.open_incident
        blamed = [*lateness, *(each.rank for each in (incident.culprits if incident is not None else ()))]
        known, size = len(kept.ranks), job.world_size
        figures = await run_in_threadpool(timeline_finding.figures, lanes, kept.sections)
        answer = {
            "attempt": kept.attempt,
            "sampled": sampled,
            "profiled": kept.profiled(chosen),
            "no_waits": _why_no_waits(job, chosen),
            "no_sections": [] if sampled else no_sections(job, len(kept.ranks)),
            "sections": kept.sections,
            "ranks_known": known,
            "ranks": [
                {
                    "rank": rank,
                    "host": hosts[rank] if rank < len(hosts) else "",
                    "steps": [span_store.to_json(step, kept.sections) for step in steps],
                    **figures[rank],
                }
                for rank, steps in lanes.items()
            ],
        }
        answer |= await run_in_threadpool(timeline_finding.sentences, lanes, blamed, known, lateness, size)
        return cast("responses.SectionTimeline", answer)

    @routes.get(
        "/jobs/{job_id}/timeline/trace",
        summary="The same as a file for ui.perfetto.dev",
        response_model=dict[str, Any],
    )
    async def trace(
        job_id: str,
        ranks: Annotated[
            str | None, Query(max_length=2000, description="such as 0,8-11; default: the first 64")
        ] = None,
        last: Annotated[int, Query(ge=1, le=SHOWN_STEPS, description="last steps")] = SHOWN_STEPS,
    ) -> JSONResponse:
        job, kept = monitor.job(job_id), monitor.spans.of(job_id)
        chosen = kept.ranks[:SHOWN_RANKS] if ranks is None else _within(_chosen("ranks", ranks), max(job.world_size, 1))
        shown = kept.iterations(chosen)[-last:]
        hosts = dict(enumerate(job.columns.hosts))
        found = trace_export.trace_events({rank: kept.steps(rank, shown) for rank in chosen}, hosts)
        return JSONResponse(found, headers={"content-disposition": 'attachment; filename="trace.json"'})

    @routes.get("/jobs/{job_id}/trends", summary="Goodput, speed, scores and logged values")
    async def trends(job_id: str, wanted: Selected) -> responses.Trends:
        job = monitor.job(job_id)
        kept, outages = job.trends.copy(), downtime.outages(job, monitor.clock.now())
        newest = trend.newest(job, wanted.until)
        shown = partial(trend.to_json, outages=outages, began=job.ledger.began, newest=newest)
        return cast("responses.Trends", await run_in_threadpool(shown, kept, wanted))


def _why_no_waits(job: Job, ranks: Sequence[int]) -> str:
    """Why the time in collectives may be unknown in steps of these ranks."""
    sources = job.performance.sources_of
    known = [sources[rank] for rank in ranks if rank in sources]
    if not known:
        return "it comes with kernel timings, and these ranks have reported none"
    reason = next((reason for source, reason in known if source == NO_SOURCE), None)
    if reason is None:
        return "it is measured in the step that is profiled, about every 10 s"
    return f"it comes with kernel timings, and ranks have none{f': {reason}' if reason else ''}"


def _chosen(what: str, text: str) -> Ranks:
    try:
        return parse_ranks(text)
    except ValueError:
        raise HTTPException(422, f"{what} must be written like 0,8-15, not {text[:200]!r}") from None


def _within(chosen: Ranks, world_size: int) -> list[int]:
    found = list(islice((rank for rank in range(world_size) if rank in chosen), SHOWN_RANKS + 1))
    if len(found) > SHOWN_RANKS:
        raise HTTPException(422, f"at most {SHOWN_RANKS} ranks can be requested at once, such as 0,8-11")
    if not found:
        raise HTTPException(422, f"the job has no such ranks: its ranks are 0 to {world_size - 1}")
    return found
