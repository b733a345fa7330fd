"""Step times of other emitters become windows: a slow rank is named by them, and ``why`` knows when it began."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitor.ingest.foreign.test_lens import LENS
from monitor.ingest.otlp_requests import CUMULATIVE, DELTA, NOW_NS, SECOND, Fill, gauge, request_of
from rankwatch.contract.enums import Cause, StragglerVerdict
from rankwatch_monitor.core.apply import apply
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.core.incident.lifecycle import advance
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.regression.explain import explain
from rankwatch_monitor.ingest.foreign import lens
from rankwatch_monitor.ingest.foreign.lens_progress import Progress
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.metrics_decoder import MetricsDecoder
from rankwatch_monitor.ingest.traces_decoder import TracesDecoder

EVERY = 10.0
START = NOW_NS / SECOND


class Emitters:
    """So many ranks that export every ten seconds; ``slow`` seconds of a step on rank 1, 0.1 on the others."""

    def __init__(self, ranks: int, export: Callable[[int, float, int, float], Sequence[RankReport]]) -> None:
        self.ranks, self.export = ranks, export
        self.job, self.now = Job("job", START), START

    def run(self, exports: int, slow: float = 0.1) -> Emitters:
        for _ in range(exports):
            self.now += EVERY
            for rank in range(self.ranks):
                seconds = slow if rank == 1 else 0.1
                for report in self.export(rank, self.now, round(EVERY / max(slow, 0.1)), seconds):
                    apply(self.job, report._replace(identity=report.identity._replace(job_id="job")), self.now)
            advance(self.job, self.now)
        return self


def of_rank(rank: int, ranks: int) -> dict[str, object]:
    return LENS | {"nv.dl.rank": rank, "nv.dl.world_size": ranks, "host.name": f"node-{rank}"}


class Metrics:
    """Exports the histogram or the step counter of each rank."""

    def __init__(self, ranks: int, name: str, unit: str, temporality: int) -> None:
        self.clock = START
        self.decoder = MetricsDecoder(Limits(), Counters(), progress=Progress(64, lambda: self.clock))
        self.ranks, self.name, self.unit, self.temporality = ranks, name, unit, temporality
        self.totals: dict[int, tuple[int, float]] = {}

    def __call__(self, rank: int, now: float, steps: int, seconds: float) -> Sequence[RankReport]:
        self.clock, at = now, int(now * SECOND)
        count, total = self.totals.get(rank, (0, 0.0))
        self.totals[rank] = (count + steps, total + steps * seconds)
        if not self.unit:
            fill: Fill = gauge(self.name, count + steps, at)
        else:
            shown = self.totals[rank] if self.temporality == CUMULATIVE else (steps, steps * seconds)
            fill = partial(self.fill, at, *shown)
        return self.decoder.decode(request_of(of_rank(rank, self.ranks), fill)).reports

    def fill(self, at: int, count: int, total: float, resource: ResourceMetrics) -> None:
        metric = resource.scope_metrics[0].metrics.add(name=self.name, unit=self.unit)
        metric.histogram.aggregation_temporality = self.temporality  # type: ignore[assignment]
        metric.histogram.data_points.add(time_unix_nano=at, count=count, sum=total / lens.SECONDS[self.unit])


class Spans:
    """Exports a span of each step."""

    def __init__(self, ranks: int) -> None:
        self.clock, self.ranks = START, ranks
        self.decoder = TracesDecoder(Limits(), Counters(), Progress(64, lambda: self.clock))

    def __call__(self, rank: int, now: float, steps: int, seconds: float) -> Sequence[RankReport]:
        self.clock, request = now, ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.CopyFrom(request_of(of_rank(rank, self.ranks)).resource_metrics[0].resource)
        scope, reports = resource.scope_spans.add(), list[RankReport]()
        for step in range(steps):
            end = int((now - (steps - step) * 0.001) * SECOND)
            scope.spans.add(
                name="megatron.train_step", start_time_unix_nano=end - int(seconds * SECOND), end_time_unix_nano=end
            )
        self.decoder.decode(request, reports)
        return reports


EXPORTS: dict[str, Callable[[int], Callable[[int, float, int, float], Sequence[RankReport]]]] = {
    "megatron": lambda ranks: Metrics(ranks, "megatron.training.step_duration_ms", "ms", CUMULATIVE),
    "delta": lambda ranks: Metrics(ranks, "train.step.duration", "s", DELTA),
    "spans": Spans,
}


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("speaks", list(EXPORTS))
def test_a_rank_whose_steps_take_twice_as_long_is_named(speaks: str, ranks: int) -> None:
    job = Emitters(ranks, EXPORTS[speaks](ranks)).run(10).run(5, slow=0.2).job
    (straggler,) = job.performance.open_stragglers
    assert (straggler.rank, straggler.host, straggler.cause) == (1, "node-1", Cause.UNEXPLAINED)
    assert (straggler.own, straggler.peers) == (pytest.approx(0.2), pytest.approx(0.1))
    assert straggler.since == pytest.approx(START + 10 * EVERY, abs=EVERY)


@pytest.mark.parametrize("speaks", list(EXPORTS))
def test_its_twin_is_healthy(speaks: str) -> None:
    job = Emitters(8, EXPORTS[speaks](8)).run(15).job
    assert (job.performance.stragglers, job.performance.finding.verdict) == ([], StragglerVerdict.HEALTHY)
    assert job.performance.history.latest is not None
    assert job.performance.history.latest.step == pytest.approx(0.1, rel=0.05)


def test_why_knows_since_when_all_steps_take_longer_by_their_number_alone() -> None:
    emitters = Emitters(4, Metrics(4, "train.step", "", CUMULATIVE)).run(10)
    emitters.run(10, slow=0.2)
    found = explain(emitters.job.performance.history)
    assert (found.kind, emitters.job.performance.stragglers) == ("change", [])
    assert found.factor == pytest.approx(2.0, rel=0.1)
    assert found.since == pytest.approx(START + 10 * EVERY, abs=EVERY)


@pytest.mark.parametrize(
    ("name", "unit", "seconds"),
    [("train.step.duration", "ms", 1e-3), ("step_duration_ms", "", 1e-3), ("train.step.time", "", 1.0)],
)
def test_the_unit_of_a_duration(name: str, unit: str, seconds: float) -> None:
    assert lens.seconds_of(name, unit) == seconds
