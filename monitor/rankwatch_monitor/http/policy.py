"""The policy of a job: reading and changing it, its schema, and actions that an operator orders."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from fastapi import APIRouter, Body, HTTPException, Request
from pydantic import BaseModel, Field

from rankwatch.contract import text
from rankwatch.contract.enums import Action
from rankwatch.contract.policy import ACTION_MEANINGS, SHARES, Policy
from rankwatch_monitor.core import nodes
from rankwatch_monitor.core.events import Order, PolicyChanged
from rankwatch_monitor.core.incident import exclusion
from rankwatch_monitor.core.views import responses
from rankwatch_monitor.http.bodies import FirstError
from rankwatch_monitor.http.tokens import record
from rankwatch_monitor.service.audit import AuditLog
from rankwatch_monitor.service.monitor import Monitor


class OrderedAction(BaseModel):
    """An action ordered by an operator."""

    action: Literal["capture", "restart", "restart_excluding_node", "save_and_stop", "stop"]
    reason: str = Field("", max_length=500, description="shown in the incident and as the restart reason")
    ranks: list[int] = Field(
        [], max_length=10_000, fail_fast=True, description="exclude the nodes that run these ranks"
    )
    nodes: list[str] = Field([], max_length=10_000, fail_fast=True, description="exclude these nodes, by name or host")


def policy_routes(routes: APIRouter, monitor: Monitor) -> None:
    """``GET /jobs/{id}/policy`` and ``GET /policy/schema``."""
    routes.tags = ["policy"]

    @routes.get("/jobs/{job_id}/policy", summary="The policy in force")
    async def policy(job_id: str) -> dict[str, Any]:
        return monitor.job(job_id).policy.to_json()

    @routes.get("/policy/schema", summary="Every setting of a policy, and what each action does")
    async def schema() -> responses.PolicySchema:
        return {"settings": policy_schema(), "actions": dict(ACTION_MEANINGS)}


def control_routes(routes: APIRouter, monitor: Monitor, audit: AuditLog) -> None:
    """``PATCH /jobs/{id}/policy`` and ``POST /jobs/{id}/actions``."""
    routes.tags = ["policy"]

    @routes.patch("/jobs/{job_id}/policy", summary="Change settings of the policy; null switches a limit off")
    async def change(
        request: Request, job_id: str, changes: Annotated[dict[str, Any], FirstError(), Body()]
    ) -> dict[str, Any]:
        job = monitor.job(job_id)
        try:
            changed = job.policy.changed(changes)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        monitor.submit(job_id, PolicyChanged(changed))
        record(audit, request, "policy", job_id, changes)
        monitor.push_settings(job)
        await monitor.persistence.save_and_wait(job, monitor.clock.now())
        return changed.to_json()

    @routes.post("/jobs/{job_id}/actions", status_code=202, summary="Order a capture, a restart or a stop")
    async def order(request: Request, job_id: str, ordered: OrderedAction) -> responses.Ordered:
        job = monitor.job(job_id)
        if job.ended is not None:
            raise HTTPException(409, f"job {job_id!r} has already {job.ended.state}: there is nothing to act on")
        if not nodes.any_acting(job):
            raise HTTPException(
                409,
                f"job {job_id!r} has no launcher of Rankwatch that could act: start it with 'rankwatch run'",
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
                422, f"'ranks' and 'nodes' need the action restart_excluding_node; {action} applies to the whole job"
            )
        monitor.submit(job_id, Order(action, text.lines(ordered.reason), excluded))
        record(audit, request, "order", job_id, ordered.model_dump(exclude_defaults=True))
        await monitor.persistence.save_and_wait(job, monitor.clock.now())
        return {"incident_id": job.incidents[-1].id}


@cache
def policy_schema() -> list[responses.Setting]:
    """Every setting of :class:`Policy`, in the order of their declaration, as an editor needs it.

    ``kind`` is ``switch``, ``choice`` (one of ``choices``), ``whole``, ``number``, ``share`` (which may be
    written in percent), ``text`` or ``seconds_by_name``;
    ``optional`` means that null switches it off.
    """
    hints, defaults = get_type_hints(Policy), Policy().to_json()
    rows: list[responses.Setting] = []
    for each in fields(Policy):
        kind, choices, optional = _kind(hints[each.name])
        rows.append(
            {
                "name": each.name,
                "kind": "share" if each.name in SHARES else kind,
                "choices": choices,
                "optional": optional,
                "default": defaults[each.name],
                "unit": each.metadata["unit"],
                "meaning": each.metadata["meaning"],
            }
        )
    return rows


def _kind(hint: Any) -> tuple[responses.SettingKind, list[str], bool]:
    """Kind, choices and optionality of a setting."""
    optional = get_origin(hint) is types.UnionType and type(None) in get_args(hint)
    if optional:
        hint = next(each for each in get_args(hint) if each is not type(None))
    if get_origin(hint) is Mapping:
        return "seconds_by_name", [], optional
    if issubclass(hint, StrEnum):
        return "choice", [str(each) for each in hint], optional
    kinds: dict[type, responses.SettingKind] = {bool: "switch", int: "whole", float: "number", str: "text"}
    return kinds[hint], [], optional
