"""What the names of other emitters mean, how their resources name a rank, and how a decoder reads their exports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitor.ingest.otlp_requests import CUMULATIVE, DELTA, NOW_NS, RANK_3, SECOND, Fill, request_of
from rankwatch_monitor.core.events import RankReport
from rankwatch_monitor.ingest.foreign import lens
from rankwatch_monitor.ingest.foreign.lens import Sign
from rankwatch_monitor.ingest.foreign.lens_progress import Progress
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.metrics_decoder import MetricsDecoder
from rankwatch_monitor.ingest.otlp.identity import Identified, identify
from rankwatch_monitor.ingest.rejection import Rejection
from rankwatch_monitor.ingest.traces_decoder import TracesDecoder

LENS: dict[str, object] = {
    "service.name": "megatron-lm",
    "service.instance.id": "9876-rank1",
    "host.name": "node-0",
    "process.pid": 4242,
    "nv.dl.rank": 1,
    "nv.dl.world_size": 2,
    "slurm.job.id": "9876",
}


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("train.step", Sign.STEP),
        ("train/global_step", Sign.STEP),
        ("trainer.global_step", Sign.STEP),
        ("dl.iteration", Sign.STEP),
        ("nv.dl.training.step", Sign.STEP),
        ("training.steps.completed", Sign.STEP),
        ("rl.train.steps", Sign.STEP),
        ("step", Sign.STEP),
        ("megatron.training.step_duration_ms", Sign.STEPS_TIMED),
        ("train_step_time_seconds", Sign.STEPS_TIMED),
        ("nv.dl.training.tokens.processed", Sign.WORK),
        ("train.samples_consumed", Sign.WORK),
        ("megatron.training.loss", Sign.WEAK),
        ("train.loss", Sign.WEAK),
        ("rl.reward.mean", Sign.WEAK),
        ("megatron.training.skipped_iters", Sign.WEAK),
        ("eval.step", None),
        ("inference.steps", None),
        ("train.skipped_iterations", None),
        ("megatron.training.memory_allocated_gb", None),
        ("train.tokens_per_second", None),
        ("gen_ai.client.token.usage", None),
        ("training", None),
        ("loss", None),
        ("process.threads", None),
        ("", None),
    ],
)
def test_a_metric_is_recognized_by_its_name(name: str, reported: Sign | None) -> None:
    assert lens.metric(name) is reported


@pytest.mark.parametrize(
    ("name", "section", "is_step", "is_job"),
    [
        ("megatron.train_step", "step", True, False),
        ("nv.dl.training.iteration", "step", True, False),
        ("rl.grpo.step", "step", True, False),
        ("train.step", "step", True, False),
        ("megatron.save_checkpoint", "checkpointing", False, False),
        ("nv.dl.training.checkpoint.exposed_save", "checkpointing", False, False),
        ("rl.sft_v2.checkpointing", "checkpointing", False, False),
        ("megatron.evaluate", "evaluation", False, False),
        ("rl.ppo.evaluate", "evaluation", False, False),
        ("rl.startup", "setup", False, False),
        ("megatron.forward_backward", "forward_backward", False, False),
        ("nv.dl.training.iteration.optimizer_step", "iteration.optimizer_step", False, False),
        ("rl.grpo.generation", "generation", False, False),
        ("megatron.pretrain", "pretrain", False, True),
        ("rl.dpo.job", "job", False, True),
        ("megatron.", "megatron.", False, False),
        ("load_batch", "load_batch", False, False),
    ],
)
def test_a_span_is_a_section_by_its_name(name: str, section: str, is_step: bool, is_job: bool) -> None:
    assert lens.span(name) == (section, is_step, is_job)


# Who speaks ----------------------------------------------------------------------------------------------------------


def identified(**changes: object) -> Identified:
    reported = {name: value for name, value in {**LENS, **changes}.items() if value is not None}
    found = identify(request_of(reported).resource_metrics[0].resource, Limits())
    assert isinstance(found, Identified), found
    return found


def test_a_resource_of_nemo_lens_names_its_rank() -> None:
    found = identified()
    assert found.foreign
    identity = found.identity
    assert (identity.job_id, identity.job_name) == ("megatron-lm-9876", "megatron-lm")
    assert (identity.rank, identity.world_size, identity.host, identity.pid) == (1, 2, "node-0", 4242)


def test_jobs_of_one_service_are_distinguished() -> None:
    assert identified(**{"slurm.job.id": None, "nv.dl.job.uuid": "5f0c"}).identity.job_id == "megatron-lm-5f0c"
    assert identified(**{"slurm.job.id": None}).identity.job_id == "megatron-lm"
    assert identified(**{"rankwatch.job.id": "mine"}).identity.job_id == "mine"
    assert identified(**{"service.name": "team/gpt"}).identity.job_id == "team-gpt-9876"


def test_a_process_that_was_started_again_is_another_one() -> None:
    assert identified().identity.instance != identified(**{"process.pid": 4243}).identity.instance
    assert identified().identity.instance != identified(**{"nv.dl.run.uuid": "second"}).identity.instance
    assert identified(**{"service.instance.id": None}).identity.instance == "node-0/4242"
    assert identified(**{"service.instance.id": "its-own"}).identity.instance == "its-own"


def test_restarts_by_slurm_are_attempts() -> None:
    assert identified().identity.attempt == 0
    assert identified(**{"slurm.restart_count": "2"}).identity.attempt == 2
    assert identified(**{"slurm.restart_count": "x"}).identity.attempt == 0
    assert identified(**{"slurm.restart_count": 2, "rankwatch.attempt": 5}).identity.attempt == 5


def test_what_megatron_leaves_empty_is_not_reported() -> None:
    assert identified(**{"nv.dl.world_size": ""}).identity.world_size == 0


def test_a_writer_of_checkpoints_is_not_the_rank_that_it_works_for() -> None:
    assert identified(**{"nv.dl.role": "trainer"}).identity.rank == 1
    resource = request_of({**LENS, "nv.dl.role": "ckpt_worker"}).resource_metrics[0].resource
    refused = identify(resource, Limits())
    assert isinstance(refused, Rejection)
    assert "'ckpt_worker'" in refused.message


def test_our_own_ranks_are_not_foreign() -> None:
    found = identify(request_of(RANK_3).resource_metrics[0].resource, Limits())
    assert isinstance(found, Identified)
    assert not found.foreign
    assert found.identity.instance == "instance-3"


# What it says --------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Sender:
    """One process of another emitter, at both decoders."""

    def __init__(self, **changes: object) -> None:
        self.clock = Clock()
        self.attributes = {**LENS, **changes}
        progress = Progress(8, self.clock)
        self.counters = Counters()
        self._metrics = MetricsDecoder(Limits(), self.counters, progress=progress)
        self._traces = TracesDecoder(Limits(), self.counters, progress)

    def exports(self, *fills: Fill, as_bytes: bool = True) -> RankReport:
        request = request_of(self.attributes, *fills)
        decoded = self._metrics.decode_bytes(request.SerializeToString()) if as_bytes else self._metrics.decode(request)
        assert decoded.rejections.message() == ""
        (report,) = decoded.reports
        return report

    def ends(self, *spans: tuple[str, float, float, dict[str, int]]) -> RankReport | None:
        """Spans: name, start and end (seconds after :data:`NOW_NS`), attributes; each holds the one before."""
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.CopyFrom(request_of(self.attributes).resource_metrics[0].resource)
        scope = resource.scope_spans.add()
        for number, (name, start, end, attributes) in enumerate(spans):
            span = scope.spans.add(name=name, span_id=bytes([number + 1] * 8), parent_span_id=bytes([number + 2] * 8))
            span.start_time_unix_nano, span.end_time_unix_nano = at(start), at(end)
            for key, value in attributes.items():
                span.attributes.add(key=key).value.int_value = value
        reports: list[RankReport] = []
        self.records, rejections = self._traces.decode(request, reports)
        assert rejections.message() == ""
        return reports[0] if reports else None


def at(seconds: float) -> int:
    return NOW_NS + round(seconds * SECOND)


def counter(name: str, value: int, seconds: float, temporality: int = CUMULATIVE) -> Fill:
    def fill(resource: ResourceMetrics) -> None:
        metric = resource.scope_metrics[0].metrics.add(name=name)
        metric.sum.aggregation_temporality, metric.sum.is_monotonic = temporality, True  # type: ignore[assignment]
        metric.sum.data_points.add(time_unix_nano=at(seconds), as_int=value)

    return fill


def gauge(name: str, value: float, seconds: float) -> Fill:
    def fill(resource: ResourceMetrics) -> None:
        metric = resource.scope_metrics[0].metrics.add(name=name)
        metric.gauge.data_points.add(time_unix_nano=at(seconds), as_double=value)

    return fill


def timed(name: str, count: int, seconds: float, temporality: int = CUMULATIVE) -> Fill:
    def fill(resource: ResourceMetrics) -> None:
        metric = resource.scope_metrics[0].metrics.add(name=name, unit="ms")
        metric.histogram.aggregation_temporality = temporality  # type: ignore[assignment]
        metric.histogram.data_points.add(time_unix_nano=at(seconds), count=count, sum=30.0 * count)

    return fill


@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_count_that_stands_still_ages_with_each_export(as_bytes: bool) -> None:
    sender = Sender()
    tokens = "nv.dl.training.tokens.processed"
    first = sender.exports(counter(tokens, 100, 0), as_bytes=as_bytes)
    assert (first.open_sections, first.quiet, first.first_time) == ({"step": 0.0}, 0.0, ("step",))
    sender.clock.now += 10
    assert sender.exports(counter(tokens, 200, 10), as_bytes=as_bytes).quiet == 0.0
    for age in (10.0, 20.0, 30.0):
        sender.clock.now += 10
        report = sender.exports(counter(tokens, 200, 10 + age), as_bytes=as_bytes)
        assert (report.quiet, report.open_sections, report.first_time) == (age, {"step": age}, ())


def test_deltas_are_signs_and_their_absence_is_reported_by_what_else_is_exported() -> None:
    sender = Sender()
    for second in (0, 10, 20):
        report = sender.exports(
            timed("megatron.training.step_duration_ms", 4, second, DELTA), gauge("process.threads", 7, second)
        )
        sender.clock.now += 10
    assert (report.iteration, report.quiet) == (12, 0.0)
    report = sender.exports(gauge("process.threads", 7, 30))
    assert (report.iteration, report.quiet) == (12, 10.0)


def test_a_delta_that_is_sent_again_is_no_sign() -> None:
    sender = Sender()
    sender.exports(counter("train.tokens", 5, 0, DELTA))
    sender.clock.now += 10
    sender.exports(counter("train.tokens", 5, 0, DELTA))
    sender.clock.now += 10
    assert sender.exports(gauge("process.threads", 7, 20)).quiet == 20.0


def test_what_reports_nothing_of_training_makes_no_section() -> None:
    sender = Sender()
    report = sender.exports(gauge("process.threads", 7, 0), counter("http.server.requests", 7, 0))
    assert report == RankReport(report.identity)
    sender.clock.now += 10
    report = sender.exports(gauge("megatron.training.loss", 2.5, 10))
    assert report.open_sections is None, "a loss alone may stand still for good"


def test_the_longest_time_between_two_signs_is_what_a_limit_is_learned_from() -> None:
    sender = Sender()
    reported = []
    for second, step in ((0, 10), (60, 11), (70, 13), (80, 13), (90, 14), (100, 15)):
        sender.clock.now = 50.0 + second
        reported.append(sender.exports(gauge("train.step", step, second)))
    assert [report.iteration for report in reported] == [10, 11, 13, 13, 14, 15]
    assert reported[1].first_durations == {"step": 60.0}, "the first ones compile"
    assert [report.longest for report in reported[1:]] == [{}, {"step": 10.0}, {}, {"step": 20.0}, {}]
    assert tuple(reported[2].finished["step"]) == (2, 10.0, 5.0, 5.0)


@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_clock_that_jumps_makes_no_hang_and_hides_none(jump: int) -> None:
    sender = Sender()
    for second in (0, 10):
        sender.clock.now = 50.0 + second
        sender.exports(gauge("train.step", second, second))
    ages = []
    for second in (20, 30, 40):
        sender.clock.now = 50.0 + second
        ages.append(sender.exports(gauge("train.step", 10, second + jump)).quiet)
    assert ages == [10.0, 20.0, 30.0]


def test_requests_that_were_held_back_on_their_way_make_no_hang() -> None:
    sender = Sender()
    sender.exports(gauge("train.step", 1, 0))
    sender.clock.now += 300
    assert sender.exports(gauge("train.step", 1, 10)).quiet == 10.0, "taken 10 s later, whenever it came"
    assert sender.exports(gauge("train.step", 2, 20)).quiet == 0.0


def test_spans_alone_speak_from_the_second_step_on() -> None:
    sender = Sender()
    step = ("megatron.train_step", 0.0, 1.0, {"megatron.iteration": 7})
    assert sender.ends(("megatron.model_init", 0.0, 0.5, {})) is None, "rare spans say nothing when they stay away"
    assert sender.ends(step) is None
    report = sender.ends(("megatron.forward_backward", 1.1, 1.8, {}), ("megatron.train_step", 1.0, 2.0, {"step": 8}))
    assert report is not None
    assert (report.iteration, report.progress, report.open_sections) == (8, 0, {"step": 0.0})
    assert tuple(report.finished["step"]) == (1, 1.0, 1.0, 1.0)
    assert [(r.section, r.iteration) for r in sender.records] == [("forward_backward", 8), ("step", 8)]


def test_a_section_within_a_step_is_progress_within_it() -> None:
    sender = Sender()
    for end in (1.0, 2.0):
        sender.ends(("megatron.train_step", end - 1, end, {"megatron.iteration": int(end)}))
    report = sender.ends(("megatron.forward_backward", 2.0, 2.5, {}))
    assert report is not None
    assert (report.iteration, report.progress) == (2, 1)


def test_metrics_and_spans_of_a_process_are_one_story() -> None:
    sender = Sender()
    sender.exports(timed("megatron.training.step_duration_ms", 1, 0))
    sender.clock.now += 5
    report = sender.ends(("megatron.train_step", 3.0, 4.0, {"megatron.iteration": 41}))
    assert report is not None
    assert report.iteration == 41
    sender.clock.now += 5
    report = sender.exports(timed("megatron.training.step_duration_ms", 1, 10))
    assert (report.iteration, report.quiet) == (41, 5.0)


def test_the_end_of_the_span_around_training_is_the_end() -> None:
    sender = Sender()
    for end in (1.0, 2.0):
        sender.ends(("rl.grpo.step", end - 1, end, {"rl.iteration": int(end)}))
    report = sender.ends(("rl.grpo.job", 0.0, 3.0, {}))
    assert report is not None
    assert (report.ended, report.open_sections) == (True, {})
    assert sender.exports(counter("train.tokens", 300, 4)).ended, "metrics are flushed after spans"
    assert sender.exports(counter("train.tokens", 300, 4)).ended
    assert not sender.exports(counter("train.tokens", 400, 5)).ended, "it goes on all the same"


def test_an_emitter_of_our_names_is_judged_by_them() -> None:
    def sections(resource: ResourceMetrics) -> None:
        metric = resource.scope_metrics[0].metrics.add(name="rankwatch.section.open.duration")
        point = metric.gauge.data_points.add(time_unix_nano=NOW_NS, as_double=2.5)
        point.attributes.add(key="rankwatch.section").value.string_value = "epoch"

    report = Sender().exports(sections, gauge("train.step", 3, 0))
    assert (report.open_sections, report.iteration) == ({"epoch": 2.5}, None)


def test_our_own_ranks_are_never_read_by_these_names() -> None:
    decoder = MetricsDecoder(Limits(), Counters())
    (report,) = decoder.decode(request_of(RANK_3, gauge("train.step", 3, 0))).reports
    assert report == RankReport(report.identity)


def test_what_is_remembered_is_bounded() -> None:
    progress = Progress(2)
    decoder = MetricsDecoder(Limits(), Counters(), progress=progress)
    for rank in range(5):
        fills = [gauge("train.step", 3, 0), *(counter("train." * n + "tokens", 1, 0) for n in range(200))]
        decoder.decode(request_of({**LENS, "nv.dl.rank": rank, "nv.dl.world_size": 8}, *fills))
    assert len(progress) == 2


def test_long_names_of_metrics_are_not_kept() -> None:
    before = lens._metric.cache_info().currsize
    assert Sender().exports(counter("train." * 1000 + "tokens", 1, 0)).open_sections is None
    assert lens._metric.cache_info().currsize == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 2.0**60])
def test_a_number_that_is_no_step_is_none(value: float) -> None:
    assert Sender().exports(gauge("train.step", value, 0)).iteration is None


PAGE = Path(__file__).parents[4] / "docs" / "other-emitters.md"


def test_every_name_that_is_understood_is_documented() -> None:
    text = PAGE.read_text()
    of_rl = [f"rl.ALGORITHM.{phase}" for phase in lens.RL_SPANS]
    known = [*lens.SIGNS, *lens.SPANS, *lens.ITERATIONS, *of_rl]
    assert [name for name in known if f"`{name}`" not in text] == []


def test_every_metric_that_is_documented_is_understood() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(("| gauge", "| histogram", "| counter"))]
    named = [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in rows]
    assert [{lens.metric(name) for name in row} for row in named] == [{Sign.STEP}, {Sign.STEPS_TIMED}, {Sign.WORK}]
