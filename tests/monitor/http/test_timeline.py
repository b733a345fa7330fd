"""Spans, trends, the grid's looks and the policy's schema, asked of a monitor that gets real OTLP."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rankwatch.contract.policy import Policy
from rankwatch_monitor.http.grid import NO_COORDINATE, UNKNOWN
from rankwatch_monitor.service.span_store import (
    MAX_PER_RANK,
    MAX_SECTIONS,
    MIN_PER_RANK,
    SPANS_IN_JOB,
    SpanRecord,
    SpanStore,
    capacity,
)
from support.monitor_process import Api, running_monitor
from support.otlp import add_window, attributes, gauge, rank_report
from support.waiting import wait_for

SECOND = 10**9
STEP = (("data", 0.0, 0.1), ("step", 0.1, 0.4), ("forward", 0.1, 0.15), ("backward", 0.25, 0.2))
"""Name, start and duration of the sections of one step, in seconds; ``forward`` begins together with ``step``."""


def steps_of(job: str, rank: int, iterations: Iterable[int], clock: float = 1.7e9, attempt: int = 0) -> bytes:
    """The spans of some steps of a rank, by the clock of its host; inner ones come first, as ranks send them."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    identity = {"rankwatch.job.id": job, "dl.rank": rank, "rankwatch.attempt": attempt}
    resource.resource.attributes.extend(attributes(identity))
    scope = resource.scope_spans.add()
    for iteration in iterations:
        for name, start, duration in reversed(STEP):
            span = scope.spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name=name)
            span.start_time_unix_nano = (round(clock) + iteration) * SECOND + round(start * SECOND)
            span.end_time_unix_nano = span.start_time_unix_nano + round(duration * SECOND)
            span.attributes.extend(attributes({"dl.iteration": iteration}))
    return request.SerializeToString()


def send(api: Api, *requests: bytes) -> None:
    for request in requests:
        assert api.export(request, "/v1/traces").status_code == 200


@pytest.fixture
def running(api: Api, job: str) -> str:
    """A job of four ranks, of which two have sent spans; their clocks are an hour apart."""
    reports = [rank_report(job, rank, iteration=30, beats=1, heartbeat_age=10.0 * rank) for rank in range(4)]
    api.report(*reports)
    send(api, steps_of(job, 0, (10, 20, 30)), steps_of(job, 3, (10, 20), clock=1.7e9 + 3600))
    return job


def test_steps_stand_side_by_side_whatever_the_clocks_state(api: Api, running: str) -> None:
    reported = api.read(f"/jobs/{running}/timeline?ranks=0,3&steps=20")
    assert (reported["sampled"], reported["ranks_known"], reported["attempt"]) == ([10, 20, 30], 2, 0)
    first, other = (lane["steps"][0] for lane in reported["ranks"])
    assert first["spans"] == other["spans"]
    assert other["began"] - first["began"] == pytest.approx(3600, abs=1e-3)
    named = [(reported["sections"][number], depth, start, seconds) for number, depth, start, seconds in first["spans"]]
    assert named == [
        ("data", 0, 0.0, 0.1),
        ("step", 0, 0.1, 0.4),
        ("forward", 1, 0.1, 0.15),
        ("backward", 1, 0.25, 0.2),
    ]
    assert first["seconds"] == pytest.approx(0.5)


def test_a_sentence_states_what_the_steps_show(api: Api, running: str) -> None:
    reported = api.read(f"/jobs/{running}/timeline?ranks=0,3&steps=20")
    assert reported["finding"].startswith("In this step no section takes much longer on one of these ranks than ")
    send(api, wait_of(running, 0, 20, (0.35, 0.1)), wait_of(running, 3, 20, (0.35, 0.02), clock=1.7e9 + 3600))
    reported = api.read(f"/jobs/{running}/timeline?ranks=0,3&steps=20")
    waits = "In this step rank 3 works 480 ms; rank 0 works 400 ms and waits 80 ms for it."
    assert reported["finding"].startswith(waits), "spans of no other ranks are kept"
    assert reported["basis"] == "Measured on 2 of 4 ranks."
    assert [(lane["works"], lane["waits"]) for lane in reported["ranks"]] == [(0.4, 0.1), (0.48, 0.02)]
    own = [dict(zip(reported["sections"], lane["own"], strict=True)) for lane in reported["ranks"]]
    assert [(each["data"], each["backward"]) for each in own] == [(0.1, 0.1), (0.1, 0.18)]


def test_without_a_choice_the_first_ranks_and_their_last_steps(api: Api, running: str) -> None:
    reported = api.read(f"/jobs/{running}/timeline?last=2")
    lanes = {lane["rank"]: [step["iteration"] for step in lane["steps"]] for lane in reported["ranks"]}
    assert lanes == {0: [20, 30], 3: [20]}  # rank 3 never came to step 30, and that is to be seen


def test_a_rank_that_sent_none_has_an_empty_lane(api: Api, running: str) -> None:
    (lane,) = api.read(f"/jobs/{running}/timeline?ranks=1")["ranks"]
    assert (lane["rank"], lane["host"], lane["steps"]) == (1, "node-a", [])


def test_a_new_attempt_begins_again_and_late_spans_of_the_old_one_are_dropped(api: Api, running: str) -> None:
    send(api, steps_of(running, 0, (20,), attempt=1), steps_of(running, 0, (40,)))
    reported = api.read(f"/jobs/{running}/timeline?ranks=0")
    assert (reported["attempt"], reported["sampled"]) == (1, [20])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("ranks=nobody", "ranks must be written like 0,8-15, not 'nobody'"),
        ("ranks=7", "the job has no such ranks: its ranks are 0 to 3"),
        ("steps=1-", "steps must be written like 0,8-15, not '1-'"),
        ("last=0", "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_answered_is_reported(api: Api, running: str, query: str, words: str) -> None:
    answer = api.get(f"/api/v1/jobs/{running}/timeline?{query}")
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_more_ranks_than_an_answer_holds_are_refused(api: Api, job: str) -> None:
    api.report(rank_report(job, 0, 100))
    answer = api.get(f"/api/v1/jobs/{job}/timeline?ranks=all")
    assert (answer.status_code, "at most 64 ranks" in answer.json()["detail"]) == (422, True)


def test_spans_of_an_unknown_job_make_no_job(api: Api, job: str) -> None:
    send(api, steps_of(job, 0, (1,)))
    assert api.get(f"/api/v1/jobs/{job}/timeline").status_code == 404


# Waiting --------------------------------------------------------------------------------------------------------------


def wait_of(job: str, rank: int, iteration: int, *waits: tuple[float, float], clock: float = 1.7e9) -> bytes:
    """Exposed communication of a profiled step: start since the step began, and seconds."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.extend(attributes({"rankwatch.job.id": job, "dl.rank": rank, "rankwatch.attempt": 0}))
    scope = resource.scope_spans.add()
    for start, seconds in waits:
        span = scope.spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="communication")
        span.start_time_unix_nano = (round(clock) + iteration) * SECOND + round(start * SECOND)
        span.end_time_unix_nano = span.start_time_unix_nano + round(seconds * SECOND)
        span.attributes.extend(attributes({"dl.iteration": iteration, "rankwatch.part": "communication"}))
    return request.SerializeToString()


def test_waits_stand_beside_the_sections_of_profiled_steps_alone(api: Api, running: str) -> None:
    send(api, wait_of(running, 0, 20, (0.35, 0.1), (0.2, 0.05)), wait_of(running, 0, 30, (0.0, 0.0)))
    send(api, wait_of(running, 0, 40, (0.1, 0.1)))  # its sections never came
    reported = api.read(f"/jobs/{running}/timeline?ranks=0,3")
    assert (reported["sampled"], reported["profiled"]) == ([10, 20, 30], [20, 30])
    waits = {step["iteration"]: step["waits"] for step in reported["ranks"][0]["steps"]}
    assert waits == {10: None, 20: [[0.2, 0.05], [0.35, 0.1]], 30: []}
    assert {step["waits"] for step in reported["ranks"][1]["steps"]} == {None}
    assert "communication" not in reported["sections"]
    assert reported["ranks"][0]["steps"][1]["seconds"] == pytest.approx(0.5)


def test_waits_are_a_thread_of_their_own_in_the_trace(api: Api, running: str) -> None:
    send(api, wait_of(running, 0, 20, (0.35, 0.1)))
    found = api.get(f"/api/v1/jobs/{running}/timeline/trace", params={"ranks": "0,3"}).json()["traceEvents"]
    [wait] = [each for each in found if each.get("cat") == "wait"]
    assert (wait["pid"], wait["tid"], wait["dur"], wait["args"]) == (0, 1, 100_000.0, {"iteration": 20})
    step = next(
        each for each in found if each["pid"] == 0 and each["name"] == "data" and each["args"]["iteration"] == 20
    )
    assert wait["ts"] - step["ts"] == pytest.approx(350_000.0)
    assert [each["pid"] for each in found if each["name"] == "thread_name"] == [0]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "these ranks have reported none"),
        (("none", "kernel_timings is off"), "ranks have none: kernel_timings is off"),
        (("cupti", ""), "measured in the step that is profiled"),
    ],
)
def test_why_waits_are_not_known(api: Api, running: str, source: tuple[str, str] | None, words: str) -> None:
    if source is not None:
        report = rank_report(running, 0, iteration=30)
        gauge(report, "rankwatch.kernel.source", 1, rankwatch__source=source[0], rankwatch__reason=source[1])
        api.report(report)
    assert words in api.read(f"/jobs/{running}/timeline?ranks=0")["no_waits"]


# The memory ---------------------------------------------------------------------------------------------------------


def records(job: str, rank: int, number: int, section: str = "step", attempt: int = 0) -> list[SpanRecord]:
    return [SpanRecord(job, rank, attempt, section, 1 + i, 2 + i, i) for i in range(number)]


def test_the_newest_spans_of_each_rank_stay_and_a_silent_rank_keeps_its_own() -> None:
    kept = SpanStore()
    kept.add(records("j", 5, 3), ["j"], 8)
    kept.add(records("j", 0, MAX_PER_RANK + 100), ["j"], 8)
    assert len(kept) == MAX_PER_RANK + 3
    assert kept.of("j").iterations([5]) == [0, 1, 2]
    assert kept.of("j").iterations([0])[0] == 100


def test_a_large_job_keeps_less_of_each_rank() -> None:
    assert capacity(1) == capacity(2048) == MAX_PER_RANK
    assert capacity(16_384) == 64
    assert capacity(131_072) == MIN_PER_RANK
    assert all(
        capacity(ranks) * ranks <= max(SPANS_IN_JOB, MIN_PER_RANK * ranks) for ranks in (1, 3000, 16_384, 100_000)
    )
    kept, ranks = SpanStore(), 4097
    for rank in range(ranks):
        kept.add(records("j", rank, MAX_PER_RANK if rank == 0 else 1), ["j"], ranks)
    assert kept.of("j").iterations([0]) == list(range(MAX_PER_RANK - capacity(ranks), MAX_PER_RANK))
    assert len(kept) == len(kept.of("j")) == capacity(ranks) + ranks - 1


def test_the_job_of_which_nothing_arrived_for_longest_is_forgotten_first() -> None:
    kept = SpanStore(in_all=30)
    for job in ("a", "b", "a", "c"):
        kept.add(records(job, 0, 10, attempt=0), ["a", "b", "c"], 8)
    assert [len(kept.of(job)) for job in "abc"] == [20, 0, 10]
    assert len(kept) == 30


def test_what_was_kept_of_a_job_that_is_gone_goes_too() -> None:
    kept = SpanStore()
    kept.add(records("a", 0, 4), ["a"], 8)
    kept.add(records("b", 0, 2), ["b"], 8)
    assert (len(kept), len(kept.of("a"))) == (2, 0)


def test_spans_that_cannot_be_placed_are_not_kept() -> None:
    kept = SpanStore()
    outside = SpanRecord("j", 0, 0, "evaluation", 1, 2, None)
    kept.add([outside, *records("j", 8, 1), *records("other", 0, 1)], ["j"], 8)
    assert len(kept) == 0
    kept.add([each for number in range(MAX_SECTIONS + 5) for each in records("j", 0, 1, f"section-{number}")], ["j"], 8)
    assert len(kept) == len(kept.of("j").sections) == MAX_SECTIONS


def test_a_new_attempt_lets_the_spans_of_the_old_one_go() -> None:
    kept = SpanStore()
    for rank in range(3):
        kept.add(records("j", rank, 10), ["j"], 8)
    kept.add(records("j", 1, 2, attempt=1), ["j"], 8)
    assert (len(kept), kept.of("j").ranks) == (2, [1])


# Looks, layout, trends, schema ---------------------------------------------------------------------------------------


def read_bytes(api: Api, job: str, look: str) -> list[int]:
    return list(base64.b64decode(api.read(f"/jobs/{job}/grid/{look}")["bytes"]))


def test_ages_of_heartbeats_are_reported_in_a_byte_each(api: Api, running: str) -> None:
    def reported() -> list[float]:
        return [1 + rank["heartbeat_age"] for rank in api.ranks(running)]

    before, read, after = reported(), read_bytes(api, running, "heartbeat_age"), reported()
    for low, byte, high in zip(before, read, after, strict=True):
        assert 16 * math.log2(low) - 1 <= byte <= 16 * math.log2(high) + 1
    assert read == sorted(read)


def test_what_is_not_known_has_a_byte_of_its_own(api: Api, running: str) -> None:
    assert read_bytes(api, running, "temperature") == [UNKNOWN] * 4
    assert api.get(f"/api/v1/jobs/{running}/grid/colour").status_code == 422
    reported = api.read(f"/jobs/{running}/layout")
    assert reported == {"unknown": NO_COORDINATE, "coordinates": {}, "looks": ["heartbeat_age"]}


def test_parallel_coordinates_are_reported_where_ranks_report_them(api: Api, job: str) -> None:
    reports = [
        rank_report(job, rank, resource={"dl.pipeline_parallel.rank": rank // 2, "dl.pipeline_parallel.size": 2})
        for rank in range(3)
    ]
    for report in reports:  # the layout is reported with windows of steps
        add_window(report, 8, sections={"step": {"median": 0.1}})
    reports.append(rank_report(job, 3))
    api.report(*reports)
    reported = api.read(f"/jobs/{job}/layout")["coordinates"]
    assert list(reported) == ["pipeline"]
    assert np.frombuffer(base64.b64decode(reported["pipeline"]), "<u2").tolist() == [0, 0, 1, NO_COORDINATE]


def test_trends_begin_with_the_job(api: Api, running: str) -> None:
    reported = wait_for(lambda: (points := api.read(f"/jobs/{running}/trends"))["at"] and points, "a first point")
    assert len(reported["at"]) == len(reported["goodput"]) == len(reported["goodput_window"])
    assert (reported["goodput"][0], reported["scores"]) == (None, {})  # too early for a ratio, and no rank has a score
    assert (reported["attempt"][0], reported["iteration"][0], reported["logged"]) == (0, 30, {})


def test_trends_of_a_range(api: Api, running: str) -> None:
    first = wait_for(lambda: api.read(f"/jobs/{running}/trends")["at"], "a first point")[0]
    assert first in api.read(f"/jobs/{running}/trends?since={first - 1}&until={first + 1}")["at"]
    assert first not in api.read(f"/jobs/{running}/trends?since={first + 1}")["at"]
    assert api.read(f"/jobs/{running}/trends?until={first - 1}")["at"] == []
    assert api.get(f"/api/v1/jobs/{running}/trends?since=20&until=10").status_code == 422
    assert api.get(f"/api/v1/jobs/{running}/trends?since=nan").status_code == 422
    assert api.get("/api/v1/jobs/nobody/trends").status_code == 404


def test_trends_of_an_attempt(api: Api, running: str) -> None:
    wait_for(lambda: api.read(f"/jobs/{running}/trends")["at"], "a first point")
    reported = api.read(f"/jobs/{running}/trends?attempt=0")
    assert (reported["attempts"], set(reported["attempt"])) == ([0], {0})
    other = api.read(f"/jobs/{running}/trends?attempt={2**62}")
    assert (other["attempts"], other["at"], other["speed"]) == ([0], [], [])
    assert api.get(f"/api/v1/jobs/{running}/trends?attempt=-1").status_code == 422


def test_the_sparkline_of_a_job_has_its_speed(tmp_path: Path) -> None:
    steps = itertools.count(31)
    often = "from rankwatch_monitor.service import trend; trend.INTERVAL = 0.5"
    with running_monitor(tmp_path, before=often) as monitor, Api(monitor.url) as api:

        def drawn() -> tuple[float, str] | None:
            report = rank_report("drawn", 0, iteration=next(steps), beats=2)
            api.report(report)
            return api.read("/sparklines")["jobs"].get("drawn")

        _, points = wait_for(drawn, "a speed", 60)
    shares = base64.b64decode(points)
    assert len(shares) == 48
    assert shares[-2:] != b"\xff\xff"
    assert shares[:40] == b"\xff" * 40


@pytest.mark.parametrize("path", ["/nodes", "/sparklines"])
def test_what_has_not_changed_is_not_sent_again(api: Api, running: str, path: str) -> None:
    def asked_twice() -> tuple[int, int, bytes]:
        first = api.get(f"/api/v1{path}")
        again = api.get(f"/api/v1{path}", headers={"if-none-match": f'"x", {first.headers["etag"]}'})
        return first.status_code, again.status_code, again.content

    wait_for(lambda: asked_twice() == (200, 304, b""), "nothing changed between two reads")
    assert api.get(f"/api/v1{path}", headers={"if-none-match": '"another"'}).json()


def test_the_schema_describes_every_setting_of_the_policy(api: Api) -> None:
    rows = {row["name"]: row for row in api.read("/policy/schema")["settings"]}
    assert {name: row["default"] for name, row in rows.items()} == Policy().to_json()
    assert all(row["meaning"] for row in rows.values())
    assert rows["section_timeouts"]["kind"] == "seconds_by_name"
    assert rows["observe_only"]["kind"] == "switch"
    assert (rows["silence_timeout"]["kind"], rows["silence_timeout"]["unit"]) == ("number", "s")
    assert rows["straggler_slowdown"]["kind"] == "share"
    assert set(rows["on_hang"]["choices"]) == set(api.read("/policy/schema")["actions"])


@pytest.mark.parametrize("row", Policy().to_json())
def test_only_what_the_schema_calls_optional_can_be_switched_off(row: str) -> None:
    from rankwatch_monitor.http.policy import policy_schema

    if next(each for each in policy_schema() if each["name"] == row)["optional"]:
        assert Policy().changed({row: None}).to_json()[row] is None
    else:
        with pytest.raises(ValueError, match=row.removeprefix("profiled_")):
            Policy().changed({row: None})


def test_sampled_steps_are_exported_for_perfetto_aligned_by_iteration(api: Api, running: str) -> None:
    answer = api.get(f"/api/v1/jobs/{running}/timeline/trace", params={"ranks": "0,3", "last": 2})
    assert answer.headers["content-disposition"] == 'attachment; filename="trace.json"'
    events = answer.json()["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {rank: name.split(" on ")[0] for rank, name in names.items()} == {0: "rank 0", 3: "rank 3"}
    spans = [e for e in events if e["ph"] == "X"]
    assert {(e["pid"], e["args"]["iteration"]) for e in spans} == {(0, 20), (0, 30), (3, 20)}
    steps = {(e["pid"], e["args"]["iteration"]): (e["ts"], e["dur"]) for e in spans if e["name"] == "step"}
    assert steps[0, 20] == steps[3, 20] == (pytest.approx(0.1e6), pytest.approx(0.4e6)), (
        "their clocks are an hour apart"
    )
    assert steps[0, 30][0] == pytest.approx(0.5e6 + 0.1e6), "after the longest step before it"
    backward = next(e for e in spans if e["name"] == "backward")
    assert backward["ts"] + backward["dur"] <= steps[0, 20][0] + steps[0, 20][1] + 1e-3, "nested spans lie within"


def test_a_trace_of_ranks_that_do_not_exist_is_refused(api: Api, running: str) -> None:
    assert api.get(f"/api/v1/jobs/{running}/timeline/trace", params={"ranks": "99"}).status_code == 422
