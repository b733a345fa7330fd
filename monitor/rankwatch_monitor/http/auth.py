"""Authorization: three scopes, each with a token of its own, or one token for all of them.

==========  ==============================================================================================
scope       allows
==========  ==============================================================================================
ingest      sending telemetry, and the routes of launchers
read        reading the API, the live stream and /metrics
control     changing a policy and ordering actions; includes ``ingest`` and ``read``
==========  ==============================================================================================

The page itself, /livez and /readyz need no token. A monitor without tokens allows everything, and therefore listens on
loopback only. Programs send a bearer token; the page exchanges it for a cookie (:mod:`.sessions`).
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol
from urllib.parse import unquote

from fastapi import HTTPException, Request

from rankwatch.contract import semconv
from rankwatch_monitor.errors import HeldElsewhereError
from rankwatch_monitor.ingest.limits import Counters
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.routes import Admit
from rankwatch_monitor.service.monitor import Monitor

SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Methods that change nothing."""


class Scope(StrEnum):
    """What a token may allow."""

    INGEST = "ingest"
    READ = "read"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Grant:
    """What the holder of a token or of a session may do."""

    scopes: frozenset[Scope]
    name: str
    """Of the token, for people."""
    jobs: tuple[str, ...] = ()
    """Patterns of the jobs that it is bound to; empty: all jobs."""

    def allows(self, scope: Scope) -> bool:
        """Whether it allows a scope."""
        return scope in self.scopes or Scope.CONTROL in self.scopes

    @property
    def widest(self) -> Scope:
        """The scope that allows most of those it has."""
        return next(scope for scope in (Scope.CONTROL, Scope.READ, Scope.INGEST) if scope in self.scopes)


UNGUARDED: Final = Grant(frozenset({Scope.CONTROL}), "none")
"""What everybody may do at a monitor without tokens."""


class TokenSource(Protocol):
    """Knows tokens."""

    @property
    def any(self) -> bool:
        """Whether any token is configured; without one, everything is allowed."""

    def grant_for(self, token: str) -> Grant | None:
        """What a token allows; None for an unknown one."""


class SessionSource(Protocol):
    """Knows the sessions of browsers."""

    def grant_in(self, cookies: str) -> Grant | None:
        """What the session named in a ``Cookie`` header allows; None if it names none that is open."""


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

    def grant_for(self, token: str) -> Grant | None:
        """What a token allows. Compared with each in constant time, against timing attacks."""
        known = ((Scope.CONTROL, self.control), (Scope.READ, self.read), (Scope.INGEST, self.ingest))
        given = token.encode()
        found = [scope for scope, own in known if own and hmac.compare_digest(given, own.encode())]
        return Grant(frozenset(found), str(found[0])) if found else None


def refusal(
    tokens: TokenSource,
    scope: Scope,
    headers: Mapping[str, str],
    query_token: str = "",
    *,
    sessions: SessionSource | None = None,
) -> tuple[int, str] | None:
    """Why a request is not allowed, as HTTP status and sentence; None when it is.

    Args:
        tokens: of the monitor.
        scope: that the request needs.
        headers: of the request.
        query_token: used where there is no bearer token.
        sessions: looked up where there is no token at all.
    """
    if not tokens.any:
        return None
    kind, _, token = headers.get("authorization", "").partition(" ")
    given = token.strip() if kind.lower() == "bearer" else query_token
    if not given and sessions is not None and "authorization" not in headers:
        grant = sessions.grant_in(headers.get("cookie", ""))
    else:
        grant = tokens.grant_for(given)
    if grant is not None:
        return None if grant.allows(scope) else (403, f"this token does not allow {scope}; use one that does")
    if not given:
        return 401, "this monitor needs a token: send it as 'Authorization: Bearer TOKEN' (RANKWATCH_TOKEN does so)"
    return 401, "the token is wrong"


def require(
    tokens: TokenSource, scope: Scope, counters: Counters, sessions: SessionSource
) -> Callable[[Request], Awaitable[None]]:
    """A FastAPI dependency that allows a request only with a token or a session for ``scope``."""

    async def check(request: Request) -> None:  # async, since FastAPI runs plain functions on a thread
        # curl -N and older pages read event streams with the token as ?token=.
        query_token = request.query_params.get("token", "") if request.method == "GET" else ""
        if (refused := refusal(tokens, scope, request.headers, query_token, sessions=sessions)) is not None:
            counters.reject("unauthorized")
            raise HTTPException(*refused, {"WWW-Authenticate": "Bearer"})

    return check


def admit_senders(tokens: TokenSource, monitor: Monitor) -> Admit:
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
