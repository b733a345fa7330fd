"""Bad telemetry to the real service: refused in OTLP's own way, with words, counted, and nothing else changed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from google.protobuf.json_format import Parse
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from support.monitor_fixtures import State
from support.monitor_process import Api
from support.otlp import JSON, PROTOBUF, body, rank_report

MIB = 1024 * 1024
GZIP = {"Content-Encoding": "gzip"}

WHOLE = body(rank_report("bad", 0, 2, iteration=3, open_sections={"step": 1.0}))


def bomb(mebibytes: int) -> bytes:
    """Zeros that inflate to far more than is taken."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(mebibytes)), packer.flush()])


class BadOtlp(NamedTuple):
    content: bytes
    headers: dict[str, str]
    status: int
    code: int
    """Of google.rpc.Status."""
    reason: str
    words: tuple[str, ...]


BAD_OTLP = {
    "truncated protobuf": BadOtlp(WHOLE[:-5], PROTOBUF, 400, 3, "bad_body", ("not a valid protobuf", "again")),
    "truncated gzip": BadOtlp(gzip.compress(WHOLE)[:-12], PROTOBUF | GZIP, 400, 3, "bad_body", ("truncated", "again")),
    "gzip that is none": BadOtlp(WHOLE, PROTOBUF | GZIP, 400, 3, "bad_body", ("gzip", "again")),
    "truncated JSON": BadOtlp(b'{"resourceMetrics": [', JSON, 400, 3, "bad_body", ("JSON", "again")),
    "JSON of another shape": BadOtlp(b'{"resourceMetrics": 7}', JSON, 400, 3, "bad_body", ("resourceMetrics",)),
    "JSON that is a list": BadOtlp(b"[]", JSON, 400, 3, "bad_body", ("object",)),
    "deep JSON": BadOtlp(b"[" * 200_000, JSON, 400, 3, "bad_body", ("JSON",)),
    "JSON in no UTF-8": BadOtlp(b'{"\xff": 1}', JSON, 400, 3, "bad_body", ("JSON",)),
    "plain text": BadOtlp(
        b"hello", {"Content-Type": "text/plain"}, 415, 3, "bad_content_type", ("text/plain", "application/x-protobuf")
    ),
    "no content type": BadOtlp(WHOLE, {}, 415, 3, "bad_content_type", ("content type", "application/x-protobuf")),
    "an unknown encoding": BadOtlp(
        WHOLE, PROTOBUF | {"Content-Encoding": "br"}, 415, 3, "bad_content_type", ("br", "gzip")
    ),
    "gzip bomb": BadOtlp(bomb(40), PROTOBUF | GZIP, 413, 8, "body_too_large", ("inflates", "16777216", "smaller")),
    "body over the limit": BadOtlp(bytes(5 * MIB), PROTOBUF, 413, 8, "body_too_large", ("4194304", "smaller")),
}


def status_of(answer: httpx.Response) -> Status:
    kind = answer.headers["content-type"]
    assert kind in ("application/x-protobuf", "application/json"), kind
    return Status.FromString(answer.content) if kind == PROTOBUF["Content-Type"] else Parse(answer.text, Status())


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *((name, "/v1/metrics") for name in BAD_OTLP),
        *((name, "/v1/traces") for name in ("truncated protobuf", "JSON of another shape", "no content type")),
    ],
)
def test_bad_telemetry_is_refused_in_otlps_own_way(api: Api, state: State, name: str, path: str) -> None:
    bad = BAD_OTLP[name]
    if path == "/v1/traces" and name == "JSON of another shape":
        bad = bad._replace(content=b'{"resourceSpans": 7}', words=("resourceSpans",))
    before, counted = state(), api.rejected()
    answer = api.post(path, content=bad.content, headers=bad.headers)
    assert answer.status_code == bad.status, answer.text
    reported = status_of(answer)
    assert reported.code == bad.code
    assert all(word in reported.message for word in bad.words), reported.message
    if bad.headers.get("Content-Type") == PROTOBUF["Content-Type"]:
        assert answer.headers["content-type"] == PROTOBUF["Content-Type"], "answered in the encoding of the request"
    if bad.status == 415:
        assert "gzip" in answer.headers["accept-encoding"]
    assert api.rejected() == counted | {bad.reason: counted.get(bad.reason, 0) + 1}
    assert state() == before


def test_a_chunked_body_over_the_limit_is_refused_while_it_comes(api: Api, state: State) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(5):
            yield bytes(MIB)

    before = state()
    answer = api.post("/v1/metrics", content=chunks(), headers=PROTOBUF)
    assert (answer.status_code, status_of(answer).code) == (413, 8)
    assert state() == before


def test_a_sender_that_goes_away_in_the_middle_leaves_the_service_well(api: Api, state: State) -> None:
    class GoneAwayError(Exception):
        pass

    def chunks() -> Iterator[bytes]:
        yield WHOLE[:10]
        raise GoneAwayError

    before = state()
    with Api(str(api.base_url)) as fickle, pytest.raises(GoneAwayError):
        fickle.post("/v1/metrics", content=chunks(), headers=PROTOBUF | {"Content-Length": str(len(WHOLE))})
    assert state() == before
    assert api.get("/readyz").status_code == 200


class Rejected(NamedTuple):
    identity: dict[str, Any]
    """Attributes of the resource that are not as they should be."""
    reason: str
    words: tuple[str, ...]


REJECTED = {
    "rank outside the world": Rejected(
        {"dl.rank": 7}, "bad_identity", ("dl.rank 7", "outside the world", "last rank is 1")
    ),
    "negative rank": Rejected({"dl.rank": -1}, "bad_identity", ("dl.rank", "-1")),
    "rank that is no number": Rejected({"dl.rank": "first"}, "bad_identity", ("dl.rank", "first")),
    "no rank": Rejected({"dl.rank": None}, "no_identity", ("dl.rank", "set it")),
    "a world above the limit": Rejected({"dl.world_size": 10**9}, "bad_identity", ("dl.world_size", "131072")),
    "no job": Rejected(
        {"rankwatch.job.id": None, "service.name": None}, "no_identity", ("rankwatch.job.id", "service.name")
    ),
    "job id too long": Rejected({"rankwatch.job.id": "j" * 300}, "name_too_long", ("rankwatch.job.id", "300", "256")),
    "job id with a line break": Rejected({"rankwatch.job.id": "a\nb"}, "bad_identity", ("control characters",)),
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_report_without_identity_is_partial_success_with_words(api: Api, job: str, state: State, name: str) -> None:
    bad = REJECTED[name]
    wrong = rank_report(job, 0, 2, iteration=3, progress=1, resource=bad.identity)
    before, counted = state(), api.rejected()
    good = rank_report(job, 1, 2, iteration=3)
    answer = api.post("/v1/metrics", content=body(wrong, good), headers=PROTOBUF)
    assert answer.status_code == 200
    reported = ExportMetricsServiceResponse.FromString(answer.content).partial_success
    assert reported.rejected_data_points == 2
    assert all(word in reported.error_message for word in bad.words), reported.error_message
    assert api.rejected() == counted | {bad.reason: counted.get(bad.reason, 0) + 2}
    assert state() == before


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_an_impossible_age_is_rejected_alone(api: Api, job: str, state: State, seconds: float) -> None:
    before, counted = state(), api.rejected()
    answer = api.post(
        "/v1/metrics", content=body(rank_report(job, 0, 2, open_sections={"step": seconds})), headers=PROTOBUF
    )
    reported = ExportMetricsServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, reported.rejected_data_points) == (200, 1)
    assert "step" in reported.error_message
    assert api.rejected() == counted | {"bad_value": counted.get("bad_value", 0) + 1}
    assert state() == before
