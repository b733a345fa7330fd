"""CPU time from the inflated bytes of an OTLP metrics request to rank reports, and of applying them, per report.

CPU time, not time on the wall: the figure is what one core can take, and other processes must not change it. A plain
report comes every second or so; one with a window about every 10 s, one with kernels every 5 minutes. "read" is what
the monitor does; "full" parses each request, as it does with those that are of no layout that it has learned. "first
seen" is the round in which it sees every rank for the first time, "apply" the time to apply a report to its job.

Run: python benchmarks/ingest_decode.py [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, NumberDataPoint, ResourceMetrics

from rankwatch.contract import semconv
from rankwatch.contract.enums import Part
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.body import Format
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.message import decode, encode
from rankwatch_monitor.ingest.metrics_decoder import MetricsDecoder
from rankwatch_monitor.service.monitor import Monitor

Content = Literal["plain", "window", "kernels"]
Way = Literal["read", "full"]

RANKS = 4096
KERNELS: Final = 100
SECTIONS: Final = ("step", "data", "forward", "backward", "optimizer", "checkpointing")
GROUPS: Final = ("dp", "tp", "pp")
ROUNDS = 7


def fill(resource_metrics: ResourceMetrics, rank: int, time_ns: int, content: Content) -> None:
    """Write what one rank of Rankwatch's own telemetry sends in one export: 10 metrics, 13 points, and the content."""
    attributes: dict[str, str | int] = {
        semconv.SERVICE_NAME: "gpt-pretraining",
        semconv.SERVICE_INSTANCE_ID: f"5d6c1f6e-0c5b-4a3b-9f0e-{rank:012d}",
        semconv.HOST_NAME: f"node-{rank // 8:04d}.cluster.internal",
        semconv.PROCESS_PID: 4000 + rank % 8,
        semconv.PROCESS_START_TIME: "2025-06-01T12:00:00.123456+00:00",
        semconv.JOB_ID: "slurm-481516",
        semconv.ATTEMPT: 1,
        semconv.RANK: rank,
        semconv.LOCAL_RANK: rank % 8,
        semconv.WORLD_SIZE: RANKS,
        semconv.HW_ID: f"GPU-8b1c2d3e-4f50-6172-8394-{rank:012d}",
    }
    if content != "plain":
        attributes |= {f"dl.{dimension}.rank": rank % 8 for dimension in semconv.PARALLEL_DIMENSIONS}
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
        point = metric.gauge.data_points.add(time_unix_nano=time_ns)
        _set(point, value)
        if section:
            point.attributes.add(key=semconv.ATTR_SECTION).value.string_value = section

    gauge(semconv.HEARTBEAT_AGE.name, 0.31)
    gauge(semconv.ITERATION.name, 1200 + time_ns % 1000)
    gauge(semconv.PROGRESS.name, 3)
    gauge(semconv.FIRST_ITERATION.name, 1000)
    gauge(semconv.FIRST_ITERATION_AGE.name, 81.5)
    gauge(semconv.SECTION_OPEN_DURATION.name, 0.4, "step")
    gauge(semconv.SECTION_OPEN_DURATION.name, 0.1, "backward")
    beats = scope.metrics.add(name=semconv.HEARTBEATS.name, unit="{heartbeat}")
    beats.sum.data_points.add(time_unix_nano=time_ns, as_int=900)
    dropped = scope.metrics.add(name=semconv.TELEMETRY_DROPPED.name)
    point = dropped.sum.data_points.add(time_unix_nano=time_ns, as_int=0)
    point.attributes.add(key=semconv.ATTR_REASON).value.string_value = "ring_full"
    durations = scope.metrics.add(name=semconv.SECTION_DURATION.name, unit="s")
    durations.exponential_histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    for section in ("step", "forward", "backward"):
        histogram = durations.exponential_histogram.data_points.add(
            start_time_unix_nano=time_ns - 10**9, time_unix_nano=time_ns, count=5, sum=1.0, min=0.19, max=0.22, scale=4
        )
        histogram.positive.offset = -40
        histogram.positive.bucket_counts.extend([1, 3, 1])
        histogram.attributes.add(key=semconv.ATTR_SECTION).value.string_value = section
    added: dict[Content, Iterator[Reported]] = {"plain": iter(()), "window": window(time_ns), "kernels": kernels()}
    for name, points in itertools.groupby(added[content], key=lambda reported: reported[0].name):
        metric = scope.metrics.add(name=name)
        for _, value, labels in points:
            reported = metric.gauge.data_points.add(time_unix_nano=time_ns)
            _set(reported, value)
            for key, text in labels.items():
                reported.attributes.add(key=key).value.string_value = text


def _set(point: NumberDataPoint, value: float) -> None:
    """Set the value as a rank's encoder does: counts are integers."""
    if isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value


Reported = tuple[semconv.Metric, float, dict[str, str]]
"""A metric, the value of one of its points, and the point's attributes."""


def window(time_ns: int) -> Iterator[Reported]:
    """A window of six sections and three process groups, and a reading of the device: 62 points."""
    yield semconv.WINDOW_ITERATION, time_ns // 10**9, {}
    yield semconv.WINDOW_STEPS, 8, {}
    for word, section in itertools.product(("median", "tail", "max", "mean"), SECTIONS):
        yield semconv.WINDOW_SECTION_DURATION, 0.2, {semconv.ATTR_SECTION: section, semconv.ATTR_STATISTIC: word}
    for section in SECTIONS:
        yield semconv.WINDOW_SECTION_CALLS, 8, {semconv.ATTR_SECTION: section}
    for part in Part:
        yield semconv.STEP_PART, 0.05, {semconv.ATTR_PART: str(part)}
    for word, group in itertools.product(("busy", "exposed", "shortest"), GROUPS):
        yield semconv.COLLECTIVE_DURATION, 0.01, {semconv.ATTR_GROUP: group, semconv.ATTR_STATISTIC: word}
    for group in GROUPS:
        yield semconv.COLLECTIVE_CALLS, 12, {semconv.ATTR_GROUP: group}
    for word in ("used", "waited"):
        yield semconv.CPU_TIME, 0.1, {semconv.ATTR_STATISTIC: word}
    for metric in semconv.DEVICE_METRICS[:-2]:
        yield metric, 0.5, {}
    yield semconv.GPU_THROTTLED, 1, {semconv.ATTR_REASON: "sw_power_cap"}
    for reason in ("ecc_uncorrected", "ecc_corrected", "xid"):
        yield semconv.GPU_ERRORS, 0, {semconv.ATTR_REASON: reason}


def kernels() -> Iterator[Reported]:
    """A report of a hundred kernels and its source: 701 points."""
    words = ("min", "median", "tail", "max", "mean", "stddev")
    called = [f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_{i}(132, 1, 1)" for i in range(KERNELS)]
    for kernel, word in itertools.product(called, words):
        yield semconv.KERNEL_DURATION, 0.001, {semconv.ATTR_KERNEL: kernel, semconv.ATTR_STATISTIC: word}
    for kernel in called:
        yield semconv.KERNEL_CALLS, 64, {semconv.ATTR_KERNEL: kernel}
    yield semconv.KERNEL_SOURCE, 1, {semconv.ATTR_SOURCE: "cupti"}


def bodies(ranks_per_request: int, encoded: Format, time_ns: int, ranks: int, content: Content) -> list[bytes]:
    """Return one export of every rank, ``ranks_per_request`` of them in a request."""
    made = []
    for first in range(0, ranks, ranks_per_request):
        request = ExportMetricsServiceRequest()
        for rank in range(first, first + ranks_per_request):
            fill(request.resource_metrics.add(), rank, time_ns, content)
        made.append(encode(request, encoded))
    return made


def measure(ranks_per_request: int, encoded: Format, ranks: int, content: Content, way: Way) -> dict[str, object]:
    """Return microseconds per report over rounds in which every rank sends a new export; the first one warms up."""
    limits = Limits()
    decoder, monitor = MetricsDecoder(limits, Counters()), Monitor(limits=limits)
    figures, applied = [], []
    size = 0
    for turn in range(ROUNDS + 1):
        requests = bodies(ranks_per_request, encoded, 1_750_000_000_000_000_000 + turn * 10**9, ranks, content)
        size = len(requests[0])
        reports: list[Sequence[RankReport]] = []
        began = time.process_time()
        for body in requests:
            if way == "read":
                decoded = decoder.decode_bytes(body)
            else:
                decoded = decoder.decode(decode(body, encoded, ExportMetricsServiceRequest, limits))
            reports.append(decoded.reports)
        decoded_at = time.process_time()
        for each in reports:
            refused = monitor.ingest(each)
            assert not refused
        elapsed, applying = decoded_at - began, time.process_time() - decoded_at
        assert sum(map(len, reports)) == ranks
        assert decoded.rejections.message() == ""
        reported = decoded.reports[-1]
        assert (reported.window is not None, reported.kernels is not None) == (
            content == "window",
            content == "kernels",
        )
        figures.append(elapsed / ranks * 1e6)
        applied.append(applying / ranks * 1e6)
    cold, warm = figures[0], figures[1:]
    return {
        "content": content,
        "encoding": encoded,
        "way": way,
        "ranks_per_request": ranks_per_request,
        "body_bytes": size,
        "us_per_report": round(statistics.median(warm), 2),
        "us_per_report_least": round(min(warm), 2),
        "us_per_report_most": round(max(warm), 2),
        "us_per_report_first_seen": round(cold, 2),
        "us_per_report_apply_least": round(min(applied[1:]), 2),
    }


def main() -> None:
    """Measure, print a table, and write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args()
    cases: tuple[tuple[Content, Format, Way, int], ...] = (
        ("plain", "protobuf", "read", RANKS),
        ("plain", "protobuf", "full", RANKS),
        ("plain", "json", "full", 256),
        ("window", "protobuf", "read", RANKS // 4),
        ("window", "protobuf", "full", RANKS // 4),
        ("kernels", "protobuf", "read", RANKS // 32),
        ("kernels", "protobuf", "full", RANKS // 32),
    )
    rows = [measure(size, encoded, ranks, content, way) for content, encoded, way, ranks in cases for size in (1, 8)]
    print("content  encoding  way   ranks/request  bytes/request  us/report (least - most)  first seen  apply (least)")
    for row in rows:
        label = f"{row['content']:<8} {row['encoding']:<9} {row['way']:<5} {row['ranks_per_request']:>12}"
        spread = f"({row['us_per_report_least']} - {row['us_per_report_most']})"
        figures = f"{row['body_bytes']:>14} {row['us_per_report']:>10} {spread:<18}"
        print(f"{label} {figures}{row['us_per_report_first_seen']:>12}{row['us_per_report_apply_least']:>15}")
    if chosen.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        chosen.json.write_text(json.dumps({"benchmark": "ingest_decode", "machine": machine, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
