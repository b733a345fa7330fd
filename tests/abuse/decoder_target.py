"""What the fuzzer runs: one body as a sender would post it, through the whole edge of the decoder into a monitor.

How this works: an input is a header of two bytes and a body. The first byte chooses what the sender reports of the body
(signal, format, encoding), the second whether it is compressed here first, so that a mutated message reaches the
decoder and not only the check of its compression. Whatever comes: the body is refused in words, or it is taken in and
everything that is shown of its job can be written out as JSON and as metrics.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import zstandard
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rankwatch_monitor.core.hang import limits as timeouts
from rankwatch_monitor.core.incident.lifecycle import verdicts_of
from rankwatch_monitor.core.plain import plain
from rankwatch_monitor.core.ranks import _COUNTS, _FLOATS
from rankwatch_monitor.core.views import job_view, rankings
from rankwatch_monitor.ingest.body import Format, inflate
from rankwatch_monitor.ingest.limits import REASONS, Counters, Limits
from rankwatch_monitor.ingest.message import decode, encode
from rankwatch_monitor.ingest.metrics_decoder import MetricsDecoder
from rankwatch_monitor.ingest.rejection import Refusal
from rankwatch_monitor.ingest.traces_decoder import TracesDecoder
from rankwatch_monitor.publish.prometheus.exposition import Own, exposition
from rankwatch_monitor.publish.text import report, scores_report
from rankwatch_monitor.service.monitor import Monitor

START: Final = 1_750_000_000.0
LIMITS: Final = Limits(
    body_bytes=64 * 1024, decompressed_bytes=256 * 1024, jobs=3, ranks_per_job=64, sections_per_job=8,
    kernels_per_report=8,
    groups_per_report=4, name_length=24, attributes=24, points_per_request=2_000, resources_per_request=50,
    spans_per_request=200, processes_remembered=16,
)  # fmt: skip
"""Small, so that the fuzzer finds its way beyond them."""

TRACES, JSON = 1, 2
ENCODINGS: Final = ("", "gzip", "zstd", "br")
"""Bits 2 and 3 of the first byte."""


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = START

    def now(self) -> float:
        return self.seconds


class Edge:
    """A monitor with its decoders, without a server around it."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.monitor = Monitor(limits=LIMITS, clock=self.clock)  # type: ignore[arg-type]
        self.counters: Counters = self.monitor.counters
        self.metrics = MetricsDecoder(LIMITS, self.counters, int(START * 1e9))
        self.traces = TracesDecoder(LIMITS, self.counters)

    def post(self, body: bytes, *, traces: bool, encoded: Format, encoding: str) -> Refusal | None:
        """Take one body as the routes do; the refusal, if it is refused."""
        try:
            inflated = inflate(body, encoding, LIMITS)
            assert len(inflated) <= LIMITS.decompressed_bytes
            if traces:
                spans, rejections = self.traces.decode(decode(inflated, encoded, ExportTraceServiceRequest, LIMITS))
                self.monitor.ingest_spans(spans)
            else:
                message = decode(inflated, encoded, ExportMetricsServiceRequest, LIMITS)
                reports, points, rejections = self.metrics.decode(message)
                assert len(reports) == len(points)
                for position, reason, words in self.monitor.ingest(reports):
                    rejections.add(reason, words, points[position])
            assert rejections.items >= 0
            rejections.message().encode()
        except Refusal as refusal:
            return refusal
        assert set(self.counters.rejected) <= set(REASONS)
        return None

    def look(self) -> None:
        """Show all that people and machines may ask for, and judge."""
        monitor, now = self.monitor, self.clock.now()
        monitor.tick()
        assert not monitor.failing, f"jobs {monitor.failing} cannot be judged"
        assert len(monitor.jobs) <= LIMITS.jobs
        for job in monitor.jobs.values():
            assert len(job.columns) <= LIMITS.ranks_per_job
            assert len(job.columns.sections) <= LIMITS.sections_per_job
            for name in _FLOATS:
                assert not np.any(np.isinf(getattr(job.columns, name))), name
            for name in _COUNTS:
                assert np.all(getattr(job.columns, name) >= -1), name
            shown = [
                job_view.summary(job, now),
                job_view.ranks(job, now),
                job_view.goodput(job, now),
                timeouts.table(job.policy, job.durations),
                rankings.score_table(job, now, 3),
                [incident.to_json() for incident in job.incidents],
                job.dropped,
            ]
            shown = plain(shown)
            json.dumps(shown, allow_nan=False, ensure_ascii=False).encode()
            assert all(math.isfinite(number) for number in _numbers(shown))
            job_view.rank_states(job, verdicts_of(job, now), now)
            report.text(job, now).encode()
            scores_report.scores_text(job, now, None).encode()
        exposition(monitor.jobs.values(), Own(0, self.counters.rejected, 0.0, 0, 0), now)


def _sound(refused: Refusal | None, encoded: Format) -> None:
    if refused is not None:
        assert refused.reason in REASONS
        assert 400 <= refused.status < 500
        encode(Status(code=3, message=refused.message), encoded)


def feed(data: bytes) -> None:
    """Run one input: the body comes twice, then time passes, and it comes once more."""
    if len(data) < 2:
        return
    header, packed, body = data[0], data[1], data[2:]
    encoding = ENCODINGS[(header >> 2) & 3]
    if packed & 1 and encoding == "gzip":
        body = gzip.compress(body, 1, mtime=0)
    elif packed & 1 and encoding == "zstd":
        body = zstandard.compress(body, 1)
    edge = Edge()
    for pause in (0.0, 0.25, 40.0):
        edge.clock.seconds += pause
        encoded: Format = "json" if header & JSON else "protobuf"
        _sound(edge.post(body, traces=bool(header & TRACES), encoded=encoded, encoding=encoding), encoded)
        edge.look()


def _numbers(reported: Any) -> Iterator[float]:
    if isinstance(reported, dict):
        for each in reported.values():
            yield from _numbers(each)
    elif isinstance(reported, list | tuple):
        for each in reported:
            yield from _numbers(each)
    elif isinstance(reported, float):
        yield reported
