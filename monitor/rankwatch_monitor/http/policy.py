"""What a person changes or orders while a job runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, HTTPException
from pydantic import BaseModel, Field

from rankwatch.contract.enums import Action
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.events import Order, PolicyChanged
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.service.monitor import Monitor


class OrderedAction(BaseModel):
    """A person's order."""

    action: Literal["capture", "restart", "restart_excluding_node", "save_and_stop", "stop"]
    reason: str = Field("", max_length=500, description="why, for the incident and the restart reason")
    ranks: list[int] = Field([], max_length=10_000, description="leave out the nodes that run these ranks")
    nodes: list[str] = Field([], max_length=10_000, description="leave out these nodes, by name or host")


def policy_routes(monitor: Monitor) -> APIRouter:
    """Reading a policy; see :func:`control_routes` for changing it."""
    routes = APIRouter(tags=["policy"])

    @routes.get("/jobs/{job_id}/policy", summary="The policy in force")
    async def policy(job_id: str) -> dict[str, Any]:
        return monitor.job(job_id).policy.to_json()

    return routes


def control_routes(monitor: Monitor) -> APIRouter:
    """Changing a policy and ordering actions."""
    routes = APIRouter(tags=["policy"])

    @routes.patch("/jobs/{job_id}/policy", summary="Change some values of the policy; null switches a limit off")
    async def change(job_id: str, changes: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        job = monitor.job(job_id)
        try:
            changed = job.policy.changed(changes)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        monitor.submit(job_id, PolicyChanged(changed))
        monitor.push_settings(job)
        await monitor.persistence.save_and_wait(job, monitor.clock.now())
        return changed.to_json()

    @routes.post("/jobs/{job_id}/actions", status_code=202, summary="Order a capture, a restart or a stop")
    async def order(job_id: str, ordered: OrderedAction) -> dict[str, Any]:
        job = monitor.job(job_id)
        if job.ended is not None:
            raise HTTPException(409, f"job {job_id!r} has {job.ended.state} already: there is nothing to act on")
        if not nodes.acting(job):
            raise HTTPException(
                409,
                f"job {job_id!r} is only watched, as no launcher of Rankwatch runs it: start it with 'rankwatch run'",
            )
        action = Action(ordered.action)
        excluded: tuple[str, ...] = ()
        if action is Action.RESTART_EXCLUDING_NODE:
            try:
                excluded = exclusion.chosen(job, ordered.ranks, ordered.nodes)
            except ValueError as error:
                raise HTTPException(422, str(error)) from None
        elif ordered.ranks or ordered.nodes:
            raise HTTPException(
                422, f"'ranks' and 'nodes' go with restart_excluding_node; {action} is about the whole job"
            )
        monitor.submit(job_id, Order(action, ordered.reason, excluded))
        await monitor.persistence.save_and_wait(job, monitor.clock.now())
        return {"incident_id": job.incidents[-1].id}

    return routes
