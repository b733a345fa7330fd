"""Forwards accepted OTLP requests to other backends, byte for byte, from a bounded queue in memory.

How this works
--------------
:meth:`Forwarding.take` appends a request to the queue of each backend and returns: the event loop never waits for a
backend or a disk. Each backend has :data:`CONNECTIONS` worker threads with a connection each; requests of one client
connection always go to the same worker, which keeps their order. A queue that exceeds its limit drops its oldest
requests and counts them.

==============================  ========================================================================
answer of the backend           what follows
==============================  ========================================================================
2xx                             sent; points rejected in a partial success are counted and logged
none, 429, 502, 503, 504        retried with backoff until the queue drops the request, as OTLP asks
anything else                   refused: counted, logged and not retried, as OTLP forbids it
==============================  ========================================================================

Nothing survives the process. An OpenTelemetry Collector with a persistent queue is the component for that (ADR 0016).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from rankwatch.cli.formatting import printable
from rankwatch.contract import semconv
from rankwatch_monitor.publish.forward.verdict_metrics import VerdictMetrics
from rankwatch_monitor.publish.http_post import Answer, Target, backoff, checked, shown
from rankwatch_monitor.publish.prometheus import names
from rankwatch_monitor.publish.prometheus.names import Sample
from rankwatch_monitor.publish.snapshot import Snapshot

log = logging.getLogger("rankwatch")

MIB: Final = 1024 * 1024
CONNECTIONS: Final = 16
"""Connections, and worker threads, of each backend."""
WARN_INTERVAL: Final = 60.0
"""Seconds between two warnings about the same problem of a backend."""
FORWARDED: Final = "rankwatch-forwarded"
"""Header of forwarded requests. They are not forwarded again, which prevents loops between monitors."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RETRIED: Final = (None, 429, 502, 503, 504)


class Backend(NamedTuple):
    """A destination: the OTLP endpoint, to which the signal's path is appended, and its headers."""

    url: str
    headers: Mapping[str, str]


class OtlpRequest(NamedTuple):
    """One accepted request as it was received, or one that the monitor made itself."""

    path: str
    content_type: str
    content_encoding: str
    body: bytes


class Forwarding:
    """All backends of a monitor. Also a publisher: the monitor's own verdicts are forwarded as metrics."""

    def __init__(self, backends: Sequence[Backend], limit: int) -> None:
        """Start the workers; ``limit`` is the size of each backend's queue in bytes."""
        self._verdicts = VerdictMetrics()
        self._closing = threading.Event()
        self.queues = [BackendQueue(each, limit) for each in {each.url: each for each in backends}.values()]
        self._repeater = threading.Thread(target=self._repeat_verdicts, name="rankwatch-verdicts", daemon=True)
        self._repeater.start()

    @property
    def errors(self) -> int:
        """Requests that some backend will never receive."""
        return sum(queue.refused + queue.missed for queue in self.queues)

    def samples(self) -> list[Sample]:
        """Requests by outcome and bytes waiting, summed over the backends, for ``/metrics``."""
        outcomes = {
            "sent": sum(queue.sent for queue in self.queues),
            "refused": sum(queue.refused for queue in self.queues),
            "missed": sum(queue.missed for queue in self.queues),
        }
        waiting = sum(queue.waiting_bytes for queue in self.queues)
        samples: list[Sample] = [(names.FORWARD_REQUESTS, count, (outcome,)) for outcome, count in outcomes.items()]
        return [*samples, (names.FORWARD_WAITING, waiting, ())]

    def take(self, path: str, headers: Mapping[str, str], client: object, body: bytes) -> None:
        """Queue an accepted request for every backend; returns at once.

        Args:
            path: of the endpoint that received it.
            headers: of the request, by lower-case name.
            client: equal for requests whose order is to be kept.
            body: as received, still compressed if it was.
        """
        if not headers.get(FORWARDED):
            content_type, encoding = headers.get("content-type", ""), headers.get("content-encoding", "")
            self._put(OtlpRequest(path, content_type, encoding, body), client)

    def publish(self, snapshot: Snapshot) -> None:
        """Queue the monitor's verdicts about a job as OTLP metrics."""
        self._put(_verdict_request(self._verdicts.encode(snapshot)), self)

    def close(self, timeout: float) -> None:
        """Send what is queued, for at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._closing.set()
        for queue in self.queues:
            queue.end()
        for queue in self.queues:
            queue.join(deadline)
        left = sum(queue.waiting_bytes for queue in self.queues)
        if left:
            log.warning("%d bytes of telemetry were not forwarded before the monitor ended and are lost", left)

    def _put(self, request: OtlpRequest, client: object) -> None:
        for queue in self.queues:
            queue.put(request, client)

    def _repeat_verdicts(self) -> None:
        while not self._closing.wait(self._verdicts.INTERVAL):
            for body in self._verdicts.repeats(time.time()):
                self._put(_verdict_request(body), self)


class BackendQueue:
    """The bounded queue of one backend and the workers that empty it.

    ``sent``, ``refused`` (by the backend, for good) and ``missed`` (dropped from the queue) count requests;
    ``rejected`` counts the points and spans that partial successes turned away.
    """

    def __init__(self, backend: Backend, limit: int) -> None:
        self.name = shown(backend.url)
        self.sent = self.refused = self.missed = self.rejected = 0
        self.waiting_bytes = 0
        """Bytes queued or being sent."""
        self._backend, self._limit = backend, limit
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._number = 0
        self._warned: dict[str, float] = {}
        self._workers = [_Worker(self, self._lock) for _ in range(CONNECTIONS)]
        for worker in self._workers:
            worker.thread.start()

    def put(self, request: OtlpRequest, client: object) -> None:
        """Append a request; drops the oldest ones where the queue exceeds its limit."""
        worker = self._workers[hash(client) % CONNECTIONS]
        with self._lock:
            self._number += 1
            worker.queue.append((self._number, request))
            worker.changed.notify()
            self.waiting_bytes += len(request.body)
            dropped = 0
            while self.waiting_bytes > self._limit and (full := [each for each in self._workers if each.queue]):
                _, oldest = min(full, key=lambda each: each.queue[0][0]).queue.popleft()
                self.waiting_bytes -= len(oldest.body)
                dropped += 1
            self.missed += dropped
        if dropped:
            self.warn("queue full", f"is too far behind: {self.missed} requests were dropped unsent so far")

    def end(self) -> None:
        """Let the workers send what is queued, without retries, and stop."""
        self._ending.set()
        with self._lock:
            for worker in self._workers:
                worker.changed.notify()

    def join(self, deadline: float) -> None:
        """Wait for the workers until ``deadline`` (monotonic seconds)."""
        for worker in self._workers:
            worker.thread.join(max(0.0, deadline - time.monotonic()))

    def next_of(self, worker: _Worker) -> OtlpRequest | None:
        """The worker's next request; None when there is none and the queue ends."""
        with self._lock:
            while not worker.queue:
                if self._ending.is_set():
                    return None
                worker.changed.wait()
            return worker.queue.popleft()[1]

    def send(self, request: OtlpRequest, target: Target) -> bool:
        """Post a request until it is taken or refused; False when the queue ended before that."""
        headers = {"Content-Type": request.content_type, "User-Agent": "rankwatch", FORWARDED: "1"}
        headers |= {"Content-Encoding": request.content_encoding} if request.content_encoding else {}
        headers |= self._backend.headers
        failures = 0
        while (answer := target.post(request.body, headers)).status in _RETRIED:
            failures += 1
            self.warn(f"retry {answer.status}", f"{answer.problem}; requests wait in memory and are retried")
            pause = backoff(failures) if answer.retry_after is None else max(answer.retry_after, 0.05)
            if self._ending.wait(pause):
                return False
        self._settle(request, answer)
        return True

    def target(self, path: str) -> Target:
        """A new connection to the backend's endpoint of a signal."""
        return Target(self._backend.url.rstrip("/") + path)

    def warn(self, kind: str, message: str) -> None:
        """Log a problem of this backend, once per kind and interval."""
        now = time.monotonic()
        with self._lock:
            due = now - self._warned.get(kind, -WARN_INTERVAL) >= WARN_INTERVAL
            if due:
                self._warned[kind] = now
        if due:
            log.warning("backend %s %s", self.name, message)

    def _settle(self, request: OtlpRequest, answer: Answer) -> None:
        rejected, message = _partial_success(request, answer) if answer.taken else (0, "")
        with self._lock:
            self.waiting_bytes -= len(request.body)
            self.sent += answer.taken
            self.refused += not answer.taken
            self.rejected += rejected
        if not answer.taken:
            self.warn(f"refused {answer.status}", f"{answer.problem} to {request.path}: such requests are lost to it")
        elif rejected or message:
            self.warn("partial", f"rejects {rejected} points or spans: {message or 'without a reason'}")


class _Worker:
    """One thread with a connection for each signal, and the requests assigned to it."""

    def __init__(self, owner: BackendQueue, lock: threading.Lock) -> None:
        self.queue: deque[tuple[int, OtlpRequest]] = deque()
        """Requests with the number of their arrival."""
        self.changed = threading.Condition(lock)
        self.thread = threading.Thread(target=self._work, name="rankwatch-forward", daemon=True)
        self._owner = owner
        self._targets: dict[str, Target] = {}

    def _work(self) -> None:
        while (request := self._owner.next_of(self)) is not None:
            if request.path not in self._targets:
                self._targets[request.path] = self._owner.target(request.path)
            if not self._owner.send(request, self._targets[request.path]):
                return


def backends(urls: Sequence[str], headers: Sequence[str]) -> list[Backend]:
    """The backends of ``--forward URL`` with their ``--forward-header [NUMBER:]NAME=VALUE``.

    Raises:
        ValueError: a URL or header is malformed; the text names the fix and never holds a value.
    """
    own: list[dict[str, str]] = [{} for _ in urls]
    for header in headers:
        number, mark, rest = header.partition(":")
        numbered = bool(mark) and number.strip().isascii() and number.strip().isdigit()
        name, mark, value = (rest if numbered else header).partition("=")
        name, value = name.strip(), value.strip()
        if not mark or not _HEADER_NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise ValueError(
                "--forward-header needs NAME=VALUE, such as 'Authorization=Bearer abc', in printable ASCII; "
                "2:NAME=VALUE applies to the second --forward only"
            )
        if numbered and not 1 <= int(number) <= len(urls):
            raise ValueError(f"--forward-header {int(number)}:{name}=… refers to a --forward that is not given")
        for each in (own[int(number) - 1],) if numbered else own:
            each[name] = value
    return [Backend(checked(url, "--forward"), each) for url, each in zip(urls, own, strict=True)]


def _verdict_request(body: bytes) -> OtlpRequest:
    return OtlpRequest(semconv.OTLP_METRICS_PATH, "application/x-protobuf", "", body)


def _partial_success(request: OtlpRequest, answer: Answer) -> tuple[int, str]:
    """Points or spans that a backend rejected in a successful answer, and its message."""
    metrics = request.path == semconv.OTLP_METRICS_PATH
    response: Any = ExportMetricsServiceResponse() if metrics else ExportTraceServiceResponse()
    try:
        if request.content_type.lower().startswith("application/json"):
            json_format.Parse(answer.content or b"{}", response, ignore_unknown_fields=True)
        else:
            response.ParseFromString(answer.content)
    except (json_format.ParseError, DecodeError, UnicodeDecodeError):
        return 0, ""  # some backends answer with a body of their own
    partial = response.partial_success
    rejected = partial.rejected_data_points if metrics else partial.rejected_spans
    return int(rejected), printable(partial.error_message)[:200]
