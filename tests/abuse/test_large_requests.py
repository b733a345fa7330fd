"""A kilobyte may inflate to 16 MiB of a million messages: no turn of the loop takes all of it, and nobody waits."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
import zstandard
from fastapi import FastAPI
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.http.fastlane.otlp import OtlpFastLane
from rankwatch_monitor.http.fastlane.requests import FallBackError
from rankwatch_monitor.ingest.admission import Admission
from rankwatch_monitor.ingest.body import inflate_little
from rankwatch_monitor.ingest.limits import MIB, Counters, Limits
from rankwatch_monitor.ingest.message import decode
from rankwatch_monitor.ingest.metrics_decoder import MetricsDecoder
from rankwatch_monitor.ingest.parts import REQUESTS, Kind, cut
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.routes import LARGE_SPANS, OtlpEndpoints, RefusedReport, Senders
from support.otlp import body, gauge, rank_report

EMPTY = b"\x0a\x00"
"""A resource without anything, of which 16 MiB are eight million."""
PATHS: dict[Kind, str] = {"metrics": "/v1/metrics", "traces": "/v1/traces"}


def reports(count: int, job: str = "j", padding: int = 4096) -> list[ResourceMetrics]:
    found = [rank_report(job, rank, count, iteration=1, attempt=0) for rank in range(count)]
    for each in found:
        each.scope_metrics[0].metrics[0].description = "x" * padding
    return found


def spans(resources: int, of_each: int) -> bytes:
    request = ExportTraceServiceRequest()
    for rank in range(resources):
        each = request.resource_spans.add()
        each.resource.CopyFrom(rank_report("j", rank, resources, attempt=0).resource)
        scope = each.scope_spans.add()
        for _ in range(of_each):
            scope.spans.add(name="step", start_time_unix_nano=1, end_time_unix_nano=2)
    return request.SerializeToString()


class Endpoints:
    """The endpoints in an app, called in memory."""

    def __init__(self, senders: Senders = Senders()) -> None:  # noqa: B008  # frozen
        self.turn = 0
        self.taken: list[tuple[int, str]] = []
        """In which turn of the loop something was taken, and of which job."""
        self.endpoints = OtlpEndpoints(self._sink, spans=self._spans, senders=senders)
        self.app = FastAPI()
        self.app.include_router(self.endpoints.router)

    def _sink(self, several: Sequence[RankReport]) -> Sequence[RefusedReport]:
        self.taken += ((self.turn, each.identity.job_id) for each in several)
        return ()

    def _spans(self, records: Sequence[Any]) -> None:
        self.taken += ((self.turn, each.job_id) for each in records)

    async def post(self, content: bytes, kind: Kind = "metrics", **headers: str) -> httpx.Response:
        sent = {"content-type": "application/x-protobuf", **{key.replace("_", "-"): of for key, of in headers.items()}}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://monitor") as client:
            return await client.post(PATHS[kind], content=content, headers=sent)

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def run(self, scene: Callable[[], Any]) -> Any:
        async def both() -> Any:
            counting = asyncio.ensure_future(self.count_turns())
            try:
                return await scene()
            finally:
                counting.cancel()

        return asyncio.run(both())


@pytest.fixture(autouse=True)
def _on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is refused because the machine that runs the tests is late."""
    monkeypatch.setattr(Admission, "late", lambda _: 0.0)


@pytest.mark.parametrize("kind", ["metrics", "traces"])
def test_a_large_request_is_taken_over_many_turns_of_the_loop(kind: Kind) -> None:
    server = Endpoints()
    sent = body(*reports(200)) if kind == "metrics" else spans(40, 500)
    assert server.run(lambda: server.post(sent, kind)).status_code == 200
    assert len(server.taken) == (200 if kind == "metrics" else 20_000)
    assert len({turn for turn, _ in server.taken}) >= len(sent) // (128 * 1024) > 0


def test_json_is_taken_over_many_turns_as_well() -> None:
    server = Endpoints()
    value = [{"name": "rankwatch.iteration", "description": "x" * 4096, "gauge": {"dataPoints": [{"asInt": "1"}]}}]
    of_rank = [
        [{"key": "dl.rank", "value": {"intValue": rank}}, {"key": "service.name", "value": {"stringValue": "j"}}]
        for rank in range(100)
    ]
    resources = [{"resource": {"attributes": each}, "scopeMetrics": [{"metrics": value}]} for each in of_rank]
    sent = json.dumps({"resourceMetrics": resources}).encode()
    answer = server.run(lambda: server.post(sent, content_type="application/json"))
    assert (answer.status_code, answer.json(), len(server.taken)) == (200, {}, 100)
    assert len({turn for turn, _ in server.taken}) >= 5


def test_the_fast_lane_leaves_what_inflates_to_much_to_the_application() -> None:
    lane = OtlpFastLane(Endpoints().endpoints)
    packed = zstandard.compress(body(*reports(200)))
    head = (
        b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: zstd\r\n"
        b"Content-Length: %d\r\n\r\n" % len(packed)
    )
    begun = lane.begin(head + packed, ("127.0.0.1", 1))
    assert begun is not None
    request, rest = begun
    assert lane.add(request, rest) == b""

    async def respond() -> None:
        lane.respond(request, lambda _: None)

    with pytest.raises(FallBackError) as fall_back:
        asyncio.run(respond())
    request.release()
    assert fall_back.value.request == head + packed


def peak_of(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(Refusal) as refused:
            call()
        assert refused.value.status == 413
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_resources_beyond_the_limit_are_not_looked_at() -> None:
    sent = EMPTY * MIB
    assert peak_of(lambda: MetricsDecoder(Limits(), Counters()).decode_bytes(sent)) < 8 * MIB
    for kind in REQUESTS:
        assert peak_of(lambda kind=kind: cut(sent, "protobuf", kind, Limits())) < 8 * MIB


def of_points(count: int) -> bytes:
    report = rank_report("j", 0, 1, attempt=0)
    for _ in range(count):
        gauge(report, "rankwatch.section.open.duration", 1.0)
    return body(report)


def test_one_resource_has_a_limit_of_points_of_spans_and_of_bytes() -> None:
    limits = Limits(points_per_report=100, report_bytes=100_000)
    for count, refused in ((98, False), (99, True)):
        for call in (
            lambda: MetricsDecoder(limits, Counters()).decode_bytes(of_points(count)),  # noqa: B023  # called at once
            lambda: cut(of_points(count), "protobuf", "metrics", limits),  # noqa: B023
            lambda: cut(spans(3, count + 1), "protobuf", "traces", limits),  # noqa: B023
        ):
            if refused:
                with pytest.raises(Refusal, match="points_per_report"):
                    call()
            else:
                call()
    with pytest.raises(Refusal, match="report_bytes"):
        cut(body(*reports(1, padding=100_000)), "protobuf", "metrics", limits)


def test_parts_are_whole_resources_in_order() -> None:
    several = reports(50)
    parts = cut(body(*several), "protobuf", "metrics", Limits())
    assert len(parts.bodies) > 1
    assert b"".join(parts.bodies) == body(*several)
    assert len(parts.senders) == 50


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"1,"])
def test_json_of_many_values_is_refused_before_it_is_decoded(unit: bytes) -> None:
    """Decoding it would keep the interpreter's lock for seconds."""
    sent = b'{"x":[' + unit * 400_000 + b"1]}"
    assert peak_of(lambda: decode(sent, "json", REQUESTS["metrics"], Limits())) < MIB


def test_json_of_many_names_is_refused_while_it_is_decoded() -> None:
    """No message of OTLP has them; C code would keep the interpreter's lock for half a second."""
    sent = b"{" + b",".join(b'"%x":0' % n for n in range(300_000)) + b"}"
    assert peak_of(lambda: decode(sent, "json", REQUESTS["metrics"], Limits())) < 8 * MIB


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_on_the_loop_no_more_is_inflated_than_a_turn_has_time_for(encoding: str) -> None:
    bomb = b"\0" * (16 * MIB)
    packed = zstandard.compress(bomb) if encoding == "zstd" else gzip.compress(bomb)
    tracemalloc.start()
    try:
        assert inflate_little(packed, encoding, Limits(), 64 * 1024) is None
        assert tracemalloc.get_traced_memory()[1] < 12 * MIB
    finally:
        tracemalloc.stop()
    few = zstandard.compress(b"few") if encoding == "zstd" else gzip.compress(b"few")
    assert inflate_little(few, encoding, Limits(), 64 * 1024) == b"few"


def test_a_forbidden_job_at_the_end_of_a_large_request_leaves_no_trace_of_the_others() -> None:
    server = Endpoints(Senders(admit=lambda _: lambda job: "not yours" if job == "other" else None))
    for sent, kind in ((body(*reports(200), *reports(1, "other")), "metrics"), (spans(40, 500), "traces")):
        if kind == "traces":
            other = ExportTraceServiceRequest.FromString(sent)
            other.resource_spans[-1].resource.CopyFrom(rank_report("other", 0, 1, attempt=0).resource)
            sent = other.SerializeToString()
            assert len(sent) > LARGE_SPANS
        answer = server.run(lambda sent=sent, kind=kind: server.post(sent, kind))
        assert (answer.status_code, server.taken) == (403, [])


def test_what_waits_for_its_turn_is_not_inflated_and_senders_take_turns() -> None:
    server = Endpoints(Senders(line=lambda headers: headers["x-line"]))
    packed = zstandard.compress(body(*reports(200, "many")))
    bomb = zstandard.compress(body(*reports(1, "bomb", padding=MIB)))
    other = zstandard.compress(body(*reports(200, "one")))

    async def scene() -> int:
        async with server.endpoints._one_large:
            many = [
                asyncio.ensure_future(server.post(sent, content_encoding="zstd", x_line="many"))
                for sent in (packed, packed, packed, *[bomb] * 60)
            ]
            while server.endpoints.counters.requests < len(many):
                await asyncio.sleep(0)
            one = asyncio.ensure_future(server.post(other, content_encoding="zstd", x_line="one"))
            while server.endpoints.counters.requests <= len(many):
                await asyncio.sleep(0)
            for _ in range(10):
                await asyncio.sleep(0)
            held = tracemalloc.get_traced_memory()[0]
        for answer in await asyncio.gather(*many, one):
            assert answer.status_code == 200
        return held

    tracemalloc.start()
    try:
        held = server.run(scene)
    finally:
        tracemalloc.stop()
    assert held < 30 * MIB
    jobs = [job for _, job in server.taken]
    assert jobs.index("one") == 200, "it came after one request of the other sender, not after 63"
    assert jobs.count("many") == 600
