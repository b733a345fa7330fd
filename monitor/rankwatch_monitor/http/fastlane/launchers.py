"""The fast lane of launchers, thousands of which register, get a directive and restart ranks within seconds.

Invalid requests fall back to the application, whose routes (:mod:`rankwatch_monitor.http.launchers`) apply the same
checks and describe the error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from fastapi import HTTPException
from pydantic import TypeAdapter

from rankwatch.contract import semconv
from rankwatch.contract.messages import Directive, Evidence, NodeObservation, NodeRegistration
from rankwatch_monitor.core import apply
from rankwatch_monitor.errors import HeldElsewhereError, UnknownJobError
from rankwatch_monitor.http import auth
from rankwatch_monitor.http.auth import Bearer, Scope, TokenSource, line_of
from rankwatch_monitor.http.bodies import FirstError
from rankwatch_monitor.http.fastlane.protocol import RespondLater
from rankwatch_monitor.http.fastlane.requests import (
    END_OF_HEAD,
    LONGEST_HEAD,
    Client,
    CountedPost,
    FallBackError,
    RefusedError,
    parse_headers,
    parse_post,
    refused,
    sender,
)
from rankwatch_monitor.http.launchers import LONGEST_WAIT, LauncherMessages, ProcessEvents, known_node, registered
from rankwatch_monitor.http.origins import Origins
from rankwatch_monitor.http.problems import problem
from rankwatch_monitor.http.request_gate import LARGE
from rankwatch_monitor.ingest.admission import LINE_BYTES, Admission
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.work_queue import WorkQueue

SHARES: Final = 2
"""Of a turn, compared with 1 of telemetry: an incident waits for what thousands of launchers send within seconds. With
4, a starved monitor refused most reports, which an incident needs as well."""
_JOB: Final = semconv.API_PREFIX.encode() + rb"/jobs/([0-9A-Za-z._~-]+)"
_POST: Final = re.compile(rb"POST " + _JOB + rb"/(observations|evidence|process-events|nodes) HTTP/1\.1\r\n")
_QUERY: Final = rb"after=([0-9]{1,15})&node=([0-9A-Za-z._~-]+)&wait=([0-9]{1,2})"
_POLL: Final = re.compile(rb"GET " + _JOB + rb"/directives\?" + _QUERY + rb" HTTP/1\.1\r\n")
_NO_CONTENT: Final = b"HTTP/1.1 204 No Content\r\nserver: uvicorn\r\n\r\n"
_OK: Final[bytes] = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: "


@dataclass(slots=True)
class LauncherPost(CountedPost):
    """A message of a launcher."""

    job_id: str = ""
    kind: str = ""
    """The last part of its path."""
    bound: Callable[[str], bool] | None = None
    """The jobs that its token is bound to; None: all."""
    token: str = ""
    """The name of its token."""
    give_back: Callable[[int], None] | None = None
    """Of evidence that was counted: gives bytes back."""

    def release(self) -> None:
        """Stop counting the body, also what was announced of it and did not arrive."""
        self.uncount(self.length - self.size)
        CountedPost.release(self)

    def uncount(self, size: int) -> None:
        """Give bytes of evidence back, once."""
        if self.give_back is not None:
            self.give_back(size)
            self.give_back = None


@dataclass(slots=True)
class LongPoll:
    """A request for directives that waits until there are some."""

    job_id: str
    after: int
    node: str
    wait: float
    head: bytes
    headers: Mapping[str, str]
    withdraw: Callable[[], object] | None = None
    size: int = 0
    sender: str = ""

    @property
    def complete(self) -> bool:
        """It has no body."""
        return True

    def release(self) -> None:
        """Stop waiting for directives."""
        if self.withdraw is not None:
            self.withdraw()


class LauncherFastLane:
    """Takes the messages of launchers, and answers their long polls."""

    def __init__(self, messages: LauncherMessages, tokens: TokenSource, origins: Origins, admission: Admission) -> None:
        self._monitor, self._tokens, self._origins = messages.monitor, tokens, origins
        self._admission, self.queue = admission, WorkQueue(LINE_BYTES, SHARES)
        self._messages = messages
        self._take: dict[str, Callable[[LauncherPost], bytes | None]] = {}
        observations = TypeAdapter(Annotated[NodeObservation, FirstError()])
        evidence = TypeAdapter(Annotated[Evidence, FirstError()])
        registrations = TypeAdapter(Annotated[NodeRegistration, FirstError()])
        self._take["observations"] = lambda post: messages.observation(
            post.job_id, observations.validate_json(post.body)
        )
        self._take["evidence"] = lambda post: messages.evidence(post.job_id, evidence.validate_json(post.body))
        self._take["process-events"] = lambda post: messages.events(
            post.job_id, ProcessEvents.model_validate_json(post.body)
        )
        self._take["nodes"] = lambda post: self._register(post, registrations.validate_json(post.body))
        self._last_response: tuple[list[Directive], bytes] = ([], encoded([]))
        """Kept since thousands of launchers get the same directives."""

    def begin(self, data: bytes, client: Client) -> tuple[LauncherPost | LongPoll, bytes] | None:
        """Start a request from its first bytes; return it and the bytes after its head.

        None when the application has to answer it: nothing was changed by the attempt.
        """
        end = data.find(END_OF_HEAD, 0, LONGEST_HEAD)
        if end < 0:
            return None
        begun: LauncherPost | LongPoll
        if (line := _POST.match(data)) is not None:
            headers = parse_post(data[: end + 2], line[0], "application/json")
            if headers is None or "content-encoding" in headers or int(headers["content-length"]) > LARGE:
                return None
            length, job_id, kind = int(headers["content-length"]), line[1].decode(), line[2].decode()
            begun = LauncherPost(data[: end + 4], headers, length, job_id=job_id, kind=kind)
        elif (line := _POLL.match(data)) is not None:
            headers = parse_headers(data[: end + 2], line[0])
            if headers is None or "content-length" in headers or int(line[4]) > LONGEST_WAIT:
                return None
            after, wait = int(line[2]), float(line[4])
            begun = LongPoll(line[1].decode(), after, line[3].decode(), wait, data[: end + 4], headers)
        else:
            return None
        if self._origins.denied("POST", headers, guarded=self._tokens.any) is not None:
            return None
        if auth.refused(Bearer(self._tokens, headers), Scope.INGEST, begun.job_id) is not None:
            return None
        ownership = self._monitor.ownership
        if ownership is not None and not ownership.owns(begun.job_id):
            return None
        grant = Bearer(self._tokens, headers).grant()
        begun.sender = line_of(self._tokens, headers, begun.job_id)
        if isinstance(begun, LauncherPost):
            if grant is not None:
                begun.bound, begun.token = grant.bound, grant.name
            begun.admitted = self._admission.body(sender(client, headers))
            begun.counted = begun.admitted.__enter__()
        return begun, data[end + 4 :]

    def add(self, request: LauncherPost | LongPoll, data: bytes) -> bytes:
        """Append received bytes to the body; return those after its end.

        Raises:
            RefusedError: too much is in flight.
        """
        if not isinstance(request, LauncherPost):
            return data
        try:
            if request.kind == "evidence" and not request.parts:
                request.give_back = self._monitor.refuse_evidence(
                    request.job_id, request.length, request.token, request.bound
                )
            return request.add(data)
        except Refusal as refusal:
            self._monitor.counters.reject(refusal.reason)
            retry = {"Retry-After": str(refusal.retry_after)}
            raise RefusedError(refused(problem(refusal.status, refusal.message, retry))) from None

    def respond(self, request: LauncherPost | LongPoll, later: RespondLater) -> bytes | None:
        """Take a complete request; None when its response is passed to ``later``.

        Raises:
            FallBackError: it is invalid; nothing of it was applied.
        """
        if isinstance(request, LongPoll):
            return self._poll(request, later)
        try:
            response = self._take[request.kind](request)
        except Exception:  # noqa: BLE001 - the request boundary: the application fails in the same way and reports it
            request.uncount(request.length)  # the application counts it again
            raise FallBackError(request.head + request.body) from None
        return response or _NO_CONTENT

    def _register(self, post: LauncherPost, registration: NodeRegistration) -> bytes:
        """Register one more launcher of a job, which changes nothing that the sender's token would have to allow.

        Raises:
            LookupError: it is the first of the job, or brings another policy or learned limits.
        """
        job_id, job = post.job_id, self._monitor.jobs[post.job_id]
        first = next(iter(job.nodes.values()), None)
        if first is None or registration.ft_state or registration.policy != first.registration.policy:
            raise LookupError(job_id)
        registration = self._messages.registration(job_id, registration, post.bound)
        return _json(registered(self._messages.register(job_id, registration)))

    def _poll(self, poll: LongPoll, later: RespondLater) -> bytes | None:
        try:
            job = self._monitor.job(poll.job_id)
            apply.poll(job, known_node(job, poll.node), self._monitor.clock.now())
        except (HTTPException, UnknownJobError, HeldElsewhereError):
            raise FallBackError(poll.head) from None
        asked = self._monitor.log_requests.asked(poll.job_id, poll.node)
        if asked or self._monitor.runs.has_warning(poll.job_id, poll.node):
            raise FallBackError(poll.head)
        broker = self._monitor.broker
        ready = broker.available(job, poll.after)
        if ready or not poll.wait or broker.ending:
            return self._response(ready)

        # The callback must not refer to the poll, which holds the callback: a reference cycle.
        head, headers, job_id = poll.head, poll.headers, poll.job_id

        def answer(ready: list[Directive] | None) -> None:
            revoked = auth.refused(Bearer(self._tokens, headers), Scope.INGEST, job_id) is not None
            later(FallBackError(head) if ready is None or revoked else self._response(ready))

        poll.withdraw = broker.subscribe(job, poll.after, poll.wait, answer, poll.node)
        return None

    def _response(self, ready: list[Directive]) -> bytes:
        if self._last_response[0] != ready:
            self._last_response = (ready, encoded(ready))
        return self._last_response[1]


def encoded(directives: Sequence[Directive]) -> bytes:
    """The HTTP response with these directives."""
    return _json({"directives": [asdict(each) for each in directives]})


def _json(content: Mapping[str, Any]) -> bytes:
    body = json.dumps(content, separators=(",", ":")).encode()
    return b"%b%d\r\n\r\n%b" % (_OK, len(body), body)
