"""Reading: which sections ranks ran through in their last sampled steps, and how scores and effective time went."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query

from rankwatch.contract.policy import Ranks, parse_ranks
from rankwatch_monitor.service import span_store, trend
from rankwatch_monitor.service.monitor import Monitor

SHOWN_RANKS = 64
SHOWN_STEPS = 50
"""Ranks and steps that one answer holds."""


def timeline_routes(monitor: Monitor) -> APIRouter:
    """``GET /jobs/{id}/timeline`` and ``GET /jobs/{id}/trends``."""
    routes = APIRouter(tags=["performance"])

    @routes.get("/jobs/{job_id}/timeline", summary="Sections of chosen ranks in their last sampled steps")
    async def sections(
        job_id: str,
        ranks: Annotated[str | None, Query(max_length=2000, description="such as 0,8-11; default: the first 8")] = None,
        steps: Annotated[str | None, Query(max_length=2000, description="iterations, such as 1200,1210-1230")] = None,
        last: Annotated[int, Query(ge=1, le=SHOWN_STEPS, description="without steps: as many of the last ones")] = 3,
    ) -> dict[str, Any]:
        job, kept = monitor.job(job_id), monitor.spans.of(job_id)
        chosen = kept.ranks[:8] if ranks is None else _within(_chosen("ranks", ranks), max(job.world_size, 1))
        sampled = kept.iterations(chosen)
        shown = sampled[-last:]
        if steps is not None:
            wanted = _chosen("steps", steps)
            shown = [iteration for iteration in sampled if iteration in wanted][-SHOWN_STEPS:]
        hosts = job.columns.hosts
        return {
            "attempt": kept.attempt,
            "sampled": sampled,
            "sections": kept.sections,
            "ranks_known": len(kept.ranks),
            "ranks": [
                {
                    "rank": rank,
                    "host": hosts[rank] if rank < len(hosts) else "",
                    "steps": [span_store.to_json(step, kept.sections) for step in kept.steps(rank, shown)],
                }
                for rank in chosen
            ],
        }

    @routes.get("/jobs/{job_id}/trends", summary="Scores and effective time over the last six hours")
    async def points(job_id: str) -> dict[str, Any]:
        monitor.job(job_id)
        return trend.to_json(monitor.trends.of(job_id))

    return routes


def _chosen(what: str, text: str) -> Ranks:
    try:
        return parse_ranks(text)
    except ValueError:
        raise HTTPException(422, f"{what} are written like 0,8-15; not {text[:200]!r}") from None


def _within(chosen: Ranks, world_size: int) -> list[int]:
    found = list(islice((rank for rank in range(world_size) if rank in chosen), SHOWN_RANKS + 1))
    if len(found) > SHOWN_RANKS:
        raise HTTPException(422, f"more than {SHOWN_RANKS} ranks were asked for: choose some of them, such as 0,8-11")
    if not found:
        raise HTTPException(422, f"the job has no such ranks: they are numbered from 0 to {world_size - 1}")
    return found
