"""The two OTLP/HTTP endpoints: body in, reports to a sink, OTLP's own answers out.

Answers follow the OTLP/HTTP specification: success and partial success are 200 with the service's response message,
every failure is a ``google.rpc.Status``, and all of them come in the encoding of the request. A sender gives up on 400,
413 and 415, and tries again on 429 and 503, which carry ``Retry-After``.

Where the application has a ``state.tee`` (:data:`Tee`), it gets every accepted request as it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rankwatch.contract import semconv
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.admission import Admission, Body
from rankwatch_monitor.ingest.body import (
    ACCEPTED_ENCODINGS,
    CONTENT_TYPES,
    Format,
    body_format,
    check_length,
    inflate,
    too_large,
)
from rankwatch_monitor.ingest.fastpath.otlp_bypass import Lane, Sender
from rankwatch_monitor.ingest.foreign.lens_progress import Progress
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.message import AnyMessage, decode, encode
from rankwatch_monitor.ingest.otlp.decoder import Decoded, Elsewhere, MetricsDecoder
from rankwatch_monitor.ingest.otlp.traces import SpanRecord, TracesDecoder
from rankwatch_monitor.ingest.rejection import Refusal, Rejections


class RefusedReport(NamedTuple):
    """A report that the sink did not take."""

    position: int
    """Which of the reports it was given."""
    reason: str
    """What it is counted under, such as ``too_many_jobs``."""
    words: str
    """What the sender reads."""


Sink = Callable[[Sequence[RankReport]], Sequence[RefusedReport]]
"""Takes the reports of one request on the event loop and must not block. It returns those it refused (usually none). To
have senders come again later, refuse them in :data:`Admit`: what a sink has seen is not asked for twice."""

SpanSink = Callable[[Sequence[SpanRecord]], None]
Admit = Callable[[Request | Sender], None]
"""Raises a :class:`Refusal` when a sender has no right to send (401, 403) or has to come again later (429, 503, with
``retry_after``). Called before the body is read."""


class Otlp(NamedTuple):
    """What takes OTLP."""

    router: APIRouter
    lane: Lane


Tee = Callable[[str, Mapping[str, str], object, bytes], Awaitable[None]]
"""Takes the path, the headers, the sender's address and the body as sent of a request that was accepted. The answer
waits for it, so that it may keep what the sender is told was taken; it must never wait for anything far away."""

# google.rpc.Code by HTTP status, as the table in google/rpc/code.proto maps them.
_RPC_CODES: Final = {400: 3, 401: 16, 403: 7, 413: 8, 415: 3, 429: 8, 503: 14}
_RPC_UNKNOWN: Final = 2
_MEDIA_TYPES: Final = {encoded: media_type for media_type, encoded in CONTENT_TYPES.items()}
_NOTHING_TO_SAY: Final[Mapping[Format, bytes]] = {"protobuf": b"", "json": b"{}"}
"""Either response message where all was taken: both are empty."""
# A message from here up is parsed on a thread, so that live requests are not kept waiting. JSON takes about 15 times as
# long as protobuf.
_LARGE_BYTES: Final[dict[Format, int]] = {"protobuf": 512 * 1024, "json": 16 * 1024}


def otlp_routes(
    sink: Sink,
    *,
    spans: SpanSink | None = None,
    limits: Limits | None = None,
    counters: Counters | None = None,
    since_unix_ns: int = 0,
    admit: Admit | None = None,
    elsewhere: Elsewhere | None = None,
) -> Otlp:
    """Return the router of ``POST /v1/metrics`` and ``POST /v1/traces``, and the short way of the former.

    Args:
        sink: takes the rank reports.
        spans: takes the section entries; without it spans are checked, answered and let go.
        limits: what one sender may ask.
        counters: where requests, reports and rejections are counted.
        since_unix_ns: when the monitor began, see :class:`SeriesTracker`.
        admit: says who may send; everyone may when it is not given.
        elsewhere: says which jobs are another monitor's; without it none are.
    """
    limits = limits or Limits()
    counters = counters if counters is not None else Counters()
    progress = Progress(limits.processes_remembered)
    metrics_decoder = MetricsDecoder(limits, counters, since_unix_ns, elsewhere, progress)
    traces_decoder = TracesDecoder(limits, counters, progress)
    large = asyncio.Semaphore(1)
    admission = Admission()

    async def take_metrics(body: bytes, encoded: Format) -> Message | None:
        if encoded == "protobuf" and len(body) < _LARGE_BYTES[encoded]:
            return take_protobuf(body)
        return take_decoded(
            metrics_decoder.decode(await _parse(body, encoded, ExportMetricsServiceRequest, limits, large))
        )

    def take_protobuf(body: bytes) -> Message | None:
        return take_decoded(metrics_decoder.decode_bytes(body))

    def take_decoded(decoded: Decoded) -> Message | None:
        reports, points, rejections = decoded
        refused = sink(reports) if reports else ()
        for position, reason, words in refused:
            rejections.add(reason, words, points[position])
        counters.reports += len(reports) - len(refused)
        if not (message := rejections.message()):
            return None
        answer = ExportMetricsServiceResponse()
        answer.partial_success.rejected_data_points = rejections.items
        answer.partial_success.error_message = message
        return answer

    async def take_traces(body: bytes, encoded: Format) -> Message | None:
        request = await _parse(body, encoded, ExportTraceServiceRequest, limits, large)
        reports: list[RankReport] = []
        records, rejections = traces_decoder.decode(request, reports)
        if reports:  # before the spans, which are kept for jobs that are known
            counters.reports += len(reports) - len(sink(reports))
        if spans is not None and records:
            spans(records)
        counters.spans += len(records)
        return _traces_answer(rejections)

    async def metrics(request: Request) -> Response:
        return await _serve(request, take_metrics, limits, counters, admit, admission)

    async def traces(request: Request) -> Response:
        return await _serve(request, take_traces, limits, counters, admit, admission, spans=True)

    router = APIRouter()
    # Plain routes: FastAPI's parameter handling has nothing to do here and takes longer than the decoding.
    router.add_route(semconv.OTLP_METRICS_PATH, metrics, methods=["POST"])
    router.add_route(semconv.OTLP_TRACES_PATH, traces, methods=["POST"])
    lane = Lane(take_protobuf, lambda refusal: _refused(refusal, "protobuf"), limits, counters, admit, admission)
    return Otlp(router, lane)


class Straight:
    """ASGI middleware that calls the endpoints of ``router`` at once: FastAPI's layers take longer than decoding."""

    def __init__(self, app: ASGIApp, *, router: APIRouter) -> None:
        self.app = app
        routes = [route for route in router.routes if isinstance(route, Route)]
        self._endpoints = {route.path: route.endpoint for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        endpoint = None
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._endpoints.get(scope["path"])
        if endpoint is None:
            await self.app(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive))
        await response(scope, receive, send)


def _traces_answer(rejections: Rejections) -> ExportTraceServiceResponse | None:
    if not (message := rejections.message()):
        return None
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejections.items
    answer.partial_success.error_message = message
    return answer


async def _serve(
    request: Request,
    take: Callable[[bytes, Format], Awaitable[Message | None]],
    limits: Limits,
    counters: Counters,
    admit: Admit | None,
    admission: Admission,
    *,
    spans: bool = False,
) -> Response:
    counters.requests += 1
    # Until the content type is known to be one of ours, a refusal is answered in the one that people can read.
    encoded: Format = "json"
    try:
        headers = request.headers
        encoded = body_format(headers.get("content-type"))
        admission.check(spans=spans)
        if admit is not None:
            admit(request)
        check_length(headers.get("content-length"), limits)
        with admission.body(request.client.host if request.client is not None else "") as held:
            sent = await _read_body(request, limits, held)
            # Many that were let in one by one may be whole in the same turn, and it is decoding them that takes long.
            admission.check(spans=spans)
            body = inflate(sent, headers.get("content-encoding"), limits)
            answer = await take(body, encoded)
        tee: Tee | None = getattr(request.app.state, "tee", None)
        if tee is not None:
            await tee(request.url.path, headers, request.client, sent)
    except Refusal as refusal:
        counters.reject(refusal.reason)
        return _refused(refusal, encoded)
    content = _NOTHING_TO_SAY[encoded] if answer is None else encode(answer, encoded)
    return Response(content, media_type=_MEDIA_TYPES[encoded])


async def _read_body(request: Request, limits: Limits, held: Body) -> bytes:
    """Return the body as sent, never holding more than the limit of it."""
    parts: list[bytes] = []
    try:
        async for part in request.stream():
            held.grew(len(part))
            if held.size > limits.body_bytes:
                raise too_large(limits)
            parts.append(part)
    except ClientDisconnect:
        raise Refusal(400, "disconnected", "the connection was closed in the middle of the body") from None
    return b"".join(parts)


async def _parse(
    body: bytes, encoded: Format, kind: type[AnyMessage], limits: Limits, large: asyncio.Semaphore
) -> AnyMessage:
    if len(body) < _LARGE_BYTES[encoded]:
        return decode(body, encoded, kind, limits)
    # One at a time: a message made to be large in memory takes up to 50 times its bytes.
    async with large:
        return await asyncio.to_thread(decode, body, encoded, kind, limits)


def _refused(refusal: Refusal, encoded: Format) -> Response:
    status = Status(code=_RPC_CODES.get(refusal.status, _RPC_UNKNOWN), message=refusal.words)
    response = Response(encode(status, encoded), status_code=refusal.status, media_type=_MEDIA_TYPES[encoded])
    if refusal.retry_after is not None:
        response.headers["Retry-After"] = str(refusal.retry_after)
    if refusal.status == 415:
        response.headers["Accept-Encoding"] = ACCEPTED_ENCODINGS  # RFC 9110 section 15.5.16
    if refusal.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
