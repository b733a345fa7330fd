"""A client made with opentelemetry-proto alone: its job appears, its hang is found and its culprit named."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable

import pytest
import zstandard
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from support.monitor_process import Api
from support.otlp import JSON, PROTOBUF, body, message, rank_report
from support.waiting import wait_for

WORLD = 4
LIMIT = 2.0


def send(api: Api, *reports: ResourceMetrics) -> None:
    answer = api.export(body(*reports))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-protobuf"
    reported = ExportMetricsServiceResponse.FromString(answer.content)
    assert not reported.HasField("partial_success"), reported


def stepping(job: str, rank: int, seconds: float) -> ResourceMetrics:
    """Rank 2 is in step 7 of its life, the others have completed it and wait in step 8."""
    return rank_report(
        job,
        rank,
        WORLD,
        iteration=6 if rank == 2 else 7,
        progress=0,
        beats=10,
        heartbeat_age=0.1,
        open_sections={"step": seconds},
        host=f"node-{'ab'[rank // 2]}",
    )


def test_a_job_appears_and_its_ranks_are_visible(api: Api, job: str) -> None:
    assert job not in [each["id"] for each in api.jobs()]
    send(api, *(stepping(job, rank, 0.5) for rank in range(WORLD)))

    listed = next(each for each in api.jobs() if each["id"] == job)
    assert (listed["state"], listed["reason"], listed["name"]) == ("running", "", job)
    assert (listed["world_size"], listed["ranks_reporting"], listed["iteration"]) == (WORLD, WORLD, 7)
    assert listed["instrumented"]
    assert listed["open_incidents"] == 0

    ranks = api.ranks(job)
    assert [(r["rank"], r["host"], r["pid"], r["state"], r["iteration"]) for r in ranks] == [
        (0, "node-a", 1000, "running", 7),
        (1, "node-a", 1001, "running", 7),
        (2, "node-b", 1002, "running", 6),
        (3, "node-b", 1003, "running", 7),
    ]
    assert all(0.1 <= r["heartbeat_age"] < 15 and 0.5 <= r["open_sections"]["step"] < 15 for r in ranks)


def test_a_rank_that_has_not_reported_is_shown_as_unseen(api: Api, job: str) -> None:
    send(api, rank_report(job, 1, 3, iteration=0))
    assert [r["state"] for r in api.ranks(job)] == ["unseen", "running", "unseen"]
    found = api.job(job)
    assert (found["world_size"], found["ranks_reporting"]) == (3, 1)


def test_a_section_overrun_names_the_rank_that_is_behind_and_ends_when_it_goes_on(api: Api, job: str) -> None:
    send(api, *(stepping(job, rank, 0.1) for rank in range(WORLD)))
    api.change_policy(job, section_timeouts={"step": LIMIT})
    send(api, *(stepping(job, rank, LIMIT + 1.5) for rank in range(WORLD)))

    (incident,) = wait_for(lambda: api.incidents(job), "an incident is opened")
    assert (incident["kind"], incident["section"], incident["limit"]) == ("section_overrun", "step", LIMIT)
    assert incident["elapsed"] == pytest.approx(LIMIT + 1.5, abs=0.5)
    assert [(c["rank"], c["host"], c["class"]) for c in incident["culprits"]] == [(2, "node-b", "behind")]
    assert incident["affected"] == [0, 1, 2, 3]
    assert incident["timeline"]["since"] == pytest.approx(incident["opened_at"] - LIMIT - 1.5, abs=0.5)
    assert incident["timeline"]["detected"] == incident["opened_at"]
    for words in ("Rank 2 on node-b", "'step'", "3.5 s", "limit of 2 s", "1 step behind", "the 3 other ranks wait"):
        assert words in incident["reason"]
    # Nothing can act on it: no launcher runs this job. The incident reports it.
    assert incident["action"] == "log"
    assert "no launcher" in incident["action_reason"]

    hung = api.job(job)
    assert (hung["state"], hung["reason"], hung["open_incidents"]) == ("hung", incident["reason"], 1)
    assert [r["state"] for r in api.ranks(job)] == ["waiting", "waiting", "hung", "waiting"]
    assert api.ranks(job)[2]["reason"] == incident["culprits"][0]["reason"]

    send(api, *(rank_report(job, rank, WORLD, iteration=8, progress=0, idle=0.0) for rank in range(WORLD)))
    (closed,) = wait_for(lambda: [i for i in api.incidents(job) if i["closed_at"]], "the incident closes")
    assert closed["id"] == incident["id"]
    assert (closed["phase"], closed["outcome"]) == ("closed", "the ranks went on by themselves")
    assert api.job(job)["state"] == "running"
    assert [r["state"] for r in api.ranks(job)] == ["running"] * WORLD


def test_the_same_job_below_its_limit_raises_nothing(api: Api, job: str) -> None:
    send(api, *(stepping(job, rank, 0.1) for rank in range(WORLD)))
    api.change_policy(job, section_timeouts={"step": LIMIT})
    send(api, *(stepping(job, rank, LIMIT - 0.5) for rank in range(WORLD)))
    api.judge_now(job)
    assert api.incidents(job) == []
    assert api.job(job)["state"] == "running"


def test_a_section_that_is_no_longer_reported_is_not_taken_for_open(api: Api, job: str) -> None:
    """An SDK leaves out a metric without points: a rank that has left its only section simply stops to mention it."""
    send(api, *(rank_report(job, rank, 2, iteration=3, open_sections={"step": 0.1}) for rank in range(2)))
    api.change_policy(job, section_timeouts={"step": 0.4})
    began = time.monotonic()

    def goes_on() -> bool:
        send(api, *(rank_report(job, rank, 2, iteration=4) for rank in range(2)))
        api.judge_now(job)
        return time.monotonic() - began > 0.8

    wait_for(goes_on, "twice the limit has passed")
    assert api.incidents(job) == []


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress), ("identity", bytes)],
)
def test_every_promised_encoding_is_understood(
    api: Api, job: str, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    content = compress(body(rank_report(job, 0, 1, iteration=3)))
    answer = api.export(content, headers=PROTOBUF | {"Content-Encoding": encoding})
    assert answer.status_code == 200, answer.text
    assert api.ranks(job)[0]["iteration"] == 3


@pytest.mark.parametrize("compressed", [False, True])
def test_json_is_understood_and_answered_in_json(api: Api, job: str, compressed: bool) -> None:
    text = MessageToJson(message([rank_report(job, 0, 1, iteration=3, open_sections={"step": 1.0})])).encode()
    headers = JSON | ({"Content-Encoding": "gzip"} if compressed else {})
    answer = api.export(gzip.compress(text) if compressed else text, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {}
    (rank,) = api.ranks(job)
    assert rank["iteration"] == 3
    assert rank["open_sections"]["step"] >= 1.0


def test_the_other_spelling_of_the_attributes_is_understood(api: Api, job: str) -> None:
    renamed = {"dl.rank": None, "dl.world_size": None, "rankwatch.job.id": None, "nv.dl.rank": 1, "nv.dl.world_size": 2}
    send(api, rank_report(job, 1, 2, iteration=3, resource=renamed))
    found = api.job(job)
    assert (found["id"], found["world_size"], found["ranks_reporting"]) == (job, 2, 1)
    assert api.ranks(job)[1]["iteration"] == 3


@pytest.mark.parametrize("name", ["team/model", "ünï cødé", "50%", "a?b#c", "..", "x" * 256], ids=lambda n: n[:10])
def test_every_job_id_that_is_taken_can_be_asked_for(api: Api, name: str) -> None:
    """An id is either refused in words or can be used; a job that is listed and cannot be opened is neither."""
    report = rank_report(name, 0, 1, iteration=3, resource={"service.instance.id": "one"})
    answer = api.export(body(report))
    reported = ExportMetricsServiceResponse.FromString(answer.content)
    if reported.HasField("partial_success"):
        assert reported.partial_success.rejected_data_points > 0
        assert "rankwatch.job.id" in reported.partial_success.error_message
        assert name not in [each["id"] for each in api.jobs()]
    else:
        assert api.job(name)["id"] == name


def test_spans_are_taken_as_well(api: Api) -> None:
    answer = api.post("/v1/traces", content=b"", headers=PROTOBUF)
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_rank_that_stops_is_found_by_limits_learned_from_what_the_emitter_sends(api: Api, job: str) -> None:
    """Heartbeats, iterations and open sections alone; nothing is configured but how short a learned limit may be."""
    begun, stuck_at = time.monotonic(), 0.0
    pace = 0.05

    def send_all(stuck: bool) -> None:
        seconds = time.monotonic() - begun
        for rank in range(WORLD):
            # Rank 2 stays in its step; the others complete it and wait in the next one.
            at = seconds if not stuck else stuck_at + (pace if rank != 2 else 0.0)
            step = int(at / pace)
            age = max(0.0, seconds - step * pace)
            send(
                api,
                rank_report(
                    job, rank, WORLD, iteration=step - 1 if step else None, beats=step, open_sections={"train": age}
                ),
            )

    def learned() -> bool:
        send_all(stuck=False)
        rows = api.job(job)["timeouts"]
        return any(row["section"] == "train" and row["learned"] for row in rows)

    send_all(stuck=False)
    api.change_policy(job, learned_minimum=1)
    wait_for(learned, "a limit is learned", 60)
    assert api.incidents(job) == []
    stuck_at = time.monotonic() - begun

    def found() -> list[dict]:
        send_all(stuck=True)
        return api.incidents(job)

    (incident,) = wait_for(found, "the hang is found", 90)
    assert "in section 'train' for" in incident["reason"]
    assert "over its learned limit of" in incident["reason"]
    assert [culprit["rank"] for culprit in incident["culprits"]] == [2]
