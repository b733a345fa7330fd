"""The control plane: what launchers send and fetch. The shapes stand in ``rankwatch.wire.control``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import BaseModel, Field

from rankwatch.wire import ft_state, names
from rankwatch.wire.control import (
    DirectiveAck,
    Evidence,
    NodeObservation,
    NodeRegistration,
    ProcessEvent,
)
from rankwatch_monitor.api.sense import check
from rankwatch_monitor.core.events import Acknowledged, JobEvent
from rankwatch_monitor.core.state import Job
from rankwatch_monitor.core.teaching import settings_of
from rankwatch_monitor.loop import Monitor

LONGEST_WAIT = 30.0
"""Seconds a long poll may last: below the idle limits of the proxies between a launcher and its monitor."""


class ProcessEvents(BaseModel):
    """A batch of process events, in the order in which they happened."""

    events: list[ProcessEvent] = Field(max_length=10_000)


def launcher_routes(monitor: Monitor) -> APIRouter:
    """Registration, directives, acknowledgements, process events, observations and evidence."""
    routes = APIRouter(tags=["launchers"])
    top_rank = monitor.limits.ranks_per_job
    longest = monitor.limits.name_length

    @routes.post("/jobs/{job_id}/nodes", summary="A launcher registers")
    async def register(job_id: str, registration: NodeRegistration) -> dict[str, Any]:
        if not job_id or len(job_id) > monitor.limits.name_length:
            raise HTTPException(422, f"a job's id must have 1 to {monitor.limits.name_length} characters")
        if not job_id.isprintable():
            raise HTTPException(422, "a job's id must have no control characters")
        known = monitor.jobs.get(job_id)
        try:
            (known.policy if known else monitor.policy).changed(registration.policy)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        try:
            ft_state.read(registration.ft_state)
        except ValueError as error:
            raise HTTPException(422, f"ft_state: {error}") from None
        check(registration, "the registration", longest)
        job = monitor.register(job_id, registration.job_name)
        monitor.submit(job_id, registration)
        return {"job_id": job_id, "settings": settings_of(job), "last_directive": job.last_directive}

    @routes.get("/jobs/{job_id}/directives", summary="Directives after number N; waits for one")
    async def directives(
        job_id: str,
        after: Annotated[int, Query(ge=0)] = 0,
        node: str = "",
        wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT)] = LONGEST_WAIT,
    ) -> dict[str, Any]:
        if node:
            _known_node(monitor.job(job_id), node).seen = monitor.clock.now()
        ready = await monitor.directives_after(job_id, after, wait)
        return {"directives": [asdict(directive) for directive in ready]}

    @routes.post("/jobs/{job_id}/directives/{directive}/acks", status_code=204, summary="What became of a directive")
    async def acknowledge(job_id: str, directive: int, ack: DirectiveAck) -> Response:
        return take(job_id, ack.node, [Acknowledged(directive, ack)])

    @routes.post("/jobs/{job_id}/process-events", status_code=204, summary="Processes started, exited, restarted")
    async def process_events(job_id: str, batch: ProcessEvents) -> Response:
        monitor.job(job_id)
        _check_ranks([e.rank for e in batch.events if e.rank is not None], top_rank)
        for event in batch.events:
            _known_node(monitor.job(job_id), event.node)
            check(event, "the event", longest)
            _check_world(event, top_rank)
        for event in batch.events:
            monitor.submit(job_id, event)
        return Response(status_code=204)

    @routes.post("/jobs/{job_id}/observations", status_code=204, summary="A launcher's beat, and ranks it speaks for")
    async def observe(job_id: str, observation: NodeObservation) -> Response:
        job = monitor.job(job_id)
        _check_ranks([seen.rank for seen in observation.ranks], job.world_size or top_rank)
        check(observation, "the observation", longest)
        named = set(job.columns.sections).union(
            *(seen.open_sections for seen in observation.ranks), *(seen.first_time for seen in observation.ranks)
        )
        if len(named) > monitor.limits.sections_per_job:
            raise HTTPException(422, f"more sections than the limit of {monitor.limits.sections_per_job} a job")
        return take(job_id, observation.node, [observation])

    @routes.post("/jobs/{job_id}/evidence", status_code=204, summary="Stacks of a node's ranks")
    async def evidence(job_id: str, captured: Evidence) -> Response:
        _check_ranks([stack.rank for stack in captured.stacks], top_rank)
        return take(job_id, captured.node, [captured])

    def take(job_id: str, node: str, events: Sequence[JobEvent]) -> Response:
        _known_node(monitor.job(job_id), node)
        for event in events:
            monitor.submit(job_id, event)
        return Response(status_code=204)

    return routes


def _known_node(job: Job, node: str) -> Any:
    try:
        return job.nodes[node]
    except KeyError:
        raise HTTPException(
            404,
            f"job {job.id!r} knows no launcher {node[:200]!r}: "
            f"register it first with POST {names.API_PREFIX}/jobs/{job.id}/nodes",
        ) from None


def _check_world(event: ProcessEvent, limit: int) -> None:
    if event.world_size is not None and event.world_size > limit:
        raise HTTPException(422, f"world_size {event.world_size} is above the limit of {limit} ranks a job")
    if event.rank is not None and event.world_size and event.rank >= event.world_size:
        raise HTTPException(422, f"rank {event.rank} is outside its world of {event.world_size}")


def _check_ranks(ranks: Sequence[int], limit: int) -> None:
    wrong = next((rank for rank in ranks if not 0 <= rank < limit), None)
    if wrong is not None:
        raise HTTPException(422, f"rank {wrong} is outside the world, whose ranks are 0 to {limit - 1}")
