"""Who may do what: three scopes, each behind a token of its own, or one token for all three.

==========  ==============================================================================================
scope       allows
==========  ==============================================================================================
ingest      sending telemetry, and what launchers send of their nodes and ranks
read        the API's answers, the live stream, /metrics
control     changing a policy, ordering actions, and what ``ingest`` and ``read`` allow
==========  ==============================================================================================

The page itself, /livez and /readyz need none. Without any token everything is allowed, which is why a monitor without
one listens on loopback only.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

from fastapi import HTTPException, Request

from rankwatch.contract import semconv
from rankwatch_monitor.errors import HeldElsewhereError
from rankwatch_monitor.ingest.fastpath.otlp_bypass import Sender
from rankwatch_monitor.ingest.limits import Counters
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.service.monitor import Monitor


class Scope(StrEnum):
    """A group of things one may do."""

    INGEST = "ingest"
    READ = "read"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a monitor. ``control`` opens everything; the others only their own scope."""

    control: str | None = None
    read: str | None = None
    ingest: str | None = None

    @property
    def any(self) -> bool:
        """Whether a token is needed at all."""
        return bool(self.control or self.read or self.ingest)

    def allow(self, given: str, scope: Scope) -> bool:
        """Whether a token opens a scope. Compared in constant time, so that it cannot be guessed letter by letter."""
        opening = [self.control, {Scope.READ: self.read, Scope.INGEST: self.ingest}.get(scope)]
        matches = [hmac.compare_digest(given.encode(), token.encode()) for token in opening if token]
        return any(matches)


def given_token(request: Request | Sender) -> str:
    """The token of a request: its bearer token, or ``?token=`` for browsers' event streams, which can set no header."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    if isinstance(request, Sender) or request.method != "GET":
        return ""
    return request.query_params.get("token", "")


def refusal(tokens: Tokens, scope: Scope, request: Request | Sender) -> tuple[int, str] | None:
    """Why a request may not pass, as a status and a sentence; None when it may."""
    if not tokens.any:
        return None
    given = given_token(request)
    if tokens.allow(given, scope):
        return None
    if not given:
        return 401, "this monitor needs a token: send it as 'Authorization: Bearer TOKEN' (RANKWATCH_TOKEN does so)"
    if any(tokens.allow(given, other) for other in Scope):
        return 403, f"this token does not allow {scope}; use one that does"
    return 401, "the token is wrong"


def require(tokens: Tokens, scope: Scope, counters: Counters) -> Callable[[Request], Awaitable[None]]:
    """A FastAPI dependency that lets a request pass only with a token for ``scope``."""

    async def check(request: Request) -> None:  # a plain function would be handed to a thread, and back
        if (refused := refusal(tokens, scope, request)) is not None:
            counters.reject("unauthorized")
            raise HTTPException(*refused, {"WWW-Authenticate": "Bearer"})

    return check


def admit_senders(tokens: Tokens, monitor: Monitor) -> Callable[[Request | Sender], None]:
    """The same for the OTLP endpoints, which answer in OTLP's own way; a job that the request names must be ours.

    One that does not, as a Collector's that may hold several jobs, is looked at job by job once it was read.
    """

    def check(request: Request | Sender) -> None:
        if (refused := refusal(tokens, Scope.INGEST, request)) is not None:
            status, words = refused
            raise Refusal(status, "unauthorized", words)
        job_id = request.headers.get(semconv.JOB_HEADER)
        if monitor.sharing is not None and job_id:
            try:
                monitor.sharing.check(unquote(job_id))
            except HeldElsewhereError as error:
                raise Refusal(503, "held_elsewhere", str(error), retry_after=1) from None

    return check
