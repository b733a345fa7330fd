"""What a metrics request reports, point by point, and what of it is turned away."""

from __future__ import annotations

from math import inf, nan

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from monitor.ingest.decoding import Ingest
from monitor.ingest.otlp_requests import (
    CUMULATIVE,
    DELTA,
    NOW_NS,
    RANK_3,
    SECOND,
    add_resource,
    counter,
    gauge,
    histogram,
    request_of,
    without,
)
from rankwatch_monitor.core.events import RankIdentity, RankReport, SectionStatistics
from rankwatch_monitor.ingest.rejection import Refusal


def test_a_whole_report(ingest: Ingest) -> None:
    report = ingest.one(
        counter("rankwatch.heartbeats", 17),
        gauge("rankwatch.heartbeat.age", 0.25),
        gauge("rankwatch.iteration", 12),
        gauge("rankwatch.progress", 4),
        gauge("rankwatch.iteration.first", 10),
        gauge("rankwatch.iteration.first.age", 3),
        gauge("rankwatch.session.ended", 1),
        gauge("rankwatch.section.open.duration", 1.5, section="step"),
        gauge("rankwatch.section.open.duration", 0.5, section="backward"),
        histogram("forward", 4, 2.0, 0.4, 0.6),
        gauge("rankwatch.section.first", 1, section="backward"),
        gauge("rankwatch.section.longest", 2.5, section="step"),
        gauge("rankwatch.section.longest", 0.75, section="forward"),
        gauge("rankwatch.section.first.duration", 90.0, section="step"),
        gauge("rankwatch.section.idle.longest", 0.5),
        gauge("rankwatch.progress.age", 0.125),
        counter("rankwatch.telemetry.dropped", 3, reason="ring_full"),
        gauge("somebody.elses.metric", 5),
    )
    assert report == RankReport(
        RankIdentity("job-1", 3, "gpt", 1, 4, 2, "node-0", 4242, "instance-3", 1_750_000_000.0, "GPU-3"),
        beats=17,
        heartbeat_age=0.25,
        iteration=12,
        progress=4,
        open_sections={"step": 1.5, "backward": 0.5},
        idle=None,
        finished={"forward": SectionStatistics(4, 2.0, 0.4, 0.6)},
        dropped={"ring_full": 3},
        first_iteration=10,
        first_iteration_age=3.0,
        quiet=0.125,
        first_time=("backward",),
        longest={"step": 2.5, "forward": 0.75},
        first_durations={"step": 90.0},
        idle_longest=0.5,
        ended=True,
    )


def test_which_sections_run_for_the_first_time(ingest: Ingest) -> None:
    name = "rankwatch.section.first"
    report = ingest.one(
        gauge(name, 1, section="compile"), gauge(name, 0, section="step"), gauge(name, None, section="load")
    )
    assert report.first_time == ("compile",)
    newer = ingest.one(gauge(name, 0, NOW_NS + 1, section="step"), gauge(name, 1, NOW_NS, section="step"))
    assert newer.first_time == ()
    assert ingest.one(gauge(name, 1.0, section="step")).first_time == ("step",)


def test_of_several_longest_times_the_longest_counts(ingest: Ingest) -> None:
    name = "rankwatch.section.longest"
    report = ingest.one(
        gauge(name, 3, NOW_NS, section="step"),
        gauge(name, 2, NOW_NS + 1, section="step"),
        gauge(name, None, section="save"),
    )
    assert report.longest == {"step": 3.0}


@pytest.mark.parametrize("name", ["first", "longest", "first.duration"])
def test_odd_times_and_marks_of_sections_are_turned_away_one_by_one(name: str) -> None:
    ingest, metric = Ingest(sections_per_job=2), f"rankwatch.section.{name}"
    odd = [gauge(metric, value, section="odd") for value in (-1.0, inf, nan)]
    many = [gauge(metric, 1, section=section) for section in ("a", "b", "c")]
    decoded = ingest(request_of(RANK_3, *odd, gauge(metric, 1), *many))
    assert ingest.counters.rejected == {"bad_value": 3, "bad_name": 1, "too_many_sections": 1}
    (report,) = decoded.reports
    reported = {"first": report.first_time, "longest": report.longest, "first.duration": report.first_durations}
    assert set(reported[name]) == {"a", "b"}
    assert "'odd'" in decoded.rejections.message()


@pytest.mark.parametrize("name", ["progress.age", "section.idle.longest"])
@pytest.mark.parametrize("value", [-0.1, nan, inf])
def test_an_odd_age_leaves_its_field_unset(ingest: Ingest, name: str, value: float) -> None:
    decoded = ingest(request_of(RANK_3, gauge(f"rankwatch.{name}", value)))
    assert ingest.counters.rejected == {"bad_value": 1}
    assert decoded.reports == [RankReport(decoded.reports[0].identity)]


def test_a_rank_that_reports_nothing_more_still_reports(ingest: Ingest) -> None:
    assert ingest.one() == RankReport(ingest.one().identity)
    assert ingest.one(gauge("somebody.elses.metric", 5)).open_sections is None


@pytest.mark.parametrize("kind", [str, int, float])
def test_numerals_of_any_kind_name_a_rank(ingest: Ingest, kind: type) -> None:
    numbers = {"dl.rank": kind(3), "dl.world_size": kind(4), "rankwatch.attempt": kind(2), "process.pid": kind(4242)}
    assert ingest.one(attributes=RANK_3 | numbers).identity == ingest.one().identity


def test_the_other_spelling_is_understood_and_ours_wins(ingest: Ingest) -> None:
    foreign = {"service.name": "nemo", "nv.dl.rank": 1, "nv.dl.local_rank": 0, "nv.dl.world_size": 2}
    assert ingest.one(attributes=foreign).identity == RankIdentity("nemo", 1, "nemo", 0, 2)
    assert ingest.one(attributes={"dl.rank": 0} | foreign).identity.rank == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-06-15T15:06:40Z", 1_750_000_000.0),
        ("2025-06-15T17:06:40.500+02:00", 1_750_000_000.5),
        ("2025-06-15T15:06:40", 1_750_000_000.0),
        ("yesterday", 0.0),
        ("0001-01-01T00:00:00+14:00", 0.0),
    ],
)
def test_process_start(ingest: Ingest, text: str, expected: float) -> None:
    start = ingest.one(attributes=RANK_3 | {"process.creation.time": text}).identity.started_at
    assert start == expected or start < -6e10  # the year 1 is a time too where the platform can say it


@pytest.mark.parametrize(
    ("attributes", "reason", "words"),
    [
        ({}, "no_identity", "resource without dl.rank"),
        (without("dl.rank"), "no_identity", "resource without dl.rank"),
        ({"dl.rank": 0}, "no_identity", "resource without a job"),
        (RANK_3 | {"dl.rank": True}, "no_identity", "resource without dl.rank"),
        (RANK_3 | {"dl.rank": 4}, "bad_identity", "dl.rank 4 is outside the world: dl.world_size is 4"),
        (RANK_3 | {"dl.rank": -1}, "bad_identity", "dl.rank -1 is not a number from 0 up"),
        (RANK_3 | {"dl.rank": "-1"}, "bad_identity", "dl.rank '-1' is not"),
        (RANK_3 | {"dl.rank": "three"}, "bad_identity", "dl.rank 'three' is not a number"),
        (RANK_3 | {"dl.rank": "1_0"}, "bad_identity", "dl.rank '1_0' is not a number"),
        (RANK_3 | {"dl.rank": "9" * 5000}, "bad_identity", "..."),
        (RANK_3 | {"dl.rank": nan}, "bad_identity", "dl.rank nan is not"),
        (RANK_3 | {"dl.rank": 1.5}, "bad_identity", "dl.rank 1.5 is not"),
        (RANK_3 | {"dl.world_size": 10**9}, "bad_identity", "above the limit of 131072 ranks per job"),
        (without("dl.world_size") | {"dl.rank": 131072}, "bad_identity", "above the limit of 131072"),
        (RANK_3 | {"rankwatch.attempt": "x"}, "bad_identity", "rankwatch.attempt 'x'"),
        (RANK_3 | {"rankwatch.job.id": "a\nb"}, "bad_identity", "control characters"),
        (RANK_3 | {"rankwatch.job.id": "a" * 300}, "name_too_long", "rankwatch.job.id has 300 characters, limit 256"),
        (RANK_3 | {"service.instance.id": "a" * 5000}, "name_too_long", "service.instance.id has 5000 characters"),
        (RANK_3 | {f"k{i}": i for i in range(200)}, "too_many_attributes", "limit 128"),
    ],
)
def test_a_request_that_cannot_be_answered_is_rejected(
    ingest: Ingest, attributes: dict[str, object], reason: str, words: str
) -> None:
    request = request_of(attributes, gauge("rankwatch.iteration", 1), gauge("anything.at.all", 2))
    add_resource(request, RANK_3, gauge("rankwatch.iteration", 5))
    for _ in range(2):  # the second time from memory
        decoded = ingest(request)
        assert decoded.rejections.items == 2
        assert words in decoded.rejections.message()
        assert len(decoded.rejections.message()) < 300
        assert [report.iteration for report in decoded.reports] == [5], "the others in the request are taken"
    assert ingest.counters.rejected == {reason: 4}


def test_an_empty_report_is_no_news(ingest: Ingest) -> None:
    assert ingest(request_of({})).rejections.message() == ""
    assert ingest(ExportMetricsServiceRequest()).reports == []


def test_names_that_are_only_shown_are_cut(ingest: Ingest) -> None:
    for _ in range(2):
        decoded = ingest(request_of(RANK_3 | {"host.name": "h" * 300}))
        assert decoded.reports[0].identity.host == "h" * 256
        assert decoded.rejections.items == 0
        assert decoded.rejections.message() == "rank 3: host.name cut to 256 characters"
    assert ingest.counters.rejected == {"name_too_long": 2}


class TestValues:
    @pytest.mark.parametrize("value", [-0.1, -1, nan, inf, -inf])
    @pytest.mark.parametrize(
        ("name", "field"),
        [
            ("rankwatch.heartbeat.age", "heartbeat_age"),
            ("rankwatch.iteration.first.age", "first_iteration_age"),
            ("rankwatch.section.idle.duration", "idle"),
            ("rankwatch.iteration", "iteration"),
            ("rankwatch.heartbeats", "beats"),
        ],
    )
    def test_an_impossible_one_is_rejected_alone(self, ingest: Ingest, name: str, field: str, value: float) -> None:
        decoded = ingest(request_of(RANK_3, gauge(name, value), gauge("rankwatch.progress", 7)))
        assert getattr(decoded.reports[0], field) is None
        assert decoded.reports[0].progress == 7
        assert decoded.rejections.items == 1
        assert name in decoded.rejections.message()
        assert ingest.counters.rejected == {"bad_value": 1}

    def test_zero_is_a_value_and_nothing_is_not(self, ingest: Ingest) -> None:
        reported = ingest.one(gauge("rankwatch.heartbeat.age", 0.0), gauge("rankwatch.iteration", 0))
        assert (reported.heartbeat_age, reported.iteration) == (0.0, 0)
        untold = ingest.one(gauge("rankwatch.heartbeat.age", None), gauge("rankwatch.iteration", None))
        assert (untold.heartbeat_age, untold.iteration) == (None, None)

    def test_a_series_that_has_ended_reports_nothing(self, ingest: Ingest) -> None:
        request = request_of(
            RANK_3, gauge("rankwatch.iteration", 0), gauge("rankwatch.section.open.duration", 0.0, section="s")
        )
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            metric.gauge.data_points[0].flags = 1
        (report,) = ingest(request).reports
        assert (report.iteration, report.open_sections) == (None, {})

    def test_any_number_type_and_the_newest_point(self, ingest: Ingest) -> None:
        report = ingest.one(
            gauge("rankwatch.iteration", 8.0, NOW_NS + 2),
            gauge("rankwatch.iteration", 7, NOW_NS + 1),
            gauge("rankwatch.heartbeat.age", 2),
        )
        assert (report.iteration, report.heartbeat_age) == (8, 2.0)

    def test_the_wrong_kind_of_metric(self, ingest: Ingest) -> None:
        request = request_of(RANK_3, gauge("rankwatch.section.duration", 1.0, section="step"))
        metric = request.resource_metrics[0].scope_metrics[0].metrics.add(name="rankwatch.heartbeats")
        metric.summary.data_points.add(count=3)
        request.resource_metrics[0].scope_metrics[0].metrics.add(name="rankwatch.progress")  # of no kind: says nothing
        decoded = ingest(request)
        assert decoded.rejections.items == 2
        assert "sent as summary, wanted gauge or sum" in decoded.rejections.message()
        assert "sent as gauge, wanted exponential_histogram or histogram" in decoded.rejections.message()


class TestOpenSections:
    def test_idle_states_that_none_is_open(self, ingest: Ingest) -> None:
        report = ingest.one(gauge("rankwatch.section.idle.duration", 2.5))
        assert (report.open_sections, report.idle) == ({}, 2.5)

    def test_the_newest_point_of_each(self, ingest: Ingest) -> None:
        name = "rankwatch.section.open.duration"
        report = ingest.one(
            gauge(name, 9.0, NOW_NS + 5, section="step"),
            gauge(name, 8.0, NOW_NS, section="step"),
            gauge(name, 1.0, NOW_NS, section="eval"),
        )
        assert report.open_sections == {"step": 9.0, "eval": 1.0}

    def test_what_cannot_be_read_is_not_none_open(self, ingest: Ingest) -> None:
        decoded = ingest(request_of(RANK_3, gauge("rankwatch.section.open.duration", nan, section="step")))
        assert decoded.reports[0].open_sections is None
        assert "section 'step' open for nan s" in decoded.rejections.message()

    @pytest.mark.parametrize(
        ("attributes", "reason"),
        [
            ({}, "bad_name"),
            ({"section": ""}, "bad_name"),
            ({"section": "a\x00b"}, "bad_name"),
            ({"section": "s" * 257}, "name_too_long"),
            ({"section": "step"} | {f"other{i}": "x" for i in range(200)}, "too_many_attributes"),
        ],
    )
    def test_names_that_cannot_be_used(self, ingest: Ingest, attributes: dict[str, str], reason: str) -> None:
        name = "rankwatch.section.open.duration"
        decoded = ingest(request_of(RANK_3, gauge(name, 1.0, **attributes), gauge(name, 2.0, section="eval")))
        assert decoded.reports[0].open_sections == {"eval": 2.0}
        assert ingest.counters.rejected == {reason: 1}

    def test_more_than_the_limit(self) -> None:
        ingest = Ingest(sections_per_job=2)
        fills = [gauge("rankwatch.section.open.duration", 1.0, section=f"s{i}") for i in range(5)]
        decoded = ingest(request_of(RANK_3, *fills))
        assert decoded.reports[0].open_sections == {"s0": 1.0, "s1": 1.0}
        assert ingest.counters.rejected == {"too_many_sections": 3}


class TestFinishedSections:
    @pytest.mark.parametrize("exponential", [True, False])
    def test_delta_points_are_taken_as_they_are_and_once(self, ingest: Ingest, exponential: bool) -> None:
        first = histogram("step", 4, 2.0, 0.4, 0.6, exponential=exponential)
        assert ingest.one(first).finished == {"step": SectionStatistics(4, 2.0, 0.4, 0.6)}
        assert ingest.one(first).finished == {}, "an SDK's last export at its shutdown"
        assert ingest.counters.repeats == 1
        later = histogram("step", 1, 9.0, 9.0, 9.0, exponential=exponential, time_ns=NOW_NS + SECOND)
        assert ingest.one(later).finished == {"step": SectionStatistics(1, 9.0, 9.0, 9.0)}

    @pytest.mark.parametrize("exponential", [True, False])
    def test_cumulative_points_come_as_increments(self, ingest: Ingest, exponential: bool) -> None:
        def export(second: int, *reported: float) -> dict[str, SectionStatistics]:
            time_ns = NOW_NS + second * SECOND
            count, *rest = reported
            return dict(
                ingest.one(
                    histogram(
                        "step", int(count), *rest, temporality=CUMULATIVE, time_ns=time_ns, exponential=exponential
                    )
                ).finished
            )

        assert export(0, 2, 3.0, 1.0, 2.0) == {"step": SectionStatistics(2, 3.0, 1.0, 2.0)}
        assert export(1, 2, 3.0, 1.0, 2.0) == {}, "nothing finished"
        assert export(2, 3, 8.0, 1.0, 5.0) == {"step": SectionStatistics(1, 5.0, 5.0, 5.0)}, "a new longest"
        assert export(3, 5, 9.0, 0.25, 5.0) == {"step": SectionStatistics(2, 1.0, 0.25, 0.5)}, "a new shortest"
        assert export(2, 3, 8.0, 1.0, 5.0) == {}, "overtaken on the way"
        assert export(4, 1, 1.5, 1.5, 1.5) == {"step": SectionStatistics(1, 1.5, 1.5, 1.5)}, "began again"

    def test_a_new_process_counts_from_its_start(self, ingest: Ingest) -> None:
        point = histogram("step", 2, 3.0, 1.0, 2.0, temporality=CUMULATIVE)
        assert ingest.one(point).finished
        assert ingest.one(point, attributes=RANK_3 | {"service.instance.id": "another"}).finished

    def test_what_an_earlier_monitor_counted_is_not_counted_again(self) -> None:
        ingest = Ingest(since_unix_ns=NOW_NS)

        def export(count: int, total: float, time_ns: int) -> dict[str, SectionStatistics]:
            return dict(ingest.one(histogram("step", count, total, temporality=CUMULATIVE, time_ns=time_ns)).finished)

        assert export(1000, 1000.0, NOW_NS + 1) == {}
        assert export(1001, 1002.0, NOW_NS + 2)["step"].count == 1

    def test_without_times_nothing_is_a_repeat(self, ingest: Ingest) -> None:
        for _ in range(2):
            assert ingest.one(histogram("step", 1, 1.0, start_ns=0, time_ns=0)).finished

    def test_without_least_and_most_the_mean_is_what_is_known(self, ingest: Ingest) -> None:
        assert ingest.one(histogram("step", 4, 2.0)).finished == {"step": SectionStatistics(4, 2.0, 0.5, 0.5)}

    def test_two_points_of_one_section_are_joined(self, ingest: Ingest) -> None:
        fills = histogram("step", 1, 1.0, 1.0, 1.0), histogram("step", 2, 6.0, 2.0, 4.0, time_ns=NOW_NS + 1)
        assert ingest.one(*fills).finished == {"step": SectionStatistics(3, 7.0, 1.0, 4.0)}

    def test_an_empty_point_reports_nothing(self, ingest: Ingest) -> None:
        assert ingest.one(histogram("step", 0, 0.0)).finished == {}

    @pytest.mark.parametrize(
        "reported", [(1, None), (1, nan), (1, inf), (1, -1.0), (1, 1.0, 2.0, 1.0), (1, 1.0, nan, 1.0), (2**60, 1.0)]
    )
    def test_impossible_statistics(self, ingest: Ingest, reported: tuple[int, float]) -> None:
        decoded = ingest(request_of(RANK_3, histogram("step", *reported)))
        assert decoded.reports[0].finished == {}
        assert ingest.counters.rejected == {"bad_value": 1}

    def test_more_than_the_limit_over_time(self) -> None:
        ingest = Ingest(sections_per_job=2)
        for i in range(4):
            ingest(request_of(RANK_3, histogram(f"s{i}", 1, 1.0)))
        assert ingest.counters.rejected == {"too_many_sections": 2}


class TestCounters:
    def test_deltas_are_summed_and_repeats_are_not(self, ingest: Ingest) -> None:
        def export(second: int) -> RankReport:
            time_ns = NOW_NS + second * SECOND
            return ingest.one(
                counter("rankwatch.heartbeats", 5, DELTA, time_ns),
                counter("rankwatch.telemetry.dropped", 1, DELTA, time_ns, reason="late"),
            )

        assert (export(0).beats, export(1).beats) == (5, 10)
        repeated = export(1)
        assert (repeated.beats, repeated.dropped) == (None, {})
        assert export(2).dropped == {"late": 3}

    def test_reasons_and_series_are_bounded(self) -> None:
        ingest = Ingest(sections_per_job=2)
        for temporality in (CUMULATIVE, DELTA):
            name = "rankwatch.telemetry.dropped"
            fills = [counter(name, 1, temporality, reason=f"r{i}{temporality}") for i in range(3)]
            assert len(ingest(request_of(RANK_3, *fills)).reports[0].dropped) == 2
        ingest(request_of(RANK_3, counter("rankwatch.heartbeats", 1, DELTA)))
        assert ingest.counters.rejected == {"too_many_sections": 3}

    def test_a_negative_loss(self, ingest: Ingest) -> None:
        assert (
            ingest(request_of(RANK_3, counter("rankwatch.telemetry.dropped", -1, reason="r"))).reports[0].dropped == {}
        )


class TestRequests:
    def test_one_resource_is_one_report_in_order(self, ingest: Ingest) -> None:
        request = request_of(RANK_3, gauge("rankwatch.iteration", 1))
        add_resource(request, RANK_3 | {"dl.rank": 0}, gauge("rankwatch.iteration", 5))
        add_resource(request, RANK_3, gauge("rankwatch.iteration", 2))
        decoded = ingest(request)
        assert [(r.identity.rank, r.iteration) for r in decoded.reports] == [(3, 1), (0, 5), (3, 2)]
        assert decoded.points == [1, 1, 1]

    def test_too_many_resources(self) -> None:
        request = request_of()
        add_resource(request)
        with pytest.raises(Refusal, match="resources in one request are above the limit of 1") as refused:
            Ingest(resources_per_request=1)(request)
        assert refused.value.status == 413

    @pytest.mark.parametrize("attributes", [RANK_3, {}])
    def test_too_many_points(self, attributes: dict[str, object]) -> None:
        fills = [gauge("rankwatch.section.open.duration", 1.0, section=f"s{i}") for i in range(8)]
        assert Ingest(points_per_request=10)(request_of(attributes, *fills))
        with pytest.raises(Refusal, match="points_per_request") as refused:
            Ingest(points_per_request=9)(request_of(attributes, *fills))
        assert (refused.value.status, refused.value.reason) == (413, "too_many_points")

    def test_metrics_without_points_are_not_free(self) -> None:
        fills = [gauge(f"somebody.elses.{i}", 1) for i in range(20)]
        with pytest.raises(Refusal):
            Ingest(points_per_request=10)(request_of(RANK_3, *fills))

    def test_a_thousand_faults_are_a_short_message(self, ingest: Ingest) -> None:
        request = ExportMetricsServiceRequest()
        for rank in range(1000):
            add_resource(request, RANK_3 | {"dl.rank": 10 + rank}, gauge("rankwatch.iteration", 1))
        decoded = ingest(request)
        assert decoded.rejections.items == 1000
        assert decoded.rejections.message().endswith("and 995 more")

    def test_the_longest_silent_process_is_forgotten_first(self) -> None:
        ingest = Ingest(processes_remembered=2)
        point = histogram("step", 1, 1.0)
        for pid in (1, 2, 1, 3):
            ingest(request_of(RANK_3 | {"process.pid": pid}, point))
        assert ingest.counters.repeats == 1
        assert ingest.one(point, attributes=RANK_3 | {"process.pid": 1}).finished == {}, "kept"
        assert ingest.one(point, attributes=RANK_3 | {"process.pid": 2}).finished, "forgotten"
