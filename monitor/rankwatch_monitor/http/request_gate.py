"""The gate: decides on a request by its head, before a byte of its body is read, and bounds the body.

The outermost middleware. It refuses foreign names and pages (:mod:`.origins`), then requests to guarded paths without a
valid token or session. Only then is the body received: up to the path's limit, and counted by sender while it is in
memory. Whether the token allows this route and this job is decided by the route's dependencies (:mod:`.auth`); of
evidence, which is large and has a quota, by the gate. What the gate refuses is discarded by the server as it arrives.
What it lets in begins in its turn (:mod:`.turns`), once the body is complete.

The fast lanes call the same functions: what they do not admit, they leave to the application, and so to the gate. The
OTLP endpoints check tokens and bodies themselves, since their errors have another format.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import parse_qs
from weakref import WeakValueDictionary

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rankwatch.contract import semconv, text
from rankwatch_monitor.http import auth
from rankwatch_monitor.http.auth import Bearer, SessionSource, TokenSource, no_grant
from rankwatch_monitor.http.origins import SAFE_METHODS, Denied, Origins
from rankwatch_monitor.http.problems import problem
from rankwatch_monitor.http.turns import READS, Turns
from rankwatch_monitor.ingest.admission import Admission, Body
from rankwatch_monitor.ingest.limits import KIB, MIB, Counters
from rankwatch_monitor.ingest.rejection import Refusal

LARGEST: Final = MIB
"""Bytes of a body."""
LARGE: Final = 256 * KIB
"""Bytes of a body of which one is decoded in a turn of the loop: 64 of 1 MiB in one turn take a second."""
LARGEST_EVIDENCE: Final = 8 * MIB
"""Bytes of a body with stacks, of which launchers send up to 4 MiB."""
MOST_VALUES: Final = 1 << 17
"""Values and names in a body; 2,000 process events, the most of one request, have two thirds."""
MOST_VALUES_OF_EVIDENCE: Final = 3 << 18
"""The same with stacks, of which 4 MiB of the shortest frames have as many."""
_EVIDENCE: Final = re.compile(re.escape(semconv.API_PREFIX) + "/jobs/([^/]+)/(evidence|logs)")
"""What a launcher sends of its ranks: counted before it is read."""
LARGEST_UNGUARDED: Final = 16 * KIB
"""Bytes of a body that is read without a token: a login."""
PIECE: Final = 256 * KIB
"""Bytes of a response that are given to the connection at once: the next ones wait until most of them are taken."""
MOST_UNSENT: Final = 64 * MIB
"""Of the responses to one reader that its connections have not taken; then it is refused more. One may have as much."""
MOST_FIELDS: Final = 100
"""Fields of a query."""
OTLP: Final = (semconv.OTLP_METRICS_PATH, semconv.OTLP_TRACES_PATH)
PROBES: Final = ("/livez", "/readyz")
"""Paths that answer under every name, since probes may use any."""
_POLLS: Final = ("/directives", "/logs")
"""End the paths of questions that wait for their answers for long."""
LOGIN: Final = semconv.API_PREFIX + "/session"
"""The one path of the API that needs no token."""


RefuseEvidence = Callable[[str, int, str, Callable[[str], bool] | None], Callable[[int], None]]
"""See :meth:`rankwatch_monitor.service.monitor.Monitor.refuse_evidence`."""


class _RefusedError(Exception):
    """The answer to a request that is refused by its head, and the reason it is counted under."""

    def __init__(self, reason: str, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.reason, self.status, self.message, self.headers = reason, status, message, headers


class _Admitted(NamedTuple):
    """What the head of a request allows."""

    guarded: bool
    limit: int
    """Bytes of the body."""
    size: int
    """The same as declared."""
    give_back: Callable[[int], None] | None
    """Takes how many bytes of the quota were not used."""


class RequestGate:
    """The middleware."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: TokenSource,
        sessions: SessionSource,
        origins: Origins,
        counters: Counters,
        admission: Admission,
        refuse_evidence: RefuseEvidence,
    ) -> None:
        self._app, self._tokens, self._sessions = app, tokens, sessions
        self._origins, self._counters, self._admission = origins, counters, admission
        self._refuse_evidence = refuse_evidence
        self._one_large = asyncio.Lock()
        self._large_by_sender: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reads, self._writes = Turns(READS), Turns()
        self._unsent: dict[str, int] = {}
        """Bytes of responses by reader, see :data:`MOST_UNSENT`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            admitted = self._admit(scope, Headers(scope=scope))
        except _RefusedError as refused:
            self._counters.reject(refused.reason)
            await problem(refused.status, refused.message, refused.headers)(scope, receive, send)
            return
        if admitted is None:
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        host = client[0] if client else ""
        with self._admission.body(host) as counted:
            body = _BoundedBody(receive, send, counted, admitted.limit, self._counters)
            try:
                await self._pass(scope, body, admitted, host)
            finally:
                if admitted.give_back is not None:
                    admitted.give_back(max(0, admitted.size - counted.size))

    def _admit(self, scope: Scope, headers: Headers) -> _Admitted | None:
        """Decide by the head; None: the application makes the same checks.

        Raises:
            _RefusedError: the request is refused.
        """
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy may have taken another part of it for the body (RFC 9112, section 6.3): the rest is not answered.
            raise _RefusedError("bad_request", 400, _TWO_LENGTHS, {"Connection": "close"})
        path = scope["path"]
        if path in OTLP:  # these endpoints call admit_senders
            return None
        guarded = path != LOGIN and (path.startswith(semconv.API_PREFIX) or path == "/metrics")
        if (denied := self._denied(scope, headers, guarded=guarded)) is not None:
            challenge = _CHALLENGE if denied.status in (401, 403) else None
            raise _RefusedError("unauthorized", denied.status, denied.message, challenge)
        limit = LARGEST if guarded else LARGEST_UNGUARDED
        evidence = _EVIDENCE.fullmatch(path) if scope["method"] == "POST" else None
        if evidence is not None and evidence[2] == "evidence":
            limit = LARGEST_EVIDENCE
        declared = headers.get("content-length", "0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > limit:
            raise _RefusedError("body_too_large", 413, _too_large(limit))
        size = int(declared) if "content-length" in headers else limit
        give_back = None if evidence is None else self._admit_evidence(evidence[1], size, headers)
        return _Admitted(guarded, limit, size, give_back)

    def _admit_evidence(self, job_id: str, size: int, headers: Headers) -> Callable[[int], None]:
        bearer = Bearer(self._tokens, headers, "", self._sessions)
        refused, grant = auth.refused(bearer, auth.Scope.INGEST, job_id), bearer.grant()
        if refused is not None or grant is None:
            raise _RefusedError("unauthorized", *(refused or no_grant(bearer)), _CHALLENGE)
        try:
            return self._refuse_evidence(job_id, size, grant.name, grant.bound)
        except Refusal as refusal:
            retry = {"Retry-After": str(refusal.retry_after)}
            raise _RefusedError(refusal.reason, refusal.status, refusal.message, retry) from None

    async def _pass(self, scope: Scope, body: _BoundedBody, admitted: _Admitted, host: str) -> None:
        """Let an admitted request into the application in its turn."""
        reads = scope["method"] in SAFE_METHODS
        if not admitted.guarded or (reads and scope["path"].endswith(_POLLS)):
            await self._app(scope, body.receive, body.send)
            return
        token = _token_in(scope["query_string"])
        sender = auth.reader_of(Bearer(self._tokens, Headers(scope=scope), token, self._sessions).grant(), host)
        if not reads:
            await self._change(scope, body, sender, large=admitted.size > LARGE)
            return
        async with self._reads.held(sender) as body.answered:
            if self._unsent.get(sender, 0) > MOST_UNSENT:
                self._counters.reject("unread")
                await problem(429, _UNREAD, {"Retry-After": "5"})(scope, body.receive, body.send)
                return
            body.unsent = partial(self._count_unsent, sender)
            await self._app(scope, body.receive, body.send)

    def _count_unsent(self, sender: str, size: int) -> None:
        """Count bytes of a response that wait for a reader, or that no longer do."""
        held = self._unsent.pop(sender, 0) + size
        if held:
            self._unsent[sender] = held

    async def _change(self, scope: Scope, body: _BoundedBody, sender: str, *, large: bool) -> None:
        """Begin once the body is complete; large ones are decoded each in a turn of the loop of its own."""
        received: list[Message] = []
        try:
            while not received or received[-1].get("more_body"):
                received.append(await body.receive())
        except HTTPException as error:
            await problem(error.status_code, error.detail, dict(error.headers or {}))(scope, body.receive, body.send)
            return
        most = MOST_VALUES_OF_EVIDENCE if scope["path"].endswith("/evidence") else MOST_VALUES
        if sum(map(_values, received)) > most:
            self._counters.reject("body_too_large")
            await problem(413, f"it has more than {most} values: send less")(scope, body.receive, body.send)
            return
        received.reverse()

        async def receive() -> Message:
            return received.pop() if received else await body.receive()

        await self._writes.turn(sender)
        if not large:
            await self._app(scope, receive, body.send)
            return
        async with self._large_by_sender.setdefault(sender, asyncio.Lock()), self._one_large:
            await self._app(scope, receive, body.send)
            await asyncio.sleep(0)

    def _denied(self, scope: Scope, headers: Headers, *, guarded: bool) -> Denied | None:
        method = scope["method"]
        if scope["path"] not in PROBES:
            denied = self._origins.denied(method, headers, guarded=self._tokens.any)
            if denied is not None:
                return denied
        if not guarded or not self._tokens.any:
            return None
        # Event streams of some clients cannot set a header.
        query_token = _token_in(scope["query_string"]) if method == "GET" else ""
        bearer = Bearer(self._tokens, headers, query_token, self._sessions)
        if bearer.grant() is None:
            return Denied(*no_grant(bearer))
        if method not in SAFE_METHODS and not {"authorization", "origin"} & set(headers.keys()):
            return Denied(403, "with a cookie, only a page of this monitor may change something: there is no Origin")
        return None


class _BoundedBody:
    """Counts the body of one request as it arrives."""

    def __init__(self, receive: Receive, send: Send, counted: Body, limit: int, counters: Counters) -> None:
        self._receive, self._send, self._counted, self._limit, self._counters = receive, send, counted, limit, counters
        self._responding = False
        self.answered: Callable[[], None] = _nothing
        """Called when the response begins: what is left of it is sent as fast as the client reads."""
        self.unsent: Callable[[int], object] = _nothing
        """Called with the bytes of a response that wait to be taken, and with as many below 0 once they are."""

    async def receive(self) -> Message:
        """The next message of the server.

        Raises:
            HTTPException: 413, the body is above its limit; 429, the sender has too much in flight.
        """
        message = await self._receive()
        try:
            self._counted.grew(len(message.get("body", b"")))
            if self._counted.size > self._limit:
                raise Refusal(413, "body_too_large", _too_large(self._limit))
        except Refusal as refusal:
            if self._responding:
                return {"type": "http.disconnect"}
            self._counters.reject(refusal.reason)
            retry = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
            raise HTTPException(refusal.status, refusal.message, retry) from None
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the application, a large body in pieces."""
        self._responding = True
        self.answered()
        content = message.get("body", b"")
        if len(content) <= PIECE:
            await self._send(message)
            return
        self.unsent(len(content))
        left = len(content)
        try:
            for begin in range(0, len(content), PIECE):
                piece = content[begin : begin + PIECE]
                last = begin + PIECE >= len(content)
                await self._send({**message, "body": piece, "more_body": not last or message.get("more_body", False)})
                self.unsent(-len(piece))
                left -= len(piece)
        finally:
            self.unsent(-left)


def _values(message: Message) -> int:
    part: bytes = message.get("body", b"")
    return text.values(part) + part.count(b'":')


def _token_in(query: bytes) -> str:
    """The token in a query; none is looked for in one of more than :data:`MOST_FIELDS` fields."""
    try:
        return parse_qs(query.decode("latin-1"), max_num_fields=MOST_FIELDS).get("token", [""])[-1]
    except ValueError:
        return ""


def _nothing(_: int = 0) -> None:
    """It holds no turn, and nothing of it is counted."""


_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}
_UNREAD: Final = "you have asked for more than your connections take: read the responses first"
_TWO_LENGTHS: Final = "a request has either Content-Length or Transfer-Encoding"


def _too_large(limit: int) -> str:
    return f"the request body is above the limit of {limit} bytes"
