"""Authorization: three scopes, each with a token of its own, or one token for all of them.

==========  ==============================================================================================
scope       allows
==========  ==============================================================================================
ingest      sending telemetry, and the routes of launchers
read        reading the API, the live stream and /metrics
control     changing a policy and ordering actions; includes ``ingest`` and ``read``
==========  ==============================================================================================

The page itself, /livez and /readyz need no token. A monitor without tokens allows everything, and therefore listens on
loopback only.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

from fastapi import HTTPException, Request

from rankwatch.contract import semconv
from rankwatch_monitor.errors import HeldElsewhereError
from rankwatch_monitor.ingest.limits import Counters
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.routes import Admit
from rankwatch_monitor.service.monitor import Monitor


class Scope(StrEnum):
    """What a token may allow."""

    INGEST = "ingest"
    READ = "read"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a monitor. ``control`` allows every scope, the others only their own."""

    control: str | None = None
    read: str | None = None
    ingest: str | None = None

    @property
    def any(self) -> bool:
        """Whether any token is configured; without one, everything is allowed."""
        return bool(self.control or self.read or self.ingest)

    def allow(self, given: str, scope: Scope) -> bool:
        """Whether a token allows a scope. Compared in constant time, against timing attacks."""
        accepted = [self.control, {Scope.READ: self.read, Scope.INGEST: self.ingest}.get(scope)]
        matches = [hmac.compare_digest(given.encode(), token.encode()) for token in accepted if token]
        return any(matches)


def refusal(tokens: Tokens, scope: Scope, headers: Mapping[str, str], query_token: str = "") -> tuple[int, str] | None:
    """Why a request is not allowed, as HTTP status and sentence; None when it is.

    Args:
        tokens: of the monitor.
        scope: that the request needs.
        headers: of the request.
        query_token: used where there is no bearer token.
    """
    if not tokens.any:
        return None
    kind, _, token = headers.get("authorization", "").partition(" ")
    given = token.strip() if kind.lower() == "bearer" else query_token
    if tokens.allow(given, scope):
        return None
    if not given:
        return 401, "this monitor needs a token: send it as 'Authorization: Bearer TOKEN' (RANKWATCH_TOKEN does so)"
    if any(tokens.allow(given, other) for other in Scope):
        return 403, f"this token does not allow {scope}; use one that does"
    return 401, "the token is wrong"


def require(tokens: Tokens, scope: Scope, counters: Counters) -> Callable[[Request], Awaitable[None]]:
    """A FastAPI dependency that allows a request only with a token for ``scope``."""

    async def check(request: Request) -> None:  # async, since FastAPI runs plain functions on a thread
        # Event streams of browsers cannot set headers, so GET requests may carry the token as ?token=.
        query_token = request.query_params.get("token", "") if request.method == "GET" else ""
        if (refused := refusal(tokens, scope, request.headers, query_token)) is not None:
            counters.reject("unauthorized")
            raise HTTPException(*refused, {"WWW-Authenticate": "Bearer"})

    return check


def admit_senders(tokens: Tokens, monitor: Monitor) -> Admit:
    """The check of the OTLP endpoints, by a request's headers: its token, and that this monitor owns the job it names.

    A request that names no job, such as one of a Collector with several jobs, is checked job by job when decoded.
    """

    def check(headers: Mapping[str, str]) -> None:
        if (refused := refusal(tokens, Scope.INGEST, headers)) is not None:
            status, message = refused
            raise Refusal(status, "unauthorized", message)
        job_id = headers.get(semconv.JOB_HEADER)
        if monitor.ownership is not None and job_id:
            try:
                monitor.ownership.require(unquote(job_id))
            except HeldElsewhereError as error:
                raise Refusal(503, "held_elsewhere", str(error), retry_after=1) from None

    return check
