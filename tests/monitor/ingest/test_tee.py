"""The tee of the OTLP endpoints gets every accepted request as received, and no refused one."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping

import httpx
from fastapi import FastAPI

from monitor.ingest.otlp_requests import RANK_3, gauge, request_of
from monitor.ingest.test_traces_decoder import spans_of
from rankwatch_monitor.ingest.routes import OtlpEndpoints

BODY = request_of(RANK_3, gauge("rankwatch.iteration", 7)).SerializeToString()
PROTOBUF = {"Content-Type": "application/x-protobuf"}


class Server:
    """The routes with a tee that keeps what it gets."""

    def __init__(self) -> None:
        self.teed: list[tuple[str, str, bytes]] = []
        self.app = FastAPI()
        self.endpoints = OtlpEndpoints(lambda reports: [])
        self.endpoints.tee = self.tee
        self.app.include_router(self.endpoints.router)

    def tee(self, path: str, headers: Mapping[str, str], client: object, body: bytes) -> None:
        assert client is not None
        self.teed.append((path, headers.get("content-encoding", ""), body))

    def post(self, path: str, body: bytes, headers: Mapping[str, str] = PROTOBUF) -> int:
        async def send() -> int:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return (await client.post(path, content=body, headers=headers)).status_code

        return asyncio.run(send())


def test_accepted_requests_are_handed_on_as_they_came() -> None:
    server, packed = Server(), gzip.compress(BODY)
    assert server.post("/v1/metrics", BODY) == 200
    assert server.post("/v1/metrics", packed, PROTOBUF | {"Content-Encoding": "gzip"}) == 200
    spans = spans_of({}).SerializeToString()
    assert server.post("/v1/traces", spans) == 200
    assert server.teed == [("/v1/metrics", "", BODY), ("/v1/metrics", "gzip", packed), ("/v1/traces", "", spans)]


def test_what_is_refused_is_not_handed_on() -> None:
    server = Server()
    assert server.post("/v1/metrics", b"\xff nonsense") == 400
    assert server.post("/v1/metrics", BODY, {"Content-Type": "text/plain"}) == 415
    assert server.teed == []


def test_without_a_tee_nothing_changes() -> None:
    server = Server()
    server.endpoints.tee = None
    assert server.post("/v1/metrics", BODY) == 200
