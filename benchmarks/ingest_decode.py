"""CPU time from the inflated bytes of an OTLP metrics request to rank reports, per report.

CPU time, not time on the wall: the figure is what one core can take, and other processes must not change it.

Run: python benchmarks/ingest_decode.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, ResourceMetrics

from rankwatch.wire import names
from rankwatch_monitor.ingest.body import Format
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.message import decode, encode
from rankwatch_monitor.ingest.otlp import MetricsDecoder

RANKS = 4096
ROUNDS = 7


def fill(resource_metrics: ResourceMetrics, rank: int, time_ns: int) -> None:
    """Write what one rank of Rankwatch's own telemetry sends in one export: 10 metrics, 13 points."""
    attributes: dict[str, str | int] = {
        names.SERVICE_NAME: "gpt-pretraining",
        names.SERVICE_INSTANCE_ID: f"5d6c1f6e-0c5b-4a3b-9f0e-{rank:012d}",
        names.HOST_NAME: f"node-{rank // 8:04d}.cluster.internal",
        names.PROCESS_PID: 4000 + rank % 8,
        names.PROCESS_START_TIME: "2025-06-01T12:00:00.123456+00:00",
        names.JOB_ID: "slurm-481516",
        names.ATTEMPT: 1,
        names.RANK: rank,
        names.LOCAL_RANK: rank % 8,
        names.WORLD_SIZE: RANKS,
        names.HW_ID: f"GPU-8b1c2d3e-4f50-6172-8394-{rank:012d}",
    }
    for key, value in attributes.items():
        attribute = resource_metrics.resource.attributes.add(key=key)
        if isinstance(value, int):
            attribute.value.int_value = value
        else:
            attribute.value.string_value = value
    scope = resource_metrics.scope_metrics.add()
    scope.scope.name = "rankwatch"

    def gauge(name: str, value: float, section: str = "") -> None:
        metric = next((m for m in scope.metrics if m.name == name), None) or scope.metrics.add(name=name)
        point = metric.gauge.data_points.add(time_unix_nano=time_ns, as_double=value)
        if section:
            point.attributes.add(key=names.ATTR_SECTION).value.string_value = section

    gauge(names.HEARTBEAT_AGE.name, 0.31)
    gauge(names.ITERATION.name, 1200 + time_ns % 1000)
    gauge(names.PROGRESS.name, 3)
    gauge(names.FIRST_ITERATION.name, 1000)
    gauge(names.FIRST_ITERATION_AGE.name, 81.5)
    gauge(names.SECTION_OPEN_DURATION.name, 0.4, "step")
    gauge(names.SECTION_OPEN_DURATION.name, 0.1, "backward")
    beats = scope.metrics.add(name=names.HEARTBEATS.name, unit="{heartbeat}")
    beats.sum.data_points.add(time_unix_nano=time_ns, as_int=900)
    dropped = scope.metrics.add(name=names.TELEMETRY_DROPPED.name)
    point = dropped.sum.data_points.add(time_unix_nano=time_ns, as_int=0)
    point.attributes.add(key=names.ATTR_REASON).value.string_value = "ring_full"
    durations = scope.metrics.add(name=names.SECTION_DURATION.name, unit="s")
    durations.exponential_histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    for section in ("step", "forward", "backward"):
        histogram = durations.exponential_histogram.data_points.add(
            start_time_unix_nano=time_ns - 10**9, time_unix_nano=time_ns, count=5, sum=1.0, min=0.19, max=0.22, scale=4
        )
        histogram.positive.offset = -40
        histogram.positive.bucket_counts.extend([1, 3, 1])
        histogram.attributes.add(key=names.ATTR_SECTION).value.string_value = section


def bodies(ranks_per_request: int, encoded: Format, time_ns: int, ranks: int) -> list[bytes]:
    """Return one export of every rank, ``ranks_per_request`` of them in a request."""
    made = []
    for first in range(0, ranks, ranks_per_request):
        request = ExportMetricsServiceRequest()
        for rank in range(first, first + ranks_per_request):
            fill(request.resource_metrics.add(), rank, time_ns)
        made.append(encode(request, encoded))
    return made


def measure(ranks_per_request: int, encoded: Format, ranks: int) -> dict[str, object]:
    """Return microseconds per report over rounds in which every rank sends a new export; the first one warms up."""
    limits = Limits()
    decoder = MetricsDecoder(limits, Counters())
    figures = []
    size = 0
    for turn in range(ROUNDS + 1):
        requests = bodies(ranks_per_request, encoded, 1_750_000_000_000_000_000 + turn * 10**9, ranks)
        size = len(requests[0])
        began = time.process_time()
        reports = 0
        for body in requests:
            request = decode(body, encoded, ExportMetricsServiceRequest, limits)
            reports += len(decoder.decode(request).reports)
        elapsed = time.process_time() - began
        assert reports == ranks
        figures.append(elapsed / ranks * 1e6)
    cold, warm = figures[0], figures[1:]
    return {
        "encoding": encoded,
        "ranks_per_request": ranks_per_request,
        "body_bytes": size,
        "us_per_report": round(statistics.median(warm), 2),
        "us_per_report_least": round(min(warm), 2),
        "us_per_report_most": round(max(warm), 2),
        "us_per_report_first_seen": round(cold, 2),
    }


def main() -> None:
    """Measure, print a table, and write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args()
    formats: tuple[tuple[Format, int], ...] = (("protobuf", RANKS), ("json", 256))
    rows = [measure(size, encoded, ranks) for encoded, ranks in formats for size in (1, 8)]
    print("encoding  ranks/request  bytes/request  us/report (least - most)  first seen")
    for row in rows:
        print(
            f"{row['encoding']:<9} {row['ranks_per_request']:>13} {row['body_bytes']:>14} {row['us_per_report']:>10} "
            f"({row['us_per_report_least']} - {row['us_per_report_most']}){row['us_per_report_first_seen']:>12}"
        )
    if chosen.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        chosen.json.write_text(json.dumps({"benchmark": "ingest_decode", "machine": machine, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
