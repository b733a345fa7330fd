"""A real OTLP/HTTP receiver for tests: decodes what arrives, answers as instructed."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def plain(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value"))


def mapping(pairs: Any) -> dict[str, Any]:
    return {pair.key: plain(pair.value) for pair in pairs}


@dataclass(frozen=True)
class Report:
    """One resource's metrics of one collection: ``points[metric][attributes]`` is a value or a histogram point."""

    resource: Mapping[str, Any]
    points: Mapping[str, Mapping[tuple[Any, ...], Any]]
    units: Mapping[str, str]

    def value(self, metric: str, *attributes: Any) -> Any:
        return self.points.get(metric, {}).get(attributes)


@dataclass
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Receiver:
    """Listens on a port of loopback; ``wait_for`` waits for a condition over what has arrived."""

    def __init__(self, port: int = 0) -> None:
        self.reports: list[Report] = []
        self.spans: list[Span] = []
        self.requests: list[Mapping[str, str]] = []
        self.paths: list[str] = []
        self.taken: list[tuple[float, int]] = []
        """When each request came, by the monotonic clock, and how many reports were taken from it."""
        self.answer = Answer()
        self.first: Answer | None = None
        """The answer to the first request, if it is another."""
        self._changed = threading.Condition()
        self._connections: list[socket.socket] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver._connections.append(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = receiver._take(self.path, dict(self.headers.items()), body)
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.01))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for connection in self._connections:  # those kept alive would be served on
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    @property
    def connections(self) -> int:
        """How many have been accepted."""
        return len(self._connections)

    def wait_for(self, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
        """The first true value of ``condition``, looked at whenever something arrives."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), f"in {seconds} s: {len(self.reports)} reports"
            return condition()

    def wait_for_report(self, condition: Callable[[Report], Any] = lambda _: True, seconds: float = 60.0) -> Report:
        """The first report, old or new, for which ``condition`` is true."""
        found: Report = self.wait_for(lambda: next((r for r in self.reports if condition(r)), None), seconds)
        return found

    def _take(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        encoding = next((value for name, value in headers.items() if name.lower() == "content-encoding"), "")
        if encoding == "gzip":
            body = gzip.decompress(body)
        elif encoding == "deflate":
            body = zlib.decompress(body)
        with self._changed:
            self.requests.append({name.lower(): value for name, value in headers.items()})
            self.paths.append(path)
            answer, self.first = self.first or self.answer, None
            known = len(self.reports)
            if answer.status == 200:
                if path == "/v1/metrics":
                    self.reports += _reports(ExportMetricsServiceRequest.FromString(body))
                else:
                    request = ExportTraceServiceRequest.FromString(body)
                    self.spans += [s for r in request.resource_spans for sc in r.scope_spans for s in sc.spans]
            self.taken.append((time.monotonic(), len(self.reports) - known))
            self._changed.notify_all()
            return answer


def partial_success(rejected: int) -> Answer:
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = rejected
    return Answer(body=response.SerializeToString(), headers={"Content-Type": "application/x-protobuf"})


def _reports(request: ExportMetricsServiceRequest) -> list[Report]:
    reports = []
    for resource in request.resource_metrics:
        points: dict[str, dict[tuple[Any, ...], Any]] = {}
        units = {}
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                units[metric.name] = metric.unit
                kind = metric.WhichOneof("data")
                of_metric = points.setdefault(metric.name, {})
                for point in getattr(metric, kind).data_points:
                    key = tuple(mapping(point.attributes).values())
                    of_metric[key] = (
                        point if kind == "exponential_histogram" else getattr(point, point.WhichOneof("value"))
                    )
        reports.append(Report(mapping(resource.resource.attributes), points, units))
    return reports
