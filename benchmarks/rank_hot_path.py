"""P1 and P2: what a section, step or heartbeat costs the training thread, beside the OpenTelemetry SDK in the same run.

    python benchmarks/rank_hot_path.py [--json FILE] [--batches N]

Each figure is the time of a call within a batch of calls, less the empty loop; p50 and p99 are over the batches,
which are interleaved over all cases, so that a noisy neighbour hits them alike. The pulse and exporter threads run too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import _table
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import rankwatch

BATCH = 100
"""Calls timed together: the clock itself costs about as much as a heartbeat."""
WARM_UP = 20
"""Untimed calls before each batch: the case before has filled the caches with what is its own."""


def section() -> None:
    with rankwatch.section("forward"):
        pass


def nested_section() -> None:
    with rankwatch.section("outer"), rankwatch.section("inner"):
        pass


def step() -> None:
    with rankwatch.step():
        pass


@rankwatch.section("decorated")
def decorated() -> None:
    pass


def nothing() -> None:
    pass


def sdk() -> tuple[Callable[[], None], Callable[[], None]]:
    """What the same would cost by the SDK: a histogram record, and a span."""
    histogram = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False).get_meter("bench").create_histogram("d")
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("bench")
    attributes = {"rankwatch.section": "forward"}

    def record() -> None:
        histogram.record(0.001, attributes)

    def span() -> None:
        tracer.start_span("forward", attributes=attributes).end()

    return record, span


def measure(cases: dict[str, Callable[[], None]], batches: int) -> dict[str, list[float]]:
    """Nanoseconds per call, one number per batch."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(batches):
        for name, call in cases.items():
            for _ in range(WARM_UP):
                call()
            begin = time.perf_counter_ns()
            for _ in range(BATCH):
                call()
            times[name].append((time.perf_counter_ns() - begin) / BATCH)
    return times


def main() -> None:
    asked = _table.arguments(__doc__, batches=(2000, "batches of each call"))
    record, span = sdk()
    empty = measure({"empty": nothing}, asked.batches)["empty"]
    off = measure({"section before init()": section, "heartbeat before init()": rankwatch.heartbeat}, asked.batches)
    rankwatch.init(monitor="http://127.0.0.1:1", job_id="benchmark")
    time.sleep(2)  # the exporter's thread imports OpenTelemetry meanwhile, and finds nothing at that address
    on = measure(
        {
            "section": section,
            "nested sections (two)": nested_section,
            "decorated function": decorated,
            "step": step,
            "heartbeat": rankwatch.heartbeat,
            "progress": rankwatch.progress,
            "should_stop": rankwatch.should_stop,
            "SDK histogram record": record,
            "SDK span": span,
        },
        asked.batches,
    )
    rankwatch.shutdown()

    base = statistics.median(empty)
    peer = statistics.median(on["SDK histogram record"]) + statistics.median(on["SDK span"]) - 2 * base
    figures = {}
    for name, times in (off | on).items():
        p50 = max(0.0, statistics.median(times) - base)
        p99 = max(0.0, statistics.quantiles(times, n=100)[98] - base)
        figures[name] = {"p50": p50, "p99": p99, "SDK / it": peer / max(p50, 1.0)}
    _table.report(figures, "ns", asked.json)


if __name__ == "__main__":
    main()
