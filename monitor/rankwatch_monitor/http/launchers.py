"""The control plane: what launchers send and fetch. The shapes stand in ``rankwatch.contract.messages``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response

from rankwatch.contract import ft_state
from rankwatch.contract.messages import DirectiveAck, Evidence, NodeObservation, NodeRegistration
from rankwatch_monitor.core import apply
from rankwatch_monitor.core.events import Acknowledged
from rankwatch_monitor.core.incident.settings_push import settings_of
from rankwatch_monitor.http.launcher_messages import LauncherWords, ProcessEvents, known_node
from rankwatch_monitor.http.validation import check
from rankwatch_monitor.service.monitor import Monitor

LONGEST_WAIT = 30.0
"""Seconds a long poll may last: below the idle limits of the proxies between a launcher and its monitor."""


def launcher_routes(monitor: Monitor) -> APIRouter:
    """Registration, directives, acknowledgements, process events, observations and evidence."""
    routes = APIRouter(tags=["launchers"])
    words, longest = LauncherWords(monitor), monitor.limits.name_length

    @routes.post("/jobs/{job_id}/nodes", summary="A launcher registers")
    async def register(job_id: str, registration: NodeRegistration) -> dict[str, Any]:
        if not job_id or len(job_id) > longest:
            raise HTTPException(422, f"a job's id must have 1 to {longest} characters")
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
            job = monitor.job(job_id)
            apply.poll(job, known_node(job, node), monitor.clock.now())
        ready = await monitor.directives_after(job_id, after, wait)
        return {"directives": [asdict(directive) for directive in ready]}

    @routes.post("/jobs/{job_id}/directives/{directive}/acks", status_code=204, summary="What became of a directive")
    async def acknowledge(job_id: str, directive: int, ack: DirectiveAck) -> Response:
        known_node(monitor.job(job_id), ack.node)
        monitor.submit(job_id, Acknowledged(directive, ack))
        return Response(status_code=204)

    @routes.post("/jobs/{job_id}/process-events", status_code=204, summary="Processes started, exited, restarted")
    async def process_events(job_id: str, batch: ProcessEvents) -> Response:
        words.events(job_id, batch)
        return Response(status_code=204)

    @routes.post("/jobs/{job_id}/observations", status_code=204, summary="A launcher's beat, and ranks it speaks for")
    async def observe(job_id: str, observation: NodeObservation) -> Response:
        words.observation(job_id, observation)
        return Response(status_code=204)

    @routes.post("/jobs/{job_id}/evidence", status_code=204, summary="Stacks of a node's ranks")
    async def evidence(job_id: str, captured: Evidence) -> Response:
        words.evidence(job_id, captured)
        return Response(status_code=204)

    return routes
