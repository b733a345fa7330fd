"""Named tokens and the audit log; both want a control token that is not bound to jobs, but for the log of a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, Field

from rankwatch_monitor.http.auth import UNGUARDED, Scope, TokenSource, grant_of
from rankwatch_monitor.service.audit import KEPT, AuditLog
from rankwatch_monitor.service.tokens import MAX_JOBS, NotStoredError, TokenRegistry


class NewToken(BaseModel):
    """A token to make."""

    name: str = Field(min_length=1, max_length=64, description="shown in the audit log")
    scope: Literal["ingest", "read", "control"]
    jobs: list[str] = Field(
        [],
        max_length=MAX_JOBS,
        fail_fast=True,
        description="ids of the jobs it is bound to, with * and ?; empty: all jobs",
    )


def record(audit: AuditLog, request: Request, action: str, subject: str, detail: Mapping[str, Any]) -> None:
    """Record what the sender of a request did."""
    address = request.client.host if request.client is not None else ""
    audit.record(action, subject, grant_of(request).name, address, detail)


def token_routes(routes: APIRouter, registry: TokenRegistry, tokens: TokenSource, audit: AuditLog) -> None:
    """``/tokens``."""
    routes.tags = ["access"]

    @routes.post("/tokens", status_code=201, summary="Make a named token; it is shown in this response alone")
    async def create(request: Request, new: NewToken) -> dict[str, Any]:
        if not tokens.any:
            raise HTTPException(409, "this monitor allows everything without one: start it with RANKWATCH_TOKEN set")
        by, reserved = grant_of(request).name, (*map(str, Scope), UNGUARDED.name)
        try:
            secret = await registry.create(new.name, new.scope, new.jobs, by, reserved)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        except NotStoredError as error:
            raise HTTPException(503, str(error)) from None
        record(audit, request, "token.create", new.name, {"scope": new.scope, "jobs": new.jobs})
        return {"name": new.name, "scope": new.scope, "jobs": new.jobs, "token": secret}

    @routes.get("/tokens", summary="All named tokens, without their secrets")
    async def listed() -> dict[str, Any]:
        return {"tokens": [token.to_json() for token in registry.listed()]}

    @routes.delete("/tokens/{name}", summary="Revoke a named token")
    async def revoke(request: Request, name: str) -> dict[str, Any]:
        try:
            revoked = await registry.revoke(name)
        except KeyError:
            raise HTTPException(404, f"there is no token {name[:100]!r}") from None
        except NotStoredError as error:
            record(audit, request, "token.revoke", name, {"stored": False})
            raise HTTPException(503, str(error)) from None
        record(audit, request, "token.revoke", name, {"scope": revoked.scope, "jobs": list(revoked.jobs)})
        return {"revoked": name}


def audit_routes(routes: APIRouter, audit: AuditLog) -> None:
    """``/audit``."""
    routes.tags = ["access"]

    @routes.get("/audit", summary="Orders and changes, the newest first")
    async def entries(limit: Annotated[int, Query(ge=1, le=KEPT)] = 100) -> dict[str, Any]:
        return {"entries": [asdict(entry) for entry in await audit.newest(limit)]}
