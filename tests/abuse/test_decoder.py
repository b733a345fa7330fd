"""The edge of the decoder against hostile bodies: what a fuzzer found, a fixed number of new ones, named attacks."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from abuse.decoder_target import LIMITS, Edge, feed
from abuse.hostile import WORDS, changed, seeds
from rankwatch_monitor.ingest.foreign.lens_progress import NAMES
from rankwatch_monitor.ingest.limits import Counters, Limits
from rankwatch_monitor.ingest.metrics_decoder import MetricsDecoder
from rankwatch_monitor.ingest.otlp.series import SERIES
from rankwatch_monitor.ingest.traces_decoder import TracesDecoder
from support.otlp import add_kernels, attributes, body, gauge, rank_report

CORPUS = sorted((Path(__file__).parent / "found").glob("*.bin"))
"""Inputs that the fuzzer kept: of each behaviour of the decoder one, and each input that once failed."""
NEW = 100


@pytest.mark.parametrize("number", range(4))
def test_any_body_is_taken_or_refused(number: int) -> None:
    """A walk from the seeds, as the fuzzer takes it but without its eyes; the same one each time."""
    dice = random.Random(number)
    known = list(seeds())
    for _ in range(NEW):
        data = changed(dice.choice(known), dice)
        try:
            feed(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, the body must be printed
            pytest.fail(f"{error!r}; keep it in found/: {data.hex()}")
        if dice.random() < 0.3:
            known.append(data)


def test_the_seeds_themselves_are_taken() -> None:
    edge = Edge()
    for data in seeds():
        encoding = ("", "gzip", "zstd")[(data[0] >> 2) & 3]
        if not encoding:
            refused = edge.post(data[2:], traces=bool(data[0] & 1), encoded="json" if data[0] & 2 else "protobuf",
                                encoding="")  # fmt: skip
            assert refused is None, refused
    assert edge.monitor.jobs["gpt"].columns.reported_R[3]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_an_input_of_the_corpus_is_taken_or_refused(path: Path) -> None:
    feed(path.read_bytes())


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) >= 10


def send(edge: Edge, *reports: ResourceMetrics) -> Any:
    return edge.post(body(*reports), traces=False, encoded="protobuf", encoding="")


MANY = 40


@pytest.mark.parametrize("name", WORDS[:12])
def test_odd_names_are_shown_as_they_are_or_refused(name: str) -> None:
    edge = Edge()
    report = rank_report("gpt", 0, 1, iteration=1, open_sections={name: 1.0}, host=name)
    gauge(report, "rankwatch.telemetry.dropped", 1, rankwatch__reason=name)
    add_kernels(report, {name: {"min": 0.1, "median": 0.2, "tail": 0.3, "max": 0.4, "mean": 0.2, "stddev": 0.1}})
    send(edge, report)
    send(edge, rank_report(name, 0, 1, iteration=1))
    edge.look()


@pytest.mark.parametrize("age", [float("nan"), float("inf"), -1.0, -1e300, 1e300])
def test_an_impossible_age_is_counted_and_raises_no_alarm(age: float) -> None:
    edge = Edge()
    for _ in range(3):
        report = rank_report(
            "gpt", 0, 1, iteration=1, beats=1, heartbeat_age=age, open_sections={"step": age}, idle=age
        )
        send(edge, report)
        edge.clock.seconds += 1
        edge.look()
    if age != 1e300:
        assert edge.counters.rejected["bad_value"] >= 3
        assert edge.monitor.jobs["gpt"].incidents == []


@pytest.mark.parametrize("rank", [-1, LIMITS.ranks_per_job, 2**31, 2**63 - 1, -(2**63)])
def test_a_rank_beyond_the_edge_is_refused(rank: int) -> None:
    edge = Edge()
    send(edge, rank_report("gpt", rank, 4, iteration=1, resource={"process.pid": 1}))
    assert edge.monitor.jobs == {}
    send(edge, rank_report("gpt", 3, 4, iteration=1))
    assert len(edge.monitor.jobs["gpt"].columns) == 4


def test_of_an_attribute_that_comes_twice_the_same_one_counts_each_time() -> None:
    edge = Edge()
    report = rank_report("gpt", 1, 4, iteration=1)
    report.resource.attributes.add(key="dl.rank").value.int_value = 2
    for _ in range(2):
        send(edge, report)
    assert edge.monitor.jobs["gpt"].columns.reported_R.tolist() == [False, False, True, False]


def test_points_out_of_order_and_repeated_end_at_the_newest() -> None:
    edge = Edge()
    report = rank_report("gpt", 0, 1)
    for at, value in ((30, 9), (10, 7), (20, 8), (10, 7)):
        gauge(report, "rankwatch.iteration", value)
        report.scope_metrics[0].metrics[0].gauge.data_points[-1].time_unix_nano = at
    for _ in range(2):
        send(edge, report)
    assert edge.monitor.jobs["gpt"].columns.iteration_R[0] == 9


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: gzip.compress(bytes(64 * 1024 * 1024), 9, mtime=0),
    "gzip in gzip": lambda: gzip.compress(gzip.compress(bytes(64 * 1024 * 1024), 9, mtime=0)),
    "zstd": lambda: zstandard.compress(bytes(64 * 1024 * 1024), 19),
    "gzip, many members": lambda: gzip.compress(b"", mtime=0) * 3000,
    "zstd, many frames": lambda: zstandard.compress(b"") * 5000,
}
"""Packed by the test alone: every worker of pytest imports this module."""


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_is_held(name: str) -> None:
    refused = Edge().post(BOMBS[name](), traces=False, encoded="protobuf", encoding=name[:4])
    assert refused is not None
    assert refused.status in (400, 413)


@pytest.mark.parametrize("opening", ['{"resourceMetrics":[', '{"resource":', "[", '{"a":', '{"resourceMetrics":{"a":'])
def test_deep_json_is_refused(opening: str) -> None:
    deep = (opening * 200_000).encode()[: LIMITS.decompressed_bytes]
    refused = Edge().post(gzip.compress(deep), traces=False, encoded="json", encoding="gzip")
    assert refused is not None
    assert refused.status in (400, 413)


@pytest.mark.parametrize("levels", [50, 99, 150, 1400])
def test_deep_values_of_an_attribute_are_taken_or_refused(levels: int) -> None:
    value = '{"arrayValue":{"values":[' * levels + '{"intValue":1}' + "]}}" * levels
    sent = f'{{"resourceMetrics":[{{"resource":{{"attributes":[{{"key":"a","value":{value}}}]}}}}]}}'.encode()
    refused = Edge().post(sent, traces=False, encoded="json", encoding="")
    assert refused is None or refused.status in (400, 413)


@pytest.mark.parametrize("varint", [b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\xff" * 1000, b"\x80" * 9 + b"\x00"])
def test_huge_varints_are_taken_or_refused(varint: bytes) -> None:
    for sent in (varint, b"\x0a" + varint, b"\x0a" + varint + b"abc", b"\xf8\xff\xff\xff\x0f" + varint):
        feed(b"\x00\x00" + sent)


@pytest.mark.parametrize("number", ["9" * 5000, "1e400", "-1e400", "1" + "0" * 400, "NaN", "Infinity"])
def test_huge_numbers_in_json_are_taken_or_refused(number: str) -> None:
    for place in ("timeUnixNano", "asInt", "asDouble", "startTimeUnixNano"):
        point = f'{{"{place}": {number}}}'
        metric = f'{{"name": "rankwatch.iteration", "gauge": {{"dataPoints": [{point}]}}}}'
        identity = '{"attributes": [{"key": "dl.rank", "value": {"intValue": 0}}, {"key": "service.name", "value": ' \
            '{"stringValue": "j"}}]}'  # fmt: skip
        scopes = f'[{{"metrics": [{metric}]}}]'
        sent = f'{{"resourceMetrics": [{{"resource": {identity}, "scopeMetrics": {scopes}}}]}}'
        feed(b"\x02\x00" + sent.encode())


@pytest.mark.parametrize("kind", ["section", "longest", "first", "dropped", "kernel", "job", "instance", "host"])
def test_a_million_names_fill_no_memory(kind: str) -> None:
    """Scaled down with the limits: forty times as many names as may be kept, each only once."""
    edge = Edge()
    for number in range(MANY * LIMITS.sections_per_job):
        name = f"name-{number}"
        job = name if kind == "job" else "gpt"
        instance = name if kind == "instance" else "one"
        report = rank_report(job, 0, 1, host=name if kind == "host" else "h", iteration=number,
                             resource={"service.instance.id": instance})  # fmt: skip
        if kind == "section":
            gauge(report, "rankwatch.section.open.duration", 0.1, rankwatch__section=name)
        elif kind in ("longest", "first"):
            metric = "rankwatch.section.longest.duration" if kind == "longest" else "rankwatch.section.first.duration"
            gauge(report, metric, 0.1, rankwatch__section=name)
        elif kind == "dropped":
            gauge(report, "rankwatch.telemetry.dropped", 1, rankwatch__reason=name)
        elif kind == "kernel":
            add_kernels(
                report, {name: {"min": 0.1, "median": 0.2, "tail": 0.3, "max": 0.4, "mean": 0.2, "stddev": 0.1}}
            )
        send(edge, report)
        edge.clock.seconds += 1
    edge.look()
    for kept in edge.monitor.jobs.values():
        assert len(kept.columns.sections) <= LIMITS.sections_per_job
        assert len(kept.durations.sections) <= Limits().sections_per_job
        assert len(kept.dropped) <= Limits().sections_per_job, "what was dropped is kept by reason, and reasons are few"
    assert len(edge.metrics._tracker) <= LIMITS.processes_remembered


@pytest.mark.parametrize("kind", ["finished", "cumulative", "dropped"])
def test_series_of_many_processes_together_fill_no_memory(kind: str) -> None:
    """Each process may have 256; without a bound for all, a megabyte of requests took 500 MiB."""
    limits = Limits(processes_remembered=64)
    decoder = MetricsDecoder(limits, Counters())
    for process in range(64):
        report = rank_report("gpt", 0, 1, resource={"service.instance.id": str(process)})
        metric = (
            report.scope_metrics[0].metrics.add() if report.scope_metrics else report.scope_metrics.add().metrics.add()
        )
        metric.name = "rankwatch.telemetry.dropped" if kind == "dropped" else "rankwatch.section.duration"
        if kind == "dropped":
            metric.sum.aggregation_temporality = 1
        else:
            metric.histogram.aggregation_temporality = 1 if kind == "finished" else 2
        for number in range(250):
            of = metric.sum if kind == "dropped" else metric.histogram
            point = of.data_points.add(time_unix_nano=2, start_time_unix_nano=1)
            if kind == "dropped":
                point.as_int = 1
            else:
                point.count, point.sum = 1, 0.5
            key = "rankwatch.reason" if kind == "dropped" else "rankwatch.section"
            point.attributes.extend(attributes({key: f"{process}-{number}"}))
        assert not decoder.decode_bytes(body(report)).rejections.items
    kept = [len(decoder._tracker.of(identity)) for identity in list(decoder._tracker._processes._young)]
    assert 250 <= sum(kept) <= 2 * SERIES * limits.processes_remembered


def test_span_names_of_many_processes_together_fill_no_memory() -> None:
    limits = Limits(processes_remembered=256)
    decoder = TracesDecoder(limits, Counters())
    for process in range(256):
        request = ExportTraceServiceRequest()
        of = request.resource_spans.add()
        more = {"service.instance.id": str(process), "rankwatch.job.id": None}
        of.resource.CopyFrom(rank_report("gpt", 0, 1, resource=more).resource)
        scope = of.scope_spans.add()
        for number in range(60):
            scope.spans.add(name=f"{process}-{number}", start_time_unix_nano=1, end_time_unix_nano=2)
        decoder.decode(request, [])
    progress = decoder._progress
    names = sum(map(len, progress._processes.values()))
    assert 60 <= names == progress._names <= NAMES * limits.processes_remembered
