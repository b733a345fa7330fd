"""The short way for launchers: thousands of them hear one directive, answer it and start their ranks in one moment.

As :mod:`..ingest.express` does for metrics, the head is matched as a whole. What is not exactly what a launcher sends
goes the ordinary way, and so does, with every byte it came with, whatever cannot simply be taken or answered: there it
is refused in the same words, by the same rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from fastapi import HTTPException
from pydantic import TypeAdapter

from rankwatch.contract import semconv
from rankwatch.contract.messages import Directive, Evidence, NodeObservation
from rankwatch_monitor.core import apply
from rankwatch_monitor.errors import HeldElsewhereError, UnknownJobError
from rankwatch_monitor.http.auth import Scope, Tokens, refusal
from rankwatch_monitor.http.launcher_messages import LauncherWords, ProcessEvents, known_node
from rankwatch_monitor.http.launchers import LONGEST_WAIT
from rankwatch_monitor.ingest.fastpath.otlp_bypass import (
    LARGEST,
    LONGEST_HEAD,
    OrdinaryWayError,
    Sender,
    read_fields,
    read_head,
)

_JOB: Final = semconv.API_PREFIX.encode() + rb"/jobs/([0-9A-Za-z._~-]+)"
_POST: Final = re.compile(rb"POST " + _JOB + rb"/(observations|evidence|process-events) HTTP/1\.1\r\n")
_QUERY: Final = rb"after=([0-9]{1,15})&node=([0-9A-Za-z._~-]+)&wait=([0-9]{1,2})"
_ASK: Final = re.compile(rb"GET " + _JOB + rb"/directives\?" + _QUERY + rb" HTTP/1\.1\r\n")
_TAKEN: Final = b"HTTP/1.1 204 No Content\r\nserver: uvicorn\r\n\r\n"
_TOLD: Final[bytes] = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: "


@dataclass(slots=True)
class Letter:
    """One request whose body comes in."""

    job_id: str
    what: str
    head: bytes
    length: int
    headers: dict[str, str]
    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, part: bytes) -> bytes:
        """Take what belongs to the body; return what came behind it."""
        mine, rest = part[: self.length - self.size], part[self.length - self.size :]
        self.parts.append(mine)
        self.size += len(mine)
        return rest

    @property
    def whole(self) -> bool:
        """Whether all of the body is here."""
        return self.size >= self.length

    def end(self) -> None:
        """Nothing is held of it elsewhere."""


@dataclass(slots=True)
class Inquiry:
    """A launcher asks for directives, and waits."""

    job_id: str
    after: int
    node: str
    wait: float
    head: bytes
    headers: dict[str, str]
    withdraw: Callable[[], object] | None = None

    @property
    def whole(self) -> bool:
        """It has no body."""
        return True

    def end(self) -> None:
        """Nobody waits for the answer any more."""
        if self.withdraw is not None:
            self.withdraw()


class LauncherLane:
    """Takes what launchers post, and answers what they ask, the short way."""

    def __init__(self, words: LauncherWords, tokens: Tokens) -> None:
        self._words, self._monitor, self._tokens = words, words.monitor, tokens
        self._take: dict[str, Callable[[str, bytes], None]] = {}
        observations, evidence = TypeAdapter(NodeObservation), TypeAdapter(Evidence)
        self._take["observations"] = lambda job, body: words.observation(job, observations.validate_json(body))
        self._take["evidence"] = lambda job, body: words.evidence(job, evidence.validate_json(body))
        self._take["process-events"] = lambda job, body: words.events(job, ProcessEvents.model_validate_json(body))
        self._largest = min(LARGEST, words.monitor.limits.decompressed_bytes)
        self._written: tuple[list[Directive], bytes] = ([], written([]))
        """What was told last: many are told the same."""

    def open(self, data: bytes, sender: str) -> tuple[Letter | Inquiry, bytes] | None:
        """Begin with the first bytes of a request; return it and what came behind its head.

        None when it is to go the ordinary way: nothing was done with it.
        """
        del sender
        end = data.find(b"\r\n\r\n", 0, LONGEST_HEAD)
        if end < 0:
            return None
        opened: Letter | Inquiry
        if (line := _POST.match(data)) is not None:
            headers = read_head(data[: end + 2], line[0], "application/json")
            if headers is None or "content-encoding" in headers or int(headers["content-length"]) > self._largest:
                return None
            length = int(headers["content-length"])
            opened = Letter(line[1].decode(), line[2].decode(), data[: end + 4], length, headers)
        elif (line := _ASK.match(data)) is not None:
            headers = read_fields(data[: end + 2], line[0])
            if headers is None or "content-length" in headers or int(line[4]) > LONGEST_WAIT:
                return None
            after, wait = int(line[2]), float(line[4])
            opened = Inquiry(line[1].decode(), after, line[3].decode(), wait, data[: end + 4], headers)
        else:
            return None
        sharing = self._monitor.sharing
        return (opened, data[end + 4 :]) if sharing is None or sharing.ours(opened.job_id) else None

    def add(self, request: Letter | Inquiry, part: bytes) -> bytes:
        """Take what belongs to a request's body; return what came behind it."""
        return request.add(part) if isinstance(request, Letter) else part

    def answer(self, request: Letter | Inquiry, later: Callable[[bytes | OrdinaryWayError], None]) -> bytes | None:
        """Take a request that is whole; None when its answer comes by ``later``.

        Raises:
            OrdinaryWayError: it cannot simply be taken; the ordinary way meets the same trouble and says so.
        """
        if isinstance(request, Inquiry):
            return self._ask(request, later)
        body = b"".join(request.parts)
        self._admit(request.headers, request.head + body)
        try:
            self._take[request.what](request.job_id, body)
        except Exception:  # noqa: BLE001 - whatever it is: nothing was taken yet
            raise OrdinaryWayError(request.head + body) from None
        return _TAKEN

    def _ask(self, inquiry: Inquiry, later: Callable[[bytes | OrdinaryWayError], None]) -> bytes | None:
        self._admit(inquiry.headers, inquiry.head)
        try:
            job = self._monitor.job(inquiry.job_id)
            apply.poll(job, known_node(job, inquiry.node), self._monitor.clock.now())
        except (HTTPException, UnknownJobError, HeldElsewhereError):
            raise OrdinaryWayError(inquiry.head) from None
        handout = self._monitor.handout
        ready = handout.ready(job, inquiry.after)
        if ready or not inquiry.wait or handout.ending:
            return self._told(ready)

        head = inquiry.head  # not the inquiry, which holds the way to withdraw this: a ring would outlive the answer

        def answer(ready: list[Directive] | None) -> None:
            later(OrdinaryWayError(head) if ready is None else self._told(ready))

        inquiry.withdraw = handout.ask(job, inquiry.after, inquiry.wait, answer)
        return None

    def _admit(self, headers: dict[str, str], whole: bytes) -> None:
        if refusal(self._tokens, Scope.INGEST, Sender(headers)) is not None:
            raise OrdinaryWayError(whole)

    def _told(self, ready: list[Directive]) -> bytes:
        if self._written[0] != ready:
            self._written = (ready, written(ready))
        return self._written[1]


def written(directives: Sequence[Directive]) -> bytes:
    """The answer that tells of directives."""
    body = json.dumps({"directives": [asdict(each) for each in directives]}, separators=(",", ":")).encode()
    return b"%b%d\r\n\r\n%b" % (_TOLD, len(body), body)
