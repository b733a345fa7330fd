"""CPU time from the inflated bytes of an OTLP metrics request to rank reports, and of applying them, per report.

CPU time, not time on the wall: the figure is what one core can take, and other processes must not change it. A plain
report comes every second or so; one with a window about every 10 s, one with kernels every 5 minutes. "read" is what
the monitor does; "full" parses each request, as it does with those that are of no layout that it has learned. "first"
is the round in which it sees every rank for the first time, "apply" the time to apply a report to its job.

Run: python benchmarks/ingest_decode.py [--json FILE]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import _table
from _load_fleet import Fleet, Shape
from _load_report import Kind
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.message import decode
from rankwatch_monitor.ingest.metrics_decoder import MetricsDecoder
from rankwatch_monitor.service.monitor import Monitor

KINDS = {
    Kind(): 4096,
    Kind(steps=True, window=True): 1024,
    Kind(steps=True, window=True, kernels=True): 128,
}
"""What a report holds, and ranks that send it."""
ROUNDS = 7


def measure(kind: Kind, ranks: int, ranks_a_request: int, *, read: bool) -> dict[str, float]:
    """Microseconds per report over rounds in which every rank sends a new one; the first one warms up."""
    limits = Limits()
    decoder, monitor = MetricsDecoder(limits, Counters()), Monitor(limits=limits)
    fleet = Fleet(Shape(ranks, ranks_a_request=ranks_a_request))
    decoding, applying, size = list[float](), list[float](), 0
    for turn in range(ROUNDS + 1):
        now = time.monotonic() + 60.0 * (turn + 1)  # each round has a new window
        bodies = [due.body for due in fleet.requests(range(len(fleet.members)), now, content=kind)]
        reports: list[Sequence[RankReport]] = []
        began = time.process_time()
        for body in bodies:
            if read:
                decoded = decoder.decode_bytes(body)
            else:
                decoded = decoder.decode(decode(body, "protobuf", ExportMetricsServiceRequest, limits))
            reports.append(decoded.reports)
        between = time.process_time()
        for each in reports:
            refused = monitor.ingest(each)
            assert not refused
        applying.append((time.process_time() - between) / ranks * 1e6)
        decoding.append((between - began) / ranks * 1e6)
        size = len(bodies[0])
        assert sum(map(len, reports)) == ranks
        assert decoded.rejections.message() == ""
        assert (decoded.reports[-1].window is not None) == kind.window
    warm = decoding[1:]
    figures = {"p50": statistics.median(warm), "min": min(warm), "max": max(warm), "first": decoding[0]}
    return {"bytes": size, **figures, "apply": min(applying[1:])}


def main() -> None:
    """Measure and print."""
    asked = _table.arguments(__doc__)
    rows = {
        f"{kind}, {'read' if read else 'full'}, {size} in a request": measure(kind, ranks, size, read=read)
        for kind, ranks in KINDS.items()
        for read in (True, False)
        for size in (1, 8)
    }
    _table.report(rows, "us a report", asked.json)


if __name__ == "__main__":
    main()
