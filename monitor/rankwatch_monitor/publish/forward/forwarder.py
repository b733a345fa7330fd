"""Forwarding: every accepted OTLP request goes on to other backends, its bytes as they came.

How this works
--------------
:meth:`Forwarding.take` hands a request to the writer's thread, which appends whatever has come to the spool on disk,
and is over once that is done: what a sender was told is taken outlives the process. Should the disk take longer than
:data:`DISK_PATIENCE`, the sender is answered all the same. Each backend has a thread that reads the spool and posts,
several requests at a time, those of one sender in their order; no backend is ever waited for by anybody else.

As OTLP asks, no answer, 429, 502, 503 and 504 are tried again for as long as the spool holds the request; anything
else is refused for good and counted, and so is what a partial success turns away.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from rankwatch.contract import semconv
from rankwatch_monitor.publish.forward.spool import MIB, Record, Spool
from rankwatch_monitor.publish.forward.verdict_metrics import Verdicts
from rankwatch_monitor.publish.prometheus import names as wire
from rankwatch_monitor.publish.publisher import Sample
from rankwatch_monitor.publish.snapshot import Snapshot
from rankwatch_monitor.publish.text.formatting import printable
from rankwatch_monitor.publish.webhook import retry
from rankwatch_monitor.publish.webhook.post import Answer, Target, checked, fingerprint, shown

log = logging.getLogger("rankwatch")

DISK_PATIENCE: Final = 1.0
"""Seconds that a sender waits for the disk."""
IN_MEMORY: Final = 64 * MIB
"""Bytes that may wait for the writer's thread."""
CONNECTIONS: Final = 16
"""To each backend; records of one sender always take the same one."""
AT_ONCE: Final = 64
"""Records between two notes of how far a backend has got: so many may be sent again after a kill."""
SAY_AGAIN: Final = 60.0
"""Seconds between two lines of the log about the same trouble."""
FORWARDED: Final = "rankwatch-forwarded"
"""Header of a request that was forwarded to here; it goes no further, so that monitors cannot send in a circle."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RETRIED: Final = (None, 429, 502, 503, 504)


class Backend(NamedTuple):
    """Where to forward to: the OTLP endpoint, to which the signal's path is added, and headers for it."""

    url: str
    headers: Mapping[str, str]


class Forwarding:
    """All backends of a monitor, and the spool before them. Also a publisher: of the monitor's own verdicts.

    ``dropped`` counts requests that never reached the spool.
    """

    def __init__(self, backends: Sequence[Backend], folder: Path, limit: int) -> None:
        """Take up what was left to send, and begin.

        Args:
            backends: to whom.
            folder: of the spool, for this monitor alone.
            limit: bytes of the spool.

        Raises:
            ValueError: the folder cannot be used.
        """
        self.dropped = 0
        self._spool = Spool(folder, limit)
        self._verdicts = Verdicts()
        self._news = threading.Condition()
        self._waiting: list[tuple[bytes, Callable[[], None] | None]] = []
        self._size = 0
        self._closing = False
        self._said = 0.0
        self.senders = [Sender(backend, self._spool) for backend in {each.url: each for each in backends}.values()]
        self._spool.begin()
        self._thread = threading.Thread(target=self._write_all, name="rankwatch-spool", daemon=True)
        self._thread.start()
        for sender in self.senders:
            sender.start()

    @property
    def errors(self) -> int:
        """Requests that a backend will never see."""
        return self.dropped + sum(sender.refused + sender.missed for sender in self.senders)

    def samples(self) -> list[Sample]:
        """What ``/metrics`` says: requests by outcome, and how much waits, of all backends together."""
        outcomes = {
            "sent": sum(sender.sent for sender in self.senders),
            "refused": sum(sender.refused for sender in self.senders),
            "missed": sum(sender.missed for sender in self.senders),
            "unspooled": self.dropped,
        }
        waiting = sum(sender.behind for sender in self.senders)
        told: list[Sample] = [(wire.FORWARD_REQUESTS, number, (outcome,)) for outcome, number in outcomes.items()]
        return [*told, (wire.FORWARD_WAITING, waiting, ())]

    async def take(self, path: str, headers: Mapping[str, str], sender: object, body: bytes) -> None:
        """Take an accepted request; returns once it is on disk, at the latest after :data:`DISK_PATIENCE`.

        Args:
            path: of the endpoint it came to.
            headers: of the request.
            sender: equal for requests of which the order counts.
            body: as it came, compressed if it was.
        """
        if headers.get(FORWARDED):
            return
        encoding, content_type = headers.get("content-encoding", ""), headers.get("content-type", "")
        record = Record(path, content_type, encoding, hash(sender) & 0xFF, body).packed()
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not written.done():
                written.set_result(None)

        def tell() -> None:
            loop.call_soon_threadsafe(settle)

        if self._put(record, tell):
            # Not wait_for: nothing is to be cancelled, and it takes longer.
            await asyncio.wait((written,), timeout=DISK_PATIENCE)

    def publish(self, snapshot: Snapshot) -> None:
        """Send what the monitor itself says of a job on, as OTLP metrics."""
        for record in self._verdicts.told(snapshot):
            self._put(record.packed(), None)

    def close(self, timeout: float) -> None:
        """Write what has come, send what can be sent at once, and end within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join(timeout)
        for sender in self.senders:
            sender.end()
        self._spool.end()
        for sender in self.senders:
            sender.join(max(0.0, deadline - time.monotonic()))
        left = sum(sender.behind for sender in self.senders)
        if left:
            log.warning("%.1f MiB are not forwarded yet and lie on disk for the next start", left / MIB)
        self._spool.close()

    def _put(self, record: bytes, then: Callable[[], None] | None) -> bool:
        with self._news:
            full = self._size + len(record) > IN_MEMORY or self._closing
            if not full:
                self._waiting.append((record, then))
                self._size += len(record)
                self._news.notify()
        if full:
            self._drop(1, "the disk is too slow")
        return not full

    def _write_all(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._closing, self._verdicts.INTERVAL)
                batch, self._waiting, self._size = self._waiting, [], 0
                ending = self._closing
            records = [record for record, _ in batch] + [r.packed() for r in self._verdicts.due(time.time())]
            if records:
                try:
                    self._spool.append(records)
                except (OSError, ValueError) as error:
                    self._drop(len(records), getattr(error, "strerror", None) or type(error).__name__)
            for _, then in batch:
                _call(then)
            if ending:
                return

    def _drop(self, number: int, why: str) -> None:
        self.dropped += number
        if time.monotonic() - self._said > SAY_AGAIN:
            self._said = time.monotonic()
            log.warning("requests are not forwarded, as they cannot be kept on disk (%s): %d so far", why, self.dropped)


class Sender:
    """Sends what is in the spool to one backend, on threads of its own.

    ``sent``, ``refused`` (for good, by the backend) and ``missed`` (dropped from the spool unsent) count requests,
    ``rejected`` the points and spans that partial successes turned away.
    """

    def __init__(self, backend: Backend, spool: Spool) -> None:
        self.name = shown(backend.url)
        self.sent = self.refused = self.rejected = 0
        self._backend, self._spool = backend, spool
        self._reader = spool.reader(fingerprint(backend.url))
        self._targets = [_Paths(backend.url.rstrip("/")) for _ in range(CONNECTIONS)]
        self._pool = ThreadPoolExecutor(CONNECTIONS, f"rankwatch-forward-{self.name[:20]}")
        self._ending = threading.Event()
        self._counting = threading.Lock()
        self._trouble: dict[str, float] = {}
        self._thread = threading.Thread(target=self._work, name="rankwatch-forward", daemon=True)

    @property
    def missed(self) -> int:
        """Requests that were dropped from the spool before this backend had them."""
        return self._reader.missed

    @property
    def behind(self) -> int:
        """Bytes in the spool that this backend does not have yet."""
        return self._reader.behind()

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def end(self) -> None:
        """Send what can be sent at once, then end."""
        self._ending.set()

    def join(self, timeout: float) -> None:
        """Wait for that."""
        self._thread.join(timeout)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self) -> None:
        missed = 0
        while True:
            records, behind = self._reader.read(AT_ONCE, 0.0 if self._ending.is_set() else 1.0)
            if records:
                lanes: list[list[Record]] = [[] for _ in range(CONNECTIONS)]
                for record in records:
                    lanes[record.lane % CONNECTIONS].append(record)
                if not all(list(self._pool.map(self._send_all, range(CONNECTIONS), lanes))):
                    return  # the end, with a backend that is away
                self._reader.advance(behind)
            elif self._ending.is_set() and not self.behind:
                return
            if self.missed > missed:
                missed = self.missed
                self._say(f"is too far behind: {missed} requests were dropped from the disk unsent so far")

    def _send_all(self, lane: int, records: Sequence[Record]) -> bool:
        """Send records one after the other; False when it ended before all were sent."""
        return all(self._send(self._targets[lane], record) for record in records)

    def _send(self, targets: _Paths, record: Record) -> bool:
        headers = {"Content-Type": record.content_type, "User-Agent": "rankwatch", FORWARDED: "1"}
        headers |= {"Content-Encoding": record.encoding} if record.encoding else {}
        headers |= self._backend.headers
        failures = 0
        while True:
            answer = targets.to(record.path).post(record.body, headers)
            if answer.status not in _RETRIED:
                self._settle(record, answer)
                return True
            failures += 1
            self._say(f"{answer.words}; requests wait on disk and are tried again")
            pause = retry.wait(failures) if answer.retry_after is None else max(answer.retry_after, 0.05)
            if self._ending.wait(pause):
                return False

    def _settle(self, record: Record, answer: Answer) -> None:
        rejected, words = _partial(record, answer) if answer.taken else (0, "")
        with self._counting:
            self.sent += answer.taken
            self.refused += not answer.taken
            self.rejected += rejected
        if not answer.taken:
            self._say(f"{answer.words} to {record.path}: such requests are lost to it")
        elif rejected or words:
            self._say(f"turns {rejected} points or spans away: {words or 'without a reason'}")

    def _say(self, words: str) -> None:
        kind = words[:12]
        with self._counting:
            due = time.monotonic() - self._trouble.get(kind, -SAY_AGAIN) >= SAY_AGAIN
            if due:
                self._trouble[kind] = time.monotonic()
        if due:
            log.warning("backend %s %s", self.name, words)


class _Paths:
    """The endpoints of one backend over connections of its own, for one thread at a time."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._targets: dict[str, Target] = {}

    def to(self, path: str) -> Target:
        if path not in self._targets:
            self._targets[path] = Target(self._base + path)
        return self._targets[path]


def backends(urls: Sequence[str], headers: Sequence[str]) -> list[Backend]:
    """The backends of ``--forward URL`` with their ``--forward-header [NUMBER:]NAME=VALUE``.

    Raises:
        ValueError: one makes no sense; the text says what to do and holds no value.
    """
    own: list[dict[str, str]] = [{} for _ in urls]
    for header in headers:
        who, mark, rest = header.partition(":")
        numbered = bool(mark) and who.strip().isascii() and who.strip().isdigit()
        name, mark, value = (rest if numbered else header).partition("=")
        name, value = name.strip(), value.strip()
        if not mark or not _HEADER_NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise ValueError(
                "--forward-header needs NAME=VALUE, such as 'Authorization=Bearer abc', in printable ASCII; "
                "2:NAME=VALUE is for the second --forward alone"
            )
        if numbered and not 1 <= int(who) <= len(urls):
            raise ValueError(f"--forward-header {int(who)}:{name}=… is for a --forward that there is not")
        for each in (own[int(who) - 1],) if numbered else own:
            each[name] = value
    return [Backend(checked(url, "--forward"), each) for url, each in zip(urls, own, strict=True)]


def _partial(record: Record, answer: Answer) -> tuple[int, str]:
    """Points or spans that a backend turned away in spite of a success, and why."""
    metrics = record.path == semconv.OTLP_METRICS_PATH
    told: Any = ExportMetricsServiceResponse() if metrics else ExportTraceServiceResponse()
    try:
        if record.content_type.lower().startswith("application/json"):
            json_format.Parse(answer.content or b"{}", told, ignore_unknown_fields=True)
        else:
            told.ParseFromString(answer.content)
    except (json_format.ParseError, DecodeError, UnicodeDecodeError):
        return 0, ""  # some answer in their own words
    partial = told.partial_success
    number = partial.rejected_data_points if metrics else partial.rejected_spans
    return int(number), printable(partial.error_message)[:200]


def _call(then: Callable[[], None] | None) -> None:
    if then is not None:
        try:
            then()
        except RuntimeError:  # the loop was closed: the monitor is shutting down
            log.debug("a request was written after the loop had ended")
