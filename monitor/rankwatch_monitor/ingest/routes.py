"""The two OTLP/HTTP endpoints: checks a request, decodes its body, hands the reports to a sink, and responds.

Responses follow the OTLP/HTTP specification: success and partial success are 200 with the service's response message,
every failure is a ``google.rpc.Status``, in the encoding of the request. Senders drop a request on 400, 413 and 415,
and retry it on 429 and 503, which carry ``Retry-After``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import unquote
from weakref import WeakValueDictionary

from fastapi import APIRouter, Request, Response
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.admission import AboveShare, Admission, Body
from rankwatch_monitor.ingest.body import (
    ACCEPTED_ENCODINGS,
    CONTENT_TYPES,
    Format,
    body_format,
    check_length,
    inflate,
    inflate_little,
    too_large,
)
from rankwatch_monitor.ingest.foreign.lens_progress import Progress
from rankwatch_monitor.ingest.limits import KIB, Counters, Limits
from rankwatch_monitor.ingest.message import decode, encode, parse_protobuf
from rankwatch_monitor.ingest.metrics_decoder import Elsewhere, MetricsDecoder, Replaced
from rankwatch_monitor.ingest.otlp.identity import check_jobs
from rankwatch_monitor.ingest.parts import REQUESTS, Kind, cut
from rankwatch_monitor.ingest.rejection import Forbidden, Refusal, Rejections
from rankwatch_monitor.ingest.traces_decoder import SpanRecord, TracesDecoder


class RefusedReport(NamedTuple):
    """A report that the sink refused."""

    position: int
    """Its index in the reports given to the sink."""
    reason: str
    """The reason it is counted under, such as ``too_many_jobs``."""
    message: str
    """The sentence for the sender."""


Sink = Callable[[Sequence[RankReport]], Sequence[RefusedReport]]
"""Takes the reports of one request on the event loop and must not block. Returns those it refused, usually none. To
make senders retry, refuse the request in :data:`Admit` instead: what a sink has seen is never sent again."""

SpanSink = Callable[[Sequence[SpanRecord]], None]
Admit = Callable[[Mapping[str, str]], Forbidden | None]
"""Takes the headers of a request, before its body is read. Raises :class:`Refusal` when the sender is not authorized
(401, 403) or has to retry later (429, 503, with ``retry_after``). Returns which jobs the body must not be about."""

Shed = Callable[[str | None, Forbidden | None], None]
"""Takes the job of a metrics request of an authorized sender that was refused under load, None when it names none, and
which jobs it cannot have been about."""
Line = Callable[[Mapping[str, str]], str]
"""Takes the headers of a request; returns in which line it waits."""

# google.rpc.Code by HTTP status, as the table in google/rpc/code.proto maps them.
_RPC_CODES: Final = {400: 3, 401: 16, 403: 7, 413: 8, 415: 3, 429: 8, 503: 14}
_RPC_UNKNOWN: Final = 2
_MEDIA_TYPES: Final = {encoded: media_type for media_type, encoded in CONTENT_TYPES.items()}
_EMPTY_RESPONSE: Final[Mapping[Format, bytes]] = {"protobuf": b"", "json": b"{}"}
"""Either response message after a full success: both are empty then."""
# Larger messages are taken in parts, so that other requests are not delayed. JSON takes about 15 times as long as
# protobuf.
LARGE: Final = 512 * KIB
LARGE_SPANS: Final = 64 * KIB
_LARGE_BYTES: Final[dict[Format, int]] = {"protobuf": LARGE, "json": 16 * KIB}


class Senders(NamedTuple):
    """Who may send what, and in which order."""

    admit: Admit | None = None
    """Authorizes them; without it all are."""
    elsewhere: Elsewhere | None = None
    """Why the reports of a job belong to another monitor; without it none do."""
    shed: Shed | None = None
    """Called for metrics that were refused under load."""
    line: Line = lambda headers: headers.get(semconv.JOB_HEADER, "")
    """Requests in one line wait behind each other, and the lines take turns."""
    shared: bool = False
    """The monitor is one of several behind a proxy."""

    def admitted(self, headers: Mapping[str, str]) -> Forbidden | None:
        """Which jobs the body after these headers must not be about; raises what ``admit`` raises."""
        return self.admit(headers) if self.admit is not None else None


class OtlpEndpoints:
    """``POST /v1/metrics`` and ``POST /v1/traces``.

    ``router`` holds their routes; the fast lane calls :meth:`take_protobuf` and :meth:`refused` instead.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        spans: SpanSink | None = None,
        limits: Limits | None = None,
        counters: Counters | None = None,
        since_unix_ns: int = 0,
        replaced: Replaced | None = None,
        senders: Senders = Senders(),  # noqa: B008  # frozen
    ) -> None:
        """Create the endpoints.

        Args:
            sink: takes the rank reports.
            spans: takes the section entries; without it spans are validated and dropped.
            limits: what one sender may ask for.
            counters: where requests, reports and rejections are counted.
            since_unix_ns: when the monitor started, see :class:`SeriesTracker`.
            replaced: which processes were replaced for good, so that nothing has to be remembered of them.
            senders: who may send what.
        """
        self.limits = limits or Limits()
        self.counters = counters if counters is not None else Counters()
        self.senders, self.admission = senders, Admission(shared=senders.shared)
        self._sink, self._spans = sink, spans
        progress = Progress(self.limits.processes_remembered)
        self._metrics_decoder = MetricsDecoder(
            self.limits, self.counters, since_unix_ns, senders.elsewhere, progress, replaced
        )
        self._traces_decoder = TracesDecoder(self.limits, self.counters, progress)
        self._one_large = asyncio.Lock()
        self._large_by_line: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.router = APIRouter()
        # Starlette routes: FastAPI's parameter handling has nothing to do here and takes longer than the decoding.
        self.router.add_route(semconv.OTLP_METRICS_PATH, self.metrics, methods=["POST"])
        self.router.add_route(semconv.OTLP_TRACES_PATH, self.traces, methods=["POST"])

    async def metrics(self, request: Request) -> Response:
        """``POST /v1/metrics``."""
        return await self._serve(request, "metrics")

    async def traces(self, request: Request) -> Response:
        """``POST /v1/traces``."""
        return await self._serve(request, "traces")

    def take_protobuf(self, body: bytes, forbidden: Forbidden | None = None) -> Message | None:
        """Decode an inflated metrics request and hand its reports to the sink; None after a full success.

        Raises:
            Refusal: the request is refused as a whole.
        """
        return _partial("metrics", self._take("metrics", body, forbidden))

    def count_shed(self, refusal: Refusal, headers: Mapping[str, str]) -> None:
        """Pass on which job has lost a report to the monitor's load."""
        job_id = headers.get(semconv.JOB_HEADER)
        shed = self.senders.shed
        if shed is None or refusal.reason != "unavailable" or (not job_id and isinstance(refusal, AboveShare)):
            return
        with contextlib.suppress(Refusal):  # of a sender that is not authorized
            forbidden = self.senders.admitted(headers)
            shed(unquote(job_id) if job_id else None, forbidden)

    def refused(self, refusal: Refusal, encoded: Format) -> Response:
        """The response to a refused request, in the encoding of the request."""
        status = Status(code=_RPC_CODES.get(refusal.status, _RPC_UNKNOWN), message=refusal.message)
        response = Response(encode(status, encoded), status_code=refusal.status, media_type=_MEDIA_TYPES[encoded])
        if refusal.retry_after is not None:
            response.headers["Retry-After"] = str(refusal.retry_after)
        if refusal.status == 415:
            response.headers["Accept-Encoding"] = ACCEPTED_ENCODINGS  # RFC 9110 section 15.5.16
        if refusal.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def _take(
        self, kind: Kind, body: bytes, forbidden: Forbidden | None, rejections: Rejections | None = None
    ) -> Rejections:
        """Decode a request, or a part of one that has ``rejections`` so far, and hand its content to the sinks."""
        if kind == "metrics":
            reports, points, rejections = self._metrics_decoder.decode_bytes(body, forbidden, rejections)
            refused = self._sink(reports) if reports else ()
            for position, reason, message in refused:
                rejections.add(reason, message, points[position])
            self.counters.reports += len(reports) - len(refused)
            return rejections
        reports = []
        request = parse_protobuf(body, ExportTraceServiceRequest)
        records, rejections = self._traces_decoder.decode(request, reports, forbidden, rejections)
        if reports:  # first, since spans are kept for known jobs only
            self.counters.reports += len(reports) - len(self._sink(reports))
        if self._spans is not None and records:
            self._spans(records)
        self.counters.spans += len(records)
        return rejections

    async def _take_parts(
        self, kind: Kind, inflated: Callable[[], bytes], encoded: Format, forbidden: Forbidden | None, line: str
    ) -> Rejections:
        """Take a large request: one at a time, senders in turn, and a part of it in each turn of the loop."""
        one_of_line = self._large_by_line.setdefault(line, asyncio.Lock())
        async with one_of_line, self._one_large:
            parts = await asyncio.to_thread(lambda: cut(inflated(), encoded, kind, self.limits))
            if kind == "metrics":
                self._metrics_decoder.check(parts.senders, forbidden)
            elif forbidden is not None:
                check_jobs(parts.senders, forbidden)
            rejections = Rejections(self.counters)
            for body in parts.bodies:
                self._take(kind, body, None, rejections)
                await asyncio.sleep(0)
            return rejections

    async def _serve(self, request: Request, kind: Kind) -> Response:
        self.counters.requests += 1
        # Until the content type is known to be valid, errors are returned in the readable encoding.
        encoded: Format = "json"
        spans = kind == "traces"
        try:
            headers = request.headers
            encoded = body_format(headers.get("content-type"))
            self.admission.check(spans=spans)
            forbidden = self.senders.admitted(headers)
            check_length(headers.get("content-length"), self.limits)
            with self.admission.body(request.client.host if request.client is not None else "") as counted:
                sent = await _read_body(request, self.limits, counted)
                # Many requests admitted one by one may be complete in the same turn; decoding is what costs.
                self.admission.check(spans=spans)
                encoding = headers.get("content-encoding")
                little = LARGE_SPANS if spans and encoded == "protobuf" else _LARGE_BYTES[encoded]
                body = inflate_little(sent, encoding, self.limits, little)
                if body is None:  # of many that wait, each would hold 16 MiB
                    inflated, line = partial(inflate, sent, encoding, self.limits), self.senders.line(headers)
                    rejections = await self._take_parts(kind, inflated, encoded, forbidden, line)
                else:
                    if encoded == "json":
                        body = decode(body, encoded, REQUESTS[kind], self.limits).SerializeToString()
                    rejections = self._take(kind, body, forbidden)
        except Refusal as refusal:
            self.counters.reject(refusal.reason)
            if not spans:  # samples, whose senders report by their metrics
                self.count_shed(refusal, request.headers)
            return self.refused(refusal, encoded)
        response = _partial(kind, rejections)
        content = _EMPTY_RESPONSE[encoded] if response is None else encode(response, encoded)
        return Response(content, media_type=_MEDIA_TYPES[encoded])


def _partial(kind: Kind, rejections: Rejections) -> Message | None:
    """The response to a request that was taken; None after a full success."""
    if not (message := rejections.message()):
        return None
    if kind == "metrics":
        response = ExportMetricsServiceResponse()
        response.partial_success.rejected_data_points = rejections.items
        response.partial_success.error_message = message
        return response
    of_spans = ExportTraceServiceResponse()
    of_spans.partial_success.rejected_spans = rejections.items
    of_spans.partial_success.error_message = message
    return of_spans


class OtlpMiddleware:
    """ASGI middleware that calls the OTLP endpoints without FastAPI's other layers, which cost more than decoding."""

    def __init__(self, app: ASGIApp, *, endpoints: OtlpEndpoints) -> None:
        self.app = app
        self._endpoints = {
            semconv.OTLP_METRICS_PATH: endpoints.metrics,
            semconv.OTLP_TRACES_PATH: endpoints.traces,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        endpoint = None
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._endpoints.get(scope["path"])
        if endpoint is None:
            await self.app(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive))
        await response(scope, receive, send)


async def _read_body(request: Request, limits: Limits, counted: Body) -> bytes:
    """The body as received, held in memory only up to its limit."""
    parts: list[bytes] = []
    try:
        async for part in request.stream():
            counted.grew(len(part))
            if counted.size > limits.body_bytes:
                raise too_large(limits)
            parts.append(part)
    except ClientDisconnect:
        raise Refusal(400, "disconnected", "the connection was closed before the body was complete") from None
    return b"".join(parts)
