"""Sessions of browsers: a token is exchanged for a cookie that no script can read.

``POST /session`` answers a token with a cookie (``HttpOnly``, ``SameSite=Strict``, ``Secure`` under TLS), and
``DELETE`` ends the session. There are :data:`MOST` at most, each :data:`LIFETIME` long. The database has their hashes,
so that they survive a restart with the same tokens. ``POST /session/codes`` makes a code that opens one session in
place of a token, so that an address can open the page without containing a token: ``GET /session?code=CODE``. A
session from the code of another one lasts no longer than that, and ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from rankwatch_monitor.core.views import responses
from rankwatch_monitor.http.auth import UNGUARDED, Bearer, Grant, Scope, TokenSource, grant_of
from rankwatch_monitor.ingest.limits import Counters
from rankwatch_monitor.store import schema
from rankwatch_monitor.store.repository import Repository

log = logging.getLogger("rankwatch")

LIFETIME: Final = 12 * 3600
"""Seconds until a session ends."""
MOST: Final = 1_000
"""Sessions at the same time; the oldest end for new ones."""
GRACE: Final = 15.0
"""Seconds for which a session goes on that another one has replaced; as long as the page waits for a response."""
CODE_LIFETIME: Final = 60
"""Seconds until a code expires."""
MOST_CODES: Final = 100
"""Unused codes at the same time; the oldest expire for new ones."""
NO_TOKEN: Final = {"WWW-Authenticate": "Bearer"}


_CONFIGURED: Final = frozenset(Scope)
"""Names of the configured tokens, which no other token may have."""
OLD_CODE: Final = "the code is wrong, was used or has expired: run 'rankwatch open' again"


@dataclass(frozen=True, slots=True)
class Session:
    """A session, or what one begins from: a token, by whose grant it is made, or another session."""

    grant: Grant
    ends: float = math.inf
    family: str = field(default_factory=lambda: secrets.token_hex(16))
    """Of those that began from one token, which are ended together."""


class Sessions:
    """The open sessions, by a hash of their secret. Used on the event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        most: int = MOST,
        *,
        repository: Repository | None = None,
        monitor: str = "",
    ) -> None:
        """``repository``: where they are kept over a restart; ``monitor``: its name among several that share it."""
        self._clock, self._most = clock, most
        self._repository, self._monitor = repository, monitor
        self._open: dict[str, Session] = {}  # the oldest first
        self._codes: dict[str, tuple[Session, float]] = {}  # until when each can be used
        self._salt, self._tokens = secrets.token_hex(16), ""

    @property
    def cookie(self) -> str:
        """The name of the cookie: those of one host are shared by all its ports, and so by all monitors there."""
        return f"rankwatch_{self._salt[:8]}"

    async def load(self, tokens: TokenSource, stands: Callable[[str, float], bool]) -> None:
        """Read the sessions of the last start, before the first request.

        Args:
            tokens: sessions that were opened when others were configured have ended.
            stands: whether a named token has been there since then (unix seconds), by its name.
        """
        if self._repository is None:
            return
        mine = (
            select(schema.sessions).where(schema.sessions.c.monitor == self._monitor).order_by(schema.sessions.c.ends)
        )

        def rows(repository: Repository) -> list[dict[str, Any]]:
            with repository.engine.connect() as connection:
                return [dict(row) for row in connection.execute(mine).mappings()]

        try:
            stored = await asyncio.to_thread(rows, self._repository)
        except SQLAlchemyError as error:
            log.debug("sessions of browsers cannot be read: %s", error)
            return
        if stored:
            self._salt = stored[-1]["salt"]
        self._tokens = await asyncio.to_thread(tokens.hashed, self._salt)
        for row in stored:
            known = row["name"] in _CONFIGURED or stands(row["name"], row["ends"] - LIFETIME)
            if known and row["ends"] > self._clock() and (row["salt"], row["tokens"]) == (self._salt, self._tokens):
                grant = Grant(frozenset(map(Scope, row["scopes"])), row["name"], tuple(row["jobs"]))
                self._open[row["digest"]] = Session(grant, row["ends"], row["family"])
            else:
                self._forget(row["digest"])

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, origin: Session) -> str:
        """Open a session that ends with ``origin`` at the latest; return its secret."""
        now = self._clock()
        self._drop([key for key, each in self._open.items() if each.ends <= now])
        self._drop(list(self._open)[: max(0, len(self._open) - self._most + 1)])
        secret = secrets.token_urlsafe(32)
        key, grant, ends = _key(secret), origin.grant, min(now + LIFETIME, origin.ends)
        self._open[key] = replace(origin, ends=ends)
        if self._repository is not None and self._tokens:
            row = {"digest": key, "monitor": self._monitor, "name": grant.name, "ends": ends}
            row |= {
                "scopes": sorted(grant.scopes),
                "jobs": list(grant.jobs),
                "family": origin.family,
                "salt": self._salt,
                "tokens": self._tokens,
            }
            self._repository.save(schema.sessions, row)
        return secret

    def issue_code(self, origin: Session) -> str:
        """Make a code that opens one session as from ``origin``."""
        now = self._clock()
        self._codes = {key: (each, ends) for key, (each, ends) in self._codes.items() if ends > now}
        while len(self._codes) >= MOST_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(32)
        self._codes[_key(code)] = origin, min(now + CODE_LIFETIME, origin.ends)
        return code

    def take_code(self, code: str) -> Session | None:
        """What a session begins from by a code, once; None for one that is unknown, used or expired."""
        origin, ends = self._codes.pop(_key(code), (None, 0.0))
        return origin if ends > self._clock() else None

    def named_in(self, cookies: str) -> Session | None:
        """The session named in a ``Cookie`` header; None if it names none that is open."""
        session = self._open.get(_key(self._secret_in(cookies)))
        return session if session is not None and session.ends > self._clock() else None

    def grant_in(self, cookies: str) -> Grant | None:
        """What that session allows."""
        session = self.named_in(cookies)
        return session.grant if session is not None else None

    def end(self, cookies: str) -> None:
        """End the session named in a ``Cookie`` header, with its family."""
        if (named := self.named_in(cookies)) is not None:
            self._end(lambda each: each.family == named.family)

    def supersede(self, cookies: str) -> None:
        """End the session named in a ``Cookie`` header soon: requests that are under way still have its cookie."""
        key = _key(self._secret_in(cookies))
        if (old := self._open.get(key)) is not None:
            self._open[key] = replace(old, ends=min(old.ends, self._clock() + GRACE))
            self._forget(key)

    def end_of(self, name: str) -> None:
        """End all sessions of a token, which was revoked."""
        self._end(lambda each: each.grant.name == name)

    def _end(self, which: Callable[[Session], bool]) -> None:
        self._drop([key for key, each in self._open.items() if which(each)])
        self._codes = {key: code for key, code in self._codes.items() if not which(code[0])}

    def _drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            if self._open.pop(key, None) is not None:
                self._forget(key)

    def _forget(self, key: str) -> None:
        if self._repository is not None:
            self._repository.remove(schema.sessions, {"digest": key})

    def _secret_in(self, cookies: str) -> str:
        for each in cookies.split(";"):
            name, _, value = each.strip().partition("=")
            if name == self.cookie:
                return value
        return ""


def _key(secret: str) -> str:
    # It has 256 random bits, so a plain hash cannot be inverted by guessing.
    return sha256(secret.encode(errors="surrogateescape")).hexdigest()


class Login(BaseModel):
    """What a session is opened with: a token, or a code."""

    token: str = Field("", max_length=4096)
    code: str = Field("", max_length=4096)


def session_routes(routes: APIRouter, tokens: TokenSource, sessions: Sessions, counters: Counters) -> None:
    """``POST``, ``GET`` and ``DELETE /session``."""
    routes.tags = ["session"]

    def begin(origin: Session, request: Request, response: Response) -> None:
        sessions.supersede(request.headers.get("cookie", ""))
        response.set_cookie(
            sessions.cookie,
            sessions.begin(origin),
            max_age=LIFETIME,
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
        )
        response.headers["Cache-Control"] = "no-store"

    @routes.post("/session", summary="Exchange a token or a code for a cookie")
    async def log_in(login: Login, request: Request, response: Response) -> responses.Allowed:
        if not tokens.any:
            return _described(UNGUARDED)
        if login.code:
            origin = sessions.take_code(login.code)
        else:
            grant = tokens.grant_for(login.token)
            origin = Session(grant) if grant is not None else None
        if origin is None:
            counters.reject("unauthorized")
            raise HTTPException(401, OLD_CODE if login.code else "the token is wrong", NO_TOKEN)
        begin(origin, request, response)
        return _described(origin.grant)

    @routes.get(
        "/session",
        status_code=303,
        response_class=Response,  # it has no content
        summary="Exchange a code for a cookie, and open the page",
    )
    async def open_page(request: Request, code: Annotated[str, Query(max_length=4096)] = "") -> Response:
        # Relative, since the monitor may be below a path of a proxy.
        response = Response(status_code=303, headers={"Location": "../../", "Referrer-Policy": "no-referrer"})
        if tokens.any:
            if (origin := sessions.take_code(code)) is None:
                counters.reject("unauthorized")
                raise HTTPException(401, OLD_CODE, NO_TOKEN)
            begin(origin, request, response)
        return response

    # Without a response_model, fastapi before 0.120 takes the annotation None for a body, which a 204 must not have.
    @routes.delete("/session", status_code=204, response_model=None, summary="End the session of the cookie")
    async def log_out(request: Request, response: Response) -> None:
        sessions.end(request.headers.get("cookie", ""))
        response.delete_cookie(sessions.cookie, httponly=True, samesite="strict")


def code_routes(routes: APIRouter, sessions: Sessions) -> None:
    """``POST /session/codes`` and ``GET /session/grant``, for holders of a token or a session."""
    routes.tags = ["session"]

    @routes.get("/session/grant", summary="What the token or the session of the request allows")
    async def granted(request: Request, response: Response) -> responses.Allowed:
        response.headers["Cache-Control"] = "no-store"
        return _described(grant_of(request))

    @routes.post("/session/codes", summary="A code that opens one session within a minute")
    async def make_code(request: Request, response: Response) -> dict[str, Any]:
        response.headers["Cache-Control"] = "no-store"
        bearer: Bearer = request.state.bearer
        session = None if bearer.token else sessions.named_in(request.headers.get("cookie", ""))
        return {"code": sessions.issue_code(session or Session(grant_of(request))), "seconds": CODE_LIFETIME}


def _described(grant: Grant) -> responses.Allowed:
    return {"scope": grant.widest.value, "name": grant.name}
