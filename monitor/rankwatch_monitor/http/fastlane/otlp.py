"""The fast lane of ``POST /v1/metrics`` with a protobuf body, which ranks send thousands of times a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from rankwatch.contract import semconv
from rankwatch_monitor.errors import HeldElsewhereError
from rankwatch_monitor.http.fastlane.protocol import RespondLater
from rankwatch_monitor.http.fastlane.requests import (
    END_OF_HEAD,
    LARGEST_BODY,
    LONGEST_HEAD,
    Client,
    CountedPost,
    FallBackError,
    RefusedError,
    parse_post,
    refused,
    sender,
)
from rankwatch_monitor.ingest.body import inflate_little
from rankwatch_monitor.ingest.rejection import Forbidden, Refusal
from rankwatch_monitor.ingest.routes import LARGE, OtlpEndpoints

REQUEST_LINE: Final = b"POST " + semconv.OTLP_METRICS_PATH.encode() + b" HTTP/1.1\r\n"
CONTENT_TYPE: Final = "application/x-protobuf"
HEADS: Final = 512
"""Parsed heads that are kept: 2 MiB at most."""
_OK: Final = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/x-protobuf\r\ncontent-length: %d\r\n\r\n"
_EMPTY_RESPONSE: Final = _OK % 0


@lru_cache(HEADS)
def _headers(head: bytes) -> Mapping[str, str] | None:
    """The headers of a metrics request; None for any other request.

    Cached, since the heads of a job's ranks differ in the length of the body only, which has a few values.
    """
    headers = parse_post(head, REQUEST_LINE, CONTENT_TYPE)
    return None if headers is None else MappingProxyType(headers)


@dataclass(slots=True)
class AdmittedPost(CountedPost):
    """A metrics request of a sender that may ingest."""

    forbidden: Forbidden | None = None
    refusal: Refusal | None = None
    """The monitor does not own the job; the response, after the body was read."""


class OtlpFastLane:
    """Decodes metrics requests with the functions of the OTLP endpoint."""

    def __init__(self, endpoints: OtlpEndpoints) -> None:
        self._endpoints = endpoints
        self.queue = endpoints.admission.queue

    def begin(self, data: bytes, client: Client) -> tuple[AdmittedPost, bytes] | None:
        """Start a request from its first bytes; return it and the bytes after its head.

        None when the application has to answer it, also where it will be refused: nothing was changed by the attempt.
        """
        end = data.find(END_OF_HEAD, 0, LONGEST_HEAD)
        if end < 0 or (headers := _headers(data[: end + 2])) is None:
            return None
        endpoints, length = self._endpoints, int(headers["content-length"])
        if length > min(LARGEST_BODY, endpoints.limits.body_bytes):
            return None
        forbidden = elsewhere = None
        try:
            endpoints.admission.check_memory()
            forbidden = endpoints.senders.admitted(headers)
        except Refusal as refusal:
            if refusal.reason != HeldElsewhereError.counted_as:
                return None
            elsewhere = refusal
        admitted = endpoints.admission.body(sender(client, headers))
        head = data[: end + 4]
        post = AdmittedPost(head, headers, length, admitted=admitted, counted=admitted.__enter__())
        post.forbidden, post.refusal, post.sender = forbidden, elsewhere, endpoints.senders.line(headers)
        return post, data[end + 4 :]

    def add(self, request: AdmittedPost, data: bytes) -> bytes:
        """Append received bytes to the body; return those after its end.

        Raises:
            RefusedError: too much is in flight.
        """
        try:
            return request.add(data)
        except Refusal as refusal:
            raise RefusedError(self._refused(refusal, request)) from None

    def respond(self, request: AdmittedPost, later: RespondLater) -> bytes:
        """Take a complete request; return the HTTP response.

        Raises:
            FallBackError: what it inflates to is more than a turn of the loop has time for.
        """
        del later
        endpoints, headers = self._endpoints, request.headers
        sent = request.body
        try:
            # Only here: refused before it was read, it would have to be parsed by the application, which costs more.
            if request.refusal is not None:
                raise request.refusal
            endpoints.admission.check()
            encoding = headers.get("content-encoding")
            body = sent if encoding is None else inflate_little(sent, encoding, endpoints.limits, LARGE)
            if body is None:
                raise FallBackError(request.head + sent)
            message = endpoints.take_protobuf(body, request.forbidden)
        except Refusal as refusal:
            endpoints.counters.requests += 1
            return self._refused(refusal, request)
        endpoints.counters.requests += 1
        if message is None:
            return _EMPTY_RESPONSE
        content = message.SerializeToString()
        return _OK % len(content) + content

    def _refused(self, refusal: Refusal, request: AdmittedPost) -> bytes:
        self._endpoints.counters.reject(refusal.reason)
        self._endpoints.count_shed(refusal, request.headers)
        return refused(self._endpoints.refused(refusal, "protobuf"))
