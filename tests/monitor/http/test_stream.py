"""Server-sent events: the picture at once, then what changes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from rankwatch.contract.enums import RankState
from support.monitor_process import Api
from support.otlp import rank_report

WORLD = 3


def send(api: Api, job: str, iteration: int, seconds: float = 0.1) -> None:
    reports = [
        rank_report(
            job, rank, WORLD, iteration=iteration - (rank == 1 and seconds > 1), open_sections={"step": seconds}
        )
        for rank in range(WORLD)
    ]
    api.report(*reports)


Event = tuple[str, dict[str, Any]]


@contextmanager
def stream(api: Api, path: str) -> Iterator[Iterator[Event]]:
    """The events of a stream; one that stays away fails with httpx's own timeout."""
    with api.stream("GET", f"/api/v1{path}", timeout=httpx.Timeout(10.0)) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer)


def events(answer: httpx.Response) -> Iterator[Event]:
    name, data = "message", []
    for line in answer.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif not line and data:
            yield name, json.loads("\n".join(data))
            name, data = "message", []


def first(found: Iterator[Event], name: str, **wanted: Any) -> dict[str, Any]:
    """The first event of this name whose data hold ``wanted``; the stream's timeout bounds the search."""
    return next(data for kind, data in found if kind == name and wanted.items() <= data.items())


def states(grid: dict[str, Any]) -> list[str]:
    return [grid["legend"][code] for code in base64.b64decode(grid["states"])]


def test_a_jobs_stream_begins_with_the_picture_and_goes_on_with_what_changes(api: Api, job: str) -> None:
    send(api, job, 7)
    with stream(api, f"/jobs/{job}/events") as found:
        kinds = [next(found) for _ in range(2)]
        assert [kind for kind, _ in kinds] == ["job", "grid"]
        summary, grid = kinds[0][1], kinds[1][1]
        assert (summary["id"], summary["state"], summary["iteration"]) == (job, "running", 7)
        assert summary == api.jobs()[0], "the stream and the list show the same"
        assert states(grid) == ["running"] * WORLD
        assert (grid["attempt"], grid["world_size"], grid["iterations"]) == (0, WORLD, {"min": 7, "max": 7})
        assert grid["legend"] == [str(state) for state in RankState], "the position of a state is its byte"

        send(api, job, 8)
        assert first(found, "grid")["iterations"] == {"min": 8, "max": 8}

        api.change_policy(job, section_timeouts={"step": 2.0})
        send(api, job, 9, seconds=3.0)
        opened = first(found, "incident")
        assert (opened["phase"], opened["closed_at"]) == ("detected", None)
        assert [c["rank"] for c in opened["culprits"]] == [1]
        assert opened in api.incidents(job)

        send(api, job, 10)
        closed = first(found, "incident", phase="closed")
        assert closed["id"] == opened["id"]


def test_an_open_incident_is_part_of_the_first_picture(api: Api, job: str) -> None:
    send(api, job, 7)
    api.change_policy(job, section_timeouts={"step": 2.0})
    send(api, job, 9, seconds=3.0)
    api.judge_now(job)
    with stream(api, f"/jobs/{job}/events") as found:
        begun = dict(next(found) for _ in range(3))
        assert set(begun) == {"job", "grid", "incident"}
        assert begun["job"]["state"] == "hung"
        assert states(begun["grid"]) == ["waiting", "hung", "waiting"]
        assert begun["incident"] == api.incidents(job)[0]


def test_the_fleets_stream_begins_with_all_jobs_and_reports_a_new_one(api: Api, job: str) -> None:
    send(api, job, 7)
    with stream(api, "/events") as found:
        kind, picture = next(found)
        assert kind == "jobs"
        assert [each["id"] for each in picture["jobs"]] == [each["id"] for each in api.jobs()]
        send(api, f"{job}-another", 1)
        while f"{job}-another" not in [each["id"] for each in picture["jobs"]]:
            picture = first(found, "jobs")


@pytest.mark.parametrize("path", ["/events", "/jobs/{}/events"])
def test_the_monitors_clock_is_part_of_each_stream(api: Api, job: str, path: str) -> None:
    send(api, job, 7)
    with stream(api, path.format(job)) as found:
        clocks = [first(found, "clock") for _ in range(2)]
    assert all(abs(each["now"] - time.time()) < 60 for each in clocks)
    assert clocks[1]["now"] - clocks[0]["now"] >= 1.0, "two seconds apart"
    assert clocks[1]["judged"] > clocks[0]["judged"], "and it states when the jobs were last evaluated"


def test_a_stream_is_compressed_event_by_event_unless_the_client_cannot_read_that(api: Api, job: str) -> None:
    send(api, job, 7)
    for accepted, encoding in (("gzip", "gzip"), ("identity", None)):
        asked = {"accept-encoding": accepted}
        with api.stream("GET", f"/api/v1/jobs/{job}/events", headers=asked, timeout=10.0) as answer:
            assert answer.headers.get("content-encoding") == encoding
            assert first(events(answer), "grid")["world_size"] == WORLD


def test_a_large_answer_is_compressed(api: Api, job: str) -> None:
    reports = [rank_report(job, rank, 200, iteration=1) for rank in range(200)]
    api.report(*reports)
    answer = api.get(f"/api/v1/jobs/{job}/ranks")
    assert (answer.headers["content-encoding"], len(answer.json()["ranks"])) == ("gzip", 200)
    assert answer.num_bytes_downloaded < len(answer.content) / 10


def test_the_stream_of_an_unknown_job_is_a_404_not_an_empty_stream(api: Api) -> None:
    with api.stream("GET", "/api/v1/jobs/nobody/events") as answer:
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
        assert "nobody" in json.loads(answer.read())["detail"]


def test_a_reader_that_goes_away_is_forgotten(api: Api, job: str) -> None:
    send(api, job, 7)
    for _ in range(20):
        with stream(api, f"/jobs/{job}/events") as found:
            next(found)
    assert api.get("/readyz").status_code == 200
