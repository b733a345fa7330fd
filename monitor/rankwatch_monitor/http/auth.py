"""Authorization: three scopes; a configured token for each or one for all, and named tokens, maybe bound to jobs.

==========  ==============================================================================================
scope       allows
==========  ==============================================================================================
ingest      sending telemetry, the routes of launchers, and reading the scores of ranks, which ranks log
read        reading the API, the live stream and /metrics
control     changing a policy and ordering actions; includes ``ingest`` and ``read``
==========  ==============================================================================================

The page itself, /livez and /readyz need no token. A monitor without tokens allows everything, and therefore listens on
loopback only. Programs send a bearer token; the page exchanges it for a cookie (:mod:`.sessions`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol
from urllib.parse import unquote

from fastapi import HTTPException, Request

from rankwatch.contract import job_id as job_ids
from rankwatch.contract import semconv
from rankwatch_monitor.errors import HeldElsewhereError, RevokedError
from rankwatch_monitor.http.origins import Origins
from rankwatch_monitor.ingest.limits import Counters
from rankwatch_monitor.ingest.rejection import Forbidden, Refusal
from rankwatch_monitor.ingest.routes import Admit
from rankwatch_monitor.service.monitor import Monitor
from rankwatch_monitor.service.tokens import NamedToken, matches

FILTERED: Final = tuple(
    semconv.API_PREFIX + path
    for path in ("/jobs", "/hosts", "/nodes", "/digest", "/sparklines", "/events", "/policy/schema")
)
"""Paths without a job that a token bound to jobs may read; they show its jobs only."""
FILTERED_BELOW: Final = semconv.API_PREFIX + "/nodes/"
"""So do the paths that begin with this."""


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

    def covers(self, job_id: str) -> bool:
        """Whether it may be used for a job."""
        return not self.jobs or matches(self.jobs, job_id)

    @property
    def bound(self) -> Callable[[str], bool] | None:
        """Whether a job is one of those it is bound to; None: it is bound to none."""
        return self.covers if self.jobs else None

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

    def hashed(self, salt: str) -> str:
        """A hash of the configured tokens, which is slow to guess from: another one after a change of any."""


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
    own: bool = False
    """Made by the monitor at this start: its sessions go on with those of the next."""

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

    def hashed(self, salt: str) -> str:
        """A hash of the configured tokens; people choose them, so it takes some 50 ms."""
        if self.own:
            return "own"
        secret = json.dumps([self.control, self.read, self.ingest]).encode()
        return hashlib.scrypt(secret, salt=salt.encode(), n=1 << 14, r=8, p=1).hex()


@dataclass(frozen=True, slots=True)
class AllTokens:
    """The configured tokens, and those that are made while the monitor runs."""

    configured: TokenSource
    named: Callable[[str], NamedToken | None]

    @property
    def any(self) -> bool:
        """Whether any token is configured: only then may others be made."""
        return self.configured.any

    def grant_for(self, token: str) -> Grant | None:
        """What a token allows; None for one that is unknown or revoked."""
        if (grant := self.configured.grant_for(token)) is not None:
            return grant
        named = self.named(token)
        return Grant(frozenset({Scope(named.scope)}), named.name, named.jobs) if named is not None else None

    def hashed(self, salt: str) -> str:
        """A hash of the configured tokens: named ones end their own sessions."""
        return self.configured.hashed(salt)


@dataclass(frozen=True, slots=True)
class Bearer:
    """Where a request states what it may do."""

    tokens: TokenSource
    headers: Mapping[str, str]
    query_token: str = ""
    """Used where there is no bearer token."""
    sessions: SessionSource | None = None
    """Looked up where there is no token at all."""

    @property
    def token(self) -> str:
        """Its token; empty if it has none."""
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if kind.lower() == "bearer" else self.query_token

    def grant(self) -> Grant | None:
        """What it may do now; None for nothing."""
        if not self.tokens.any:
            return UNGUARDED
        given = self.token
        if not given and self.sessions is not None and "authorization" not in self.headers:
            return self.sessions.grant_in(self.headers.get("cookie", ""))
        return self.tokens.grant_for(given)


def refused(bearer: Bearer, scope: Scope, job_id: str | None = None) -> tuple[int, str] | None:
    """Why a request that needs a scope is not allowed, as HTTP status and sentence; None when it is.

    ``job_id``: of the job that it is about, if it is about one.
    """
    grant = bearer.grant()
    if grant is not None and not grant.allows(scope):
        return 403, f"this token does not allow {scope}"
    if grant is not None:
        return (403, _other_job(grant, job_id)) if job_id is not None and not grant.covers(job_id) else None
    return no_grant(bearer)


def no_grant(bearer: Bearer) -> tuple[int, str]:
    """The refusal of a request without a valid token or session, as HTTP status and sentence."""
    if not bearer.token:
        return 401, "this monitor needs a token: send it as 'Authorization: Bearer TOKEN' (RANKWATCH_TOKEN does so)"
    return 401, "the token is wrong"


def _other_job(grant: Grant, job_id: str) -> str:
    return f"the token {grant.name!r} is bound to other jobs than {job_id[:100]!r}"


def _filtered(path: str) -> bool:
    return path in FILTERED or path.startswith(FILTERED_BELOW)


def require(
    tokens: TokenSource, scope: Scope, counters: Counters, sessions: SessionSource, *, also: Scope | None = None
) -> Callable[[Request], Awaitable[None]]:
    """A FastAPI dependency that allows a request only with a token or a session for ``scope``, or for ``also``."""

    async def check(request: Request) -> None:  # async, since FastAPI runs plain functions on a thread
        # curl -N reads event streams with the token as ?token=.
        query_token = request.query_params.get("token", "") if request.method == "GET" else ""
        job_id = request.path_params.get("job_id")
        bearer = Bearer(tokens, request.headers, query_token, sessions)
        problem, grant = refused(bearer, scope, job_id), bearer.grant()
        if problem is not None and also is not None and refused(bearer, also, job_id) is None:
            problem = None
        path = request.scope["path"]  # that of the routes: some releases of Starlette build request.url from Host
        if problem is None and grant is not None and grant.jobs and job_id is None and not _filtered(path):
            problem = 403, f"the token {grant.name!r} is bound to jobs, and this is about all jobs"
        if problem is not None:
            counters.reject("unauthorized")
            raise HTTPException(*problem, {"WWW-Authenticate": "Bearer"})
        request.state.bearer, request.state.grant = bearer, grant

    return check


def grant_of(request: Request) -> Grant:
    """What a request may do that was let in by :func:`require`."""
    grant: Grant = request.state.grant
    return grant


def still_granted(request: Request) -> Grant:
    """The same as of now, for responses that take long.

    Raises:
        RevokedError: the token was revoked, or the session has ended.
    """
    bearer: Bearer = request.state.bearer
    if (grant := bearer.grant()) is None:
        raise RevokedError
    return grant


def admit_senders(tokens: TokenSource, monitor: Monitor, origins: Origins) -> Admit:
    """The check of the OTLP endpoints, by a request's headers: names, its token, and which monitor owns the job.

    A request that names no job, such as one of a Collector with several jobs, is checked job by job when decoded. So is
    every request with a token that is bound to jobs.
    """

    def check(headers: Mapping[str, str]) -> Forbidden | None:
        if (denied := origins.denied("POST", headers, guarded=tokens.any)) is not None:
            raise Refusal(denied.status, "unauthorized", denied.message)
        job_id = unquote(headers.get(semconv.JOB_HEADER, "")) or None
        bearer = Bearer(tokens, headers)
        if (found := refused(bearer, Scope.INGEST, job_id)) is not None:
            status, message = found
            raise Refusal(status, "unauthorized", message)
        grant = bearer.grant()
        bound = BoundSender(grant, monitor) if grant is not None and grant.jobs else None
        # What can be no id is no report's: the body is refused for it.
        if monitor.ownership is not None and job_id and job_ids.problem(job_id) is None:
            if bound is not None and (reason := bound.refuses(job_id)) is not None:
                raise Refusal(403, "unauthorized", reason)
            try:
                monitor.ownership.require(job_id)
            except HeldElsewhereError as error:
                raise Refusal(error.status, error.counted_as, str(error), retry_after=1) from None
        return bound.refuses if bound is not None else None

    return check


def line_of(tokens: TokenSource, headers: Mapping[str, str], job_id: str) -> str:
    """The line in which a request waits: that of its token, if it is bound to jobs, else that of the job it names."""
    grant = Bearer(tokens, headers).grant()
    return f"token {grant.name}" if grant is not None and grant.jobs else job_id


def reader_of(grant: Grant | None, host: str) -> str:
    """In whose line a request waits that no fast lane takes: a token that is bound to jobs has one from all addresses.

    Whoever is on the machine has millions of loopback, and most networks give a host as many of IPv6.
    """
    if grant is None:
        return f" {host}"
    return grant.name if grant.jobs else f"{grant.name} {host}"


class BoundSender:
    """Which jobs one request with a token that is bound to jobs may report on."""

    def __init__(self, grant: Grant, monitor: Monitor) -> None:
        self._grant, self._monitor = grant, monitor
        self._new: dict[str, str | None] = {}
        """Jobs that the monitor does not have, and why they are refused."""

    def refuses(self, job_id: str) -> str | None:
        """Why a job is refused; None: it may be reported on."""
        if not self._grant.covers(job_id):
            return _other_job(self._grant, job_id)
        if job_id in self._monitor.jobs:
            return None
        if job_id not in self._new:
            more = len(self._new) + 1
            self._new[job_id] = self._monitor.refuses_job(job_id, self._grant.bound, more) or None
        return self._new[job_id]
