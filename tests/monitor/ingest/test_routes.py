"""The endpoints as a sender sees them: status, words, encoding, and that a refused request changes nothing else."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx
import pytest
import zstandard
from fastapi import FastAPI, Request
from google.protobuf import json_format
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from monitor.ingest.otlp_requests import NOW_NS, RANK_3, add_resource, counter, gauge, histogram, request_of
from monitor.ingest.test_traces_decoder import spans_of
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.limits import MIB, Counters, Limits
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.routes import Admit, OtlpEndpoints, RefusedReport, Senders
from rankwatch_monitor.ingest.traces_decoder import SpanRecord

PROTOBUF, JSON = "application/x-protobuf", "application/json"
REQUEST = request_of(
    RANK_3, gauge("rankwatch.iteration", 7), counter("rankwatch.heartbeats", 9), histogram("step", 1, 0.5, 0.5, 0.5)
)
BODY = REQUEST.SerializeToString()


class Server:
    """The routes in an app, called in memory; keeps what reached the sinks."""

    def __init__(self, limits: Limits | None = None, admit: Admit | None = None, refuse: Sequence[int] = ()) -> None:
        self.reports: list[RankReport] = []
        self.spans: list[SpanRecord] = []
        self.counters = Counters()
        self._refuse = refuse
        app = FastAPI()
        app.include_router(
            OtlpEndpoints(
                self._take, spans=self.spans.extend, limits=limits, counters=self.counters, senders=Senders(admit=admit)
            ).router
        )
        self._app = app

    def _take(self, reports: Sequence[RankReport]) -> Sequence[RefusedReport]:
        taken = [report for report in reports if report.identity.rank not in self._refuse]
        self.reports.extend(taken)
        return [
            RefusedReport(position, "too_many_ranks", f"no room for rank {report.identity.rank}")
            for position, report in enumerate(reports)
            if report.identity.rank in self._refuse
        ]

    def post(
        self, content: bytes | AsyncIterator[bytes], headers: Mapping[str, str], path: str = "/v1/metrics"
    ) -> httpx.Response:
        async def call() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://monitor") as client:
                return await client.post(path, content=content, headers=dict(headers))

        return asyncio.run(call())


def headers_of(content_type: str | None, encoding: str | None = None) -> dict[str, str]:
    headers = {"content-type": content_type, "content-encoding": encoding}
    return {name: value for name, value in headers.items() if value is not None}


def status_of(response: httpx.Response) -> Status:
    """Return the google.rpc.Status of a failure, in whichever encoding the answer states it has."""
    if response.headers["content-type"] == PROTOBUF:
        return Status.FromString(response.content)
    return json_format.Parse(response.content, Status())


@pytest.mark.parametrize("pack", [None, gzip.compress, zstandard.compress])
@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
def test_every_encoding_gives_the_same_report(pack: Any, content_type: str) -> None:
    server = Server()
    body = BODY if content_type == PROTOBUF else json_format.MessageToJson(REQUEST).encode()
    encoding = {None: None, gzip.compress: "gzip", zstandard.compress: "zstd"}[pack]
    response = server.post(pack(body) if pack else body, headers_of(content_type, encoding))
    assert (response.status_code, response.headers["content-type"]) == (200, content_type)
    assert response.content == (b"" if content_type == PROTOBUF else b"{}")
    (report,) = server.reports
    assert (report.identity.rank, report.iteration, report.beats) == (3, 7, 9)
    assert server.counters == Counters(requests=1, reports=1)


def test_json_written_by_hand() -> None:
    server = Server()
    point = {"timeUnixNano": str(NOW_NS), "asDouble": 41.5}
    section = {"attributes": [{"key": "rankwatch.section", "value": {"stringValue": "step"}}]}
    document = {
        "resourceMetrics": [
            {
                "resource": {
                    "attributes": [
                        {"key": "service.name", "value": {"stringValue": "by-hand"}},
                        {"key": "dl.rank", "value": {"intValue": "1"}},
                        {"key": "dl.world_size", "value": {"intValue": 2}},
                    ]
                },
                "scopeMetrics": [
                    {
                        "metrics": [
                            {"name": "rankwatch.section.open.duration", "gauge": {"dataPoints": [point | section]}}
                        ]
                    }
                ],
            }
        ]
    }
    assert server.post(json.dumps(document).encode(), headers_of(JSON)).json() == {}
    (report,) = server.reports
    assert (report.identity.job_id, report.identity.rank, report.open_sections) == ("by-hand", 1, {"step": 41.5})


def test_a_large_body_takes_the_same_way() -> None:
    server = Server()
    request = request_of(RANK_3, gauge("rankwatch.iteration", 7))
    request.resource_metrics[0].scope_metrics[0].metrics[0].description = "x" * MIB
    for body, content_type in (
        (request.SerializeToString(), PROTOBUF),
        (json_format.MessageToJson(request).encode(), JSON),
    ):
        assert server.post(body, headers_of(content_type)).status_code == 200
    assert server.counters.reports == 2


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
def test_partial_success(content_type: str) -> None:
    server = Server(refuse=[0])
    request = request_of(RANK_3 | {"dl.rank": 9}, gauge("rankwatch.iteration", 1), gauge("rankwatch.progress", 1))
    add_resource(request, RANK_3 | {"dl.rank": 0}, gauge("rankwatch.iteration", 2))
    add_resource(request, RANK_3, gauge("rankwatch.iteration", 3))
    body = request.SerializeToString() if content_type == PROTOBUF else json_format.MessageToJson(request).encode()
    response = server.post(body, headers_of(content_type))
    assert (response.status_code, response.headers["content-type"]) == (200, content_type)
    answer = ExportMetricsServiceResponse()
    if content_type == PROTOBUF:
        answer.ParseFromString(response.content)
    else:
        json_format.Parse(response.content, answer)
    assert answer.partial_success.rejected_data_points == 3
    assert "dl.rank 9 is outside the world: dl.world_size is 4" in answer.partial_success.error_message
    assert "no room for rank 0" in answer.partial_success.error_message
    assert [report.identity.rank for report in server.reports] == [3]
    assert server.counters == Counters(requests=1, reports=1, rejected={"bad_identity": 2, "too_many_ranks": 1})


BOMB = bytes(64 * MIB)
REFUSED = [
    (
        "truncated protobuf",
        BODY[:-5],
        PROTOBUF,
        None,
        400,
        "bad_body",
        "not a valid protobuf ExportMetricsServiceRequest",
    ),
    ("truncated JSON", b'{"resourceMetrics": [', JSON, None, 400, "bad_body", "the body is not JSON"),
    ("protobuf said to be JSON", BODY, JSON, None, 400, "bad_body", "the body is not JSON"),
    ("truncated gzip", gzip.compress(BODY)[:-9], PROTOBUF, "gzip", 400, "bad_body", "the gzip body is truncated"),
    (
        "truncated zstd",
        zstandard.compress(BODY)[:-3],
        PROTOBUF,
        "zstd",
        400,
        "bad_body",
        "the zstd body is truncated",
    ),
    ("no gzip at all", BODY, PROTOBUF, "gzip", 400, "bad_body", "the gzip body is corrupt"),
    ("no zstd at all", BODY, JSON, "zstd", 400, "bad_body", "the zstd body is corrupt"),
    ("text", b"rank 3", "text/plain", None, 415, "bad_content_type", "content type 'text/plain' is not supported"),
    ("no content type", BODY, None, None, 415, "bad_content_type", "there is no content type"),
    ("deflate", BODY, PROTOBUF, "deflate", 415, "bad_content_type", "content encoding 'deflate' is not supported"),
    ("gzip bomb", gzip.compress(BOMB), PROTOBUF, "gzip", 413, "body_too_large", "inflates to more than the limit"),
    ("zstd bomb", zstandard.compress(BOMB), JSON, "zstd", 413, "body_too_large", "inflates to more than the limit"),
    ("too long", bytes(4 * MIB + 1), PROTOBUF, None, 413, "body_too_large", "above the limit of 4194304 bytes"),
]


@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/traces"])
@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "status", "reason", "words"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
def test_bad_input(
    path: str, body: bytes, content_type: str | None, encoding: str | None, status: int, reason: str, words: str
) -> None:
    server = Server()
    response = server.post(body, headers_of(content_type, encoding), path)
    assert response.status_code == status
    assert response.headers["content-type"] == (content_type if content_type in (PROTOBUF, JSON) else JSON)
    assert words.replace("Metrics", "Trace" if path.endswith("traces") else "Metrics") in status_of(response).message
    assert "retry-after" not in response.headers
    assert (response.headers.get("accept-encoding") is not None) == (status == 415)
    assert server.counters == Counters(requests=1, rejected={reason: 1})
    assert server.reports == []
    assert server.post(BODY, headers_of(PROTOBUF)).status_code == 200, "the next one is served as ever"
    assert [report.finished.keys() for report in server.reports] == [{"step"}]


def test_a_body_that_never_ends_is_refused_at_the_limit() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100 * MIB:
            sent += 65536
            yield bytes(65536)

    server = Server(Limits(body_bytes=MIB))
    response = server.post(endless(), headers_of(PROTOBUF))
    assert response.status_code == 413
    assert sent <= MIB + 65536
    assert server.counters.rejected == {"body_too_large": 1}


def test_an_announced_length_is_believed_before_a_byte_is_read() -> None:
    async def call() -> list[Any]:
        async def receive() -> Any:
            raise AssertionError("the body was read")

        answers = []

        async def send(message: Any) -> None:
            answers.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/metrics",
            "query_string": b"",
            "headers": [(b"content-type", b"application/x-protobuf"), (b"content-length", b"99999999")],
        }
        await Server()._app(scope, receive, send)
        return answers

    assert asyncio.run(call())[0]["status"] == 413


def test_a_sender_that_goes_away_in_the_middle() -> None:
    server = Server()

    async def call() -> list[Any]:
        messages = [{"type": "http.request", "body": BODY[:10], "more_body": True}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        answers = []

        async def send(message: Any) -> None:
            answers.append(message)

        headers = [(b"content-type", b"application/x-protobuf")]
        scope = {"type": "http", "method": "POST", "path": "/v1/metrics", "query_string": b"", "headers": headers}
        await server._app(scope, receive, send)
        return answers

    assert asyncio.run(call())[0]["status"] == 400
    assert server.counters.rejected == {"disconnected": 1}


@pytest.mark.parametrize(
    ("refusal", "header", "code"),
    [
        (Refusal(401, "unauthorized", "a token is wanted"), ("www-authenticate", "Bearer"), 16),
        (Refusal(503, "unavailable", "the monitor is starting", retry_after=2), ("retry-after", "2"), 14),
        (Refusal(429, "unavailable", "too fast", retry_after=1), ("retry-after", "1"), 8),
    ],
)
def test_a_rejected_sender_gets_the_reason_before_the_body_is_read(
    refusal: Refusal, header: tuple[str, str], code: int
) -> None:
    def admit(request: Request) -> None:
        raise refusal

    server = Server(admit=admit)
    response = server.post(BODY, headers_of(PROTOBUF))
    assert (response.status_code, response.headers[header[0]]) == (refusal.status, header[1])
    assert (status_of(response).code, status_of(response).message) == (code, refusal.message)
    assert server.counters.rejected == {refusal.reason: 1}
    assert server.reports == []


def test_only_post_is_served() -> None:
    async def call() -> int:
        transport = httpx.ASGITransport(Server()._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://monitor") as client:
            return (await client.get("/v1/metrics")).status_code

    assert asyncio.run(call()) == 405


def test_spans_reach_their_sink() -> None:
    server = Server()
    request = spans_of({"iteration": 3}, {"name": ""})
    response = server.post(request.SerializeToString(), headers_of(PROTOBUF), "/v1/traces")
    answer = ExportTraceServiceResponse.FromString(response.content)
    assert answer.partial_success.rejected_spans == 1
    assert [(span.section, span.iteration) for span in server.spans] == [("step", 3)]
    assert (server.counters.spans, server.counters.rejected) == (1, {"bad_name": 1})
